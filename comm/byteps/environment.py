"""Variables that give a process its place in a BytePS run, checked before BytePS reads them: it answers a
missing or wrong one with an abort, or by waiting for ever. Standard library only."""

from __future__ import annotations

from typing import Mapping, MutableMapping, NamedTuple

from base.errors import InputError
from base.launchers import is_loopback, is_number
from comm.numbering import Servers

_SCHEDULER = ("DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
_ALONE = {  # the place of a process without others
    "DMLC_ROLE": "worker",
    "DMLC_NUM_WORKER": "1",
    "DMLC_WORKER_ID": "0",
    "BYTEPS_LOCAL_RANK": "0",
    "BYTEPS_LOCAL_SIZE": "1",
}
_HOW = "start the script with hosts/launch.py, or with bpslaunch and the DMLC_* variables"


class Place(NamedTuple):
    """A process's place in a run. `distributed`: there are servers, and a scheduler."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    distributed: bool


def complete_environment(environ: MutableMapping[str, str]) -> None:
    """Adds the variables that BytePS needs and whose values follow from the others.

    Without any of its variables the process is a run of its own, as with Horovod. A worker whose scheduler is
    on the loopback interface gets its own address there too (by itself ps-lite takes the first other
    interface, and fails where there is none). PORT goes: ps-lite would bind every process of a host to it.
    """
    environ.pop("PORT", None)
    if not any(name in environ for name in (*_ALONE, *_SCHEDULER)):
        environ.update(_ALONE)
    if is_loopback(environ.get("DMLC_PS_ROOT_URI", "")) and "DMLC_INTERFACE" not in environ:
        environ.setdefault("DMLC_NODE_HOST", "127.0.0.1")


def read_place(environ: Mapping[str, str]) -> Place:
    """The place that the variables give this process.

    Raises InputError, naming the variable, for one that is missing, malformed or contradicts another.
    """
    role = environ.get("DMLC_ROLE", "")
    if role != "worker":
        raise InputError(
            f"DMLC_ROLE={role}: this script is a worker's; servers and the scheduler run bpslaunch alone"
            if role
            else f"DMLC_ROLE is not set, though other variables of BytePS are: {_HOW}"
        )
    worker, workers = _index(environ, "DMLC_WORKER_ID", "DMLC_NUM_WORKER")
    local_rank, local_size = _index(environ, "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE")
    rank = worker * local_size + local_rank
    if environ.get("BYTEPS_GLOBAL_RANK", str(rank)) != str(rank):
        raise InputError(
            f"BYTEPS_GLOBAL_RANK={environ['BYTEPS_GLOBAL_RANK']} contradicts DMLC_WORKER_ID={worker} and "
            f"BYTEPS_LOCAL_RANK={local_rank}, which make rank {rank}; unset it"
        )
    if environ.get("BYTEPS_ENABLE_ASYNC", "0") != "0":
        raise InputError(
            "BYTEPS_ENABLE_ASYNC: asynchronous training leaves no mean to clip and apply; unset it"
        )
    distributed = workers > 1 or environ.get("BYTEPS_FORCE_DISTRIBUTED", "0") != "0"
    if distributed:
        _number(environ, "DMLC_NUM_SERVER", least=1)
        port = _number(environ, "DMLC_PS_ROOT_PORT", least=1)
        if not environ.get("DMLC_PS_ROOT_URI"):
            raise InputError(f"DMLC_PS_ROOT_URI is not set: it is the scheduler's address; {_HOW}")
        if port > 65535:
            raise InputError(f"DMLC_PS_ROOT_PORT={port}: a port is at most 65535")
    return Place(rank, workers * local_size, local_rank, local_size, distributed)


def read_servers(environ: Mapping[str, str], place: Place) -> Servers | None:
    """Servers of this run; None without any, or where a variable chooses another hash."""
    if not place.distributed or environ.get("BYTEPS_KEY_HASH_FN", "djb2") != "djb2":
        return None
    workers, servers = place.size // place.local_size, int(environ["DMLC_NUM_SERVER"])
    unit = 4096 * place.local_size
    partition_bytes = -(-_number(environ, "BYTEPS_PARTITION_BYTES", least=1) // unit) * unit
    if environ.get("BYTEPS_ENABLE_MIXED_MODE", "0") == "0":
        return Servers(workers, servers, 0, partition_bytes)
    if "BYTEPS_MIXED_MODE_BOUND" in environ or servers <= workers or workers < 2:
        return None
    return Servers(workers, servers - workers, workers, partition_bytes)


def _index(environ: Mapping[str, str], name: str, of: str) -> tuple[int, int]:
    """The number in a variable, and that in the variable `of`, which is greater."""
    count, index = _number(environ, of, least=1), _number(environ, name, least=0)
    if index >= count:
        raise InputError(f"{name}={index}: with {of}={count} it is 0 to {count - 1}")
    return index, count


def _number(environ: Mapping[str, str], name: str, least: int) -> int:
    text = environ.get(name)
    if text is None:
        raise InputError(f"{name} is not set: {_HOW}")
    if not is_number(text.strip()) or int(text) < least:
        raise InputError(f"{name}={text}: it must be a whole number, {least} or more")
    return int(text)
