#!/usr/bin/env python3
"""Starts a run on all hosts of a host file, over Horovod or BytePS, and starts it again after a failure.

    python hosts/launch.py --hostfile hosts/4x_p3dn --backend hvd -- run_pretraining_hvd.py --ckpt_dir ckpt

--backend hvd: mpirun, with a rank in every slot of a line `name slots=N`. --backend byteps: scheduler,
servers and workers; a line is a BytePS worker with N ranks, a host that is listed twice runs two workers, and
a single line needs neither scheduler nor servers. Other hosts are reached through ssh, which must ask for no
password; every host has this folder, its environment, the data and --ckpt_dir at the same paths. Variables
that are sent to other hosts: DMLC_*, BYTEPS_*, HOROVOD_*, PS_*, MXNET_*, NCCL_*, OMP_NUM_THREADS, PATH,
PYTHONPATH, LD_LIBRARY_PATH, and those of --env.

After a failure all processes end, and the command is started again with --resume, --max_restarts times
without a new checkpoint. A host that fails or does not answer --host_tries times in a row is left out: a
spare host, `# spare: name slots=N` in the host file, takes its place, else the run goes on with fewer, down
to --min_hosts, until the host answers again. Each restart is a line here and in restarts.jsonl in --ckpt_dir.
Exit codes: 0 complete, 2 bad input, 143 or 130 stopped by a signal, 75 saved and to be run again (--again
does that); none of these is started again. docs/ssh.md is the guide.

Each line of output begins with its origin: [rank 3], [server 0], [scheduler], [mpirun]. SIGINT (Ctrl-C),
SIGTERM and SIGUSR1 reach the ranks, which save a checkpoint after their step and end; a second Ctrl-C kills
at once. When a part fails, all others are ended, the last line names the first that failed, and its exit code
becomes the run's (128 + the number of a signal). Nothing outlives the launcher, however that ends.

Neither mpirun nor BytePS's bpslaunch is enough: a Ctrl-C to mpirun kills ranks after a second; bpslaunch
starts the parts of one host only, passes the command to a shell, which expands quoted words, ties ranks to
cores by a rule of its own (BYTEPS_NUMA_ON=0 prevents it), and when a rank dies it leaves the others running.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Callable, Sequence

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from base import failures, notify
from base.command_line import CommandParser, path_name, split_at_dashes, whole
from base.errors import RUN_AGAIN, InputError
from base.launchers import BYTEPS, HVD
from base.options import add_options, flag, option, options_in, taken
from hosts.addresses import is_here
from hosts.answer import interfaces as own_interfaces
from hosts.hostfile import check_limits, merged, read_host_lines, read_spares
from hosts.launching import over_byteps, over_mpirun
from hosts.launching.output import Output, Screen
from hosts.launching.over_byteps import Servers, warning
from hosts.launching.parts import (
    DECIDED,
    Access,
    Part,
    Wiring,
    check_command,
    check_workers,
    python_of,
    ssh_words,
)
from hosts.launching.restarts import NOTES, Policy, Restarts, Stopped, Wish, wait
from hosts.launching.roster import Roster
from hosts.launching.running import Limits, Outcome, Run
from hosts.launching.signals import STOPPED, Signals
from hosts.mpirun import interfaces
from hosts.networks import RULE, TCP, read_network
from hosts.reach import Question, check, faults_of, summed_up

FINISH = 60.0  # seconds for a slow reader to take the last lines
BACKENDS = (HVD, BYTEPS)
CKPT_DIR, RESUME, START_STEP = "--ckpt_dir", "--resume", "--start_step"  # options of the training scripts


@dataclass(frozen=True)
class Options:
    """The options as given. Those in seconds have a rule of thumb in their help, where one is known."""

    hostfile: str = option("Open MPI host file: name slots=8", path_name, metavar="FILE", required=True)
    backend: str = option(
        "hvd: mpirun, for scripts over Horovod; byteps: scheduler, servers and workers of BytePS",
        required=True,
        choices=BACKENDS,
    )
    policy: Policy = field(default_factory=Policy)
    host_tries: int = option(
        "leave a host out after so many failures in a row, of its processes or of its answer. Rule of thumb: "
        "2, a host that reboots has answered by then; 1 with --backoff 60 or more",
        whole(1, 1000, "such a host does not come back"),
        metavar="N",
        default=2,
    )
    mpirun: str = option(
        "hvd: mpirun and more options for it, as a shell would split them (default: mpirun)",
        metavar="COMMAND",
        default="mpirun",
    )
    servers: Servers = field(default_factory=Servers)
    ssh: str = option(
        "remote shell and its options, such as 'ssh -p 2222' (default: ssh)", metavar="COMMAND", default="ssh"
    )
    interface: str | None = option(
        "network interface between the hosts (default: any but loopback and Docker's for hvd; "
        "DMLC_INTERFACE, else that of the addresses in the host file for byteps)",
        metavar="NAME",
    )
    network: str | None = option(RULE, metavar="KIND")
    env: Sequence[str] = option(
        "a variable for every part, with its value here or a given one; can be repeated",
        metavar="NAME[=VALUE]",
        default=(),
        unset=True,
        action="append",
    )
    log_dir: str | None = option(
        "also write each part's lines to DIR/rank.N/stdout, DIR/server.N/stderr, DIR/scheduler/...; appended",
        path_name,
        metavar="DIR",
    )
    quiet: bool = flag("show the launcher's own lines only; needs --log_dir")
    limits: Limits = field(default_factory=Limits)
    dry_run: bool = flag("print a command for each part, start nothing")


@dataclass(frozen=True)
class Launch:
    """Settings that follow from the options, and the command of the ranks."""

    options: Options
    wiring: Wiring
    mpirun: over_mpirun.Mpirun | None
    roster: Roster
    ckpt_dir: str | None  # with restarts
    command: tuple[str, ...]
    say: Callable[[str], None]

    def plan(self, lines: Sequence[tuple[str, int]], resume: bool = False) -> tuple[list[Part], Access]:
        """The processes of a run on the hosts of `lines`, and how they are started."""
        more = [RESUME] if resume and RESUME not in self.command else []
        command = [*self.command, *more]
        if self.mpirun is not None:
            return over_mpirun.plan(merged(lines), command, self.wiring, self.mpirun)
        servers = self.options.servers.without(self.roster.left_out, len(lines))
        return over_byteps.plan(lines, command, self.wiring, servers, self.say)

    def question(self) -> Question:
        """Everything that other hosts are asked before a start, the network interfaces to which the ranks are
        restricted among it."""
        environ = {**os.environ, **self.wiring.extra}
        programs: tuple[str, ...] = ()
        named = (self.wiring.interface or "").split(",")
        if self.mpirun is not None:
            programs = (self.mpirun.daemon,)
            named += interfaces(self.mpirun.words, environ)
        names = tuple(name for name in dict.fromkeys(named) if name and "/" not in name)
        path, python = environ.get("PATH", os.defpath), python_of(self.command)
        return Question(self.wiring.ssh, os.getcwd(), python, path, programs, names)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    errors = Screen(sys.stderr.buffer)
    try:
        return run(list(sys.argv[1:] if argv is None else argv), errors)
    except KeyboardInterrupt:  # before `Signals`
        return 128 + signal.SIGINT
    finally:
        errors.finish(FINISH)


def run(words: list[str], errors: Screen) -> int:
    """Runs the command on words of a command line; `errors` takes all that goes to standard error.

    Returns:
        The exit code: 2 on bad input, 1 when a part could not be started, else the run's.
    """
    screen, said = Screen(sys.stdout.buffer, errors.say), [""]
    code, told = 1, None  # the command of --notify, when the run has begun

    def say(line: str) -> None:
        said[0] = line
        errors.say(line)

    try:
        launch = _parse(words, say)
        options, lines = launch.options, launch.roster.lines()
        here = not options.dry_run and any(is_here(host) for host, _ in lines)
        fault = launch.question().lacking(own_interfaces()) if here else None
        if fault is not None:
            raise InputError(f"this machine {fault.why}")
        parts, access = launch.plan(lines)
        exposed = warning(parts, access)
        if exposed:
            say(exposed)
        if options.dry_run:
            with contextlib.suppress(BrokenPipeError):  # the reader, such as `head`, has seen enough
                for part in parts:
                    print(f"# {part.name} on {part.host}\n{access.by_hand(part)}", flush=True)
            return 0
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)  # each part takes several
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        log_dir = None if options.log_dir is None else Path(options.log_dir)
        told = options.policy.notify
        code = _run(launch, lambda: Output(None if options.quiet else (screen, errors), log_dir, say), say)
    except Stopped as stopped:
        say(str(stopped))
        code = stopped.code
    except InputError as error:
        say(str(error))
        code = 2
    except OSError as error:
        say(f"{error.filename or 'a part'}: {error.strerror}; ended the run")
    finally:
        if told:
            event = notify.FAILURE if code not in (0, RUN_AGAIN, *STOPPED) else notify.END
            notify.tell(event, said[0] if code else "complete", code, told)
        screen.finish(FINISH)
    return code


def _run(launch: Launch, output: Callable[[], Output], say: Callable[[str], None]) -> int:
    """Runs it once, or again and again, each time with an `output` of its own. Returns the exit code."""
    with Signals() as signals:

        def start(lines: Sequence[tuple[str, int]], resume: bool, wish: Wish) -> Outcome:
            return Run(*launch.plan(lines, resume), launch.options.limits, output(), signals, wish).run()

        policy, question = launch.options.policy, launch.question()
        if launch.ckpt_dir is not None:
            return Restarts(policy, launch.roster, launch.ckpt_dir, question, signals, say).run(start)
        remote = [host for host in launch.roster.in_use() if not is_here(host)]
        faults = faults_of(remote, question, partial(wait, signals), say)
        check(faults)
        if faults:
            say(f"{summed_up(faults)}; nothing has been started")
            return 1
        return start(launch.roster.lines(), False, lambda: False).code


def _parse(words: list[str], say: Callable[[str], None]) -> Launch:
    words, command = split_at_dashes(words)
    parser = CommandParser(
        "launch",
        prog="hosts/launch.py",
        usage="%(prog)s --hostfile FILE --backend {hvd,byteps} [options] -- SCRIPT OPTIONS...",
        description=__doc__,
    )
    table = options_in(Options)
    add_options(parser.add_argument, table, " ".join(table))
    given = parser.parse_args(words)
    ckpt_dir = _value(command, CKPT_DIR)
    if given.max_restarts is None and not ckpt_dir:
        given.max_restarts = 0  # there is nothing to go on from
    args = taken(Options, given)
    if command and command[0].endswith(".py"):
        command = [sys.executable, *command]
    lines, spares = read_host_lines(args.hostfile), read_spares(args.hostfile)
    if not args.dry_run:
        check_limits(lines, args.backend, args.hostfile)
    check_command(command)
    if args.backend == BYTEPS:
        check_workers([*lines, *spares], args.hostfile)  # not when a spare host is needed
    roster = Roster(lines, spares, args.host_tries)
    _check_options(args, roster.wanted, command, ckpt_dir)
    ckpt_dir = ckpt_dir if args.policy.max_restarts or args.policy.again else None
    remote = any(not is_here(host) for host, _ in [*lines, *spares]) or bool(args.servers.scheduler)
    network = read_network(args.network or TCP, args.backend, args.interface)
    named = args.interface or network.interface
    extra = _extra(args.env)
    if ckpt_dir and not args.dry_run:
        extra[failures.FOLDER] = os.path.abspath(os.path.join(ckpt_dir, NOTES))
    wiring = Wiring(
        hostfile=args.hostfile,
        interface=named or (os.environ.get("DMLC_INTERFACE") if args.backend == BYTEPS else None),
        ssh=ssh_words(args.ssh, args.dry_run) if remote else (),
        extra=extra,
        only_show=args.dry_run,
        network=network,
    )
    for line in network.comment():
        say(f"--network {args.network}: {line}")
    mpirun = over_mpirun.program(args.mpirun, args.dry_run) if args.backend == HVD else None
    return Launch(args, wiring, mpirun, roster, ckpt_dir, tuple(command), say)


def _value(command: Sequence[str], flag: str) -> str | None:
    """The value of one of the script's options; the last counts, as it does for the script."""
    value = None
    for number, word in enumerate(command):
        if word == flag and number + 1 < len(command):
            value = command[number + 1]
        elif word.startswith(f"{flag}="):
            value = word.partition("=")[2]
    return os.path.expanduser(value) if value else None


