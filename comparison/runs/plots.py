"""The plots of a report, as PNG."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, NamedTuple, Sequence

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
        ones, compared = [], False
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
                compared = True
        if not compared:
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
            for each in results.groups()[group]
            if each.kind in (agreement.WRONG, agreement.UNDECIDED)
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


class Bar(NamedTuple):
    """Bar of one setting, in milliseconds. `parts`: as _PARTS. The whisker has the spread of the step, least
    to greatest, about its median, which is drawn at the bar's end."""

    setting: Setting
    breakdown: Breakdown
    parts: Sequence[float]

    @property
    def end(self) -> float:
        return math.fsum(self.parts)

    @property
    def most(self) -> float:
        """The whisker's end."""
        return self.end + (self.breakdown.step_ms.most - self.breakdown.step_ms.median)


def breakdown_figure(results: Results) -> Figure | None:
    """None where no setting has a breakdown."""
    # Of the parts the medians; other operators are all kinds that no other bar has.
    named = {part for _, chosen, _ in _PARTS for part in chosen} | {COMMUNICATION}
    others = [kind for kind in KINDS if kind not in named]
    bars = []
    for each in results.results:
        if each.figures and (breakdown := each.figures.breakdown):
            medians = {part: spread.median for part, spread in breakdown.parts.items()}
            parts = [math.fsum(medians[part] for part in chosen or others) for _, chosen, _ in _PARTS]
            bars.append(Bar(each.setting, breakdown, parts))
    if not bars:
        return None
    figure = new_figure((10, 1.5 + 0.32 * len(bars)))
    axes = figure.subplots()
    places, place, above = [], 0.0, bars[0].setting.group
    for bar in bars:
        place += 0.5 if bar.setting.group != above else 0.0
        places.append(place)
        place, above = place + 1, bar.setting.group
    limit = greatest_shown(bars)
    left = [0.0] * len(bars)
    for index, (label, chosen, shade) in enumerate(_PARTS):
        ends = [min(limit, before + bar.parts[index]) for before, bar in zip(left, bars)]
        widths = [end - before for before, end in zip(left, ends)]
        if any(bar.parts[index] for bar in bars):
            hatch = "///" if EXPOSED in chosen else None
            axes.barh(
                places, widths, 0.8, left, color=shade, label=label, hatch=hatch, edgecolor="white",
                linewidth=0.5,
            )  # fmt: skip
        left = ends
    for at, bar in zip(places, bars):
        _whisker(axes, at, bar, limit)
    names = [f"{results.words(bar.setting.group)}: {results.title(bar.setting.backend)}" for bar in bars]
    axes.set_yticks(places, names, fontsize=8.5)
    axes.set_ylim(places[-1] + 0.7, places[0] - 0.7)
    axes.set_xlim(0, _TEXT * limit)
    most = max(bar.breakdown.launches for bar in bars)
    medians_of = f"median of {most} profiled launches, whiskers from the fastest to the slowest"
    axes.set(
        title=f"A step of rank 0: {medians_of if most > 1 else 'one profiled launch'}", xlabel="ms a step"
    )
    plain(axes, "x")
    legend_below(figure, [axes], 3)
    return figure


def greatest_shown(bars: Sequence[Bar]) -> float:
    """The milliseconds at which bars and whiskers are cut."""
    groups: dict[Group, list[float]] = {}
    for bar in bars:
        groups.setdefault(bar.setting.group, []).append(bar.end)
    longest = max(min(max(ends), _CUT * statistics.median_low(ends)) for ends in groups.values())
    slowest = max(bar.most for bar in bars if bar.end <= longest)
    return max(longest, min(_WHISKER * longest, slowest))


def _whisker(axes: Axes, at: float, bar: Bar, limit: float) -> None:
    """The spread, and in words what does not fit and how much is exposed."""
    words, several, step = [], bar.breakdown.launches > 1, bar.breakdown.step_ms
    start, cut = max(0.0, bar.end - (step.median - step.least)), bar.most > limit * (1 + 1e-9)
    if several and start < limit:
        axes.hlines(at, start, min(bar.most, limit), color="black", linewidth=1)
        caps = [start] if cut else [start, bar.most]  # one that is cut goes on
        axes.plot(caps, [at] * len(caps), "|", color="black", markersize=5)
    if cut:
        lengths = [bar.end, bar.most] if bar.end > limit and bar.most > bar.end else [bar.most]
        words.append(f"→ {' to '.join(map(digits, lengths))} ms")
    share = bar.breakdown.exposed_share
    if bar.breakdown.exposed_ms.most > 0:
        words.append(f"{share_with_extremes(share) if several else percent(share.median)} exposed")
    place = min(bar.most, limit) + 0.01 * limit
    axes.text(place, at, "; ".join(words), va="center", fontsize=8, color="#A04000")
