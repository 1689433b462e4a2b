"""The commands that start a job over BytePS: with hosts/launch.py, or each part by hand with BytePS's
own bpslaunch. Standard library only.

Reasons for each variable (BytePS 0.2.5, MXNet 1.9.1):

DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT
    The scheduler's address, at which it also listens, and which is therefore in numbers.
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
    See hosts/mpirun.py.

bpslaunch passes its command to a second shell: words are quoted for two of them.

On this machine (a host file that names no other) .venv/bin is used where it is, and --dtype is left to the
script: float16 on GPUs, float32 without.
"""

from __future__ import annotations

from base.errors import InputError
from hosts.addresses import LOOPBACK, bare, is_address, is_loopback
from hosts.hostfile import merged
from hosts.launching.parts import DEFAULT_PORT, check_workers, choose_num_servers
from hosts.shell import (
    NEXT,
    VENV,
    Cluster,
    Job,
    Required,
    Word,
    assignments,
    command_text,
    text_for_two_shells,
    texts,
)

VARIABLES = {"NCCL_DEBUG": "WARN", "MXNET_SAFE_ACCUMULATION": "1", "MXNET_GPU_MEM_POOL_TYPE": "Round"}


def command(job: Job, cluster: Cluster) -> str:
    """Blocks of shell text, each below a line of comment: one command for everything, then one for each role.

    Args:
        job: what every rank runs.
        cluster: a worker for each line of the host file (`read_host_lines`), with as many ranks as slots.
            Without an interface, launch.py takes that of the hosts' addresses; by hand it has to be
            named.

    Raises:
        InputError: the workers differ in their slots, or `cluster.sockets` is given: BytePS does not use it.
    """
    if cluster.sockets is not None:
        raise InputError(
            f"--sockets {cluster.sockets}: goes with --launch hvd; BytePS ties no ranks to sockets"
        )
    check_workers(cluster.hosts, cluster.hostfile)
    interface = [] if cluster.interface is None else ["--interface", cluster.interface]
    lines = [
        [cluster.python, "hosts/launch.py", "--backend", "byteps", "--hostfile", cluster.hostfile],
        [word for name, value in VARIABLES.items() for word in ("--env", f"{name}={value}")],
        ["--", cluster.python, job.script],
    ]
    lines[0] += interface if len(cluster.hosts) > 1 else []
    launched = command_text(texts(lines), texts(job.options))
    return "\n".join([job.header(), launched, "", *_by_hand(job, cluster)])


def _by_hand(job: Job, cluster: Cluster) -> list[str]:
    """A block of text for the variables of every shell, and one for each role."""
    workers, ranks = cluster.hosts, dict(merged(cluster.hosts))
    hosts = list(ranks)
    shared: dict[str, Word] = {"DMLC_NUM_WORKER": str(len(workers))}
    roles = []
    if len(workers) > 1:
        shared["DMLC_NUM_SERVER"] = str(choose_num_servers(None, workers, distributed=True))
        root, known = bare(hosts[0]), is_address(bare(hosts[0]))
        missing = Required("DMLC_PS_ROOT_URI", f"the address of {root}, in numbers")
        shared["DMLC_PS_ROOT_URI"] = LOOPBACK if is_loopback(hosts[0]) else root if known else missing
        shared["DMLC_PS_ROOT_PORT"] = str(DEFAULT_PORT)
        # By one of these a process knows the address that it announces.
        if cluster.interface is None and all(map(is_loopback, hosts)):
            shared["DMLC_NODE_HOST"] = LOOPBACK
        else:
            missing = Required("DMLC_INTERFACE", "the network interface between the hosts, for example ens5")
            shared["DMLC_INTERFACE"] = cluster.interface or missing
        each = hosts[0] if len(hosts) == 1 else f"each of {', '.join(hosts)}"
        roles = [f"# the scheduler, on {hosts[0]}", "DMLC_ROLE=scheduler bpslaunch"]
        roles += [f"# the servers: one on {each}", "DMLC_ROLE=server bpslaunch"]
    required = {word.variable: word for line in job.options for word in line if isinstance(word, Required)}
    exports = [*assignments(shared), " ".join(assignments(VARIABLES)), *assignments(required)]
    exports += [f'PATH="$PWD/{VENV}:$PATH"'] if cluster.machine and cluster.machine.venv else []

    numbers = ", ".join(f"{number} on {host}" for number, (host, _) in enumerate(workers))
    number = "0" if len(workers) == 1 else Required("DMLC_WORKER_ID", numbers)
    environment: list[dict[str, Word]] = [{"DMLC_ROLE": "worker", "DMLC_WORKER_ID": number}]
    if len(hosts) < len(workers):
        counts = ", ".join(f"{count} on {host}" for host, count in ranks.items())
        same = len(set(ranks.values())) == 1
        on_host = str(ranks[hosts[0]]) if same else Required("RANKS_ON_HOST", counts)
        environment.append({"RANKS_ON_HOST": on_host})
    devices = ",".join(map(str, range(workers[0][1])))
    environment.append({"BYTEPS_NUMA_ON": "0", "NVIDIA_VISIBLE_DEVICES": devices})
    worker = [" ".join(assignments(line)) for line in environment] + [f"bpslaunch python {job.script}"]
    alone = f"# the worker, on {hosts[0]}"
    return [
        f"# {job.title} by hand instead: first, in every shell",
        f"export {NEXT.join(exports)}",
        *roles,
        alone if len(workers) == 1 else f"# a worker each: DMLC_WORKER_ID is {numbers}",
        command_text(worker, texts(job.options, text_for_two_shells)),
    ]