def _extra(given: Sequence[str]) -> dict[str, str]:
    """The variables of --env."""
    extra = {}
    for one in given:
        name, equals, value = one.partition("=")
        if name in DECIDED:
            raise InputError(
                f"--env {one}: each part gets a value of its own from the launcher; leave it out"
            )
        if not name or not (equals or name in os.environ):
            raise InputError(f"--env {one}: is not set here; write {one or 'NAME'}=VALUE")
        extra[name] = value if equals else os.environ[name]
    return extra


def _check_options(args: Options, hosts: int, command: Sequence[str], ckpt_dir: str | None) -> None:
    """Raises InputError for options that do not go together, with the script's or with so many `hosts`."""
    for name, value in (("--num_servers", args.servers.number), ("--scheduler", args.servers.scheduler)):
        if args.backend == HVD and value is not None:
            raise InputError(f"{name} {value}: goes with --backend byteps")
    if args.quiet and args.log_dir is None:
        raise InputError("--quiet: needs --log_dir, or the output of the parts would be lost")
    if args.log_dir is not None and os.path.exists(args.log_dir) and not os.path.isdir(args.log_dir):
        raise InputError(f"--log_dir {args.log_dir}: is a file")
    restarts, least = args.policy.max_restarts, args.policy.min_hosts
    if (restarts or args.policy.again) and not ckpt_dir:
        wanted = f"--max_restarts {restarts}" if restarts else "--again"
        raise InputError(
            f"{wanted}: needs --ckpt_dir among the script's options; a restart goes on from there"
        )
    if (restarts or args.policy.again) and _value(command, START_STEP) is not None:
        raise InputError(
            f"{START_STEP}: a restart takes the newest checkpoint, which may be another run's; use --resume, "
            "or --max_restarts 0"
        )
    if least > hosts:
        raise InputError(f"--min_hosts {least}: --hostfile {args.hostfile} has {hosts} hosts")


if __name__ == "__main__":
    sys.exit(main())
