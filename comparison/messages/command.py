"""`python compare.py --comm_only`: communication alone by message size, every element of each checked.

    python compare.py --comm_only [--backends hvd_mpi byteps] [--workers 2] [--sizes 4KB 1MB 200x64KB]

Under --output: messages.md, messages.json, messages.png, and in messages/ what each launch has left. A second
call with the same options continues; finished launches are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from base import machine
from base.command_line import positive
from base.errors import InputError
from base.files import replacing
from base.progress import Printed
from comparison.launching.backends import BACKENDS, ROOT, Backend, Cluster
from comparison.messages.figures import Cell
from comparison.messages.launches import WORKER, Ranks, send
from comparison.messages.plan import DEFAULT_SIZES, ITEM_BYTES, Message, parse_messages, that_fit
from comparison.messages.report import write_messages
from comparison.progress import time_left
from comparison.settings import Setting, order_of_repeat
from comparison.statistics import FEWEST_REPEATS

FOLDER, LEFT_OUT = "messages", "left_out.json"  # under --output
RESERVE = 1e9  # bytes that stay free for everybody else


class Turn(NamedTuple):
    """A launch to be made."""

    cell: Cell
    repeat: int

    @property
    def name(self) -> str:
        return f"{self.cell.backend}-{self.cell.workers}x-{self.repeat + 1}"


class Sweep(NamedTuple):
    """All that the launches need. `scripts`: key of a backend -> what its ranks run. `left_out`: messages
    that do not fit into memory, with the reason. `store`: the directory of the launches."""

    options: argparse.Namespace
    backends: Mapping[str, Backend]
    scripts: Mapping[str, Path]
    messages: Sequence[Message]
    cells: Sequence[Cell]
    left_out: Mapping[Cell, Mapping[str, str]]
    store: Path


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of --comm_only alone."""
    group = parser.add_argument_group("communication alone (--comm_only)")
    group.add_argument(
        "--sizes",
        nargs="+",
        metavar="SIZE",
        default=list(DEFAULT_SIZES),
        help="messages: 64KB, 512MB, 200x64KB for 200 arrays at once (default: 4KB to 512MB in powers of 4,"
        " and 200x64KB)",
    )
    group.add_argument(
        "--message_dtype",
        choices=list(ITEM_BYTES),
        default="float32",
        help="of the elements (default float32)",
    )
    group.add_argument(
        "--message_seconds",
        type=positive,
        default=0.5,
        metavar="S",
        help="time for the rounds of a message in a launch: many of small messages, 2 at least of large ones"
        " (default 0.5)",
    )


def compare_messages(
    options: argparse.Namespace,
    backends: Mapping[str, Backend] = BACKENDS,
    scripts: Mapping[str, Path] | None = None,
) -> int:
    """Runs the comparison. Returns 0 when it is complete, 1 when a backend was wrong or failed.

    Args:
        options: as `comparison.options.parse_options` returns them.
        scripts: what ranks of a backend run in place of worker.py, by its key.

    Raises:
        InputError: before any work.
        KeyboardInterrupt: after the partial report has been written.
    """
    # The store knows how training is compared, which knows the options, which know those of this module.
    from comparison.store import Store, versions, what_counts

    messages, cells = _checked(options)
    with Store(os.path.join(options.output, FOLDER)) as store:
        axes = {"--backends": options.backends, "--workers": sorted({cell.workers for cell in cells})}
        names = ("seed", "message_dtype", "message_seconds")
        own = {f"--{name}": getattr(options, name) for name in names}
        own["--sizes"] = [message.name for message in messages]
        store.agree_on(what_counts(own, axes, options.cluster), options.repeats)
        left_out = _left_out(store.directory / LEFT_OUT, cells, messages, backends, options.cluster)
        sweep = Sweep(options, backends, scripts or {}, messages, cells, left_out, store.directory)
        facts = {
            "machine": machine.describe(ROOT),
            "versions": versions(),
            "titles": {cell.backend: backends[cell.backend].title for cell in cells},
            "command": ["python", *map(str, sys.argv)],
            "dtype": options.message_dtype,
            "repeats": options.repeats,
            "confidence": options.confidence,
            "options": {name: value for name, value in vars(options).items() if name != "cluster"},
        }
        made = _finished(sweep)
        complete = False
        try:
            _send_missing(sweep, made)
            complete = True
        finally:
            launches = [made[turn] for turn in _turns(sweep) if turn in made]
            directory = Path(options.output)
            report = write_messages(directory, facts, cells, messages, launches, left_out, complete)
            print(report.terminal)
            print("\n".join(map(str, report.paths)), flush=True)
            if not complete:
                print("interrupted; the same command continues", file=sys.stderr, flush=True)
    return 1 if any(launch["wrong"] or launch["failures"] for launch in launches) else 0


