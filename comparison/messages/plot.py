"""Latency and bandwidth by message size as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from comparison.messages.plan import UNITS, Message, bus_bandwidth
from comparison.reporting.canvas import colour, new_figure, plain, save, whiskers
from comparison.verdicts import spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Beside the colours, so that lines can be told apart in grey: markers for backends, dashes for ranks.
_MARKERS, _DASHES = "os^Dv*X", ("-", "--", ":", "-.")


def draw(
    path: Path,
    cells: Sequence[Any],
    messages: Sequence[Message],
    figures: Mapping[Any, Mapping[str, Any]],
    titles: Mapping[str, str],
    mark: str,
) -> None:
    """Write a PNG: the median over the launches as a line, least to greatest as a band; messages of several
    arrays as single marks at their total size.

    `cells`, `figures`: of `comparison.messages.figures`. `mark`: as for
    `canvas.save`. OSError when the file cannot be written.
    """
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
    handles, labels = all_axes[0].get_legend_handles_labels()
    if several:
        handles += axes.plot([], [], "o", color="grey", markersize=9, markerfacecolor="none")
        labels.append("large hollow: " + ", ".join(several.values()))
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    save(figure, path, mark)


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
