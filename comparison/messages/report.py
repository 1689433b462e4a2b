"""Figures and verdicts of launches that sent messages, and the report: messages.md, .html, .json, and
messages.png, latency and bandwidth by size."""

from __future__ import annotations

import itertools
import statistics
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

from base.drawing import new_figure
from base.quantities import digits
from base.tables import EMPTY, Row, Table
from comparison.backends import REFERENCE
from comparison.canvas import colour, legend_below, marker, plain, whiskers
from comparison.messages.plan import UNITS, Cell, Message
from comparison.report import Found, Report, judged, memory, report_on, with_range
from comparison.verdicts import (
    DIFFERENT,
    EQUAL,
    FEWEST_REPEATS,
    MARGIN,
    NOT_SHOWN,
    Pair,
    Spread,
    compare,
    spread,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "messages"  # of the files
DEFINITIONS = """\
- A message is one array, or several (`200x64KB`) that are averaged in one call, as gradients are. 1 KB is
  1024 bytes, 1 MB/s is 10^6 bytes a second. Every backend averages through the same code as in training
  (`comm/`), with its settings: Horovod sends arrays one by one on CPUs, BytePS packs those below 1 MB.
- A round: all ranks write new values, known from the seed, the rank, the round and the position, and meet.
  Timed is from there until the rank holds all elements of the mean; a round counts with its slowest rank.
  Ranks do not leave a meeting at the same moment, so times of small messages include that difference.
- Outside of the timed part every rank compares every element of every round with the mean that it must be.
  One that differs makes the backend wrong at that size: it has no figure there and no verdict anywhere.
- "ms" is the median over the launches of a launch's median over its rounds, with the least and the greatest
  launch. Each launch's first call, in which names are made known and memory is set up, is kept apart.
- "MB/s" is bytes by time, "bus MB/s" that times 2(n − 1)/n for n ranks: what each rank of a ring all-reduce
  has to send and to receive at least. Both are defined as by
  [nccl-tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). A BytePS worker sends a
  whole message and receives one, whatever n; its bus bandwidth compares times, it is not what links carried.
- Start-up is from the launch until the last rank has the average of the first message: starting processes,
  importing, joining, making names known. An agreement follows the exchange in every training step: the ranks
  learn whether all of them may go on. 50 in a row after the last message, the slowest rank's median.
- Launches of all backends take turns in an order drawn for every repeat; ratios are taken within a repeat."""


class Place(NamedTuple):
    """Comparison of the reference with another backend: the group of a `comparison.verdicts.Pair`."""

    workers: int
    message: str
    backend: str

    @classmethod
    def of(cls, cell: Cell, message: str) -> Place:
        return cls(cell.workers, message, cell.backend)


class Outcome(NamedTuple):
    """Rows are JSON objects. `references`: whom each cell is compared with, in the order of the tables.
    `rows`: of each message, the `reason` why there are no figures, or None and these:

    - `latency_s`: over the launches, of each launch's median over its rounds; `samples_s`: the same by repeat
    - `first_s`: of the first call of a launch
    - `algorithm_bytes_per_s`, `bus_bytes_per_s`: bandwidths, from the median latency
    - `ratio`: seconds for one of the reference's, over the repeats that both have; None for the reference

    `pairs`: of the reference with each of the others. `starts`: over the launches of each backend that was
    right everywhere and has come to an end, `start_up_s`: from the launch until all ranks had the first
    average, and `agreement_s`: of one agreement, as after the exchange of every training step.
    """

    references: dict[Cell, Cell]
    rows: dict[Place, dict[str, Any]]
    pairs: list[Pair]
    starts: list[dict[str, Any]]


def bus_bandwidth(nbytes: int, seconds: float, ranks: int) -> float:
    """Bytes a second that every rank must send at least, and receive, in a ring all-reduce: 2 (n - 1) / n of
    the message in the same time (nccl-tests, doc/PERFORMANCE.md)."""
    return nbytes / seconds * 2 * (ranks - 1) / ranks


def evaluate(
    cells: Sequence[Cell],
    messages: Sequence[Message],
    launches: Sequence[Mapping[str, Any]],
    left_out: Mapping[Cell, Mapping[str, str]],
    confidence: float,
) -> Outcome:
    """A message that failed, or held a wrong element, in any launch has a reason and no figures; a backend
    with a wrong element has no verdicts at all.

    Args:
        launches: as `comparison.messages.command.Sweep.measure` returns them.
        left_out: messages that were not sent at all, with the reason.
    """
    own = {cell: [each for each in launches if (each["backend"], each["workers"]) == cell] for cell in cells}
    references, rows = {}, {}
    samples: dict[Place, dict[int, float]] = {}
    for cell in cells:
        alike = [each for each in cells if each.workers == cell.workers]
        references[cell] = next((each for each in alike if each.backend == REFERENCE), alike[0])
        for message in messages:
            name, place = message.name, Place.of(cell, message.name)
            said = [left_out.get(cell, {}).get(name)]  # the last one counts
            for word, kind in (("failed", "failures"), ("wrong", "wrong")):
                said += [f"{word}: {each[kind][name]}" for each in own[cell] if name in each[kind]]
            sent = [] if said[-1] else [each for each in own[cell] if name in each["results"]]
            samples[place] = {
                each["repeat"]: statistics.median(each["results"][name]["rounds_s"]) for each in sent
            }
            rows[place] = {
                **{**cell._asdict(), "message": name, "tensors": message.tensors, "bytes": message.nbytes},
                "reason": said[-1],
            }
            if sent:
                latency = spread(list(samples[place].values()))
                rows[place].update(
                    latency_s=latency,
                    samples_s=samples[place],
                    first_s=spread([each["results"][name]["first_s"] for each in sent]),
                    algorithm_bytes_per_s=message.nbytes / latency.median,
                    bus_bytes_per_s=bus_bandwidth(message.nbytes, latency.median, cell.workers),
                    ratio=None,
                )
    for (cell, reference), message in itertools.product(references.items(), messages):
        values, others = (samples[Place.of(each, message.name)] for each in (cell, reference))
        ratios = [value / others[repeat] for repeat, value in values.items() if repeat in others]
        if ratios and reference != cell:
            rows[Place.of(cell, message.name)]["ratio"] = spread(ratios)
    correct = [cell for cell in cells if not any(launch["wrong"] for launch in own[cell])]
    groups = {
        Place.of(cell, message.name): {
            each.backend: samples[Place.of(each, message.name)] for each in (references[cell], cell)
        }
        for workers in dict.fromkeys(cell.workers for cell in cells)
        for message in messages
        for cell in correct
        if cell.workers == workers and references[cell] != cell and references[cell] in correct
    }
    starts = []
    for cell in correct:
        first = [launch["attempts"][0] for launch in own[cell]]
        known = {
            name: [each[name] for each in first if each[name] is not None]
            for name in ("start_up_s", "agreement_s")
        }
        if all(known.values()):
            starts.append({**cell._asdict(), **{name: spread(values) for name, values in known.items()}})
    return Outcome(references, rows, compare(groups, confidence), starts)


def tables_of(messages: Sequence[Message], outcome: Outcome, titles: Mapping[str, str]) -> list[Table]:
    """A table for each number of ranks; start-up and agreement where a backend came so far."""
    tests = {pair.group: pair for pair in outcome.pairs}
    found = []
    for workers in dict.fromkeys(cell.workers for cell in outcome.references):
        chosen = [cell for cell in outcome.references if cell.workers == workers]
        rows = []
        for message in messages:
            known = {cell.backend: outcome.rows[Place.of(cell, message.name)] for cell in chosen}
            samples = {backend: own["samples_s"] for backend, own in known.items() if "samples_s" in own}
            for backend, own in known.items():
                names = [message.name, titles[backend]]
                if "latency_s" not in own:
                    rows.append(Row(names, own["reason"] or "not measured yet"))
                    continue
                ratio = EMPTY if own["ratio"] is None else f"{own['ratio'].median:.2f}"
                if own["ratio"] and own["ratio"].least != own["ratio"].most:
                    ratio += f" ({own['ratio'].least:.2f} to {own['ratio'].most:.2f})"
                figures = [
                    with_spread(own["latency_s"], 1e3),
                    digits(own["algorithm_bytes_per_s"] / 1e6),
                    digits(own["bus_bytes_per_s"] / 1e6),
                    digits(1e3 * own["first_s"].median),
                    ratio,
                ]
                pair = tests.get(Place(workers, message.name, backend))
                where = f"{message.name} over {workers} ranks"
                rows.append(judged([*names, *figures], pair, samples, titles, where))
        head = ["message", "backend", "ms (least to most)", "MB/s", "bus MB/s", "first call, ms"]
        head += [f"to {titles[outcome.references[chosen[0]].backend]} (least to most)", "verdict"]
        found.append(Table(f"One average of a message over {workers} ranks", head, rows, names=2))
    rows = []
    for each in outcome.starts:
        cells = [with_spread(each["start_up_s"]), with_spread(each["agreement_s"], 1e3)]
        rows.append(Row([str(each["workers"]), titles[each["backend"]], *cells]))
    if rows:
        head = ["ranks", "backend", "start-up, s (least to most)", "agreement, ms (least to most)"]
        found.append(Table("Start-up, and agreement of the ranks", head, rows, names=2))
    return found


def with_spread(seconds: Spread, factor: float = 1.0) -> str:
    """`1.23 (1.20 to 1.31)` in the unit of which a second has `factor`; a single launch has no spread."""
    median, least, most = (factor * each for each in (seconds.median, seconds.least, seconds.most))
    return digits(median) if least == most else with_range(median, least, most)


def report_of(
    facts: Mapping[str, Any],
    cells: Sequence[Cell],
    messages: Sequence[Message],
    launches: Sequence[Mapping[str, Any]],
    left_out: Mapping[Cell, Mapping[str, str]],
    complete: bool,
) -> Report:
    """messages.md, .html, .json, and messages.png where there are figures.

    Args:
        facts: as for `comparison.report.report_on`, and the dtype.
        cells, messages: in the order of the tables.
        launches, left_out: as for `evaluate`.
        complete: False for a comparison that goes on, or was interrupted.
    """
    outcome = evaluate(cells, messages, launches, left_out, facts["confidence"])
    error = f"{1 - facts['confidence']:.6g}"
    verdicts = (
        "Verdicts. A launch gives one value for a message: the median over its rounds. Two backends are"
        " compared by the logarithm of the ratio of their values within each repeat, with a two-sided paired"
        " t-test. One is called faster only if the p-value, adjusted by Holm's method over all verdicts of"
        f" this report, is at most {error}; equal within {MARGIN:.0%} where two one-sided t-tests, adjusted"
        f' alike, show that; otherwise it says "{NOT_SHOWN}", which does not say that there is none. With'
        f" fewer than {FEWEST_REPEATS} repeats in common there is no verdict."
    )
    found = Found(
        name=NAME,
        title="Communication alone",
        tables=tables_of(messages, outcome, facts["titles"]),
        sentences=_sentences(facts, launches, outcome),
        figure=draw(messages, outcome, facts["titles"]),
        caption="latency and bandwidth by size",
        rows=list(outcome.rows.values()),
        pairs=outcome.pairs,
        explained=[DEFINITIONS, verdicts],
        number=len(cells) * facts["repeats"],
        shares=[max(each["others"] for each in launch["attempts"]) for launch in launches],
        more={"starts": outcome.starts},
    )
    return report_on(found, facts, launches, complete)


def _sentences(
    facts: Mapping[str, Any], launches: Sequence[Mapping[str, Any]], outcome: Outcome
) -> list[str]:
    """Sentences on wrong backends, on the messages at which one is faster than the reference, slower, or
    neither is shown, on peak memory and on bad ends."""
    titles = facts["titles"]
    sentences = [
        f"{titles[place.backend]} with {place.workers} ranks is wrong at {place.message}: {text}."
        for place, row in outcome.rows.items()
        for kind, _, text in [(row["reason"] or "").partition(": ")]
        if kind == "wrong"
    ]
    for cell, reference in outcome.references.items():
        kinds: dict[str, list[str]] = {"faster": [], "slower": [], EQUAL: [], NOT_SHOWN: [], "no verdict": []}
        for pair in outcome.pairs:
            if pair.group == Place.of(cell, pair.group.message):
                different = "faster" if pair.faster == cell.backend else "slower"
                kind = different if pair.verdict == DIFFERENT else pair.verdict
                kinds.get(kind, kinds["no verdict"]).append(pair.group.message)
        parts = [f"{kind} at {', '.join(names)}" for kind, names in kinds.items() if names]
        if parts and facts["repeats"] >= FEWEST_REPEATS:
            against = f"{titles[cell.backend]} against {titles[reference.backend]}"
            sentences.append(f"{cell.workers} ranks: {against}: {'; '.join(parts)}.")
    peaks: dict[str, dict[str, int]] = {}
    for launch in launches:
        roles = peaks.setdefault(titles[launch["backend"]], {})
        for role, peak in (item for each in launch["attempts"] for item in each["peak_bytes"].items()):
            roles[role] = max(peak, roles.get(role, 0))
    by_backend = "; ".join(
        f"{title}: {', '.join(f'{role} {memory(peak)}' for role, peak in roles.items())}"
        for title, roles in peaks.items()
        if roles
    )
    sentences += [f"Peak memory of one process. {by_backend}."] if by_backend else []
    return sentences + [
        f"{titles[launch['backend']]}, {launch['workers']} ranks, repeat {launch['repeat'] + 1}: {note}"
        for cell in outcome.references
        for launch in launches
        if (launch["backend"], launch["workers"]) == cell
        for note in launch["notes"]
    ]


_DASHES = ("-", "--", ":", "-.")  # for numbers of ranks


def draw(messages: Sequence[Message], outcome: Outcome, titles: Mapping[str, str]) -> Figure | None:
    """The median over the launches as a line, least to greatest as a band; messages of several arrays as
    single marks at their total size. None without figures."""
    spreads = [row["latency_s"] for row in outcome.rows.values() if "latency_s" in row]
    if not spreads:
        return None
    figure = new_figure((12, 5.6))
    backends, workers = ([*dict.fromkeys(each)] for each in zip(*outcome.references))
    ranks = f" over {workers[0]} ranks" if len(workers) == 1 else ""
    titles_of = {
        "ms": f"time of one average{ranks}",
        "GB/s": f"bus bandwidth{ranks}: 2(n − 1)/n × bytes / time",
    }
    bands = " (bands: least to greatest launch)" if any(s.least < s.most for s in spreads) else ""
    sizes = [message.nbytes for message in messages]
    # In powers of 4, and the largest in place of one that its name would touch.
    ticks = [4**power for power in range(20) if min(sizes) <= 4**power < max(sizes) / 2] + [max(sizes)]
    all_axes = figure.subplots(1, len(titles_of))
    for axes, (unit, title) in zip(all_axes, titles_of.items()):
        for cell in outcome.references:
            number = backends.index(cell.backend)
            style = {"color": colour(number), "marker": marker(number)}
            points = []
            for message in messages:
                own = outcome.rows[Place.of(cell, message.name)].get("latency_s")
                if own is None:
                    continue
                seconds = (own.median, own.least, own.most)
                three = [1e3 * each for each in seconds]
                if unit == "GB/s":
                    three = [bus_bandwidth(message.nbytes, each, cell.workers) / 1e9 for each in seconds]
                if message.tensors == 1:
                    points.append((message.nbytes, *three))
                    continue
                axes.plot([message.nbytes], three[:1], markersize=9, markerfacecolor="none", **style)
                whiskers(axes, [message.nbytes], [spread(three)], color=style["color"])
            if points:
                places, median, one_end, other_end = zip(*points)
                dash = _DASHES[workers.index(cell.workers) % len(_DASHES)]
                label = titles[cell.backend] + ("" if ranks else f", {cell.workers} ranks")
                axes.plot(places, median, label=label, markersize=5, linestyle=dash, **style)
                axes.fill_between(places, one_end, other_end, color=style["color"], alpha=0.18, linewidth=0)
        axes.set(title=title, ylabel=unit, xlabel=f"bytes averaged{bands}")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_xticks(ticks, [size_name(tick) for tick in ticks], rotation=45, ha="right")
        axes.minorticks_off()
        plain(axes, "both")
    several = [
        f"{each.tensors} arrays of {size_name(each.array_bytes[0])} at once"
        if len(set(each.array_bytes)) == 1
        else f"the {each.tensors} arrays of {each.name} at once"
        for each in messages
        if each.tensors > 1
        and any("latency_s" in row for row in outcome.rows.values() if row["message"] == each.name)
    ]
    if several:
        label = f"large hollow: {', '.join(several)}"
        all_axes[0].plot([], [], "o", color="grey", markersize=9, markerfacecolor="none", label=label)
    legend_below(figure, all_axes[:1], 4)
    return figure


def size_name(nbytes: int) -> str:
    """`64 KB`, in the largest unit that divides it."""
    unit = next(unit for unit in reversed(list(UNITS)) if nbytes % UNITS[unit] == 0)
    return f"{nbytes // UNITS[unit]} {unit}"
