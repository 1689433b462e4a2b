#!/usr/bin/env python3
"""Looks at all hosts of a host file before a run: are they reached, are they alike, is there room, how fast
is the network between them.

    python hosts/check.py hosts/4x_p3dn --data '/corpus/*.txt'

Reaches each host over ssh (which must ask for no password) and compares with the first: code (digest of all
source files, and the commit), versions of Python, Open MPI and libraries, the data of --data (names, sizes,
and samples of the first, the middle and the last file), the clock. Looks for memory, for the port of BytePS's
scheduler, for GPUs, and sends data between all pairs of hosts, both ways. Spare hosts (`# spare:` lines) are
looked at, too. Prints a table, and below it what is to be mended, a line each; with --json the same as JSON.

Exit codes: 0 nothing to mend, 1 something, 2 bad input. Run it in the folder, and with the interpreter, of
the run. Nothing is written on any host. docs/ssh.md is the guide.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from base.command_line import CommandParser, code_of, path_name, within
from base.errors import InputError
from base.options import add_options, flag, option, options_in, taken
from hosts.addresses import addresses, bare, is_here
from hosts.hostfile import merged, read_host_lines, read_spares
from hosts.launching.over_mpirun import program
from hosts.launching.parts import DEFAULT_PORT, ssh_words
from hosts.mpirun import interfaces
from hosts.reach import Conversation, Fault, Question, apart

GIB, GIGABIT = 1 << 30, 1e9 / 8
LOOK_SECONDS = 120.0  # for the digests of code and data, on a slow file system
UNEVEN = 0.5  # of the median bandwidth; below, a link is named
# Columns of the table between a host's slots and its slowest link, from its facts.
COLUMNS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "python": lambda own: own["python"],
    "mxnet": lambda own: own["versions"]["mxnet"] or "none",
    "code": lambda own: own["commit"] or own["code"][:12],
    "data": lambda own: " ".join(each["digest"][:6] for each in own["data"].values()) or "-",
    "cores": lambda own: str(own["cores"]),
    "GPUs": lambda own: str(own["gpus"]),
    "memory": lambda own: f"{own['memory'] / GIB:.1f} GiB",
    "clock": lambda own: f"{own['clock']:+.0f} s",
}


@dataclass(frozen=True)
class Options:
    """The command's options."""

    hostfile: str
    data: Sequence[str] = option(
        "files of the run, as in its --data; can be repeated",
        metavar="GLOB",
        default=(),
        unset=True,
        action="append",
    )
    memory: float = option(
        "memory that must be free for each rank. Rule of thumb: what --estimate of the training script says, "
        "and a quarter more",
        within(0, 100_000),
        metavar="GIB",
        default=2.0,
    )
    send: float = option(
        "send so long between each pair of hosts, each way; 0: not at all. Rule of thumb: 0.5; 5 where the "
        "network is shared with others. 32 hosts take 31 rounds",
        within(0, 600, "seconds"),
        metavar="SECONDS",
        default=0.5,
    )
    at_least: float | None = option(
        "what every link must reach (default: half of the median link). Rule of thumb: half of what the "
        "machines' vendor promises",
        within(0, 100_000),
        metavar="GBIT",
    )
    ssh: str = option(
        "remote shell and its options, such as 'ssh -p 2222' (default: ssh)", metavar="COMMAND", default="ssh"
    )
    python: str = option(
        "the ranks' interpreter, at the same path everywhere (default: the one that runs this)",
        path_name,
        metavar="PATH",
        default=sys.executable,
    )
    json: bool = flag("print JSON instead of the table")


