"""A table, shown in a terminal or in Markdown; base.page makes HTML of it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import NamedTuple, Sequence

EMPTY = "–"
_WIDTH = 110  # of notes in a terminal


class Row(NamedTuple):
    """`cells`: one for each column, or fewer where `remark` stands in place of the rest. `samples`: what the
    last cell, a verdict say, follows from; a page links to it, text leaves it out."""

    cells: Sequence[str]
    remark: str = ""
    samples: Table | None = None


@dataclass(frozen=True)
class Table:
    """`head`: the names of the columns, of which the first `names` say what a row is about (left-aligned) and
    the others hold figures. `notes`: sentences below the table."""

    title: str
    head: Sequence[str]
    rows: Sequence[Row]
    names: int = 1
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) > len(self.head) or (len(row.cells) < len(self.head) and not row.remark):
                raise ValueError(f"{self.title}: {len(row.cells)} cells for {len(self.head)} columns")


def terminal(table: Table) -> str:
    """Columns under each other; a name that repeats the one above it is left out."""
    above_each_other = [table.head, *(row.cells for row in table.rows)]
    widths = [
        max(len(cells[index]) for cells in above_each_other if len(cells) > index)
        for index in range(len(table.head))
    ]
    lines = [table.title, _line(table, table.head, widths)]
    above: Sequence[str] = ()
    for row in table.rows:
        shown = list(row.cells)
        for index in range(min(table.names - 1, len(shown))):
            if above[: index + 1] == tuple(row.cells[: index + 1]):
                shown[index] = ""
        above = tuple(row.cells)
        line = _line(table, shown, widths)
        lines.append(f"{line}  {' '.join(row.remark.split())}" if row.remark else line)
    notes = [line for note in table.notes for line in textwrap.wrap(note, _WIDTH)]
    return "\n".join([*(line.rstrip() for line in lines), *notes])


def markdown(table: Table) -> str:
    """A heading, a pipe table, and the notes."""
    marks = ["---" if index < table.names else "---:" for index in range(len(table.head))]
    lines = [f"### {table.title}", "", _pipes(table.head), _pipes(marks)]
    for row in table.rows:
        cells = list(row.cells)
        if row.remark:
            # Beside the names, where the first figure would be; the other figures stay empty.
            cells = [*cells, row.remark][: len(table.head)]
            cells += [EMPTY] * (len(table.head) - len(cells))
        lines.append(_pipes([_escaped(cell) for cell in cells]))
    for note in table.notes:
        lines += ["", _escaped(note)]
    return "\n".join(lines) + "\n"


def _line(table: Table, cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [
        cell.ljust(width) if index < table.names else cell.rjust(width)
        for index, (cell, width) in enumerate(zip(cells, widths))
    ]
    return "  ".join(padded)


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _escaped(text: str) -> str:
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").split())
