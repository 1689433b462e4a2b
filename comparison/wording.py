"""Numbers and names as people read them, the same in tables, sentences and plots; the files of a report."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterable, Mapping, Sequence, Union

from base.files import replacing
from base.quantities import digits, percent
from base.tables import EMPTY, Table, markdown, terminal
from comparison.backends import BACKENDS
from comparison.campaign import Group
from comparison.verdicts import DIFFERENT, Pair, Spread

Part = Union[str, Table]  # of a report

BUSY = 0.1  # of this machine's CPU time: where other programs take more, figures are marked


def as_markdown(parts: Iterable[Part]) -> str:
    """Paragraphs and tables, a blank line between them; empty ones are left out."""
    texts = (markdown(each) if isinstance(each, Table) else each for each in parts)
    return "\n\n".join(each.strip("\n") for each in texts if each) + "\n"


def as_terminal(parts: Iterable[Part]) -> str:
    """The same for a terminal, without a line end."""
    return "\n\n".join(terminal(each) if isinstance(each, Table) else each for each in parts)


def write_files(directory: Path, files: Mapping[str, str | Mapping[str, Any]]) -> None:
    """Writes texts, and what is not text as JSON; each file appears whole or not at all.

    Args:
        files: names -> contents, of finite numbers.

    Raises:
        OSError: a file cannot be written.
    """
    for name, content in files.items():
        if not isinstance(content, str):
            content = json.dumps(content, indent=1, allow_nan=False) + "\n"
        with replacing(str(directory / name)) as handle:
            handle.write(content.encode("utf-8"))


def busy_mark(shares: Sequence[float]) -> str:
    """The mark of all figures; "" where other programs left the machine to every launch. `shares`: of its CPU
    time, taken by others during each launch."""
    busy = sum(share > BUSY for share in shares)
    return f"{busy} of {len(shares)} launches on a busy machine" if busy else ""


def with_others(sentences: Sequence[str], shares: Sequence[float]) -> list[str]:
    """A report's sentences and one about the load by other programs: last, or first where it was much."""
    if not shares:
        return [*sentences]
    mark = busy_mark(shares)
    taken = (
        f"While ranks ran, other programs took {percent(statistics.median(shares))} of this machine's CPU"
        f" time (median of the launches; at most {percent(max(shares))})."
    )
    if not mark:
        return [*sentences, taken]
    loud = (
        f"MEASURED ON A BUSY MACHINE. {taken} In {mark.partition(' on ')[0]} it was more than"
        f" {percent(BUSY)}: differences may be due to it. Repeat the comparison with another --output when"
        " the machine is quiet."
    )
    return [loud, *sentences]


def beside(share: float | None) -> str:
    """Words on the load by others during a launch, for the progress; "" where it was little."""
    return f"; other programs took {percent(share)} of the machine" if share and share > BUSY else ""


def marked(table: Table, mark: str) -> Table:
    """The table with the mark in its title."""
    return replace(table, title=f"{table.title} ({mark})") if mark else table


def title_of(backend: str, facts: Mapping[str, Any]) -> str:
    """`facts["titles"]`, where given, has the names of backends that are not ours."""
    given = facts.get("titles") or {}
    return str(given.get(backend) or (BACKENDS[backend].title if backend in BACKENDS else backend))


def batch_unit(facts: Mapping[str, Any]) -> str:
    return "tokens" if facts["use_avg_len"] else "sequences"


def group_words(group: Group, facts: Mapping[str, Any]) -> str:
    workers = f"{group.workers} worker{'s' if group.workers > 1 else ''}"
    return f"{workers}, {group.dtype}, {group.batch_size:,} {batch_unit(facts)}"


def with_quartiles(values: Spread, significant: int = 3) -> str:
    """`0.0712 (0.0701 to 0.0735)`, all three with the places of the median."""
    text = digits(values.median, significant)
    places = len(text.partition(".")[2])
    return f"{text} ({values.low:,.{places}f} to {values.high:,.{places}f})"


def with_extremes(values: Spread) -> str:
    """`3.1 (2.9 to 3.6)`."""
    text = digits(values.median, 2)
    places = len(text.partition(".")[2])
    return f"{text} ({values.least:,.{places}f} to {values.most:,.{places}f})"


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


def share_with_extremes(shares: Spread) -> str:
    """`12% (9.4% to 31%)`."""
    return f"{percent(shares.median)} ({percent(shares.least)} to {percent(shares.most)})"


def ratio_with_interval(pair: Pair) -> str:
    if pair.low is None or pair.high is None:
        return f"{pair.ratio:.3f}"
    return f"{pair.ratio:.3f} ({pair.low:.3f} to {pair.high:.3f})"


def verdict(pair: Pair, facts: Mapping[str, Any]) -> str:
    if pair.verdict != DIFFERENT or pair.faster is None:
        return pair.verdict
    return f"{title_of(pair.faster, facts)} is faster"
