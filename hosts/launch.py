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
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Sequence

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from base import notify
from base.command_line import CommandParser, not_empty, path_name, split_at_dashes, whole
from base.command_line import seconds as limited
from base.errors import RUN_AGAIN, InputError
from base.launchers import BYTEPS, HVD
from base.options import add_options, flag, option, options_in, taken
from hosts.addresses import is_here
from hosts.answer import interfaces as own_interfaces
from hosts.hostfile import merged, read_host_lines, read_spares
from hosts.launching import over_byteps, over_mpirun
from hosts.launching.exposure import warning
from hosts.launching.limits import allow_open_files, check_limits
from hosts.launching.output import Output, Screen
from hosts.launching.parts import (
    DECIDED,
    DEFAULT_PORT,
    Access,
    Part,
    Wiring,
    check_command,
    check_workers,
    python_of,
    ssh_words,
)
from hosts.launching.restarts import STOPPED, Policy, Restarts, Start, Stopped, Wish, noting, wait
from hosts.launching.roster import Roster
from hosts.launching.running import Limits, Outcome, Run
from hosts.launching.signals import Signals
from hosts.mpirun import interfaces
from hosts.networks import RULE, read_network
from hosts.reach import Question, check, faults_of, summed_up

FINISH = 60.0  # seconds for a slow reader to take the last lines
RESTARTS = 3  # by default, where there is a --ckpt_dir to go on from
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
    max_restarts: int | None = option(
        f"restarts after failures; the number counts anew after every later checkpoint (default: {RESTARTS} "
        "if the script's options have --ckpt_dir, else 0). Rule of thumb: 3; more hides a host that should "
        "be replaced",
        whole(0, 1000, "more would hide a defect"),
        metavar="N",
    )
    min_hosts: int | None = option(
        "go on with so many hosts if others are left out (default: all of the host file; only spare hosts "
        "then replace one). Rule of thumb: half of them; below, waiting for a host is cheaper",
        whole(1, 100_000, "no cluster is so large"),
        metavar="K",
    )
    host_tries: int = option(
        "leave a host out after so many failures in a row, of its processes or of its answer. Rule of thumb: "
        "2, a host that reboots has answered by then; 1 with --backoff 60 or more",
        whole(1, 1000, "such a host does not come back"),
        metavar="N",
        default=2,
    )
    backoff: float = option(
        "wait so long before a restart, twice as long after each failure without a new checkpoint, at most "
        "300 s. Rule of thumb: what a batch system takes to give a host back",
        limited,
        metavar="SECONDS",
        default=5.0,
    )
    rejoin_interval: float = option(
        "ask hosts that were left out so often whether they answer, more seldom those left out repeatedly",
        limited,
        metavar="SECONDS",
        default=60.0,
    )
    host_patience: float = option(
        "wait so long for hosts where too few are left to start with. Rule of thumb: what a host takes to "
        "reboot",
        limited,
        metavar="SECONDS",
        default=600.0,
    )
    again: bool = flag(
        "start again when the script exits with 75, saved and to be run again (default: exit with 75)"
    )
    mpirun: str = option(
        "hvd: mpirun and more options for it, as a shell would split them (default: mpirun)",
        metavar="COMMAND",
        default="mpirun",
    )
    num_servers: int | None = option(
        "byteps: servers, placed on the hosts in turn (default: one a host, BytePS's recommendation for "
        "servers that share their hosts with workers: each host's network then carries the same load)",
        whole(0, 4096, "BytePS's largest networks have hundreds"),
        metavar="N",
    )
    scheduler: str | None = option(
        "byteps: host and port of the scheduler (default: the first host; a free port if that is this "
        f"machine, else {DEFAULT_PORT})",
        metavar="HOST[:PORT]",
    )
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
    grace: float = option(
        "how long ranks may take to stop after a signal before they are killed: a step and a checkpoint",
        limited,
        metavar="SECONDS",
        default=Limits().grace,
    )
    stopped_timeout: float = option(
        "a part stopped by SIGSTOP for so long counts as dead",
        limited,
        metavar="SECONDS",
        default=Limits().stopped,
    )
    server_timeout: float = option(
        "how long servers may take to end after the last rank",
        limited,
        metavar="SECONDS",
        default=Limits().servers,
    )
    notify: str | None = option(
        "a command that a shell runs here at each restart, at the run's failure and at its end, with "
        "RUN_EVENT, RUN_MESSAGE and RUN_CODE in its environment; nobody waits for it",
        not_empty,
        metavar="COMMAND",
    )
    dry_run: bool = flag("print a command for each part, start nothing")


