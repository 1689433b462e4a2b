"""The options of `python hosts/launch_byteps.py`, and what becomes of them. Standard library only."""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import sys
import uuid
from pathlib import Path
from typing import NoReturn, Sequence

from base.command_line import positive
from hosts.addresses import LOOPBACK, addresses, free_port, is_address, is_here, is_loopback
from hosts.hostfile import HostsError, read_host_lines
from hosts.output import Screen
from hosts.part_command import Access, check_command, ssh_words
from hosts.parts import DECIDED, DEFAULT_PORT, Part, Rendezvous, check_workers, choose_num_servers, plan_parts
from hosts.run_parts import Limits, Run

FEW_CORES = 4
FINISH = 60.0  # seconds for a slow reader to take the last lines


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"launch_byteps: {message}\n")


def _parser(description: str | None) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="hosts/launch_byteps.py",
        usage="%(prog)s --hostfile FILE [options] -- COMMAND...",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--hostfile", required=True, metavar="FILE", help="Open MPI host file: name slots=8")
    text = (
        "servers, placed on the hosts in turn (default: one a host, BytePS's recommendation for servers that "
        "share their hosts with workers: each host's network then carries the same load)"
    )
    parser.add_argument("--num_servers", type=int, metavar="N", help=text)
    text = (
        "where the scheduler runs and is found (default: the first host; a free port if that is this "
        f"machine, else {DEFAULT_PORT})"
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
    parser.add_argument("--log_dir", type=Path, metavar="DIR", help=text)
    text = "show the launcher's own lines only; needs --log_dir"
    parser.add_argument("--quiet", action="store_true", help=text)

    def seconds(flag: str, default: float, text: str) -> None:
        help = f"{text} (default {default:g})"
        parser.add_argument(flag, type=positive, default=default, metavar="SECONDS", help=help)

    limits = Limits()
    seconds("--grace", limits.grace, "how long ranks may take to stop after a signal before they are killed")
    seconds("--stopped_timeout", limits.stopped, "a part stopped by SIGSTOP for so long counts as dead")
    seconds("--server_timeout", limits.servers, "how long servers may take to end after the last rank")
    parser.add_argument("--dry_run", action="store_true", help="print a command for each part, start nothing")
    return parser


def main(description: str | None = None, argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (2 on bad input, 1 when a part could not be started)."""
    own = list(sys.argv[1:] if argv is None else argv)
    command: list[str] = []
    if "--" in own:
        cut = own.index("--")
        own, command = own[:cut], own[cut + 1 :]
    args = _parser(description).parse_args(own)
    try:
        parts, access = _plan(args, command)
        _check_options(args)
    except HostsError as error:
        say(str(error))
        return 2
    if args.dry_run:
        with contextlib.suppress(BrokenPipeError):  # the reader, such as `head`, has seen enough
            for part in parts:
                print(f"# {part.name} on {part.host}\n{access.by_hand(part)}", flush=True)
        return 0
    _allow_open_files()
    errors = Screen(sys.stderr.buffer)
    screens = (Screen(sys.stdout.buffer, errors.say), errors)
    limits = Limits(grace=args.grace, servers=args.server_timeout, stopped=args.stopped_timeout)
    try:
        shown = None if args.quiet else screens
        return Run(parts, access, limits, shown, args.log_dir, errors.say).run()
    except OSError as error:
        errors.say(f"{error.filename or 'a part'}: {error.strerror}; ended the run")
        return 1
    finally:
        for screen in screens:
            screen.finish(FINISH)


def say(text: str) -> None:
    """A line of the launcher's own, before there is a `Screen`."""
    print(f"launch_byteps: {text}", file=sys.stderr, flush=True)


def _plan(args: argparse.Namespace, command: list[str]) -> tuple[list[Part], Access]:
    workers = read_host_lines(args.hostfile)
    check_workers(workers, args.hostfile)
    check_command(command)
    extra = _extra(args.env)
    forced = extra.get("BYTEPS_FORCE_DISTRIBUTED", os.environ.get("BYTEPS_FORCE_DISTRIBUTED", "0"))
    distributed = len(workers) > 1 or forced.strip() not in ("", "0")
    num_servers = choose_num_servers(args.num_servers, workers, distributed)
    interface = args.interface or os.environ.get("DMLC_INTERFACE")
    rendezvous, found = None, {}
    hosts = [host for host, _ in workers]
    if distributed:
        name, port = _scheduler(args.scheduler, hosts[0])
        hosts.append(name)
        found = addresses(hosts, args.hostfile, lenient=args.dry_run or bool(interface))
        if args.dry_run:
            for host in [host for host in found if not is_address(found[host])]:
                say(f"{host} has no address here; its name is printed, a run would stop here")
        elif not _is_reachable(found[name], hosts):  # with an interface, each of the others finds its own
            raise HostsError(f"{name} has no address here for the others; write it: --scheduler ADDRESS")
        rendezvous = Rendezvous(name, found[name], _port(name, found[name]) if port is None else port)
    elif args.scheduler:
        raise HostsError(f"--scheduler {args.scheduler}: a single worker needs no scheduler; leave it out")
    here = frozenset(host for host in hosts if is_here(host))
    if interface:
        extra["DMLC_INTERFACE"] = interface
        # A run on this machine alone keeps to loopback; it has no network to choose.
        found = found if set(found.values()) == {LOOPBACK} else {}
    ssh = ssh_words(args.ssh, args.dry_run) if len(here) < len(set(hosts)) else ()
    defaults = {"PYTHONUNBUFFERED": "1"}  # Python keeps lines back that go into a pipe
    if here and rendezvous is not None and len(os.sched_getaffinity(0)) <= FEW_CORES:
        defaults["BYTEPS_SERVER_ENGINE_THREAD"] = "1"
    extra = {**{name: value for name, value in defaults.items() if name not in os.environ}, **extra}
    parts = plan_parts(workers, num_servers, rendezvous, found, command, run_id=uuid.uuid4().hex[:8])
    return parts, Access(ssh, here, os.getcwd(), os.environ, extra)


def _scheduler(given: str | None, first: str) -> tuple[str, int | None]:
    if given is None:
        return first, None
    host, colon, port = given.rpartition(":")
    if not colon:
        return given, None
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise HostsError(f"--scheduler {given}: write HOST or HOST:PORT, with a port from 1 to 65535")
    return host, int(port)


def _is_reachable(address: str, hosts: Sequence[str]) -> bool:
    return is_address(address) and (not is_loopback(address) or all(map(is_here, hosts)))


def _port(host: str, address: str) -> int:
    return free_port(address) if is_here(host) else DEFAULT_PORT


def _extra(given: Sequence[str]) -> dict[str, str]:
    extra = {}
    for one in given:
        name, equals, value = one.partition("=")
        if name in DECIDED:
            raise HostsError(
                f"--env {one}: each part gets a value of its own from the launcher; leave it out"
            )
        if not name or not (equals or name in os.environ):
            raise HostsError(f"--env {one}: is not set here; write {one or 'NAME'}=VALUE")
        extra[name] = value if equals else os.environ[name]
    return extra


def _check_options(args: argparse.Namespace) -> None:
    if args.quiet and args.log_dir is None:
        raise HostsError("--quiet: needs --log_dir, or what the parts say would be lost")
    if args.log_dir is not None and args.log_dir.exists() and not args.log_dir.is_dir():
        raise HostsError(f"--log_dir {args.log_dir}: is a file")


def _allow_open_files() -> None:
    """Three pipes and two files a part are more than the usual 1024 for a cluster."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
