"""Reports: a Markdown file, a page, a JSON file and pictures, made of the same parts as a text for the
terminal; numbers and names as people read them, the same in all of these; the mark of a busy machine."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, NamedTuple, Sequence, Union

from base import machine
from base.drawing import as_svg
from base.files import replacing
from base.page import page
from base.quantities import digits, percent
from base.tables import EMPTY, Row, Table, markdown, terminal
from comparison.canvas import save
from comparison.verdicts import DIFFERENT, FEWEST_REPEATS, Pair, Planning, Samples, Spread, planning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Part = Union[str, Table]

BUSY = 0.1  # of this machine's CPU time: where other programs take more, figures are marked
PLANNING = "planning"  # of a report's content, see comparison.verdicts


class Report(NamedTuple):
    """A report before it is written.

    `name`: of Markdown, HTML and JSON, without the ending. `document`: paragraphs and tables of the first
    two, empty ones are left out. `content`: of the last. `pictures`: file names and figures, None for one
    that has nothing to show. `shown`: paragraphs and tables for a terminal. `mark`: added to the titles of
    the pictures, in red.
    """

    name: str
    document: Sequence[Part]
    content: Mapping[str, Any]
    pictures: Mapping[str, Figure | None]
    shown: Sequence[Part]
    mark: str = ""

    def ended(self, code: int, failed: Sequence[str] = (), complete: bool = True) -> Report:
        """The same with the field `outcome`, for programs: the exit code of the command, whether all that was
        asked for has been measured, a line for each setting that makes the code 1, and how many pairs have
        which verdict."""
        verdicts = Counter(pair.verdict for pair in self.content.get("pairs", ()))
        outcome = {"code": code, "complete": complete, "failed": [*failed], "verdicts": dict(verdicts)}
        return self._replace(content={**self.content, "outcome": outcome})

    @property
    def terminal(self) -> str:
        """Text without a line end."""
        return "\n\n".join(terminal(each) if isinstance(each, Table) else each for each in self.shown)

    @property
    def markdown(self) -> str:
        texts = (markdown(each) if isinstance(each, Table) else each for each in self.document)
        return "\n\n".join(each.strip("\n") for each in texts if each) + "\n"

    def write(self, directory: Path) -> list[Path]:
        """Writes the files, each whole or not at all, and returns their paths. Raises OSError."""
        drawn = {name: figure for name, figure in self.pictures.items() if figure}
        svgs = {}
        for index, (name, figure) in enumerate(drawn.items()):
            save(figure, directory / name, self.mark)
            svgs[name] = as_svg(figure, f"plot-{index}")  # with the mark that `save` has added
        texts = {
            directory / f"{self.name}.md": self.markdown,
            directory / f"{self.name}.html": page([each for each in self.document if each], svgs),
            directory / f"{self.name}.json": as_json(self.content),
        }
        for path, text in texts.items():
            write_text(path, text)
        return [*texts, *(directory / name for name in drawn)]


def write_text(path: Path, text: str) -> None:
    """Writes a file, whole or not at all. Raises OSError."""
    with replacing(str(path)) as handle:
        handle.write(text.encode("utf-8"))


def as_json(content: Any) -> str:
    return json.dumps(plain(content), indent=1, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """The same for JSON: named tuples and dataclasses become objects, what is not finite null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return plain(vars(value))
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)  # a Path, say


def busy_mark(shares: Sequence[float]) -> str:
    """The mark of all figures; "" where other programs left the machine to every launch. `shares`: of its CPU
    time, taken by others during each launch."""
    busy = sum(share > BUSY for share in shares)
    return f"{busy} of {len(shares)} launches on a busy machine" if busy else ""


def marked(tables: Iterable[Table | None], mark: str) -> list[Table]:
    """Those that there are, with the mark in their titles."""
    known = [each for each in tables if each is not None]
    return [replace(each, title=f"{each.title} ({mark})") for each in known] if mark else known


def column_table(title: str, columns: Mapping[str, Callable[[Any], str]], of: Sequence[Any]) -> Table:
    """A row for each of these. `columns`: head of a column -> its cell."""
    return Table(title, list(columns), [Row([cell(each) for cell in columns.values()]) for each in of])


def judged(
    cells: Sequence[str], pair: Pair | None, samples: Samples, titles: Mapping[str, str], where: str
) -> Row:
    """A row whose last cell is the verdict on a pair, from which a page leads to the values that it follows
    from, and their ratio in each repeat. Without a pair there is none.

    Args:
        samples: of the contenders: seconds a step, or an average. `titles`: their names for people.
        where: what they have done, for the title of the values.
    """
    if pair is None:
        return Row([*cells, EMPTY])
    first, second = (samples.get(name, {}) for name in (pair.first, pair.second))
    rows = []
    for repeat in sorted({*first, *second}):
        values = [f"{each[repeat]:,.6g}" if repeat in each else EMPTY for each in (first, second)]
        both = repeat in first and repeat in second
        values.append(digits(second[repeat] / first[repeat], 4) if both else EMPTY)
        rows.append(Row([str(repeat + 1), *values]))
    names = [titles[each] for each in (pair.first, pair.second)]
    head = ["repeat", *(f"{name}, s" for name in names), "B / A"]
    behind = Table(f"{where}: {names[0]} (A), {names[1]} (B)", head, rows)
    return Row([*cells, verdict(pair, titles)], samples=behind)


