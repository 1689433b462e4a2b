"""One pod's part of a run over BytePS, in the container that hosts/kubernetes.py describes.

    python3 hosts/byteps_pod.py scheduler --workers 2 --servers 2 --slots 8 --scheduler NAME --secret FILE
    python3 hosts/byteps_pod.py server ...
    python3 hosts/byteps_pod.py worker ... -- SCRIPT OPTIONS...

The index of a server or worker is JOB_COMPLETION_INDEX, which an Indexed Job sets; it becomes DMLC_WORKER_ID.
POD_IP is the pod's own address, which BytePS announces. The pod waits until all others have come
(hosts/batch/gathering.py; they know each other by the secret in a file), starts its processes, a worker all
of its local ranks, and ends with the exit code of the whole run: 0 complete, 2 bad input, 75 and 143 saved
and to be run again, others a failure.

SIGTERM, by which Kubernetes announces that a pod will be removed, makes all ranks of the run save a
checkpoint and end, whichever pod receives it. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Callable, Mapping, Sequence

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from base.command_line import CommandParser, path_name, split_at_dashes, whole
from base.command_line import seconds as limited
from base.errors import InputError
from base.launchers import is_number
from hosts.addresses import is_address
from hosts.batch.gathering import (
    LEAVING,
    SCHEDULER,
    SERVER,
    WORKER,
    Coordinator,
    Member,
    Shape,
    read_secret,
)
from hosts.launching.output import Output, Screen
from hosts.launching.parts import DEFAULT_PORT, Access, Part, Rendezvous, check_command, plan_parts
from hosts.launching.running import Limits, Run
from hosts.launching.signals import FORWARDED, Signals

GATHERING_PORT = DEFAULT_PORT + 1
FINISH = 10.0  # seconds for a slow reader to take the last lines
INDEX, ADDRESS = "JOB_COMPLETION_INDEX", "POD_IP"


class PodSignals(Signals):
    """Signals of a pod, and orders of the coordinator, which arrive in the same way.

    `received`: called when a signal comes from outside, which is not passed on then; None: it is passed on.
    """

    def __init__(self, received: Callable[[], None] | None = None):
        self._received = received
        self._ordered: list[signal.Signals] = []
        self.asked = False  # a signal has come from outside

    def __enter__(self) -> PodSignals:
        super().__enter__()
        return self

    def order(self, *numbers: signal.Signals) -> None:
        """Signals to be read as if they had come from outside; for other threads."""
        self._ordered += numbers
        with contextlib.suppress(OSError):
            os.write(self._writer, b"\0")  # wakes whoever waits

    def read(self) -> list[signal.Signals]:
        """Signals since the last call; returns at once."""
        with contextlib.suppress(BlockingIOError):
            outside = [signal.Signals(number) for number in os.read(self._reader, 512) if number]
            asked = [number for number in outside if number in FORWARDED]
            self.asked = self.asked or bool(asked)
            if asked and self._received is not None:
                self._received()
            elif asked:
                return [*asked, *self._take()]
        return self._take()

    def stopped(self) -> bool:
        """Whether a signal has come from outside so far."""
        self._ordered += self.read()
        return self.asked

    def _take(self) -> list[signal.Signals]:
        ordered, self._ordered = self._ordered, []
        return ordered


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "byteps_pod",
        prog="hosts/byteps_pod.py",
        usage="%(prog)s {scheduler,server,worker} --workers N --slots N [options] [-- SCRIPT OPTIONS...]",
        description=__doc__,
    )
    parser.add_argument("role", choices=(SCHEDULER, SERVER, WORKER))
    number = whole(1, 100_000, "no cluster is so large")
    parser.add_argument("--workers", type=number, required=True, metavar="N", help="pods with ranks")
    parser.add_argument("--slots", type=number, required=True, metavar="N", help="ranks of each of them")
    servers = whole(0, 4096, "BytePS's largest networks have hundreds")
    parser.add_argument("--servers", type=servers, default=0, metavar="N", help="pods with a server")
    text = "name of the scheduler's pod; none for a single worker, which needs neither it nor servers"
    parser.add_argument("--scheduler", metavar="NAME", help=text)
    text = "file with the run's secret, 32 bytes or more, the same for all of its pods"
    parser.add_argument("--secret", type=path_name, metavar="FILE", help=text)
    port = whole(1, 65535, "the last port")
    text = f"of the scheduler (default {DEFAULT_PORT})"
    parser.add_argument("--port", type=port, default=DEFAULT_PORT, metavar="PORT", help=text)
    text = f"at which the pods gather, in the scheduler's pod (default {GATHERING_PORT})"
    parser.add_argument("--gathering_port", type=port, default=GATHERING_PORT, metavar="PORT", help=text)
    text = (
        "wait so long for the other pods (default 600). Rule of thumb: what the cluster takes to add a node"
    )
    parser.add_argument("--patience", type=limited, default=600.0, metavar="SECONDS", help=text)
    text = "how long ranks may take to save and end after a signal (default 90)"
    parser.add_argument("--grace", type=limited, default=90.0, metavar="SECONDS", help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (2 on bad input)."""
    words, command = split_at_dashes(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(words)
    if command and command[0].endswith(".py"):
        command = [sys.executable, *command]
    errors = Screen(sys.stderr.buffer)
    try:
        index = _check(args, command, os.environ)
        output = Output((Screen(sys.stdout.buffer, errors.say), errors), None, errors.say)
        code = _run(args, index, command or [sys.executable], output)
        assert output.screens is not None
        output.screens[0].finish(FINISH)
        return code
    except InputError as error:
        errors.say(str(error))
        return 2
    except OSError as error:
        errors.say(f"{error.filename or 'a process'}: {error.strerror}; ended")
        return 1
    finally:
        errors.finish(FINISH)


def _check(args: argparse.Namespace, command: Sequence[str], environ: Mapping[str, str]) -> int:
    """The pod's index. Raises InputError for options and variables that do not go together."""
    if (args.workers > 1) != bool(args.scheduler and args.servers and args.secret):
        raise InputError(
            f"--workers {args.workers}: several need --servers, --scheduler and --secret, a single one none"
        )
    if args.role == WORKER:
        check_command(command)
    elif command:
        raise InputError(f"{command[-1]}: only workers run a script")
    if args.role == SCHEDULER:
        index, number = 0, 1
    else:
        text, number = environ.get(INDEX, ""), args.workers if args.role == WORKER else args.servers
        index = int(text) if is_number(text) else -1
    if not 0 <= index < number:
        raise InputError(
            f"{INDEX}={environ.get(INDEX, '')}: a {args.role}'s is 0 to {number - 1}; an Indexed Job sets it"
        )
    if args.workers > 1 and not is_address(environ.get(ADDRESS, "")):
        raise InputError(
            f"{ADDRESS}={environ.get(ADDRESS, '')}: it must be the pod's IPv4 address (fieldRef status.podIP)"
        )
    return index


def _run(args: argparse.Namespace, index: int, command: Sequence[str], output: Output) -> int:
    """Gathers, runs, ends together with the others."""
    limits = Limits(grace=args.grace, servers=math.inf if args.role != WORKER else Limits().servers)
    if args.workers == 1:
        with PodSignals() as signals:
            parts, access = _plan(args, index, command, "")
            return Run(parts, access, limits, output, signals).run().code
    shape = Shape(args.workers, args.servers, args.slots)
    secret = read_secret(args.secret)
    member = Member(args.role, index, shape, secret)
    place = (args.scheduler, args.gathering_port)
    coordinator = None
    if args.role == SCHEDULER:
        coordinator = Coordinator(shape, secret, args.gathering_port, args.patience, output.say)
        coordinator.start()
        place = (os.environ[ADDRESS], args.gathering_port)
    with PodSignals(member.leaving) as signals:
        address = member.join(place, args.patience, signals.stopped)
        if not address:
            return _conclude(member, 143, output)
        # A failure elsewhere: nothing can be saved any more, which two SIGINT mean to a `Run`.
        member.watch(
            lambda: signals.order(signal.SIGTERM), lambda: signals.order(signal.SIGINT, signal.SIGINT)
        )
        parts, access = _plan(args, index, command, address)
        code = Run(parts, access, limits, output, signals).run().code
        member.ended(code)
        code = _conclude(member, code, output)
    if coordinator is not None:
        coordinator.join(2 * LEAVING)  # until the other pods know the exit code
    return code


def _conclude(member: Member, code: int, output: Output) -> int:
    verdict = member.verdict
    member.close()
    if verdict is None:
        return code
    if verdict.reason:
        output.say(f"{verdict.reason}; this pod ends with {verdict.code}")
    return verdict.code


def _plan(
    args: argparse.Namespace, index: int, command: Sequence[str], address: str
) -> tuple[list[Part], Access]:
    """This pod's processes, of those of the whole run."""
    domain = args.scheduler.partition(".")[2] if args.scheduler else ""
    base = args.scheduler.partition(".")[0].rpartition(f"-{SCHEDULER}")[0] if args.scheduler else "pod"
    names = [
        f"{base or 'pod'}-{WORKER}-{number}{'.' if domain else ''}{domain}" for number in range(args.workers)
    ]
    rendezvous = Rendezvous(args.scheduler, address, args.port) if address else None
    run_id = uuid.uuid4().hex[:8]  # of this pod's ranks: it keeps sockets of one host apart
    everything = plan_parts(
        [(name, args.slots) for name in names], args.servers, rendezvous, {}, command, run_id
    )
    wanted = {SCHEDULER: [0], SERVER: [index]}.get(
        args.role, list(range(index * args.slots, (index + 1) * args.slots))
    )
    role = "rank" if args.role == WORKER else args.role
    parts = [part for part in everything if part.role == role and part.index in wanted]
    extra = {"PYTHONUNBUFFERED": "1"}  # Python keeps lines back that go into a pipe
    if address:
        extra["DMLC_NODE_HOST"] = os.environ[ADDRESS]
    here = frozenset(part.host for part in parts)
    return parts, Access((), here, os.getcwd(), os.environ, extra)


if __name__ == "__main__":
    sys.exit(main())
