"""`python compare.py --merge DIR DIR ...`: reports of earlier comparisons laid over each other, such as those
of several clusters, machines or commits: merged.md, merged.json, merged.png under --output.

All are of one kind: training runs, --comm_only or --emulate. A setting is a row, a report a column, and
ratios are to the first report.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.json_files import read_json_object
from base.student import exceeds_test, holm
from base.tables import EMPTY, Row, Table
from comparison.canvas import colour, ideal_style, legend_below, marker, new_figure, plain
from comparison.options import MergeOptions
from comparison.report import Part, Report, verdict, with_range
from comparison.verdicts import FEWEST_REPEATS, Pair, compare, rule_across, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, PICTURE = "merged", "merged.png"
MOST_BYTES = 1 << 30  # of a report, with all its samples
# Facts in which reports of training runs must agree: otherwise no setting is the same.
TRAINED = ("model", "vocab_size", "max_seq_length", "use_avg_len", "accumulate")
NOT_SHOWN = ("output", "command", "dry_run", "retry_failed", "merge", "fail_if_slower")  # options
Key = tuple[str, ...]  # cells that name a setting


class Measured(NamedTuple):
    """A setting in a report: `samples_s` by repeat, or the `reason` why there are none; "": it is absent."""

    samples_s: Mapping[int, float]
    reason: str = ""


class Place(NamedTuple):
    """A setting in a later report: the group of a `comparison.verdicts.Pair`."""

    setting: Key
    report: str

    def __str__(self) -> str:
        return f"{self.report}, {' '.join(self.setting)}"


def _of_runs(content: Mapping[str, Any]) -> dict[Key, Measured]:
    found: dict[Key, Measured] = {}
    for each in content["results"]:
        workers, dtype, batch = (each["setting"][name] for name in ("workers", "dtype", "batch_size"))
        backend = content["facts"]["titles"][each["setting"]["backend"]]
        samples = _samples(each["figures"]["samples"] if each["figures"] else {})
        found[(str(workers), dtype, f"{batch:,}", backend)] = Measured(samples, each["reason"])
    return found


def _of_others(content: Mapping[str, Any]) -> dict[Key, Measured]:
    """Of --comm_only and --emulate, whose rows are alike. A backend that was wrong with one message has
    no verdict with any."""
    found: dict[Key, Measured] = {}
    rows = content["figures"]
    wrong = [(row["backend"], row.get("workers")) for row in rows if "wrong" in (row["reason"] or "")[:5]]
    for row in rows:
        samples, reason = _samples(row.get("samples_s") or {}), row["reason"] or "not measured"
        backend = content["titles"][row["backend"]]
        if "message" in row:
            if (row["backend"], row["workers"]) in wrong:
                samples, reason = {}, row["reason"] or "wrong with another message"
            key = (str(row["workers"]), row["message"], content["dtype"], backend)
        else:
            work = f"{row['work']}, {row['dtype']}"
            if (row["accumulate"], row["compression"]) != (1, "none"):
                work += f", {row['accumulate']} micro-batches, compression {row['compression']}"
            key = (str(row["hosts"]), f"{row['gbps']:g}", work, f"{backend} {row['servers']}".strip())
        found[key] = Measured(samples, reason)
    return found


def _samples(values: Mapping[str, Any]) -> dict[int, float]:
    if not all(0 < float(value) < math.inf for value in values.values()):
        raise ValueError("a time that is not above zero")
    return {int(repeat): float(value) for repeat, value in values.items()}


# Of each file its kind, and the names of a Key's cells.
KINDS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "report.json": ("training runs", ("workers", "dtype", "batch a worker", "backend")),
    "messages.json": ("communication alone", ("ranks", "message", "dtype", "backend")),
    "emulation.json": ("emulated clusters", ("hosts", "Gbit/s", "work", "backend")),
}


@dataclass(frozen=True)
class Earlier:
    """A report of an earlier comparison. `busy`: its mark, "" where the machine was quiet. `facts`: machine,
    versions and options. `name`: its folder's, among the others."""

    path: Path
    complete: bool
    busy: str
    facts: Mapping[str, str]
    settings: Mapping[Key, Measured]
    name: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} (busy)" if self.busy else self.name

    def of(self, setting: Key) -> Measured:
        return self.settings.get(setting, Measured({}))


