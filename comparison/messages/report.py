"""Report of launches that sent messages: tables, messages.md, messages.json and messages.png, latency and
bandwidth by size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Sequence

from base import machine
from base.quantities import digits
from base.tables import EMPTY, Row, Table
from comparison.canvas import colour, legend_below, new_figure, plain, whiskers
from comparison.messages.plan import (
    UNITS,
    Cell,
    Figures,
    Message,
    Outcome,
    Place,
    Start,
    bus_bandwidth,
    evaluate,
    place_of,
    reference_of,
)
from comparison.report import Part, Report, busy_mark, marked, with_others
from comparison.verdicts import DIFFERENT, FEWEST_REPEATS, NOT_SHOWN, Pair, Spread, spread
from comparison.wording import memory, verdict, with_range

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME, PICTURE = "messages", "messages.png"
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


class Measured(NamedTuple):
    """Everything that was measured. `cells`, `messages`: in the order of the tables. `launches`: as
    `comparison.messages.command.send` returns them, with backend, workers and repeat. `left_out`: messages
    that were not sent, with the reason. `complete`: False for a comparison that goes on, or was interrupted.
    """

    cells: Sequence[Cell]
    messages: Sequence[Message]
    launches: Sequence[Mapping[str, Any]]
    left_out: Mapping[Cell, Mapping[str, str]]
    complete: bool


def table_of(
    workers: int,
    cells: Sequence[Cell],
    messages: Sequence[Message],
    outcome: Outcome,
    titles: Mapping[str, str],
) -> Table:
    """Table of all runs with so many ranks."""
    chosen = [cell for cell in cells if cell.workers == workers]
    reference = reference_of([cell.backend for cell in chosen])
    tests = {place_of(pair): pair for pair in outcome.pairs}
    rows = []
    for message in messages:
        for cell in chosen:
            names = [message.name, titles[cell.backend]]
            own = outcome.figures[cell].get(message.name)
            if own is None:
                rows.append(Row(names, outcome.reasons[cell].get(message.name, "not measured yet")))
                continue
            pair = tests.get(Place(workers, message.name, cell.backend))
            ratio = EMPTY if own.ratio is None else f"{own.ratio.median:.2f}"
            if own.ratio and own.ratio.least != own.ratio.most:
                ratio += f" ({own.ratio.least:.2f} to {own.ratio.most:.2f})"
            figures = [
                with_spread(own.latency_s, 1e3),
                digits(own.algorithm / 1e6),
                digits(own.bus / 1e6),
                digits(1e3 * own.first_s.median),
                ratio,
                verdict(pair, {"titles": titles}) if pair else EMPTY,
            ]
            rows.append(Row([*names, *figures]))
    head = ["message", "backend", "ms (least to most)", "MB/s", "bus MB/s", "first call, ms"]
    head += [f"to {titles[reference]} (least to most)", "verdict"]
    plural = "ranks" if workers > 1 else "rank"
    return Table(f"One average of a message over {workers} {plural}", head, rows, names=2)


def start_table(starts: Mapping[Cell, Start], titles: Mapping[str, str]) -> Table | None:
    """Start-up and agreement of every backend and number of ranks; None where none came so far."""
    if not starts:
        return None
    rows = [
        Row(
            [
                str(cell.workers),
                titles[cell.backend],
                with_spread(start.start_up_s),
                with_spread(start.agreement_s, 1e3),
            ]
        )
        for cell, start in starts.items()
    ]
    head = ["ranks", "backend", "start-up, s (least to most)", "agreement, ms (least to most)"]
    return Table("Start-up, and agreement of the ranks", head, rows, names=2)


def with_spread(seconds: Spread, factor: float = 1.0) -> str:
    """`1.23 (1.20 to 1.31)` in the unit of which a second has `factor`; a single launch has no spread."""
    median, least, most = (factor * each for each in (seconds.median, seconds.least, seconds.most))
    return digits(median) if least == most else with_range(median, least, most)


def report_of(facts: Mapping[str, Any], measured: Measured) -> Report:
    """messages.md, messages.json, and messages.png where there are figures.

    Args:
        facts: JSON-able; machine (base.machine.describe), versions, options, titles (key -> title of a
            backend), command, dtype, repeats, confidence.
    """
    cells, messages, launches, left_out, complete = measured
    shares = [max(taken) for each in launches if (taken := _others(each))]
    facts = {**facts, "busy": busy_mark(shares)}
    titles, confidence = facts["titles"], facts["confidence"]
    outcome = evaluate(cells, messages, launches, left_out, confidence)
    counts = dict.fromkeys(cell.workers for cell in cells)
    tables = marked(
        [
            *(table_of(workers, cells, messages, outcome, titles) for workers in counts),
            start_table(outcome.starts, titles),
        ],
        facts["busy"],
    )
    sentences = with_others(_sentences(facts, measured, outcome), shares)
    figure = draw(cells, messages, outcome.figures, titles)
    document: list[Part] = [
        "# Communication alone",
        *sentences,
        *tables,
        f"![latency and bandwidth by size]({PICTURE})" if figure else "",
        "## What was measured",
        DEFINITIONS,
        f"Verdicts. {rule(confidence)}",
        "## Where",
        *machine.line(facts["machine"]).splitlines(),
        ", ".join(f"{name} {version}" for name, version in facts["versions"].items()) + ".",
        "\n".join(["```", " ".join(facts["command"]), "```"]),
    ]
    content = {
        "complete": complete,
        **facts,
        "figures": [_figures(cell, message, outcome) for cell in cells for message in messages],
        "pairs": [pair for pair in outcome.pairs if pair.repeats],
        "starts": [{**cell._asdict(), **start._asdict()} for cell, start in outcome.starts.items()],
        "launches": launches,
    }
    shown: list[Part] = [*tables, "\n".join(sentences)]
    return Report(NAME, document, content, {PICTURE: figure}, shown, facts["busy"])


def _others(launch: Mapping[str, Any]) -> list[float]:
    return [each["others"] for each in launch["attempts"] if "others" in each]


def _figures(cell: Cell, message: Message, outcome: Outcome) -> dict[str, Any]:
    """Figures of a message for JSON, or the reason why there are none."""
    values = {
        **cell._asdict(),
        "message": message.name,
        "tensors": message.tensors,
        "bytes": message.nbytes,
        "reason": outcome.reasons[cell].get(message.name),
    }
    own = outcome.figures[cell].get(message.name)
    if own is None:
        return values
    return {
        **values,
        "latency_s": own.latency_s,
        "samples_s": own.samples,
        "first_s": own.first_s,
        "algorithm_bytes_per_s": own.algorithm,
        "bus_bytes_per_s": own.bus,
        "ratio": own.ratio,
    }


def _sentences(facts: Mapping[str, Any], measured: Measured, outcome: Outcome) -> list[str]:
    titles, cells, repeats = facts["titles"], measured.cells, facts["repeats"]
    sentences = []
    if not measured.complete:
        made, planned = len(measured.launches), len(cells) * repeats
        sentences.append(f"Partial: {made} of {planned} launches are done; the same command continues.")
    for cell in cells:
        for name, reason in outcome.reasons[cell].items():
            if reason.startswith("wrong: "):
                who = f"{titles[cell.backend]} with {cell.workers} ranks"
                sentences.append(f"{who} is wrong at {name}: {reason[len('wrong: ') :]}.")
    for workers in dict.fromkeys(cell.workers for cell in cells):
        backends = [cell.backend for cell in cells if cell.workers == workers]
        for backend in backends:
            pairs = [
                pair
                for pair in outcome.pairs
                if (place_of(pair).workers, place_of(pair).backend) == (workers, backend)
            ]
            if pairs and repeats >= FEWEST_REPEATS:
                found = finding(pairs, backend, reference_of(backends), titles)
                sentences.append(f"{workers} ranks: {found}")
    if repeats < FEWEST_REPEATS:
        sentences.append(f"With fewer than {FEWEST_REPEATS} repeats there are no verdicts.")
    sentences += _memory(titles, measured.launches)
    sentences += [
        f"{titles[cell.backend]}, {cell.workers} ranks, {note}"
        for cell in cells
        for note in outcome.notes[cell]
    ]
    return sentences


def rule(confidence: float) -> str:
    """The rule for verdicts."""
    error = f"{1 - confidence:.6g}"
    return (
        "A launch gives one value for a message: the median over its rounds. Two backends are compared by the"
        " logarithm of the ratio of their values within each repeat, with a two-sided paired t-test. One is"
        " called faster only if the p-value, adjusted by Holm's method over all verdicts of this report, is"
        f' at most {error}; otherwise it says "{NOT_SHOWN}", which does not say that there is'
        f" none. With fewer than {FEWEST_REPEATS} repeats in common there is no verdict."
    )


def finding(pairs: Sequence[Pair], backend: str, reference: str, titles: Mapping[str, str]) -> str:
    """Messages at which `backend` is faster than `reference`, slower, and neither is shown."""
    kinds: dict[str, list[str]] = {"faster": [], "slower": [], NOT_SHOWN: [], "no verdict": []}
    for pair in pairs:
        kind = pair.verdict if pair.verdict == NOT_SHOWN else "no verdict"
        if pair.verdict == DIFFERENT:
            kind = "faster" if pair.faster == backend else "slower"
        kinds[kind].append(place_of(pair).message)
    parts = [f"{kind} at {', '.join(names)}" for kind, names in kinds.items() if names]
    return f"{titles[backend]} against {titles[reference]}: {'; '.join(parts)}."


def _memory(titles: Mapping[str, str], launches: Sequence[Mapping[str, Any]]) -> list[str]:
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
    return [f"Peak memory of one process. {by_backend}."] if by_backend else []


# Beside the colours, so that lines can be told apart in grey: markers for backends, dashes for ranks.
_MARKERS, _DASHES = "os^Dv*X", ("-", "--", ":", "-.")


def draw(
    cells: Sequence[Cell],
    messages: Sequence[Message],
    figures: Mapping[Cell, Mapping[str, Figures]],
    titles: Mapping[str, str],
) -> Figure | None:
    """The median over the launches as a line, least to greatest as a band; messages of several arrays as
    single marks at their total size. None without figures."""
    if not any(figures.values()):
        return None
    figure = new_figure((12, 5.6))
    backends = list(dict.fromkeys(cell.backend for cell in cells))
    workers = list(dict.fromkeys(cell.workers for cell in cells))
    ranks = f" over {workers[0]} ranks" if len(workers) == 1 else ""
    panels: Sequence[tuple[str, str, Callable[[Message, float, int], float]]] = (
        (f"time of one average{ranks}", "ms", lambda message, seconds, count: 1e3 * seconds),
        (
            f"bus bandwidth{ranks}: 2(n − 1)/n × bytes / time",
            "GB/s",
            lambda message, seconds, count: bus_bandwidth(message.nbytes, seconds, count) / 1e9,
        ),
    )
    latencies = [each.latency_s for own in figures.values() for each in own.values()]
    bands = " (bands: least to greatest launch)" if any(s.least < s.most for s in latencies) else ""
    several = {}
    all_axes = figure.subplots(1, len(panels))
    for axes, (title, unit, value) in zip(all_axes, panels):
        for cell in cells:
            place = backends.index(cell.backend)
            style = {"color": colour(place), "marker": _MARKERS[place % len(_MARKERS)]}
            shown = [message for message in messages if message.name in figures[cell]]
            points = []
            for message in shown:
                latency = figures[cell][message.name].latency_s
                three = [
                    value(message, seconds, cell.workers)
                    for seconds in (latency.median, latency.least, latency.most)
                ]
                if message.tensors == 1:
                    points.append((message.nbytes, *three))
                    continue
                several[message.name] = f"{_arrays(message)} at once"
                axes.plot([message.nbytes], three[:1], markersize=9, markerfacecolor="none", **style)
                whiskers(axes, [message.nbytes], [spread(three)], color=style["color"])
            if points:
                sizes, median, one_end, other_end = zip(*points)
                dash = _DASHES[workers.index(cell.workers) % len(_DASHES)]
                label = titles[cell.backend] + ("" if ranks else f", {cell.workers} ranks")
                axes.plot(sizes, median, label=label, markersize=5, linestyle=dash, **style)
                axes.fill_between(sizes, one_end, other_end, color=style["color"], alpha=0.18, linewidth=0)
        axes.set(title=title, ylabel=unit, xlabel=f"bytes averaged{bands}")
        _scales(axes, [message.nbytes for message in messages])
    if several:
        label = f"large hollow: {', '.join(several.values())}"
        all_axes[0].plot([], [], "o", color="grey", markersize=9, markerfacecolor="none", label=label)
    legend_below(figure, all_axes[0], 4)
    return figure


def _arrays(message: Message) -> str:
    if len(set(message.array_bytes)) > 1:
        return f"the {message.tensors} arrays of {message.name}"
    return f"{message.tensors} arrays of {size_name(message.array_bytes[0])}"


def size_name(nbytes: int) -> str:
    """`64 KB`, in the largest unit that divides it."""
    unit = next(unit for unit in reversed(list(UNITS)) if nbytes % UNITS[unit] == 0)
    return f"{nbytes // UNITS[unit]} {unit}"


def _scales(axes: Axes, sizes: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    largest = max(sizes)
    # In powers of 4, and the largest in place of one that its name would touch.
    ticks = [4**power for power in range(20) if min(sizes) <= 4**power < largest / 2] + [largest]
    axes.set_xticks(ticks, [size_name(tick) for tick in ticks], rotation=45, ha="right")
    axes.minorticks_off()
    plain(axes, "both")