@dataclass(frozen=True)
class Launch:
    """Settings that follow from the options, and the command of the ranks."""

    options: Options
    wiring: Wiring
    mpirun: over_mpirun.Mpirun | None
    policy: Policy
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
        given = over_byteps.Servers(self.options.num_servers, self.options.scheduler)
        servers = given.without(self.roster.left_out, len(lines))
        return over_byteps.plan(lines, command, self.wiring, servers, self.say)

    def question(self) -> Question:
        """Everything that other hosts are asked before a start."""
        programs = (self.mpirun.daemon,) if self.mpirun is not None else ()
        path = self.wiring.extra.get("PATH", os.environ.get("PATH", os.defpath))
        python = python_of(self.command)
        return Question(self.wiring.ssh, os.getcwd(), python, path, programs, self.interfaces())

    def interfaces(self) -> tuple[str, ...]:
        """Names of the network interfaces that the ranks are restricted to."""
        words = self.mpirun.words if self.mpirun is not None else ()
        named = (self.wiring.interface or "").split(",")
        named += interfaces(words, {**os.environ, **self.wiring.extra}) if self.mpirun is not None else []
        return tuple(name for name in dict.fromkeys(named) if name and "/" not in name)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    errors = Screen(sys.stderr.buffer)
    try:
        return run(list(sys.argv[1:] if argv is None else argv), errors)
    finally:
        errors.finish(FINISH)


def run(words: list[str], errors: Screen) -> int:
    """Runs the command on words of a command line; `errors` takes all that goes to standard error.

    Returns:
        The exit code: 2 on bad input, 1 when a part could not be started, else the run's.
    """
    screen, said = Screen(sys.stdout.buffer, errors.say), [""]

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
        allow_open_files()
        log_dir = None if options.log_dir is None else Path(options.log_dir)
        try:
            code = _run(launch, Output(None if options.quiet else (screen, errors), log_dir, say))
        except Stopped as stopped:
            say(str(stopped))
            code = stopped.code
        if options.notify:
            event = notify.FAILURE if code not in (0, RUN_AGAIN, *STOPPED) else notify.END
            notify.tell(event, said[0] if code else "complete", code, options.notify)
        return code
    except InputError as error:
        errors.say(str(error))
        return 2
    except OSError as error:
        errors.say(f"{error.filename or 'a part'}: {error.strerror}; ended the run")
        return 1
    finally:
        screen.finish(FINISH)


def _run(launch: Launch, output: Output) -> int:
    """Runs it once, or again and again. Returns the exit code."""
    limits = Limits(launch.options.grace, launch.options.server_timeout, launch.options.stopped_timeout)
    with Signals() as signals:

        def start(lines: Sequence[tuple[str, int]], resume: bool, wish: Wish) -> Outcome:
            return Run(*launch.plan(lines, resume), limits, output, signals, wish).run()

        if launch.ckpt_dir is None:
            return _run_once(launch, start, output.say, signals)
        question = launch.question()
        restarts = Restarts(launch.policy, launch.roster, launch.ckpt_dir, question, signals, output.say)
        return restarts.run(start)


