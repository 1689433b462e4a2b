"""The plots of a report, as PNG."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from base.drawing import new_figure
from base.quantities import digits, percent
from comparison.canvas import (
    ALARM,
    colour,
    grid,
    ideal_style,
    legend_below,
    line_style,
    plain,
    thousands,
    whiskers,
)
from comparison.report import share_with_extremes
from comparison.runs import agreement
from comparison.runs.results import Breakdown, Results
from comparison.runs.sections import short_reason
from comparison.settings import Group, Setting
from training.profiling.breakdown import EXPOSED, IDLE, PYTHON
from training.profiling.trace import ATTENTION, COMMUNICATION, COPYING, DATA_WAIT, KINDS, OPTIMIZER, PRODUCTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def throughput(results: Results) -> Figure | None:
    if not any(each.figures for each in results.results):
        return None
    panels, workers, backends = _axes_of(results)
    figure, places = grid(len(panels), 1, (3.4, 3.4), same_y=True)
    width = 0.8 / len(backends)
    for (axes,), (dtype, batch_size) in zip(places, panels):
        for index, backend in enumerate(backends):
            for place, count in enumerate(workers):
                result = results.of(Setting(backend, count, dtype, batch_size))
                at = place + (index - (len(backends) - 1) / 2) * width
                if result.figures is None:
                    axes.text(
                        at, 0.02, short_reason(result), rotation=90, ha="center", va="bottom", fontsize=8,
                        color=ALARM, transform=axes.get_xaxis_transform(),
                    )  # fmt: skip
                    continue
                rate = result.figures.tokens_per_s
                axes.bar(at, rate.median, width * 0.92, color=colour(index))
                whiskers(axes, [at], [rate], color="black")
        title = f"{dtype}, {batch_size:,} {results.unit} a worker"
        axes.set(title=title, xlabel="workers", ylabel="tokens/s")
        axes.set_xticks(range(len(workers)), [str(count) for count in workers])
        axes.set_xlim(-0.5, len(workers) - 0.5)
        thousands(axes)
        plain(axes)
    for index, backend in enumerate(backends):  # whoever has no bar has a name, too
        places[0][0].plot([], [], "s", markersize=9, color=colour(index), label=results.title(backend))
    legend_below(figure, places[0])
    several = any(each.launches > 1 for each in results.results)
    spread = ": medians; whiskers from the slowest to the fastest launch" if several else " of one launch"
    figure.suptitle(f"Throughput{spread}", fontsize=11)
    return figure


def scaling(results: Results) -> Figure | None:
    panels, workers, backends = _axes_of(results)
    if not any(
        each.figures and each.figures.scaling and each.setting.workers > 1 for each in results.results
    ):
        return None
    figure, places = grid(len(panels), 2, (3.4, 2.7))
    for (upper, lower), (dtype, batch_size) in zip(places, panels):
        ones = []
        for index, backend in enumerate(backends):
            own = [results.of(Setting(backend, count, dtype, batch_size)) for count in workers]
            known = [(each.setting.workers, each.figures) for each in own if each.figures]
            line = line_style(index, len(backends))
            rates = {count: each.tokens_per_s for count, each in known}
            if 1 in rates:
                ones.append(rates[1].median)
            medians = [rate.median for rate in rates.values()]
            upper.plot(list(rates), medians, marker="o", label=results.title(backend), **line)
            whiskers(upper, list(rates), list(rates.values()), color=line["color"])
            scaled = {count: each.scaling.efficiency for count, each in known if each.scaling}
            if scaled:
                lower.plot(list(scaled), list(scaled.values()), marker="o", **line)
        if not lower.lines:
            lower.text(
                0.5, 0.5, "no figures to compare", ha="center", va="center", fontsize=9, color=ALARM,
                transform=lower.transAxes,
            )  # fmt: skip
        if ones:
            # From the fastest single worker: no line lies above it but for noise.
            upper.plot([1, max(workers)], [max(ones), max(ones) * max(workers)], **ideal_style())
        lower.plot([1, max(workers)], [1, 1], label="ideal", **ideal_style())
        title = f"{dtype}, {batch_size:,} {results.unit} a worker"
        upper.set(title=title, ylabel="tokens/s", xlabel="workers")
        thousands(upper)
        lower.set(ylabel="efficiency", xlabel="workers")
        for axes in (upper, lower):
            # Labels of small counts would lie on each other beside a large one.
            axes.set_xticks([each for each in workers if each == 1 or each >= max(workers) / 16])
            axes.set_xlim(1 - 0.06 * (max(workers) - 1), max(workers) + 0.06 * (max(workers) - 1))
            axes.set_ylim(bottom=0)
            plain(axes)
    legend_below(figure, places[0])
    figure.suptitle("Weak scaling: the batch of a worker stays the same", fontsize=11)
    return figure


def losses(results: Results) -> Figure | None:
    known = [each.setting for each in results.results if each.setting in results.curves]
    groups = list(dict.fromkeys(setting.group for setting in known))
    if not groups:
        return None
    backends = _axes_of(results)[2]
    figure, places = grid(len(groups), 2, (3.4, 2.3))
    for pair, group in zip(places, groups):
        for index, backend in enumerate(backends):
            curve = results.curves.get(Setting(backend, *group), {})
            for axes, name in zip(pair, ("mlm_loss", "nsp_loss")):
                points = {step: curve[step][name] for step in sorted(curve) if curve[step][name] is not None}
                line = {"marker": "o" if len(points) == 1 else None, **line_style(index, len(backends))}
                axes.plot(list(points), list(points.values()), label=results.title(backend), **line)
        pair[0].set(title=results.words(group), ylabel="masked-LM loss, nats")
        pair[1].set(ylabel="next-sentence loss, nats", xlabel="step")
        for axes in pair:
            axes.xaxis.get_major_locator().set_params(integer=True)
            plain(axes)
        wrong = [
            f"{results.title(each.setting.backend)}: {each.differs}"
            for each in results.results
            if each.setting.group == group and each.kind in (agreement.WRONG, agreement.UNDECIDED)
        ]
        if wrong:
            text = "\n".join(wrong)
            pair[0].text(0.98, 0.96, text, ha="right", va="top", fontsize=7, color=ALARM,
                         transform=pair[0].transAxes)  # fmt: skip
    legend_below(figure, places[0])
    figure.suptitle("Losses of the first launch, one curve on top of the other", fontsize=11)
    return figure


def _axes_of(results: Results) -> tuple[list[tuple[str, int]], list[int], list[str]]:
    """Panels (dtype, batch size), workers in rising order, backends in the order given."""
    settings = [each.setting for each in results.results]
    panels = list(dict.fromkeys((each.dtype, each.batch_size) for each in settings))
    backends = list(dict.fromkeys(each.backend for each in settings))
    return panels, sorted({each.workers for each in settings}), backends


# The parts of a step, fewer than a profile has: the figure is about communication.
_PARTS = (
    ("matrix products and attention", (PRODUCTS, ATTENTION), "#0072B2"),
    ("other operators", (), "#56B4E9"),
    ("optimizer", (OPTIMIZER,), "#009E73"),
    ("communication, exposed", (EXPOSED,), ALARM),
    ("waiting for data, copying inputs", (DATA_WAIT, COPYING), "#F0E442"),
    ("device idle", (PYTHON, IDLE), "#DDDDDD"),
)
# A bar that is so many times as long as the middle one of its group is cut, and so is a whisker that is
# longer than the longest bar by more than a quarter: they would squeeze all others.
_CUT, _WHISKER = 3.0, 1.25
_TEXT = 1.55  # the width of the axis by that of the bars: room for the words


def breakdown_figure(results: Results) -> Figure | None:
    """None where no setting has a breakdown."""
    known = [
        (each.setting, each.figures.breakdown)
        for each in results.results
        if each.figures and each.figures.breakdown
    ]
    if not known:
        return None
    # Of the parts the medians; other operators are all kinds that no other bar has. A whisker has the spread
    # of the step about its median, which is drawn at the bar's end.
    named = {part for _, chosen, _ in _PARTS for part in chosen} | {COMMUNICATION}
    others = [kind for kind in KINDS if kind not in named]
    bars = [
        [math.fsum(own.parts[part].median for part in chosen or others) for _, chosen, _ in _PARTS]
        for _, own in known
    ]
    ends = [math.fsum(bar) for bar in bars]
    most = [end + (own.step_ms.most - own.step_ms.median) for end, (_, own) in zip(ends, known)]
    groups: dict[Group, list[float]] = {}  # `limit` is where bars and whiskers are cut
    for (setting, _), end in zip(known, ends):
        groups.setdefault(setting.group, []).append(end)
    longest = max(min(max(each), _CUT * statistics.median_low(each)) for each in groups.values())
    slowest = max(whisker for whisker, end in zip(most, ends) if end <= longest)
    limit = max(longest, min(_WHISKER * longest, slowest))
    figure = new_figure((10, 1.5 + 0.32 * len(bars)))
    axes = figure.subplots()
    places = [place + 0.5 * [*groups].index(each.group) for place, (each, _) in enumerate(known)]
    left = [0.0] * len(bars)
    for index, (label, chosen, shade) in enumerate(_PARTS):
        right = [min(limit, before + bar[index]) for before, bar in zip(left, bars)]
        widths = [end - before for before, end in zip(left, right)]
        if any(bar[index] for bar in bars):
            hatch = "///" if EXPOSED in chosen else None
            axes.barh(
                places, widths, 0.8, left, color=shade, label=label, hatch=hatch, edgecolor="white",
                linewidth=0.5,
            )  # fmt: skip
        left = right
    for (_, own), at, end, whisker in zip(known, places, ends, most):
        _whisker(axes, own, at, end, whisker, limit)
    names = [f"{results.words(each.group)}: {results.title(each.backend)}" for each, _ in known]
    axes.set_yticks(places, names, fontsize=8.5)
    axes.set_ylim(places[-1] + 0.7, places[0] - 0.7)
    axes.set_xlim(0, _TEXT * limit)
    launches = max(own.launches for _, own in known)
    medians_of = f"median of {launches} profiled launches, whiskers from the fastest to the slowest"
    axes.set(
        title=f"A step of rank 0: {medians_of if launches > 1 else 'one profiled launch'}", xlabel="ms a step"
    )
    plain(axes, "x")
    legend_below(figure, [axes], 3)
    return figure


def _whisker(axes: Axes, own: Breakdown, at: float, end: float, most: float, limit: float) -> None:
    """The spread of a bar that goes to `end`, least to greatest, and in words what does not fit and how much
    is exposed."""
    words, several, step = [], own.launches > 1, own.step_ms
    start, cut = max(0.0, end - (step.median - step.least)), most > limit * (1 + 1e-9)
    if several and start < limit:
        axes.hlines(at, start, min(most, limit), color="black", linewidth=1)
        caps = [start] if cut else [start, most]  # one that is cut goes on
        axes.plot(caps, [at] * len(caps), "|", color="black", markersize=5)
    if cut:
        lengths = [end, most] if end > limit and most > end else [most]
        words.append(f"→ {' to '.join(map(digits, lengths))} ms")
    if own.exposed_ms.most > 0:
        share = own.exposed_share
        words.append(f"{share_with_extremes(share) if several else percent(share.median)} exposed")
    place = min(most, limit) + 0.01 * limit
    axes.text(place, at, "; ".join(words), va="center", fontsize=8, color="#A04000")