def _checked(options: argparse.Namespace) -> tuple[list[Message], list[Cell]]:
    """Raises InputError."""
    try:
        messages = parse_messages(options.sizes, options.message_dtype)
    except ValueError as error:
        raise InputError(f"--sizes: {error}") from error
    # The comparison of training has one worker by default, as the base of its efficiency.
    workers = [number for number in options.workers if number > 1]
    if not workers:
        raise InputError("--workers: --comm_only needs 2 or more, since one has nobody to send to")
    if options.repeats < FEWEST_REPEATS:
        text = f"warning: --repeats {options.repeats}: verdicts take {FEWEST_REPEATS}; there will be none"
        print(text, file=sys.stderr, flush=True)
    return messages, [Cell(key, number) for number in workers for key in options.backends]


def _left_out(
    path: Path,
    cells: Sequence[Cell],
    messages: Sequence[Message],
    backends: Mapping[str, Backend],
    cluster: Cluster | None,
) -> dict[Cell, dict[str, str]]:
    """What does not fit into memory. It is looked at once, and stays left out in the calls that continue."""
    if path.exists():
        told = json.loads(path.read_text(encoding="utf-8"))
        return {cell: told.get(Turn(cell, 0).name, {}) for cell in cells}
    available = machine.available_bytes() - RESERVE
    found = {
        cell: that_fit(backends[cell.backend], _on_one_host(cell.workers, cluster), messages, available)[1]
        for cell in cells
    }
    with replacing(str(path)) as file:
        file.write(json.dumps({Turn(cell, 0).name: told for cell, told in found.items()}).encode())
    return found


def _on_one_host(workers: int, cluster: Cluster | None) -> int:
    """The most ranks that a host has; all hosts are taken to have this one's memory."""
    if cluster is None:
        return workers
    hosts: dict[str, int] = {}
    for name, slots in cluster.first(workers):
        hosts[name] = hosts.get(name, 0) + slots
    return max(hosts.values())


def _turns(sweep: Sweep) -> list[Turn]:
    """In an order drawn for every repeat, backends with as many ranks next to each other."""
    settings = [Setting(*cell, sweep.options.message_dtype, 0) for cell in sweep.cells]
    return [
        Turn(Cell(setting.backend, setting.workers), repeat)
        for repeat in range(sweep.options.repeats)
        for setting in order_of_repeat(settings, repeat, sweep.options.seed)
    ]


def _finished(sweep: Sweep) -> dict[Turn, dict[str, Any]]:
    """The launches that are there already; with --retry_failed those only that lack nothing."""
    found = {}
    for turn in _turns(sweep):
        path = sweep.store / f"{turn.name}.json"
        try:
            launch = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except ValueError as error:
            raise InputError(f"{path} is damaged ({error}); remove it to have the launch repeated") from error
        wanted = {message.name for message in sweep.messages} - set(sweep.left_out[turn.cell])
        if wanted <= set(launch["results"]) or not sweep.options.retry_failed:
            found[turn] = launch
    return found


def _send_missing(sweep: Sweep, made: dict[Turn, dict[str, Any]]) -> None:
    """Makes the launches that `made` does not have, and adds them. A message at which a backend has failed or
    was wrong is not sent over it again."""
    turns = _turns(sweep)
    todo = [turn for turn in turns if turn not in made]
    progress = Printed(lines=sys.stdout)
    progress.begin("", len(turns), "launch", len(made))
    try:
        for number, turn in enumerate(todo, 1):
            title = sweep.backends[turn.cell.backend].title
            name = f"{title}, {turn.cell.workers} ranks, repeat {turn.repeat + 1}"
            progress.start(name)
            launch = made[turn] = _launch(sweep, turn, made)
            left = time_left(_seconds_left(todo[number:], made))
            troubles = [*launch["wrong"].items(), *launch["failures"].items()]
            said = "; ".join(f"{message}: {text}" for message, text in troubles)
            progress.finish(name, said or f"done in {launch['seconds']:.0f} s", left, failed=bool(said))
    finally:
        progress.end()


def _launch(sweep: Sweep, turn: Turn, made: Mapping[Turn, Mapping[str, Any]]) -> dict[str, Any]:
    """One launch, kept in the store."""
    cell, options = turn.cell, sweep.options
    avoided = set(sweep.left_out[cell])
    for other, launch in made.items():
        if other.cell == cell:
            avoided.update(launch["wrong"], launch["failures"])
    ranks = Ranks(
        backend=sweep.backends[cell.backend],
        script=sweep.scripts.get(cell.backend, WORKER),
        workers=cell.workers,
        cluster=options.cluster,
        dtype=options.message_dtype,
        seconds=options.message_seconds,
        limit_s=options.time_limit,
        seed=1000 * options.seed + turn.repeat,
    )
    wanted = [message for message in sweep.messages if message.name not in avoided]
    found = {**cell._asdict(), "repeat": turn.repeat, **send(ranks, wanted, sweep.store / turn.name)}
    with replacing(str(sweep.store / f"{turn.name}.json")) as file:
        file.write(json.dumps(found).encode())
    return found


def _seconds_left(todo: Sequence[Turn], made: Mapping[Turn, Mapping[str, Any]]) -> float:
    """An estimate: each lasts as long as those of its backend did, or else as all."""
    total = 0.0
    for turn in todo:
        own = [launch["seconds"] for other, launch in made.items() if other.cell == turn.cell]
        total += statistics.median(own or [launch["seconds"] for launch in made.values()])
    return total
