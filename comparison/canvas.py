"""Parts that plots have in common: panels, styles, the legend."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence

from base.drawing import COLOURS, new_figure
from base.files import replacing
from comparison.verdicts import Spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ALARM = "#D55E00"
_COLUMNS = 4


def grid(
    panels: int, high: int, panel_size: tuple[float, float], same_y: bool = False
) -> tuple[Figure, list[tuple[Axes, ...]]]:
    """A figure with `panels` panels of `high` axes, one under the other, at most _COLUMNS side by side."""
    columns = min(panels, _COLUMNS)
    blocks = math.ceil(panels / columns)
    width = max(6.0, panel_size[0] * columns)
    figure = new_figure((width, panel_size[1] * high * blocks + 0.9))
    axes = figure.subplots(blocks * high, columns, squeeze=False, sharey="all" if same_y else False)
    panel_axes = axes.reshape(blocks, high, columns).swapaxes(1, 2).reshape(-1, high)
    for unused in panel_axes[panels:].flat:
        unused.set_axis_off()
    return figure, [tuple(each) for each in panel_axes[:panels]]


def legend_below(figure: Figure, panels: Sequence[Axes], columns: int = 5) -> None:
    """One legend for a figure, of what these of its panels name; every name once."""
    named = {label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(
        list(named.values()),
        list(named),
        loc="outside lower center",
        ncols=min(columns, len(named)),
        frameon=False,
    )


def save(figure: Figure, path: Path, mark: str) -> None:
    """Writes a PNG, whole or not at all. `mark`: added to the title, in red. Raises OSError."""
    if mark:
        title = [each.get_text() for each in figure.texts]
        figure.suptitle("\n".join([*title, mark]), color=ALARM, fontsize=11)
    with replacing(str(path)) as handle:
        figure.savefig(handle, format="png", metadata={"Software": None})


def whiskers(axes: Axes, places: Sequence[float], values: Sequence[Spread], **style: Any) -> None:
    """Lines from the least to the greatest value; none where they are the same, as with one launch."""
    for place, each in zip(places, values):
        if each.least != each.most:
            axes.errorbar(
                place, each.median, [[each.median - each.least], [each.most - each.median]],
                fmt="none", **{"capsize": 3, "elinewidth": 1.2, **style},
            )  # fmt: skip


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def marker(index: int) -> str:
    """Beside the colour, so that lines can be told apart in grey."""
    return "os^Dv*X"[index % 7]


def line_style(index: int, count: int) -> dict[str, Any]:
    """Style of one of `count` lines: what is drawn first is wider, so that equal lines are all seen."""
    return {
        "color": colour(index),
        "linewidth": 1.4 + 2.8 * (count - 1 - index),
        "solid_capstyle": "butt",
    }


def ideal_style() -> dict[str, Any]:
    return {"color": "#888888", "linestyle": "--", "linewidth": 1.2, "zorder": 1}


def plain(axes: Axes, grid: str = "y") -> None:
    """Two spines, lines behind what is drawn, and a unit that a whole row has only at its left."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, alpha=0.3)
    axes.set_axisbelow(True)
    axes.title.set_fontsize(9.5)
    place = axes.get_subplotspec()
    if place is not None and not place.is_first_col():
        row = [other for other in axes.figure.axes if other.get_subplotspec().rowspan == place.rowspan]
        if row[0].get_ylabel() == axes.get_ylabel():
            axes.set_ylabel("")


def thousands(axes: Axes) -> None:
    """The y axis in numbers such as 12,500."""
    axes.yaxis.set_major_formatter("{x:,.0f}")