@dataclass(frozen=True)
class Report:
    """Everything that was seen. `facts`: by host, None where it was not reached. `links`: Gbit/s from host to
    host. `mend`: host and what is to be mended there, in the order of the host file."""

    facts: Mapping[str, Mapping[str, Any] | None]
    links: Mapping[tuple[str, str], float]
    mend: Sequence[tuple[str, str]]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = CommandParser("check", prog="hosts/check.py", description=__doc__)
    text = "Open MPI host file: name slots=8"
    parser.add_argument("hostfile", type=path_name, metavar="HOSTFILE", help=text)
    known = options_in(Options)
    add_options(parser.add_argument, known, " ".join(known))
    options = taken(Options, parser.parse_args(argv))
    try:
        hosts = merged([*read_host_lines(options.hostfile), *read_spares(options.hostfile)])
        report = look(options, hosts)
    except InputError as error:
        print(f"check: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if options.json:
        found = {
            "hosts": dict(report.facts),
            "links": [{"from": a, "to": b, "gbit_per_s": speed} for (a, b), speed in report.links.items()],
            "mend": [{"host": host, "what": what} for host, what in report.mend],
        }
        print(json.dumps(found, indent=2))
    else:
        print(table(report, dict(hosts)))
        for host, what in report.mend:
            print(f"mend: {bare(host)} {what}")
        if not report.mend:
            print(f"{len(hosts)} hosts, nothing to mend")
    return 1 if report.mend else 0


def look(options: Options, hosts: Sequence[tuple[str, int]]) -> Report:
    """Asks all `hosts` (name and slots), and lets each pair send.

    Raises:
        InputError: a host has no address.
    """
    names = [host for host, _ in hosts]
    ssh = () if all(map(is_here, names)) else ssh_words(options.ssh)
    numeric = addresses(names, options.hostfile, lenient=True)
    path = os.environ.get("PATH", os.defpath)
    daemon = program("mpirun", only_show=shutil.which("mpirun") is None).daemon
    named = tuple(interfaces((), os.environ))
    question = Question(ssh, os.getcwd(), options.python, path, (daemon,), named)
    with Conversation(names, question) as conversation:
        about = {"ask": "facts", "programs": question.programs}
        answers, faults = conversation.ask(dict.fromkeys(names, about), LOOK_SECONDS)
        state: dict[str, Any] = {"ask": "state", "data": options.data}
        asked = {name: {**state, "ports": [DEFAULT_PORT] if name == names[0] else []} for name in answers}
        states, lost = conversation.ask(asked, LOOK_SECONDS)
        known = {name: {**each, **answers[name]} for name, each in states.items()}
        links, broken = _measure(conversation, list(known), numeric, options.send)
    facts = {name: known.get(name) for name in names}
    found = [(name, fault.why) for name, fault in {**faults, **lost}.items()]
    found += [*_unlike(facts, question), *_short(facts, hosts, options)]
    found += [*broken, *_slow(links, options.at_least)]
    order = {name: place for place, name in enumerate(names)}
    return Report(facts, links, sorted(found, key=lambda each: order[each[0]]))


def _measure(
    hosts: Conversation, names: Sequence[str], numeric: Mapping[str, str], send: float
) -> tuple[dict[tuple[str, str], float], list[tuple[str, str]]]:
    """Gbit/s of each link, and the links over which nothing comes."""
    links: dict[tuple[str, str], float] = {}
    broken = []
    for pairs in rounds(names) if send else ():
        for turn in (pairs, [(there, here) for here, there in pairs]):
            secret = {there: secrets.token_hex(32) for _, there in turn}
            questions: dict[str, Any] = {
                there: {"ask": "listen", "secret": secret[there]} for _, there in turn
            }
            listening, _ = hosts.ask(questions, LOOK_SECONDS)
            questions = {}
            for here, there in turn:
                if there in listening:
                    to = {"address": numeric[there], "port": listening[there]["port"]}
                    questions[here] = {"ask": "send", "secret": secret[there], "seconds": send, **to}
            sent, faults = hosts.ask(questions, LOOK_SECONDS)
            for here, there in turn:
                if here in sent:
                    links[here, there] = sent[here]["bytes_per_s"] / GIGABIT
                else:
                    fault = faults.get(here, Fault("it could not open a port"))
                    why = f"gets nothing from {bare(here)} ({fault.why}); let the run's hosts through, "
                    broken.append((there, f"{why}ports 1024-65535 (docs/network.md)"))
    return links, broken


def rounds(names: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """All pairs, in rounds in which no host is in two: a tournament by the circle method."""
    ring: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        facing = zip(ring[:half], reversed(ring[half:]))
        yield [(one, other) for one, other in facing if one is not None and other is not None]
        ring = [ring[0], ring[-1], *ring[1:-1]]


def _unlike(facts: Mapping[str, Mapping[str, Any] | None], question: Question) -> Iterator[tuple[str, str]]:
    """Differences to the first host that was reached."""
    reached = {name: each for name, each in facts.items() if each is not None}
    if not reached:
        return
    first, *more = reached
    model = reached[first]
    fault = question.fault(model, model)
    if fault is not None:
        yield first, fault.why
    for name in more:
        own = reached[name]
        fault = question.fault(own, model, bare(first))
        if fault is not None:
            yield name, fault.why
        if own["mpirun"] != model["mpirun"]:
            yield name, f"has {own['mpirun'] or 'no mpirun'}, {bare(first)} {model['mpirun'] or 'none'}"
        if own["code"] != model["code"]:
            commits = f"commit {own['commit'] or 'unknown'}, {bare(first)} {model['commit'] or 'unknown'}"
            yield name, f"has other source files ({commits}); rsync -a them from {bare(first)}"
        for pattern, data in own["data"].items():
            if data != model["data"][pattern]:
                both = f"{_files(data)}, {bare(first)} {_files(model['data'][pattern])}"
                yield name, f"has other data for {pattern}: {both}; copy them anew"


def _files(data: Mapping[str, Any]) -> str:
    return f"{data['files']} files, {data['bytes']:,} bytes, digest {data['digest']}"


def _short(
    facts: Mapping[str, Mapping[str, Any] | None], hosts: Sequence[tuple[str, int]], options: Options
) -> Iterator[tuple[str, str]]:
    """Hosts that lack something by themselves."""
    for name, slots in hosts:
        own = facts[name]
        if own is None:
            continue
        if own["memory"] < options.memory * slots * GIB:
            need = f"{slots} ranks need {options.memory * slots:.4g} (--memory)"
            yield name, f"has {own['memory'] / GIB:.1f} GiB of memory free, {need}; end what else runs there"
        if own["gpus"] and slots > own["gpus"]:
            there = f"{slots} slots in {options.hostfile}"
            yield name, f"has {own['gpus']} GPUs and {there}; write slots={own['gpus']}"
        for port in own["taken"]:
            cure = "end what has it, or name another: --scheduler HOST:PORT"
            yield name, f"has no free port {port} for BytePS's scheduler; {cure}"
        for pattern, data in own["data"].items():
            if not data["files"]:
                cure = "copy the data there, or mount them at the same path"
                yield name, f"has no file for --data {pattern}; {cure}"
        if apart(own):
            yield name, f"has a clock {apart(own)}; timedatectl set-ntp true"


def _slow(links: Mapping[tuple[str, str], float], at_least: float | None) -> Iterator[tuple[str, str]]:
    """Links below what is asked for, or far below the others."""
    if not links:
        return
    median = sorted(links.values())[len(links) // 2]
    limit = UNEVEN * median if at_least is None else at_least
    for (here, there), speed in links.items():
        if speed < limit:
            wanted = f"--at_least {at_least:g}" if at_least else f"the median link has {median:.3g}"
            look_at = "look at its cable, its switch, its driver"
            yield there, f"gets {speed:.3g} Gbit/s from {bare(here)}, {wanted}; {look_at}"


def table(report: Report, slots: Mapping[str, int]) -> str:
    """A report as text, a line a host."""
    rows = [["host", "slots", *COLUMNS, "slowest link"]]
    for host, own in report.facts.items():
        cells = ["not reached"] + [""] * len(COLUMNS)
        if own is not None:
            cells = [*(cell(own) for cell in COLUMNS.values()), "-"]
            links = [(speed, pair) for pair, speed in report.links.items() if host in pair]
            if links:
                speed, (here, there) = min(links)
                cells[-1] = f"{speed:.3g} Gbit/s {bare(here)} > {bare(there)}"
        rows.append([bare(host), str(slots[host]), *cells])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows
    )


if __name__ == "__main__":
    sys.exit(code_of(main))