def read_report(given: str) -> Earlier:
    """The report in a folder, or in a file. Raises InputError, which names it."""
    path = Path(given).expanduser()
    if path.is_dir():
        there = [name for name in KINDS if (path / name).exists()]
        if len(there) != 1:
            holds = f"{' and '.join(there)}; name one" if there else f"no {', '.join(KINDS)}"
            raise InputError(f"--merge {given}: holds {holds}")
        path /= there[0]
    if path.name not in KINDS:
        raise InputError(f"--merge {given}: neither a folder nor one of {', '.join(KINDS)}")
    content = read_json_object(str(path), MOST_BYTES, f"--merge {path}")
    try:
        facts = content.get("facts", content)
        options = {f"--{key}": value for key, value in facts["options"].items() if key not in NOT_SHOWN}
        known = {key: facts["machine"][key] for key in ("cpu", "cores", "commit", "date")}
        known.update({"kind": KINDS[path.name][0], **options, **facts["versions"]})
        known.update({key: facts[key] for key in TRAINED} if "results" in content else {})
        known = {key: str(value) for key, value in known.items() if value is not None and value is not False}
        settings = (_of_runs if path.name == "report.json" else _of_others)(content)
        for key, own in settings.items():
            "".join((*key, own.reason))  # TypeError where one is no text
        return Earlier(path, bool(content["complete"]), str(facts["busy"]), known, settings)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"--merge {path}: damaged, or no report of this version of compare.py ({error!r}); make it again"
        ) from error


def merge(options: MergeOptions) -> int:
    """Reads the reports, prints and writes theirs. 1 by --fail_if_slower, else 0.

    Raises:
        InputError: before anything is written.
        OSError: theirs cannot be written.
    """
    reports = [read_report(each) for each in options.merge or ()]
    folders = [each.path.parent.resolve() for each in reports]
    if len({each.path.resolve() for each in reports}) < max(2, len(reports)):
        raise InputError("--merge: name two reports or more, each once")
    common = os.path.commonpath(folders)
    reports = [replace(each, name=os.path.relpath(own, common)) for each, own in zip(reports, folders)]
    for each in reports[1:]:
        for name in ("kind", *TRAINED):
            own, of_first = each.facts.get(name), reports[0].facts.get(name)
            if own != of_first:
                here = f"--merge {each.path}: {name} is {own}"
                raise InputError(f"{here}, that of {reports[0].path} {of_first}")
    report = report_of(reports, options)
    directory = Path(options.output)
    directory.mkdir(parents=True, exist_ok=True)
    paths = report.write(directory)
    print("\n".join([report.terminal, *map(str, paths)]))
    return int(report.content["outcome"]["code"])


def report_of(reports: Sequence[Earlier], options: MergeOptions) -> Report:
    """The report of the reports. Raises InputError for a --fail_if_slower that nothing can be tested for."""
    first, others = reports[0], reports[1:]
    settings = list(dict.fromkeys(key for each in reports for key in each.settings))
    groups = {
        Place(key, other.name): {each.name: each.of(key).samples_s for each in (first, other)}
        for key in settings
        for other in others
    }
    pairs = {pair.group: pair for pair in compare(groups, options.confidence, paired=False)}
    failed = _failed(first, others, options)
    busy = [each for each in reports if each.busy]
    sentences = [f"FAILED by --fail_if_slower {options.fail_if_slower:g}: {each}." for each in failed]
    sentences += [f"MEASURED ON A BUSY MACHINE: {each.name} ({each.busy})." for each in busy]
    sentences += [f"{each.name} is partial." for each in reports if not each.complete]
    sentences += [_sentence(first, other, pairs) for other in others]
    tables = [_times(reports, settings, pairs), _legend(reports)]
    figure = draw(first, others, pairs)
    kind, head = KINDS[first.path.name]
    document: list[Part] = [
        f"# Reports over each other: {kind}",
        *sentences,
        *tables,
        f"![time to that in {first.name}]({PICTURE})" if figure else "",
        "## How verdicts are reached",
        rule_across(options.confidence),
    ]
    content = {
        "kind": kind,
        "options": options,
        "reports": [{**vars(each), "settings": len(each.settings)} for each in reports],
        "settings": [
            {**dict(zip(head, key)), "reports": {each.name: each.of(key) for each in reports}}
            for key in settings
        ],
        "pairs": [*pairs.values()],
    }
    mark = f"busy machine: {', '.join(each.name for each in busy)}" if busy else ""
    made = Report(NAME, document, content, {PICTURE: figure}, [*tables, "\n".join(sentences)], mark)
    return made.ended(int(bool(failed)), failed, all(each.complete for each in reports))


