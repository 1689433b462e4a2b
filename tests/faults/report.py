"""The table of all figures: in a terminal, as docs/reliability.md, and as JSON beside it.

A command that tries some figures leaves the others, and goes on where an earlier one with its seed has
stopped. A page is of one commit.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Iterable, Sequence

from base.errors import InputError
from base.files import replacing
from base.tables import EMPTY, Row, Table, markdown, terminal
from tests.faults.figure import BACKENDS, ONCE, Failure, Figure, Program
from tests.faults.measuring import Caught

INTRODUCTION = """\
# Reliability

Measured by `python -m tests.faults`, which attacks real runs of a small BERT with two processes: a cell
is "held of tried". `make reliability MINUTES=240 ARGS=--anew` begins this page anew, and without `--anew`
tries further cases of the same commit, with `FIGURES=1,7` of some figures. A cell in bold failed; the cases
are below, with the command that tries each again. The command's damages break deliberately what a figure is
about, to see that the figure notices.
[tested.md](tested.md) lists all other tests.
"""


@dataclass(frozen=True)
class Measured:
    """A figure and the numbers of the commands, in `Page.commands`, that have added to it."""

    figure: Figure
    commands: tuple[int, ...]


@dataclass(frozen=True)
class Page:
    """All that the page shows. `commands`: machine, date, commit, minutes and seed of each. `damaged_by`:
    numbers of those that tried damages."""

    commands: tuple[dict[str, Any], ...] = ()
    figures: tuple[Measured, ...] = ()
    damages: tuple[Caught, ...] = ()
    damaged_by: tuple[int, ...] = ()

    def check(self, facts: dict[str, Any], path: Path) -> None:
        """Raises InputError where the figures are of another commit or seed than `facts`, or of code that no
        commit has ("abc+")."""
        for each in self.commands:
            for name in ("commit", "seed"):
                if each[name] != facts[name] or str(facts[name]).endswith("+"):
                    raise InputError(
                        f"{path}: has figures of {name} {each[name]}, this is {facts[name]}: "
                        "--anew begins a new page, --output FILE writes another"
                    )

    def with_results(
        self, facts: dict[str, Any], figures: Iterable[Figure], damages: Sequence[Caught]
    ) -> Page:
        """The page with the results of one more command, whose figures count what the page had of them."""
        number = len(self.commands)
        all_figures = {(each.figure.number, each.figure.backend): each for each in self.figures}
        for figure in figures:
            before = all_figures.get((figure.number, figure.backend))
            if before is None or figure.tried > before.figure.tried:
                by = (*(before.commands if before else ()), number)
                all_figures[figure.number, figure.backend] = Measured(figure, by)
        tried = {(each.number, each.backend) for each in damages}
        kept = [each for each in self.damages if (each.number, each.backend) not in tried]
        by = (*self.damaged_by, number) if damages else self.damaged_by
        return Page((*self.commands, facts), tuple(all_figures.values()), (*kept, *damages), by)


def read(path: Path) -> Page:
    """The page of an earlier command; an empty one if there is none."""
    if not path.exists():
        return Page()
    stored = json.loads(path.read_text(encoding="utf-8"))
    return Page(
        tuple(stored["commands"]),
        tuple(Measured(_figure(each["figure"]), tuple(each["commands"])) for each in stored["figures"]),
        tuple(Caught(**each) for each in stored["damages"]),
        tuple(stored["damaged_by"]),
    )


def _figure(stored: dict[str, Any]) -> Figure:
    failures = tuple(Failure(**each) for each in stored["failures"])
    return Figure(**{**stored, "failures": failures, "measured": tuple(stored["measured"])})


def write(page: Page, programs: Sequence[Program], path: Path) -> None:
    """Writes the page, and its JSON under the same name."""
    with replacing(str(path.with_suffix(".json"))) as file:
        file.write(json.dumps(asdict(page), indent=1).encode() + b"\n")
    with replacing(str(path)) as file:
        file.write(text(page, programs).encode())


def text(page: Page, programs: Sequence[Program]) -> str:
    """The page in Markdown."""
    tables = [table([each.figure for each in page.figures], programs), _when(page)]
    failures = [
        Row([one.figure.number, BACKENDS.get(one.figure.backend, "all"), each.what, f"`{each.command}`"])
        for one in page.figures
        for each in one.figure.failures
    ]
    if failures:
        tables.append(Table("Failures", ["#", "backend", "case", "try again"], failures, names=4))
    tables += [_damage_table(page.damages)] if page.damages else []
    return "\n".join(part.rstrip() + "\n" for part in (INTRODUCTION, *map(markdown, tables)))


def table(figures: Sequence[Figure], programs: Sequence[Program]) -> Table:
    """A row for each program, a column for each backend."""
    found = {(figure.number, figure.backend): figure for figure in figures}
    rows, notes = [], []
    for program in programs:
        once = program.backends == (ONCE,)  # one number, in the first column only
        columns = (ONCE, "", "") if once else BACKENDS
        mine = [found.get((program.number, backend)) for backend in columns]
        if not any(mine):
            continue
        rows.append(Row([program.number, program.name, program.goal, *map(cell, mine)]))
        notes += [f"{program.number}: the same with all backends."] if once else []
        said = [note for each in filter(None, mine) for note in (each.note, *each.measured) if note]
        notes += [f"{program.number}: {note}" for note in dict.fromkeys(said)]
    head = ["#", "figure", "goal", *BACKENDS.values()]
    return Table("Figures", head, rows, names=3, notes=notes)


def cell(figure: Figure | None) -> str:
    """Held of tried, in bold where it failed."""
    if figure is None:
        return EMPTY
    if not figure.tried:
        return "not tried"
    shown = f"{figure.held:,} of {figure.tried:,}"
    return shown if figure.holds else f"**{shown}**"


def shown(page: Page, programs: Sequence[Program]) -> str:
    """The table for a terminal, with what failed."""
    parts = [terminal(table([each.figure for each in page.figures], programs)) if page.figures else ""]
    parts += [f"{each.command}\n    {each.what}" for one in page.figures for each in one.figure.failures]
    if page.damages:
        parts.append(terminal(_damage_table(page.damages)))
    return "\n\n".join(filter(None, parts))


def _when(page: Page) -> Table:
    rows, keys = [], ("machine", "date", "commit", "minutes", "seed")
    for number, facts in enumerate(page.commands):
        about = list(dict.fromkeys(each.figure.number for each in page.figures if number in each.commands))
        about += ["damages"] if number in page.damaged_by else []
        rows.append(Row([", ".join(about), *(str(facts[name]) for name in keys)]))
    return Table("Measured", ["figures", *keys], rows, names=4)


def _damage_table(damages: Sequence[Caught]) -> Table:
    words = {True: "yes", False: "**no**", None: "not tried"}

    def order(each: Caught) -> tuple[object, ...]:
        number = int(each.number) if each.number.isdigit() else 100
        return number, each.number, each.damage, each.backend

    rows = [
        Row([each.number, each.damage, BACKENDS.get(each.backend, "all"), words[each.noticed], each.said])
        for each in sorted(damages, key=order)
    ]
    return Table(
        "Deliberate damage", ["#", "damage", "backend", "caught", "what the figure says"], rows, names=5
    )
