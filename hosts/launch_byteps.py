#!/usr/bin/env python
"""Starts a run over BytePS on all hosts of a host file: scheduler, servers and workers.

    python hosts/launch_byteps.py --hostfile hosts/4x_p3dn -- python run_pretraining_byteps.py --ckpt_dir ckpt

A line of the host file, `name slots=N`, is a BytePS worker with N ranks, one for each of its GPUs; a host
that is listed twice runs two workers. A single line needs neither scheduler nor servers. Parts on this
machine are started directly, those on other hosts through ssh, which must ask for no password; every host has
this folder, its environment and the data at the same paths. Variables that are sent to other hosts: DMLC_*,
BYTEPS_*, PS_*, MXNET_*, NCCL_*, OMP_NUM_THREADS, PATH, PYTHONPATH, LD_LIBRARY_PATH, and those of --env.

Each line of output begins with its origin: [rank 3], [server 0], [scheduler]. SIGINT (Ctrl-C), SIGTERM and
SIGUSR1 are passed on to the ranks, which save a checkpoint after their step and end; a second Ctrl-C kills at
once. When a part fails, all others are ended, the last line names the first that failed, and its exit code
becomes the run's (128 + the number of a signal). Nothing outlives the launcher, however that ends.

BytePS's own launcher, bpslaunch, is not enough: it starts the parts of one host only, passes the command to a
shell, which expands quoted words, ties ranks to cores by a rule of its own (BYTEPS_NUMA_ON=0 prevents it),
and when a rank dies it leaves the others running.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Sequence

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from base.command_line import OptionParser, path_name, whole
from base.command_line import seconds as limited
from base.errors import InputError, one_line
from hosts.addresses import LOOPBACK, addresses, free_port, is_address, is_here, is_loopback
from hosts.exposure import warning
from hosts.hostfile import read_host_lines
from hosts.output import Screen
from hosts.parts import (
    DECIDED,
    DEFAULT_PORT,
    Access,
    Part,
    Rendezvous,
    check_command,
    check_workers,
    choose_num_servers,
    plan_parts,
    ssh_words,
)
from hosts.running import Limits, Run

FEW_CORES = 4
FINISH = 60.0  # seconds for a slow reader to take the last lines


@dataclass(frozen=True)
class Launch:
    """The options as given, and the command of the ranks."""

    hostfile: str
    num_servers: int | None
    scheduler: str | None
    interface: str | None
    ssh: str
    env: tuple[str, ...]
    log_dir: Path | None
    quiet: bool
    limits: Limits
    dry_run: bool
    command: tuple[str, ...]


class _Parser(OptionParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"launch_byteps: {one_line(message)}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="hosts/launch_byteps.py",
        usage="%(prog)s --hostfile FILE [options] -- COMMAND...",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--hostfile", type=path_name, required=True, metavar="FILE", help="Open MPI host file: name slots=8"
    )
    text = (
        "servers, placed on the hosts in turn (default: one a host, BytePS's recommendation for servers that "
        "share their hosts with workers: each host's network then carries the same load)"
    )
    parser.add_argument(
        "--num_servers",
        type=whole(0, 4096, "BytePS's largest networks have hundreds"),
        metavar="N",
        help=text,
    )
    text = (
        "host and port of the scheduler (default: the first host; a free port if that is this machine, "
        f"else {DEFAULT_PORT})"
    )
    parser.add_argument("--scheduler", metavar="HOST[:PORT]", help=text)
    text = (
        "network interface between the hosts (default: DMLC_INTERFACE if that is set, else that of the "
        "addresses in the host file)"
    )
    parser.add_argument("--interface", metavar="NAME", help=text)
    text = "remote shell and its options, such as 'ssh -p 2222' (default: ssh)"
    parser.add_argument("--ssh", default="ssh", metavar="COMMAND", help=text)
    text = "a variable for every part, with its value here or a given one; can be repeated"
    parser.add_argument("--env", action="append", default=[], metavar="NAME[=VALUE]", help=text)
    text = (
        "also write each part's lines to DIR/rank.N/stdout, DIR/server.N/stderr, DIR/scheduler/...; appended"
    )
    parser.add_argument("--log_dir", type=path_name, metavar="DIR", help=text)
    text = "show the launcher's own lines only; needs --log_dir"
    parser.add_argument("--quiet", action="store_true", help=text)

    def seconds(flag: str, default: float, text: str) -> None:
        help = f"{text} (default {default:g})"
        parser.add_argument(flag, type=limited, default=default, metavar="SECONDS", help=help)

    limits = Limits()
    seconds("--grace", limits.grace, "how long ranks may take to stop after a signal before they are killed")
    seconds("--stopped_timeout", limits.stopped, "a part stopped by SIGSTOP for so long counts as dead")
    seconds("--server_timeout", limits.servers, "how long servers may take to end after the last rank")
    parser.add_argument("--dry_run", action="store_true", help="print a command for each part, start nothing")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (2 on bad input, 1 when a part could not be started)."""
    launch = _parse(list(sys.argv[1:] if argv is None else argv))
    try:
        parts, access = _plan(launch)
        _check_options(launch)
    except InputError as error:
        say(str(error))
        return 2
    exposed = warning(parts, access)
    if exposed:
        say(exposed)
    if launch.dry_run:
        with contextlib.suppress(BrokenPipeError):  # the reader, such as `head`, has seen enough
            for part in parts:
                print(f"# {part.name} on {part.host}\n{access.by_hand(part)}", flush=True)
        return 0
    _allow_open_files()
    errors = Screen(sys.stderr.buffer)
    screens = (Screen(sys.stdout.buffer, errors.say), errors)
    try:
        shown = None if launch.quiet else screens
        return Run(parts, access, launch.limits, shown, launch.log_dir, errors.say).run()
    except OSError as error:
        errors.say(f"{error.filename or 'a part'}: {error.strerror}; ended the run")
        return 1
    finally:
        for screen in screens:
            screen.finish(FINISH)


