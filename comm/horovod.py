"""`comm.base.Communicator` over horovod.mxnet 0.28 (MPI, Gloo, NCCL).

What `hvd.allreduce_` leaves behind (read in Horovod's source): `op=Sum` the sum and `op=Average` the mean, in
all builds for CPUs and NVIDIA GPUs. MPI, Gloo and NCCL before 2.10 sum first and then multiply by 1/size;
NCCL from 2.10 on uses ncclAvg. Summing first overflows in float16 where the mean would not (two ranks with
40000), so float16 is scaled by 1/size before the sum, in every build. The multiplication is a pass over the
memory; gradients are left as sums (`scaled_average`), and the optimizer, which multiplies anyway, divides.

Arrays are sent one by one, so that each can travel while the backward pass still makes the next; on CPUs
small gradients share an array (`together`). Horovod fuses those that are ready at the same time, which
depends on timing, and so does the order of summation of more than two ranks. On CPUs fusion is off
(HOROVOD_FUSION_THRESHOLD=0, unless the user sets it), so that a repeated run gives the same bits, and two
ranks over Open MPI exchange large arrays by its ring in segments (`choose_allreduce`).
docs/notebook/communication.md has the times of both. HOROVOD_DISABLE_GROUP_FUSION is not used: under it a
rank once filled the machine's memory instead of shutting down.

`hvd.broadcast_` is not used. It passes the tensor to Horovod's background thread and then still reads the
tensor's name for a log message; if the thread was quicker, MXNet has freed the name by then, and the rank
crashes (EnqueueTensorBroadcast in horovod/common/operations.cc; it happened on a busy machine). `allreduce_`
reads names before, and the sum of one rank's bits and the others' zeros is a broadcast (comm.bits).
"""

from __future__ import annotations

import importlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, MutableMapping, Sequence

from base.errors import InputError, not_loaded
from base.launchers import announced_sizes
from comm.base import (
    AVERAGE_DTYPES,
    BROADCAST_DTYPES,
    CommunicationError,
    Pending,
    Unwatched,
    check_arrays,
    check_groups,
    check_root,
)
from comm.bits import bits_of
from comm.buckets import BUCKET_BYTES

if TYPE_CHECKING:
    from mxnet.nd import NDArray


RULES = Path(__file__).with_name("open_mpi_allreduce.rules")
_TUNED = "OMPI_MCA_coll_tuned_"  # parameters of Open MPI's choice, as variables
# Bytes (Horovod's default: 128 MiB): that of a public 256-GPU p3dn run of GluonNLP's BERT, not measured here.
FUSED_ON_GPUS = 256 << 20


