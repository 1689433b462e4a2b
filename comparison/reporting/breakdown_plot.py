"""The picture of where a step's time goes: a bar for each setting, whiskers over its profiled launches."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

from base.quantities import digits, percent
from comparison.reporting.canvas import ALARM, new_figure, plain
from comparison.reporting.figures import Breakdown
from comparison.reporting.results import Results
from comparison.reporting.wording import group_words, share_with_extremes, title_of
from comparison.settings import Group, Setting
from training.profiling.breakdown import EXPOSED, IDLE, PYTHON
from training.profiling.kinds import ATTENTION, COMMUNICATION, KINDS, OPTIMIZER, PRODUCTS
from training.profiling.trace import COPYING, DATA_WAIT

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
    def below(self) -> float:
        return self.breakdown.step_ms.median - self.breakdown.step_ms.least

    @property
    def above(self) -> float:
        return self.breakdown.step_ms.most - self.breakdown.step_ms.median


def breakdown_figure(results: Results, facts: Mapping[str, Any]) -> Figure | None:
    """None where no setting has a breakdown."""
    bars = [
        Bar(each.setting, breakdown, [_milliseconds(breakdown, parts) for _, parts, _ in _PARTS])
        for each in results.results
        if each.figures and (breakdown := each.figures.breakdown)
    ]
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
    _stack(axes, bars, places, limit)
    for at, bar in zip(places, bars):
        _whisker(axes, at, bar, limit)
    names = [
        f"{group_words(bar.setting.group, facts)}: {title_of(bar.setting.backend, facts)}" for bar in bars
    ]
    axes.set_yticks(places, names, fontsize=8.5)
    axes.set_ylim(places[-1] + 0.7, places[0] - 0.7)
    axes.set_xlim(0, _TEXT * limit)
    most = max(bar.breakdown.launches for bar in bars)
    medians = f"median of {most} profiled launches, whiskers from the fastest to the slowest"
    axes.set(title=f"A step of rank 0: {medians if most > 1 else 'one profiled launch'}", xlabel="ms a step")
    plain(axes, "x")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def greatest_shown(bars: Sequence[Bar]) -> float:
    """The milliseconds at which bars and whiskers are cut."""
    groups: dict[Group, list[float]] = {}
    for bar in bars:
        groups.setdefault(bar.setting.group, []).append(bar.end)
    longest = max(min(max(ends), _CUT * statistics.median_low(ends)) for ends in groups.values())
    slowest = max(bar.end + bar.above for bar in bars if bar.end <= longest)
    return max(longest, min(_WHISKER * longest, slowest))


def _stack(axes: Axes, bars: Sequence[Bar], places: Sequence[float], limit: float) -> None:
    left = [0.0] * len(bars)
    for index, (label, parts, shade) in enumerate(_PARTS):
        ends = [min(limit, before + bar.parts[index]) for before, bar in zip(left, bars)]
        widths = [end - before for before, end in zip(left, ends)]
        if any(bar.parts[index] for bar in bars):
            hatch = "///" if EXPOSED in parts else None
            axes.barh(
                places, widths, 0.8, left, color=shade, label=label, hatch=hatch, edgecolor="white",
                linewidth=0.5,
            )  # fmt: skip
        left = ends


def _whisker(axes: Axes, at: float, bar: Bar, limit: float) -> None:
    """The spread, and in words what does not fit and how much is exposed."""
    words = []
    end, most = bar.end, bar.end + bar.above
    start, cut = max(0.0, end - bar.below), most > limit * (1 + 1e-9)
    if bar.breakdown.launches > 1 and start < limit:
        axes.hlines(at, start, min(most, limit), color="black", linewidth=1)
        caps = [start] if cut else [start, most]  # one that is cut goes on
        axes.plot(caps, [at] * len(caps), "|", color="black", markersize=5)
    if cut:
        lengths = [end, most] if end > limit and bar.above else [most]
        words.append(f"→ {' to '.join(map(digits, lengths))} ms")
    share = bar.breakdown.exposed_share
    if bar.breakdown.exposed_ms.most > 0:
        several = bar.breakdown.launches > 1
        words.append(f"{share_with_extremes(share) if several else percent(share.median)} exposed")
    axes.text(min(most, limit) + 0.01 * limit, at, "; ".join(words), va="center", fontsize=8, color="#A04000")


def _milliseconds(breakdown: Breakdown, parts: Sequence[str]) -> float:
    """The medians of the parts; of every kind of operator that no other bar has, where none are given."""
    if not parts:
        named = {part for _, chosen, _ in _PARTS for part in chosen} | {COMMUNICATION}
        parts = [kind for kind in KINDS if kind not in named]
    return math.fsum(breakdown.parts[part].median for part in parts)