def say(text: str) -> None:
    """Writes a line of the launcher's own, before there is a `Screen`."""
    print(f"launch_byteps: {text}", file=sys.stderr, flush=True)


def _parse(words: list[str]) -> Launch:
    command: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, command = words[:cut], words[cut + 1 :]
    args = _parser().parse_args(words)
    return Launch(
        hostfile=args.hostfile,
        num_servers=args.num_servers,
        scheduler=args.scheduler,
        interface=args.interface or os.environ.get("DMLC_INTERFACE"),
        ssh=args.ssh,
        env=tuple(args.env),
        log_dir=None if args.log_dir is None else Path(args.log_dir),
        quiet=args.quiet,
        limits=Limits(args.grace, args.server_timeout, args.stopped_timeout),
        dry_run=args.dry_run,
        command=tuple(command),
    )


def _plan(launch: Launch) -> tuple[list[Part], Access]:
    """The processes of the run, and how they are started."""
    workers = read_host_lines(launch.hostfile)
    check_workers(workers, launch.hostfile)
    check_command(launch.command)
    extra = _extra(launch.env)
    forced = extra.get("BYTEPS_FORCE_DISTRIBUTED", os.environ.get("BYTEPS_FORCE_DISTRIBUTED", "0"))
    distributed = len(workers) > 1 or forced.strip() not in ("", "0")
    num_servers = choose_num_servers(launch.num_servers, workers, distributed)
    rendezvous = None
    numeric: dict[str, str] = {}
    hosts = [host for host, _ in workers]
    if distributed:
        rendezvous, numeric = _rendezvous(launch, hosts)
        hosts.append(rendezvous.host)
    elif launch.scheduler:
        raise InputError(f"--scheduler {launch.scheduler}: a single worker needs no scheduler; leave it out")
    here = frozenset(host for host in hosts if is_here(host))
    if launch.interface:
        extra["DMLC_INTERFACE"] = launch.interface
        # A run on this machine alone keeps to loopback; it has no network to choose.
        numeric = numeric if set(numeric.values()) == {LOOPBACK} else {}
    ssh = ssh_words(launch.ssh, launch.dry_run) if len(here) < len(set(hosts)) else ()
    defaults = {"PYTHONUNBUFFERED": "1"}  # Python keeps lines back that go into a pipe
    if here and rendezvous is not None and len(os.sched_getaffinity(0)) <= FEW_CORES:
        defaults["BYTEPS_SERVER_ENGINE_THREAD"] = "1"
    extra = {**{name: value for name, value in defaults.items() if name not in os.environ}, **extra}
    run_id = uuid.uuid4().hex[:8]
    parts = plan_parts(workers, num_servers, rendezvous, numeric, launch.command, run_id)
    return parts, Access(ssh, here, os.getcwd(), os.environ, extra)


def _rendezvous(launch: Launch, workers: Sequence[str]) -> tuple[Rendezvous, dict[str, str]]:
    """The scheduler's place, and the numeric addresses of all hosts (with --dry_run a name without one)."""
    name, port = _scheduler(launch.scheduler, workers[0])
    hosts = [*workers, name]
    numeric = addresses(hosts, launch.hostfile, lenient=launch.dry_run or bool(launch.interface))
    address = numeric[name]
    if launch.dry_run:
        for host in [host for host in numeric if not is_address(numeric[host])]:
            say(f"{host} has no address here; its name is printed, a run would stop here")
    # With an interface each of the other hosts determines its own address.
    elif not is_address(address) or (is_loopback(address) and not all(map(is_here, hosts))):
        raise InputError(f"{name} has no address here for the others; write it: --scheduler ADDRESS")
    if port is None:
        port = free_port(address) if is_here(name) else DEFAULT_PORT
    return Rendezvous(name, address, port), numeric


def _scheduler(given: str | None, first: str) -> tuple[str, int | None]:
    """Host and port of --scheduler; `first` and None where it is left out."""
    if given is None:
        return first, None
    host, colon, port = given.rpartition(":")
    if not colon:
        return given, None
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise InputError(f"--scheduler {given}: write HOST or HOST:PORT, with a port from 1 to 65535")
    return host, int(port)


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


def _check_options(launch: Launch) -> None:
    if launch.quiet and launch.log_dir is None:
        raise InputError("--quiet: needs --log_dir, or the output of the parts would be lost")
    if launch.log_dir is not None and launch.log_dir.exists() and not launch.log_dir.is_dir():
        raise InputError(f"--log_dir {launch.log_dir}: is a file")


def _allow_open_files() -> None:
    """Raises the limit of open files: three pipes and two files a part are more than the usual 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
