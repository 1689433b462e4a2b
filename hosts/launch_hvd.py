"""The mpirun command that starts one stage over Horovod. Standard library only.

What each part is for (Open MPI 4, Horovod 0.28.1, MXNet 1.9.1):

-map-by ppr:4:socket -bind-to socket
    Four ranks on each of a p3dn's two sockets. Without -bind-to, Open MPI ties two ranks or fewer to one core
    each, their data loading included.
-mca pml ob1 -mca btl ^openib
    Plain TCP and shared memory for Horovod's coordination. The gradients of GPUs travel through NCCL.
-mca btl_tcp_if_exclude, NCCL_SOCKET_IFNAME
    docker0 has the same address on every host; a connection made to it hangs.
-mca odls_base_sigkill_timeout 30
    Told to end, mpirun passes SIGTERM on after so many seconds, and SIGKILL after as many again (default 1;
    measured with 4.1.4). 30 leave time for a step and a last checkpoint and fit into the two minutes'
    notice of a spot instance. The price: mpirun takes that minute to return from a failed run, too.
-x PATH -x LD_LIBRARY_PATH
    A remote shell may find another Python, or miss NCCL's network plug-in. (mpirun warns if one is not set.)
NCCL_DEBUG=WARN
    By default NCCL gives no reason when it fails.
HOROVOD_FUSION_THRESHOLD, HOROVOD_CYCLE_TIME
    Gradients are collected into exchanges of up to 256 MiB (default 128) and, between hosts, for up to 30 ms
    (default 1): BERT-large has 400 of them, many too small to be sent alone. The two values are those of a
    public 256-GPU p3dn run of GluonNLP's BERT; they have not been measured here.
MXNET_SAFE_ACCUMULATION=1
    float16 sums, as in softmax, norms and LayerNorm, are accumulated in float32.
MXNET_GPU_MEM_POOL_TYPE=Round
    Length buckets ask for many nearly equal sizes of memory; rounded up, freed memory fits the next batch.

On this machine (a host file that names no other) the command is for it as it is:
OMPI_ALLOW_RUN_AS_ROOT, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
    For root; without them mpirun does not start anything.
--oversubscribe -map-by slot -bind-to none -mca mpi_yield_when_idle 1
    Without GPUs: there may be fewer cores than slots. base/threads.py divides the cores, and a rank that
    waits leaves its core to the others; by default Open MPI spins.
.venv/bin/python, where that is
    Nothing has to be activated first.
no --dtype
    The script takes float16 on GPUs and float32 without.

Left out on purpose: HOROVOD_HIERARCHICAL_ALLREDUCE, which crosses hosts through host memory and MPI, past
NCCL and its network plug-ins (EFA), and NCCL_MIN_NRINGS, which forces what NCCL has since learned to choose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from hosts.hostfile import HostsError
from hosts.script_args import comment, quote, script_lines
from hosts.this_machine import this_machine

if TYPE_CHECKING:
    from hparams import Stage

AS_ROOT = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "


def command(
    stage: Stage,
    hostfile: str,
    hosts: Sequence[tuple[str, int]],
    sockets: int | None = None,
    interface: str | None = None,
    script_args: Sequence[str] = (),
) -> str:
    """One shell command over several lines, below a line of comment.

    Args:
        stage: what to train.
        hostfile: its path, as mpirun shall read it.
        hosts: what it says, from `read_hostfile`; one rank is started in every slot.
        sockets: CPU sockets of a host. None: two where a host has eight slots or more, else one.
        interface: the network interface between hosts. None: any but loopback and Docker's.
        script_args: the user's own options of the training script; see `script_lines`.

    Raises:
        HostsError: `script_args` contradict the stage, or `sockets` do not divide the slots.
    """
    ranks = sum(slots for _, slots in hosts)
    here = this_machine(hosts)
    lines = [
        f"{AS_ROOT if here and here.root else ''}mpirun -np {ranks} --hostfile {quote(hostfile)}",
        *options_of_mpirun(hosts, sockets, interface, without_gpus=here is not None and not here.gpus),
        f"{here.python if here else 'python'} run_pretraining_hvd.py",
    ]
    lines += [f"    {line}" for line in script_lines(stage, script_args, any_dtype=here is not None)]
    body = " \\\n    ".join(lines)
    return f"{comment(stage)}\n{body}"


def options_of_mpirun(
    hosts: Sequence[tuple[str, int]],
    sockets: int | None = None,
    interface: str | None = None,
    without_gpus: bool = False,
) -> list[str]:
    """What stands between the host file and the ranks' program, a line each, as text for a shell.

    `without_gpus`: this is known of all hosts. For the other arguments and errors see `command`.
    """
    unbound = without_gpus and sockets is None
    return [
        "--oversubscribe -map-by slot -bind-to none" if unbound else _mapping(hosts, sockets),
        *(["-mca mpi_yield_when_idle 1"] if without_gpus else []),
        "-mca pml ob1 -mca btl ^openib" + _mpi_network(hosts, interface),
        "-mca odls_base_sigkill_timeout 30",
        *_environment(hosts, interface),
    ]


def _mapping(hosts: Sequence[tuple[str, int]], sockets: int | None) -> str:
    counts = {slots for _, slots in hosts}
    wanted = (2 if max(counts) >= 8 else 1) if sockets is None else sockets
    even = len(counts) == 1 and wanted >= 1 and max(counts) % wanted == 0
    if even:
        return f"-map-by ppr:{max(counts) // wanted}:socket -bind-to socket"
    if sockets is not None:
        raise HostsError(f"--sockets {sockets}: does not divide the slots of every host into equal parts")
    return "-map-by slot -bind-to none"  # uneven hosts: no number of ranks a socket is right on all of them


def _mpi_network(hosts: Sequence[tuple[str, int]], interface: str | None) -> str:
    if interface is not None:
        return f" -mca btl_tcp_if_include {quote(interface)}"
    return " -mca btl_tcp_if_exclude lo,docker0" if len(hosts) > 1 else ""


def _environment(hosts: Sequence[tuple[str, int]], interface: str | None) -> list[str]:
    nccl, horovod, lines = "-x NCCL_DEBUG=WARN", "-x HOROVOD_FUSION_THRESHOLD=268435456", []
    if interface is not None:
        nccl += f" -x NCCL_SOCKET_IFNAME={quote(interface)}"
    elif len(hosts) > 1:
        nccl += " -x NCCL_SOCKET_IFNAME=^lo,docker"
    if len(hosts) > 1:
        lines.append("-x PATH -x LD_LIBRARY_PATH")
        horovod += " -x HOROVOD_CYCLE_TIME=30"
    return [*lines, nccl, horovod, "-x MXNET_SAFE_ACCUMULATION=1 -x MXNET_GPU_MEM_POOL_TYPE=Round"]
