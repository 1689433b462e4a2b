"""The mpirun command that starts a job over Horovod. Standard library only.

Reasons for each part (Open MPI 4.1 and 5.0, Horovod 0.28.1, MXNet 1.9.1):

-map-by ppr:4:socket -bind-to socket
    (A socket is a package in 5.0, which knows the old word, too; 4.1 does not know the new one.)
    Four ranks on each of a p3dn's two sockets. Without -bind-to, Open MPI ties two ranks or fewer to one core
    each, their data loading included.
-mca pml ob1 -mca btl ^openib,ofi,uct
    Plain TCP and shared memory for Horovod's coordination. The gradients of GPUs travel through NCCL. The
    option replaces the list of an installation, Debian's for one, which leaves out ofi and uct too: with ofi
    each rank listens at one more port.
-mca btl_tcp_if_exclude, NCCL_SOCKET_IFNAME
    docker0 has the same address on every host; a connection made to it hangs.
-mca odls_base_sigkill_timeout 30
    On a signal, mpirun sends SIGTERM to the ranks after so many seconds, and SIGKILL after as many again
    (default 1; measured with 4.1.4). 30 leave time for a step and a last checkpoint and fit into the two
    minutes' notice of a spot instance. The price: mpirun takes that minute to return from a failed run, too.
    5.0 has no such setting: SIGKILL comes half a second after the signal. There only SIGUSR1 saves, which
    both pass on to the ranks, as hosts/launch.py has it.
-mca oob_tcp_keepalive_time 10 -mca oob_tcp_keepalive_intvl 2 -mca oob_tcp_keepalive_probes 5
    A host that is cut off is noticed after 20 seconds (default 480), at both ends: mpirun names it and ends
    its processes, the daemon that was cut off ends those of its host. It is the kernel that answers, so a
    stopped or busy process is not taken for a lost host. But the kernel asks only where nothing is on its
    way: if a message was when the wire was cut, or a rank has ended meanwhile, as after a --comm_timeout
    below 20 seconds, of which mpirun and daemon have sent each other word, the sender waits for 15 minutes
    (measured with 4.1.4: for more than 150 seconds; with 5.0.7 for more than 60).
    hosts/launch.py ends them (hosts/supervise.py --silence).
    (5.0 takes -mca for MPI's own parameters only, and ignores these; for it they are variables, such as
    PRTE_MCA_oob_tcp_keepalive_time, or --prtemca, an unknown option in 4.1. hosts/launch.py has the latter.)
-x PATH -x LD_LIBRARY_PATH
    A remote shell may find another Python, or miss NCCL's network plug-in. (mpirun warns if one is not set.)
NCCL_DEBUG=WARN
    By default NCCL gives no reason when it fails.
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

With --network, the variables of hosts/networks.py, each with its reason in a comment above the command.

Left out on purpose: HOROVOD_CYCLE_TIME=30, which a public 256-GPU run of GluonNLP's BERT had: each of a
step's exchanges then waits for up to 30 ms (docs/notebook/communication.md; how many bytes are fused is for
the ranks: comm/horovod.py). HOROVOD_HIERARCHICAL_ALLREDUCE, which crosses hosts through host memory and MPI,
past NCCL and its network plug-ins (EFA). NCCL_MIN_NRINGS, which forces what NCCL has since learned to choose.
"""

from __future__ import annotations

import os
import re
from itertools import groupby
from typing import Mapping, Sequence

from base.errors import InputError, one_line
from hosts.networks import Network
from hosts.shell import Cluster, Job, assignments, command_text, texts

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
_UNBOUND = ["-map-by", "slot", "-bind-to", "none"]
# Seconds without traffic until the first probe, and between probes; so many without an answer end the job.
KEEPALIVE = {
    "oob_tcp_keepalive_time": "10",
    "oob_tcp_keepalive_intvl": "2",
    "oob_tcp_keepalive_probes": "5",
}


def command(job: Job, cluster: Cluster) -> str:
    """One shell command over several lines, below a line of comment.

    Args:
        job: what every rank runs.
        cluster: a host once, with all its slots (`read_hostfile`); one rank is started in every slot. Without
            an interface, ranks use any but loopback and Docker's.

    Raises:
        InputError: `cluster.sockets` do not divide the slots.
    """
    machine = cluster.machine
    ranks = sum(slots for _, slots in cluster.hosts)
    lines = [
        ["mpirun", "-np", str(ranks), "--hostfile", cluster.hostfile],
        *options_of_mpirun(
            cluster.hosts,
            cluster.sockets,
            cluster.interface,
            machine is not None and not machine.gpus,
            cluster.network,
        ),
        [cluster.python, job.script],
    ]
    first, *more = texts(lines)
    start = " ".join([*assignments(AS_ROOT if machine and machine.root else {}), first])
    reasons = cluster.network.comment() if cluster.network is not None else []
    header = "\n".join([job.header(), *(f"# {reason}" for reason in reasons)])
    return f"{header}\n{command_text([start, *more], texts(job.options))}"