def _run_once(launch: Launch, start: Start, say: Callable[[str], None], signals: Signals) -> int:
    """Asks the hosts whether they can be used, and runs it without restarts."""
    lines = launch.roster.lines()
    remote = [host for host in dict.fromkeys(name for name, _ in lines) if not is_here(host)]
    faults = faults_of(remote, launch.question(), partial(wait, signals), say)
    check(faults)
    if faults:
        say(f"{summed_up(faults)}; nothing has been started")
        return 1
    return start(lines, False, lambda: False).code


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
    args = taken(Options, parser.parse_args(words))
    if command and command[0].endswith(".py"):
        command = [sys.executable, *command]
    lines, spares = read_host_lines(args.hostfile), read_spares(args.hostfile)
    if not args.dry_run:
        check_limits(lines, args.backend, args.hostfile)
    check_command(command)
    _check_options(args)
    if args.backend == BYTEPS:
        check_workers([*lines, *spares], args.hostfile)  # not when a spare host is needed
    ckpt_dir = _value(command, CKPT_DIR)
    policy = _policy(args, ckpt_dir, command, len({name for name, _ in lines}))
    ckpt_dir = ckpt_dir if policy.max_restarts or policy.again else None
    remote = any(not is_here(host) for host, _ in [*lines, *spares]) or bool(args.scheduler)
    network = None if args.network is None else read_network(args.network, args.backend, args.interface)
    named = args.interface or (network.interface if network is not None else None)
    wiring = Wiring(
        hostfile=args.hostfile,
        interface=named or (os.environ.get("DMLC_INTERFACE") if args.backend == BYTEPS else None),
        ssh=ssh_words(args.ssh, args.dry_run) if remote else (),
        extra={**_extra(args.env), **(noting(ckpt_dir) if ckpt_dir and not args.dry_run else {})},
        only_show=args.dry_run,
        network=network,
    )
    for line in network.comment() if network is not None else []:
        say(f"--network {args.network}: {line}")
    return Launch(
        options=args,
        wiring=wiring,
        mpirun=over_mpirun.program(args.mpirun, args.dry_run) if args.backend == HVD else None,
        policy=policy,
        roster=Roster(lines, spares, args.host_tries),
        ckpt_dir=ckpt_dir,
        command=tuple(command),
        say=say,
    )


def _policy(args: Options, ckpt_dir: str | None, command: Sequence[str], num_hosts: int) -> Policy:
    """Options of restarts. Raises InputError where they do not go with the script's."""
    restarts = (RESTARTS if ckpt_dir else 0) if args.max_restarts is None else args.max_restarts
    flag = f"--max_restarts {restarts}" if restarts else "--again"
    if (restarts or args.again) and not ckpt_dir:
        raise InputError(f"{flag}: needs --ckpt_dir among the script's options; a restart goes on from there")
    if (restarts or args.again) and _value(command, START_STEP) is not None:
        raise InputError(
            f"{START_STEP}: a restart takes the newest checkpoint, which may be another run's; use --resume, "
            "or --max_restarts 0"
        )
    if args.min_hosts is not None and args.min_hosts > num_hosts:
        raise InputError(f"--min_hosts {args.min_hosts}: --hostfile {args.hostfile} has {num_hosts} hosts")
    return Policy(
        max_restarts=restarts,
        min_hosts=args.min_hosts or num_hosts,
        backoff=args.backoff,
        again=args.again,
        rejoin=args.rejoin_interval,
        patience=args.host_patience,
        notify=args.notify,
    )


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


def _check_options(args: Options) -> None:
    for name, value in (("--num_servers", args.num_servers), ("--scheduler", args.scheduler)):
        if args.backend == HVD and value is not None:
            raise InputError(f"{name} {value}: goes with --backend byteps")
    if args.quiet and args.log_dir is None:
        raise InputError("--quiet: needs --log_dir, or the output of the parts would be lost")
    if args.log_dir is not None and os.path.exists(args.log_dir) and not os.path.isdir(args.log_dir):
        raise InputError(f"--log_dir {args.log_dir}: is a file")


if __name__ == "__main__":
    sys.exit(main())