def _failed(first: Earlier, others: Sequence[Earlier], options: MergeOptions) -> list[str]:
    """A line for each setting that --fail_if_slower finds: one-sided tests, a family of their own."""
    if options.fail_if_slower is None:
        return []
    lines, p_values, limit = [], {}, math.log1p(options.fail_if_slower / 100)
    for other, (key, own) in ((other, item) for other in others for item in first.settings.items()):
        one, two = ([math.log(each) for each in known.samples_s.values()] for known in (own, other.of(key)))
        if one and not two and other.of(key).reason:
            lines.append(f"{Place(key, other.name)}: {other.of(key).reason}")
        elif min(len(one), len(two)) >= FEWEST_REPEATS:
            p_values[Place(key, other.name)] = exceeds_test(one, two, limit)
    if not p_values and not lines:
        lacking = f"no setting has {FEWEST_REPEATS} launches in {first.name} and in a later report"
        raise InputError(f"--fail_if_slower: {lacking}; give --repeats {FEWEST_REPEATS} where they are made")
    adjusted = zip(p_values, holm([*p_values.values()]))
    slower = [place for place, p in adjusted if p <= 1 - options.confidence]
    return lines + [f"{place}: slower by more than {options.fail_if_slower:g}%" for place in slower]


def _sentence(first: Earlier, other: Earlier, pairs: Mapping[Any, Pair]) -> str:
    own = [pair for pair in pairs.values() if pair.second == other.name]
    if not own:
        return f"{other.name} and {first.name} have no setting with figures in common."
    counts = Counter(verdict(pair, {}) for pair in own)
    words = "; ".join(f"{word} in {count}" for word, count in counts.most_common())
    ratio = statistics.geometric_mean([pair.ratio for pair in own])
    return f"{other.name} takes {ratio:.3f} times as long as {first.name} (geometric mean): {words}."


def _times(reports: Sequence[Earlier], settings: Sequence[Key], pairs: Mapping[Any, Pair]) -> Table:
    names = KINDS[reports[0].path.name][1]
    head = [*names, f"{reports[0].title}, ms"]
    for each in reports[1:]:
        head += [f"{each.title}, ms", f"to {reports[0].name}", "verdict"]
    rows, notes = [], ["Medians of launches, with the least and the greatest; ratios are of geometric means."]
    for key in settings:
        cells = list(key)
        for number, each in enumerate(reports):
            own, pair = each.of(key), pairs.get(Place(key, each.name))
            times = spread([1e3 * value for value in own.samples_s.values()]) if own.samples_s else None
            short = own.reason.partition(":")[0][:40] or EMPTY
            cells.append(with_range(times.median, times.least, times.most) if times else short)
            if own.reason and not times:
                notes.append(f"{Place(key, each.name)}: {own.reason}.")
            if number:
                interval = "" if pair is None or pair.low is None else f" ({pair.low:.3f} to {pair.high:.3f})"
                cells += [f"{pair.ratio:.3f}{interval}", verdict(pair, {})] if pair else [EMPTY, EMPTY]
        rows.append(Row(cells))
    return Table("The same settings side by side", head, rows, len(names), notes)


def _legend(reports: Sequence[Earlier]) -> Table:
    """Machine and commit of each report, and all else in which they differ."""
    lines = {"from": [str(each.path) for each in reports], "busy": [each.busy for each in reports]}
    for name in dict.fromkeys(name for each in reports for name in each.facts):
        values = [each.facts.get(name, "") for each in reports]
        if name in ("cpu", "commit") or any(value != values[0] for value in values):
            lines[name] = values
    rows = [Row([name, *(value[:80] or EMPTY for value in values)]) for name, values in lines.items()]
    head = ["", *(each.title for each in reports)]
    return Table("The reports, and where they differ", head, rows, names=len(head))


def draw(first: Earlier, others: Sequence[Earlier], pairs: Mapping[Any, Pair]) -> Figure | None:
    """Each setting's ratios to the first report, with their intervals. None without ratios."""
    if not pairs:
        return None
    shown = list(dict.fromkeys(place.setting for place in pairs))
    figure = new_figure((9, 1.6 + 0.28 * len(shown) * max(1, len(others) / 2)))
    axes = figure.subplots()
    for number, other in enumerate(others):
        shift = 0.5 * ((number + 1) / (len(others) + 1) - 0.5)
        style: dict[str, Any] = {"fmt": marker(number), "color": colour(number), "label": other.name}
        for row, pair in ((row, pairs.get(Place(key, other.name))) for row, key in enumerate(shown)):
            if pair:
                ends = [[pair.ratio - (pair.low or pair.ratio)], [(pair.high or pair.ratio) - pair.ratio]]
                axes.errorbar(pair.ratio, row + shift, xerr=ends, capsize=2, markersize=5, **style)
                style.pop("label", None)  # once in the legend
    axes.axvline(1.0, **ideal_style())
    axes.set_yticks(range(len(shown)), [", ".join(key) for key in shown], fontsize=8)
    axes.set(ylim=(len(shown) - 0.5, -0.5), xlabel=f"time to that in {first.name}; right of 1 is slower")
    plain(axes, "x")
    legend_below(figure, [axes], 4)
    return figure