def options_of_mpirun(
    hosts: Sequence[tuple[str, int]],
    sockets: int | None = None,
    interface: str | None = None,
    without_gpus: bool = False,
    network: Network | None = None,
) -> list[list[str]]:
    """Words between the host file and the ranks' program, in lines; see `settings_of_mpirun`. `network` adds
    its variables; its interface is `interface` already."""
    lines = settings_of_mpirun(hosts, sockets, interface, without_gpus)
    lines += [["-x", "PATH", "-x", "LD_LIBRARY_PATH"]] if len(hosts) > 1 else []
    environment = variables(hosts, interface, network)
    for _, names in groupby(environment, key=lambda name: name.partition("_")[0]):  # a line for each library
        lines.append([word for name in names for word in ("-x", f"{name}={environment[name]}")])
    return lines


def settings_of_mpirun(
    hosts: Sequence[tuple[str, int]],
    sockets: int | None,
    interface: str | None,
    without_gpus: bool,
    sigkill: int = 30,
) -> list[list[str]]:
    """Words of mpirun's about ranks, their cores and their network, but for the ranks' variables, in lines.

    Args:
        hosts: names and slots, from `read_hostfile`.
        sockets: CPU sockets of a host. None: two where a host has eight slots or more, else one.
        interface: the network interface between hosts. None: any but loopback and Docker's.
        without_gpus: no host has a GPU.
        sigkill: seconds for odls_base_sigkill_timeout.

    Raises:
        InputError: `sockets` do not divide the slots.
    """
    unbound = without_gpus and sockets is None
    several = len(hosts) > 1
    of_mpi = ["-mca", "btl_tcp_if_exclude", "lo,docker0"] if several else []
    if interface is not None:
        of_mpi = ["-mca", "btl_tcp_if_include", interface]
    return [
        ["--oversubscribe", *_UNBOUND] if unbound else _mapping(hosts, sockets),
        ["-mca", "mpi_yield_when_idle", "1"] if without_gpus else [],
        ["-mca", "pml", "ob1", "-mca", "btl", "^openib,ofi,uct", *of_mpi],
        ["-mca", "odls_base_sigkill_timeout", str(sigkill)],
        [word for name, value in KEEPALIVE.items() for word in ("-mca", name, value)] if several else [],
    ]


def version(program: str) -> int:
    """First number of the version of Open MPI whose mpirun `program` is.

    Raises:
        InputError: it does not run, or is another MPI's.
    """
    import subprocess  # hparams.py, which needs none of these, starts without them

    from base.processes import end_with_parent

    parent = os.getpid()
    try:
        # An interrupt that comes while Popen still starts the program leaves nobody who would end it.
        result = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            preexec_fn=lambda: end_with_parent(parent),
        )
        said = result.stdout.decode("utf-8", "replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{program} --version: {one_line(str(error))}") from None
    number = re.search(r"\(Open MPI\) (\d+)\.", said)
    if number is None:
        first = one_line(said.strip().partition("\n")[0]) or f"exit code {result.returncode}"
        raise InputError(
            f"{program}: is not Open MPI's ({first}), which Horovod is built with; put Open MPI's first on "
            "PATH, or name it to hosts/launch.py: --mpirun /usr/bin/mpirun.openmpi"
        )
    return int(number[1])


def interfaces(words: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Names of network interfaces to which words of mpirun, or else a variable, restrict MPI."""
    given = {name: value for flag, name, value in zip(words, words[1:], words[2:]) if flag.endswith("-mca")}
    value = given.get("btl_tcp_if_include", environ.get("OMPI_MCA_btl_tcp_if_include", ""))
    return [each for each in value.split(",") if each and "/" not in each]  # others are networks


def variables(
    hosts: Sequence[tuple[str, int]], interface: str | None = None, network: Network | None = None
) -> dict[str, str]:
    """Environment variables of every rank; for the arguments see `options_of_mpirun`."""
    several = len(hosts) > 1
    sockets = "^lo,docker" if interface is None and several else interface
    settings = network.settings() if network is not None else []
    settings.sort(key=lambda each: not each.name.startswith("NCCL"))  # a line for each library
    return {
        "NCCL_DEBUG": "WARN",
        **({"NCCL_SOCKET_IFNAME": sockets} if sockets is not None else {}),
        **{each.name: each.value for each in settings},
        "MXNET_SAFE_ACCUMULATION": "1",
        "MXNET_GPU_MEM_POOL_TYPE": "Round",
    }


def _mapping(hosts: Sequence[tuple[str, int]], sockets: int | None) -> list[str]:
    counts = {slots for _, slots in hosts}
    wanted = (2 if max(counts) >= 8 else 1) if sockets is None else sockets
    even = len(counts) == 1 and wanted >= 1 and max(counts) % wanted == 0
    if even:
        return ["-map-by", f"ppr:{max(counts) // wanted}:socket", "-bind-to", "socket"]
    if sockets is not None:
        raise InputError(f"--sockets {sockets}: does not divide the slots of every host into equal parts")
    # Uneven hosts: no number of ranks a socket is right on all of them.
    return _UNBOUND
