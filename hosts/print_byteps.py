"""The commands that start one stage over BytePS: with hosts/launch_byteps.py, or each part by hand with
BytePS's own bpslaunch. Standard library only.

What each variable is for (BytePS 0.2.5, MXNet 1.9.1):

DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT
    Where the scheduler is found. It also listens at just this address, which is therefore in numbers.
DMLC_INTERFACE, DMLC_NODE_HOST
    The address that a process announces to the others. Without either ps-lite takes the first interface that
    is not loopback, which may be docker0.
NVIDIA_VISIBLE_DEVICES
    bpslaunch starts a rank for each number in it, also where there is no GPU.
BYTEPS_NUMA_ON=0
    Otherwise bpslaunch ties ranks to cores by a rule of its own, and ends in an IndexError where the rule has
    too few of them (docs/byteps.md). base/threads.py divides the cores.
RANKS_ON_HOST
    Where a host has several workers, the ranks of all of them: they share its cores (base/threads.py).
NCCL_DEBUG=WARN
    By default NCCL gives no reason when it fails.
MXNET_SAFE_ACCUMULATION=1, MXNET_GPU_MEM_POOL_TYPE=Round
    See hosts/launch_hvd.py.

bpslaunch hands its command to a second shell: what a word means to a shell is quoted for two of them.

On this machine (a host file that names no other) .venv/bin is used where it is, and --dtype is left to the
script: float16 on GPUs, float32 without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from hosts.addresses import LOOPBACK, bare, is_address, is_loopback
from hosts.hostfile import HostsError
from hosts.parts import DEFAULT_PORT, check_workers, choose_num_servers
from hosts.script_args import comment, needs_data, quote, script_lines
from hosts.this_machine import VENV, this_machine

if TYPE_CHECKING:
    from hparams import Stage

VARIABLES = ("NCCL_DEBUG=WARN", "MXNET_SAFE_ACCUMULATION=1", "MXNET_GPU_MEM_POOL_TYPE=Round")
SCRIPT = "run_pretraining_byteps.py"
NEXT, DEEPER = " \\\n    ", " \\\n        "
DATA_IN_SECOND_SHELL = "'\"$DATA\"'"


def command(
    stage: Stage,
    hostfile: str,
    workers: Sequence[tuple[str, int]],
    sockets: int | None = None,
    interface: str | None = None,
    script_args: Sequence[str] = (),
) -> str:
    """Blocks of shell text, each below a line of comment: the command that does all, then one for each role.

    Args:
        stage: what to train.
        hostfile: its path, as launch_byteps.py shall read it.
        workers: what it says, line by line (`read_host_lines`): a worker each, with as many ranks as slots.
        sockets: is refused; BytePS has no use for it.
        interface: the network interface between hosts. None: launch_byteps.py takes that of their addresses;
            by hand it has to be named.
        script_args: the user's own options of the training script; see `script_lines`.

    Raises:
        HostsError: `script_args` contradict the stage, the workers differ in their slots, or `sockets`.
    """
    if sockets is not None:
        raise HostsError(f"--sockets {sockets}: goes with --launch hvd; BytePS ties no ranks to sockets")
    check_workers(workers, hostfile)
    options = [f"--hostfile {quote(hostfile)}"]
    options += [f"--interface {quote(interface)}"] if interface is not None and len(workers) > 1 else []
    here = this_machine(workers)
    python = here.python if here else "python"
    easy = [f"{python} hosts/launch_byteps.py {' '.join(options)}"]
    easy += [" ".join(f"--env {variable}" for variable in VARIABLES), f"-- {python} {SCRIPT}"]
    script = script_lines(stage, script_args, any_dtype=here is not None)
    lines = [comment(stage), NEXT.join(easy) + DEEPER + DEEPER.join(script)]
    return "\n".join([*lines, "", *_by_hand(stage, workers, interface, script_args)])


def _by_hand(
    stage: Stage, workers: Sequence[tuple[str, int]], interface: str | None, own: Sequence[str]
) -> list[str]:
    here = this_machine(workers)
    shared = [f"DMLC_NUM_WORKER={len(workers)}"]
    hosts = list(dict.fromkeys(host for host, _ in workers))
    roles = []
    if len(workers) > 1:
        servers = choose_num_servers(None, workers, distributed=True)
        shared += [f"DMLC_NUM_SERVER={servers}", f"DMLC_PS_ROOT_URI={_root(hosts[0])}"]
        shared += [f"DMLC_PS_ROOT_PORT={DEFAULT_PORT}", _node(hosts, interface)]
        roles = [f"# the scheduler, on {hosts[0]}", "DMLC_ROLE=scheduler bpslaunch"]
        roles += [f"# the servers: one on {_each(hosts)}", "DMLC_ROLE=server bpslaunch"]
    data = ['DATA="${DATA:?set it to your text files, for example /corpus/*.txt}"'] if needs_data(own) else []
    data += [f'PATH="$PWD/{VENV}:$PATH"'] if here and here.venv else []
    exports = NEXT.join([f"export {shared[0]}", *shared[1:], " ".join(VARIABLES), *data])
    numbers = ", ".join(f"{number} on {host}" for number, (host, _) in enumerate(workers))
    number = "0" if len(workers) == 1 else f'"${{DMLC_WORKER_ID:?{numbers}}}"'
    devices = ",".join(map(str, range(workers[0][1])))
    worker = [f"DMLC_ROLE=worker DMLC_WORKER_ID={number}"]
    worker += [*_ranks_on_host(workers), f"BYTEPS_NUMA_ON=0 NVIDIA_VISIBLE_DEVICES={devices}"]
    worker += [f"bpslaunch python {SCRIPT}"]
    quoted = (lambda word: quote(quote(word)), DATA_IN_SECOND_SHELL)
    options = script_lines(stage, own, *quoted, any_dtype=here is not None)
    return [
        f"# stage {stage.stage} by hand instead: first, in every shell",
        exports,
        *roles,
        f"# the worker, on {hosts[0]}"
        if len(workers) == 1
        else f"# a worker each: DMLC_WORKER_ID is {numbers}",
        NEXT.join(worker) + DEEPER + DEEPER.join(options),
    ]


def _ranks_on_host(workers: Sequence[tuple[str, int]]) -> list[str]:
    """Nothing where each host has one worker."""
    ranks: dict[str, int] = {}
    for host, slots in workers:
        ranks[host] = ranks.get(host, 0) + slots
    if len(ranks) == len(workers):
        return []
    if len(set(ranks.values())) == 1:
        return [f"RANKS_ON_HOST={next(iter(ranks.values()))}"]
    numbers = ", ".join(f"{count} on {host}" for host, count in ranks.items())
    return [f'RANKS_ON_HOST="${{RANKS_ON_HOST:?{numbers}}}"']


def _root(host: str) -> str:
    if is_loopback(host):
        return LOOPBACK
    if is_address(bare(host)):
        return bare(host)
    return f'"${{DMLC_PS_ROOT_URI:?the address of {bare(host)}, in numbers}}"'


def _node(hosts: Sequence[str], interface: str | None) -> str:
    if interface is not None:
        return f"DMLC_INTERFACE={quote(interface)}"
    if all(map(is_loopback, hosts)):
        return f"DMLC_NODE_HOST={LOOPBACK}"
    return 'DMLC_INTERFACE="${DMLC_INTERFACE:?the network interface between the hosts, for example ens5}"'


def _each(hosts: Sequence[str]) -> str:
    return hosts[0] if len(hosts) == 1 else f"each of {', '.join(hosts)}"