class Found(NamedTuple):
    """Findings of the launches of a comparison, for `report_on`.

    `name`: of the files. `title`, `caption`: of the report, and of its figure. `rows`: a JSON object for each
    setting. `explained`: paragraphs on what was measured. `number`: launches that there will be, of which so
    far each has met such `shares`, as for `busy_mark`. `more`: further fields of the JSON file.
    """

    name: str
    title: str
    tables: Sequence[Table]
    sentences: Sequence[str]
    figure: Figure | None
    caption: str
    rows: Sequence[Mapping[str, Any]]
    pairs: Sequence[Pair]
    explained: Sequence[str]
    number: int
    shares: Sequence[float]
    more: Mapping[str, Any] = {}


def report_on(
    found: Found, facts: Mapping[str, Any], launches: Sequence[Mapping[str, Any]], complete: bool
) -> Report:
    """The report of --comm_only and of --emulate.

    Args:
        facts: as `comparison.campaign.Campaign.facts`, the repeats, and more; JSON-able.
        complete: False for a comparison that goes on, or was interrupted.
    """
    busy, picture = busy_mark(found.shares), f"{found.name}.png"
    tables = marked(found.tables, busy)
    planned = planning(found.pairs, facts["confidence"])
    done = f"{len(launches)} of {found.number} launches are done"
    partial = [] if complete else [f"Partial: {done}; the same command continues."]
    few = [f"With fewer than {FEWEST_REPEATS} repeats there are no verdicts."]
    few = few if facts["repeats"] < FEWEST_REPEATS else []
    sentences = with_remarks([*partial, *found.sentences, *few], planned, found.shares)
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    document: list[Part] = [
        f"# {found.title}",
        *sentences,
        *tables,
        f"![{found.caption}]({picture})" if found.figure else "",
        "## What was measured",
        *found.explained,
        "## Where",
        *machine.line(facts["machine"]).splitlines(),
        f"{versions}.",
        "\n".join(["```", " ".join(facts["command"]), "```"]),
    ]
    content = {
        "complete": complete,
        **facts,
        "busy": busy,
        "figures": found.rows,
        "pairs": found.pairs,
        PLANNING: planned,
        **found.more,
        "launches": launches,
    }
    shown: list[Part] = [*tables, "\n".join(sentences)]
    return Report(found.name, document, content, {picture: found.figure}, shown, busy)


def with_remarks(sentences: Sequence[str], planned: Planning | None, shares: Sequence[float]) -> list[str]:
    """A report's sentences, one about the repeats that verdicts take, and one about the load by other
    programs: last, or first where it was much."""
    sentences = [*sentences, *([planned.sentence] if planned else [])]
    if not shares:
        return sentences
    taken = (
        f"While ranks ran, other programs took {percent(statistics.median(shares))} of this machine's CPU"
        f" time (median of the launches; at most {percent(max(shares))})."
    )
    mark = busy_mark(shares)
    if not mark:
        return [*sentences, taken]
    loud = (
        f"MEASURED ON A BUSY MACHINE. {taken} In {mark.partition(' on ')[0]} it was more than"
        f" {percent(BUSY)}: differences may be due to it. Repeat the comparison with another --output when"
        " the machine is quiet."
    )
    return [loud, *sentences]


def with_range(middle: float, low: float, high: float, significant: int = 3) -> str:
    """`0.0712 (0.0701 to 0.0735)`, all three with the places of the first."""
    text = digits(middle, significant)
    places = len(text.partition(".")[2])
    return f"{text} ({low:,.{places}f} to {high:,.{places}f})"


def with_quartiles(values: Spread) -> str:
    return with_range(values.median, values.low, values.high)


def with_extremes(values: Spread) -> str:
    """`3.1 (2.9 to 3.6)`."""
    return with_range(values.median, values.least, values.most, 2)


def share_with_extremes(shares: Spread) -> str:
    """`12% (9.4% to 31%)`."""
    return f"{percent(shares.median)} ({percent(shares.least)} to {percent(shares.most)})"


def milliseconds(seconds: float) -> str:
    return "0" if seconds < 1e-9 else digits(seconds * 1e3)  # less is rounding


def size(count: float | None) -> str:
    """Bytes."""
    if count is None:
        return EMPTY
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{digits(count / factor)} {unit}"
    return f"{count:.0f} B"


def memory(count: float | None) -> str:
    """Bytes of memory, in binary units."""
    if count is None:
        return EMPTY
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def verdict(pair: Pair, titles: Mapping[str, str]) -> str:
    if pair.verdict != DIFFERENT or pair.faster is None:
        return pair.verdict
    return f"{titles.get(pair.faster, pair.faster)} is faster"
