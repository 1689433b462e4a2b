"""One pod's part of a run on Kubernetes, in the containers that hosts/kubernetes.py describes.

    python -m hosts.pod hvd worker --keys DIR
    python -m hosts.pod hvd launcher --keys DIR -- python run_pretraining_hvd.py OPTIONS...
    python -m hosts.pod byteps scheduler --workers 2 --servers 2 --slots 8 --scheduler NAME --secret FILE
    python -m hosts.pod byteps server ...
    python -m hosts.pod byteps worker ... -- SCRIPT OPTIONS...

SIGTERM, by which Kubernetes announces that a pod will be removed, makes all ranks of the run save a
checkpoint and end, whichever pod receives it. Exit codes: 0 complete, 2 bad input, 75 and 143 saved and to be
run again, others a failure.

hvd: a worker runs an ssh server for the pod's user (hosts/batch/ssh.py) and waits; mpirun's daemon and the
ranks come through it. The launcher waits until the ssh server of each pod in the operator's host file
answers, and is hosts/launch.py then, with its restarts, signals and exit codes. Bad input is noted in
--notes: a container that Kubernetes starts again then ends with the same line at once. DIR has the run's key,
as Kubeflow's MPI operator mounts it.

byteps: the index of a server or worker is JOB_COMPLETION_INDEX, which an Indexed Job sets; it becomes
DMLC_WORKER_ID. POD_IP is the pod's own address, which BytePS announces. The pod waits until all others have
come (hosts/batch/gathering.py; they know each other by the secret in a file), starts its processes, a worker
all of its local ranks, and ends with the exit code of the whole run.

Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Callable, Mapping, Sequence

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from base.command_line import CommandParser, path_name, split_at_dashes, whole
from base.command_line import seconds as limited
from base.errors import InputError, one_line
from base.files import replacing
from base.launchers import BYTEPS, HVD, is_number
from base.processes import running
from hosts import launch
from hosts.addresses import is_address
from hosts.batch.gathering import LEAVING, SCHEDULER, SERVER, WORKER, Coordinator, Member, Shape, read_secret
from hosts.batch.ssh import client_command, private_keys, server_command, wait_for
from hosts.hostfile import read_hostfile
from hosts.launching.output import Output, Screen
from hosts.launching.parts import DEFAULT_PORT, Access, Part, Rendezvous, check_command, plan_parts
from hosts.launching.running import Limits, Run
from hosts.launching.signals import FORWARDED, Signals, code_of

LAUNCHER = "launcher"
ROLES = {HVD: (LAUNCHER, WORKER), BYTEPS: (SCHEDULER, SERVER, WORKER)}
NEEDED = {HVD: ("keys",), BYTEPS: ("workers", "slots")}
PORTS = {HVD: 2222, BYTEPS: DEFAULT_PORT}
HOSTFILE = "OMPI_MCA_orte_default_hostfile"  # where the operator says that the host file is
# Of the operator's variables: hosts/launch.py gives mpirun hosts, slots and remote shell itself.
REPLACED = (HOSTFILE, "OMPI_MCA_orte_set_default_slots", "OMPI_MCA_plm_rsh_args")
# In a container one process may not read another's memory, which Open MPI 4, and 5, try first.
MPIRUN = "mpirun -mca btl_vader_single_copy_mechanism none -mca smsc ^cma"
INDEX, ADDRESS = "JOB_COMPLETION_INDEX", "POD_IP"
RANK = "OMPI_COMM_WORLD_RANK"
BAD_INPUT = 2  # exit code
FINISH = 10.0  # seconds for a slow reader to take the last lines
STEP = 0.5  # seconds between looks at what is waited for


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "pod",
        prog="python -m hosts.pod",
        usage="%(prog)s {hvd,byteps} {launcher,scheduler,server,worker} [options] [-- SCRIPT OPTIONS...]",
        description=__doc__,
    )
    parser.add_argument("backend", choices=tuple(ROLES))
    parser.add_argument("role", choices=(LAUNCHER, WORKER, SCHEDULER, SERVER))
    port = whole(1, 65535, "the last port")
    text = (
        "of the pods' ssh servers (default 2222: below 1024 only root may listen), or of BytePS's scheduler "
        f"(default {DEFAULT_PORT})"
    )
    parser.add_argument("--port", type=port, metavar="PORT", help=text)
    text = (
        "wait so long for the other pods (default 600). Rule of thumb: what the cluster takes to add a node"
    )
    parser.add_argument("--patience", type=limited, default=600.0, metavar="SECONDS", help=text)
    text = "how long ranks may take to save and end after a signal (default 90)"
    parser.add_argument("--grace", type=limited, default=90.0, metavar="SECONDS", help=text)
    group = parser.add_argument_group("hvd")
    text = "folder with the run's key (sshAuthMountPath)"
    group.add_argument("--keys", type=path_name, metavar="DIR", help=text)
    text = "launcher: folder that outlives its container (default: none; bad input is not noted)"
    group.add_argument("--notes", type=path_name, metavar="DIR", help=text)
    group.add_argument("--network", metavar="KIND", help="launcher: see hosts/launch.py")
    group = parser.add_argument_group("byteps")
    number = whole(1, 100_000, "no cluster is so large")
    group.add_argument("--workers", type=number, metavar="N", help="pods with ranks")
    group.add_argument("--slots", type=number, metavar="N", help="ranks of each of them")
    servers = whole(0, 4096, "BytePS's largest networks have hundreds")
    group.add_argument("--servers", type=servers, default=0, metavar="N", help="pods with a server")
    text = "name of the scheduler's pod; none for a single worker, which needs neither it nor servers"
    group.add_argument("--scheduler", metavar="NAME", help=text)
    text = "file with the run's secret, 32 bytes or more, the same for all of its pods"
    group.add_argument("--secret", type=path_name, metavar="FILE", help=text)
    text = f"at which the pods gather, in the scheduler's pod (default {DEFAULT_PORT + 1})"
    group.add_argument("--gathering_port", type=port, default=DEFAULT_PORT + 1, metavar="PORT", help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (2 on bad input)."""
    words, command = split_at_dashes(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    args = parser.parse_args(words)
    if args.role not in ROLES[args.backend]:
        parser.error(f"{args.role}: {args.backend} has {' and '.join(ROLES[args.backend])}")
    for name in NEEDED[args.backend]:
        if getattr(args, name) is None:
            parser.error(f"--{name} is missing; {args.backend} needs it")
    args.port = args.port or PORTS[args.backend]
    run = _run_parts if args.backend == BYTEPS else _serve if args.role == WORKER else _launch
    errors = Screen(sys.stderr.buffer)
    try:
        return run(args, command, errors)
    except InputError as error:
        errors.say(str(error))
        return BAD_INPUT
    except OSError as error:
        errors.say(f"{error.filename or 'a process'}: {error.strerror}; ended")
        return 1
    finally:
        errors.finish(FINISH)


# ------------------------------------------------------------------------------------------------- Horovod


def ranks_below(root: int) -> list[int]:
    """Process ids of the ranks among the descendants of process `root`, in a container its process 1.

    They have mpirun's variable, and their parents, mpirun's daemon, have not. What a rank has started is left
    to it, and so are other runs on a machine that is no container.
    """
    processes = list(running())
    parents = {each.pid: each.parent for each in processes}
    marked = {each.pid for each in processes if RANK in each.variables}

    def is_below(pid: int) -> bool:
        while pid in parents and pid != root:
            pid = parents[pid]
        return pid == root

    return sorted(pid for pid in marked if parents[pid] not in marked and is_below(pid))


def signal_ranks(say: Callable[[str], None]) -> int:
    """Sends SIGTERM to the ranks in this container, which makes all ranks of the run save and end; returns
    their number here."""
    ranks = ranks_below(os.getpid())
    say(f"SIGTERM; {len(ranks)} ranks here save and end")
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(pid, signal.SIGTERM)
    return len(ranks)


def _serve(args: argparse.Namespace, command: Sequence[str], errors: Screen) -> int:
    """Runs sshd until it ends or a signal comes; then has the ranks save, in --grace seconds at most. Returns
    sshd's code, 143 after a signal."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    with private_keys(args.keys) as folder:
        server = subprocess.Popen(server_command(folder, args.port), stdin=subprocess.DEVNULL)
        while server.poll() is None and not asked:
            time.sleep(STEP / 5)
        if not asked:
            return server.returncode
        signal_ranks(errors.say)
        deadline = time.monotonic() + args.grace
        while ranks_below(os.getpid()) and time.monotonic() < deadline:
            time.sleep(STEP)
        server.terminate()
        server.wait()
        return code_of(signal.SIGTERM)


def _launch(args: argparse.Namespace, command: Sequence[str], errors: Screen) -> int:
    """Waits for the workers, and is hosts/launch.py, unless an earlier container of this pod has noted bad
    input. Returns its exit code; 1 if the workers do not come."""
    note = Path(args.notes, "bad-input") if args.notes else None
    if note is not None and note.exists():
        said = one_line(note.read_text("utf-8", "replace"))
        errors.say(f"bad input, not started again; mend it and make the MPIJob anew: {said}")
        return BAD_INPUT
    # Process 1 has no default action; when the run has begun, hosts/launch.py has its own.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(code_of(signal.SIGTERM)))
    try:
        check_command(command)
        hostfile = os.environ.get(HOSTFILE)
        if not hostfile:
            raise InputError(f"{HOSTFILE} is not set; the MPI operator sets it for the launcher of an MPIJob")
        late = wait_for([name for name, _ in read_hostfile(hostfile)], args.port, args.patience)
        if late:
            names = ", ".join(f"{name} ({why})" for name, why in late.items())
            errors.say(f"no ssh server at port {args.port} after {args.patience:g} s: {names}")
            return 1
        for name in REPLACED:
            os.environ.pop(name, None)
        words = ["--backend", HVD, "--hostfile", hostfile, "--mpirun", MPIRUN]
        words += ["--grace", f"{args.grace:g}", "--host_patience", f"{args.patience:g}"]
        words += ["--network", args.network] if args.network else []
        with private_keys(args.keys) as keys:
            words += ["--ssh", " ".join(client_command(keys, args.port))]
            code = launch.run([*words, "--", *command], errors)
    except InputError as error:
        errors.say(str(error))
        code = BAD_INPUT
    errors.finish(FINISH)
    if code == BAD_INPUT and note is not None:
        with replacing(str(note)) as file:
            file.write("; ".join(errors.last).encode())  # a rank's line, and the launcher's about it
    return code


# -------------------------------------------------------------------------------------------------- BytePS


class PodSignals(Signals):
    """Signals of a pod, and orders of the coordinator, which arrive in the same way.

    `received`: called when a signal comes from outside, which is not passed on then; None: it is passed on.
    """

    def __init__(self, received: Callable[[], None] | None = None):
        self._received = received
        self._ordered: list[signal.Signals] = []
        self.asked = False  # a signal has come from outside

    def order(self, *numbers: signal.Signals) -> None:
        """Signals to be read as if they had come from outside; for other threads."""
        self._ordered += numbers
        with contextlib.suppress(OSError):
            os.write(self._writer, b"\0")  # wakes whoever waits

    def read(self) -> list[signal.Signals]:
        """Signals since the last call; returns at once."""
        asked: list[signal.Signals] = []
        with contextlib.suppress(BlockingIOError):
            outside = [signal.Signals(number) for number in os.read(self._reader, 512) if number]
            asked = [number for number in outside if number in FORWARDED]
        self.asked = self.asked or bool(asked)
        if asked and self._received is not None:
            self._received()
            asked = []
        ordered, self._ordered = self._ordered, []
        return [*asked, *ordered]

    def stopped(self) -> bool:
        """Whether a signal has come from outside so far."""
        self._ordered += self.read()
        return self.asked


def _run_parts(args: argparse.Namespace, command: Sequence[str], errors: Screen) -> int:
    """Gathers, runs this pod's processes, ends together with the others."""
    if command and command[0].endswith(".py"):
        command = [sys.executable, *command]
    index = _index(args, command, os.environ)
    command = command or [sys.executable]  # scheduler and servers only need the interpreter
    screen = Screen(sys.stdout.buffer, errors.say)
    output = Output((screen, errors), None, errors.say)
    limits = Limits(grace=args.grace, servers=math.inf if args.role != WORKER else Limits().servers)
    if args.workers == 1:
        with PodSignals() as signals:
            code = Run(*_plan(args, index, command, ""), limits, output, signals).run().code
        screen.finish(FINISH)
        return code
    shape = Shape(args.workers, args.servers, args.slots)
    secret = read_secret(args.secret)
    member = Member(args.role, index, shape, secret)
    place = (args.scheduler, args.gathering_port)
    coordinator = None
    if args.role == SCHEDULER:
        coordinator = Coordinator(shape, secret, args.gathering_port, args.patience, errors.say)
        coordinator.start()
        place = (os.environ[ADDRESS], args.gathering_port)
    code = code_of(signal.SIGTERM)
    with PodSignals(member.leaving) as signals:
        # A failure elsewhere: nothing can be saved any more, which two SIGINT mean to a `Run`.
        address = member.join(
            place,
            args.patience,
            signals.stopped,
            leave=lambda: signals.order(signal.SIGUSR1),  # as often as pods leave; a second SIGTERM kills
            stop=lambda: signals.order(signal.SIGINT, signal.SIGINT),
        )
        if address:
            code = Run(*_plan(args, index, command, address), limits, output, signals).run().code
            member.ended(code)
        verdict = member.verdict
        member.close()
    if verdict is not None:
        code = verdict.code
        if verdict.reason:
            errors.say(f"{verdict.reason}; this pod ends with {code}")
    if coordinator is not None and address:
        coordinator.join(2 * LEAVING)  # until the other pods know the exit code
    screen.finish(FINISH)
    return code


def _index(args: argparse.Namespace, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """The pod's index. Raises InputError for options and variables that do not go together."""
    if (args.workers > 1) != bool(args.scheduler and args.servers and args.secret):
        raise InputError(
            f"--workers {args.workers}: several need --servers, --scheduler and --secret, a single one none"
        )
    if args.role == WORKER:
        check_command(command)
    elif command:
        raise InputError(f"{command[-1]}: only workers run a script")
    given = environ.get(INDEX, "") if args.role != SCHEDULER else "0"
    number = {SCHEDULER: 1, SERVER: args.servers, WORKER: args.workers}[args.role]
    if not is_number(given) or not int(given) < number:
        raise InputError(f"{INDEX}={given}: a {args.role}'s is 0 to {number - 1}; an Indexed Job sets it")
    if args.workers > 1 and not is_address(environ.get(ADDRESS, "")):
        raise InputError(
            f"{ADDRESS}={environ.get(ADDRESS, '')}: it must be the pod's IPv4 address (fieldRef status.podIP)"
        )
    return int(given)


def _plan(
    args: argparse.Namespace, index: int, command: Sequence[str], address: str
) -> tuple[list[Part], Access]:
    """This pod's processes, of those of the whole run. `address`: the scheduler's, empty without one."""
    pod, _, domain = (args.scheduler or "").partition(".")
    base = pod.rpartition(f"-{SCHEDULER}")[0] or "pod"
    workers = [f"{base}-{WORKER}-{number}" for number in range(args.workers)]
    names = [f"{worker}.{domain}" if domain else worker for worker in workers]
    rendezvous = Rendezvous(args.scheduler, address, args.port) if address else None
    run_id = uuid.uuid4().hex[:8]  # of this pod's ranks: it keeps sockets of one host apart
    lines = [(name, args.slots) for name in names]
    everything = plan_parts(lines, args.servers, rendezvous, {}, command, run_id)
    if args.role == WORKER:
        role, wanted = "rank", range(index * args.slots, (index + 1) * args.slots)
    else:
        role, wanted = args.role, range(index, index + 1)
    parts = [part for part in everything if part.role == role and part.index in wanted]
    extra = {"PYTHONUNBUFFERED": "1"}  # Python keeps lines back that go into a pipe
    if address:
        extra["DMLC_NODE_HOST"] = os.environ[ADDRESS]
    here = frozenset(part.host for part in parts)
    return parts, Access((), here, os.getcwd(), os.environ, extra)


if __name__ == "__main__":
    sys.exit(main())