class _Collectives(Unwatched):
    """Collectives over one of Horovod's process sets: the run, or a group of its ranks. `rank` of `size`:
    this process there."""

    name = "horovod"
    _where = ""  # for messages

    def __init__(self, hvd: Any, process_set: Any, rank: int, size: int) -> None:
        self._hvd = hvd
        self._process_set = process_set
        self._mx: Any = importlib.import_module("mxnet")
        self.rank, self.size = rank, size
        self._latest: dict[str, NDArray] = {}

    def broadcast(self, arrays: Sequence[NDArray], root: int = 0) -> None:
        check_root(root, self.size)
        check_arrays(arrays, BROADCAST_DTYPES)
        if self.size == 1:
            return
        bits = bits_of([[array] for array in arrays])
        for index, each in enumerate(bits):
            if self.rank != root:
                each.clear()
            name = _name("broadcast", index, each.sum)
            self._sum(each.sum, name=name, op=self._hvd.Sum, priority=-index)
        for each in bits:
            self._wait(each.sum)
            each.write_back()

    def average(self, arrays: Sequence[NDArray]) -> None:
        check_arrays(arrays, AVERAGE_DTYPES)
        self._queue("average", arrays, self._hvd.Average)

    def scaled_average(self, arrays: Sequence[NDArray]) -> float:
        check_arrays(arrays, AVERAGE_DTYPES)
        if any(array.dtype.__name__ == "float16" for array in arrays):
            self._queue("average", arrays, self._hvd.Average)
            return 1.0
        self._queue("sum", arrays, self._hvd.Sum)
        return float(self.size)

    def _queue(self, operation: str, arrays: Sequence[NDArray], op: Any) -> None:
        if self.size == 1:
            return
        # The backward pass makes the last first.
        for index in range(len(arrays) - 1, -1, -1):
            array = arrays[index]
            name = _name(operation, index, array)
            # Horovod rejects a name that is still in use. The same array under the same name waits in MXNet's
            # queue; a different one must not be queued before the earlier one has its mean.
            earlier = self._latest.get(name, array)
            if earlier is not array:
                self._wait(earlier)
            self._latest[name] = array
            half = array.dtype.__name__ == "float16"
            self._sum(
                array,
                name=name,
                op=self._hvd.Sum if half else op,
                prescale_factor=1.0 / self.size if half else 1.0,
                priority=-index,  # the engine prefers the highest: what the next step needs first
            )

    def all_agree(self, flags: Sequence[bool]) -> list[bool]:
        if self.size == 1 or not flags:
            return [bool(flag) for flag in flags]
        # On the CPU also in a run on GPUs: Horovod takes such arrays through MPI or Gloo, and the GPU's queue
        # of work is not waited for.
        votes = self._mx.nd.array([int(bool(flag)) for flag in flags], ctx=self._mx.cpu(), dtype="int32")
        self._sum(votes, name=f"all_agree.{len(flags)}", op=self._hvd.Min)
        self._wait(votes)
        return [vote == 1 for vote in votes.asnumpy().tolist()]

    def barrier(self) -> None:
        self.all_agree([True])

    def _sum(self, array: NDArray, **settings: Any) -> None:
        self._hvd.allreduce_(array, process_set=self._process_set, **settings)

    def _wait(self, array: NDArray) -> None:
        try:
            array.wait_to_read()
        except self._mx.base.MXNetError as error:
            reason = str(error).strip().splitlines()[-1]
            raise CommunicationError(
                f"rank {self.rank}{self._where} lost the other ranks: {reason}"
            ) from error


class HorovodCommunicator(_Collectives):
    """Joins the run that mpirun or horovodrun has started; started without a launcher it is a run of one
    process.

    Args:
        divisible: whether `groups`, `send` and `receive` are wanted. Horovod must know that when it begins
            (its process sets cost every exchange a little), and it must run over MPI then.

    Raises InputError when Horovod is not installed for MXNet, or was built without the launcher's library
    (each process would then train alone, unnoticed); where it is to be divisible and cannot be.
    """

    def __init__(self, divisible: bool = False) -> None:
        try:
            hvd: Any = importlib.import_module("horovod.mxnet")
        except (ImportError, OSError) as error:
            raise not_loaded("Horovod for MXNet", error) from error
        gpus = importlib.import_module("mxnet").context.num_gpus()
        os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", str(FUSED_ON_GPUS if gpus else 0))
        if not gpus:
            choose_allreduce(os.environ)
            # Else a large message over TCP is one piece, and the other direction's waits for its end: a ring
            # takes twice its time (docs/comparison.md).
            os.environ.setdefault("OMPI_MCA_btl_tcp_flags", "1")
            self.together = BUCKET_BYTES
        _check_interfaces(os.environ)
        leave_tcp_out(os.environ)
        if divisible:
            os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"
        try:
            hvd.init()
        except ValueError as error:
            raise CommunicationError(f"Horovod could not start: {error}") from error
        # Asking Horovod after its shutdown fails, so the answers are kept.
        super().__init__(hvd, hvd.global_process_set, hvd.rank(), hvd.size())
        self.local_rank: int = hvd.local_rank()
        self.local_size: int = hvd.local_size()
        self._groups: list[HorovodGroup] = []
        self._sets: dict[tuple[int, ...], Any] = {tuple(range(self.size)): hvd.global_process_set}
        self._messages: Any = None
        self._open = True
        for variable, announced in announced_sizes(os.environ).items():
            if announced != self.size:
                raise InputError(
                    f"the launcher started {announced} processes ({variable}) but Horovod joined "
                    f"{self.size}: it was built without this launcher's library, or uses another; see "
                    "`horovodrun --check-build`, and whose `mpirun --version` is: Horovod is built with Open "
                    "MPI"
                )
        if divisible:
            from comm.mpi import Messages

            self._messages = Messages()

    def groups(self, groups: Sequence[Sequence[int]]) -> HorovodGroup:
        check_groups(groups, self.size)
        self._check_divisible()
        for ranks in groups:
            members, ordered = list(ranks), tuple(sorted(ranks))
            if len(members) > 1 and ordered not in self._sets:  # every rank joins in making one
                self._sets[ordered] = self._hvd.add_process_set(list(ordered))
            if self.rank in members:
                self._groups.append(HorovodGroup(self, self._sets.get(ordered), members))
        return self._groups[-1]

    def send(self, array: NDArray, to: int, tag: int) -> Pending:
        self._check_divisible()
        return self._messages.send(array, to, tag)

    def receive(self, array: NDArray, source: int, tag: int) -> Pending:
        self._check_divisible()
        return self._messages.receive(array, source, tag)

    def forget(self) -> None:
        for each in (self, *self._groups):
            for array in each._latest.values():
                each._wait(array)
            each._latest.clear()

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self.forget()
        if self._messages is not None:
            # A rank that leaves while others still exchange within their groups, or use MPI themselves, takes
            # them down: with the first one Horovod ends MPI on all.
            self._messages.close()
            self.barrier()
        self._hvd.shutdown()

    def _check_divisible(self) -> None:
        if self._messages is None:
            raise ValueError("a communicator without groups and messages: it was made with divisible=False")


class HorovodGroup(_Collectives):
    """`comm.base.Communicator` of a group of the run's ranks, `members`, which Horovod has in ascending
    order."""

    def __init__(self, run: HorovodCommunicator, process_set: Any, members: list[int]) -> None:
        super().__init__(run._hvd, process_set, members.index(run.rank), len(members))
        self._where = f" of the group {members}"
        self.local_rank, self.local_size = run.local_rank, run.local_size

    def groups(self, groups: Sequence[Sequence[int]]) -> HorovodGroup:
        raise ValueError("a group has no groups")

    def send(self, array: NDArray, to: int, tag: int) -> Pending:
        raise ValueError("messages are between ranks of the run")

    def receive(self, array: NDArray, source: int, tag: int) -> Pending:
        raise ValueError("messages are between ranks of the run")

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass


def choose_allreduce(environ: MutableMapping[str, str]) -> None:
    """Has Open MPI, which is yet to start, follow `RULES`, unless the user has made a choice of his own."""
    if not any(name.startswith(_TUNED) for name in environ):
        environ[_TUNED + "use_dynamic_rules"] = "1"
        environ[_TUNED + "dynamic_rules_filename"] = str(RULES)


def leave_tcp_out(environ: MutableMapping[str, str]) -> None:
    """Has Open MPI, which is yet to start, open no ports for ranks of one host, which share memory, unless
    the user has listed transports. (Open MPI 5 also complains there of interfaces that it cannot pair.)"""
    size = environ.get("OMPI_COMM_WORLD_SIZE")
    left_out = environ.get("OMPI_MCA_btl") or "^openib,ofi,uct"  # Debian's own list, which this one replaces
    if size and size == environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") and left_out.startswith("^"):
        environ["OMPI_MCA_btl"] = "^" + ",".join(["tcp", *filter(None, left_out[1:].split(","))])


def _check_interfaces(environ: Mapping[str, str]) -> None:
    """Raises InputError for a network interface that this host lacks: Open MPI would go on without it."""
    named, there = environ.get("OMPI_MCA_btl_tcp_if_include", ""), [name for _, name in socket.if_nameindex()]
    for each in filter(None, named.split(",")):
        if "/" not in each and each not in there:
            raise InputError(
                f"btl_tcp_if_include {named}: {socket.gethostname()} has no network interface {each}, only "
                f"{', '.join(there)}; name one that all hosts have"
            )


def _name(operation: str, index: int, array: NDArray) -> str:
    # Stable from step to step: Horovod's response cache then answers without a negotiation. The sizes keep
    # calls with other arrays (an evaluation's sums) from invalidating the entries of the gradients.
    return f"{operation}.{index}.{array.dtype.__name__}.{array.size}"
