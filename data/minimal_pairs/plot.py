"""Accuracies as a picture."""

from __future__ import annotations

from base.drawing import COLOURS, new_figure
from base.files import replacing
from data.minimal_pairs.accuracy import Accuracies

_COLOURS = COLOURS[:6]  # without black; groups with one colour are far from each other
_INCHES = 0.19  # of a bar


def draw_accuracies(path: str, title: str, found: Accuracies) -> None:
    """Writes a PNG with a bar for each paradigm, coloured by group, whiskers of two standard errors, and a
    line at chance. The file is written whole or not at all. Raises OSError when it cannot be."""
    names = [each.group for each in found.groups]
    figure = new_figure((9, 1.6 + _INCHES * len(found.paradigms)))
    axes = figure.subplots()
    axes.set(title=title, xlabel="accuracy in %, with two standard errors", xlim=(0, 100))
    places = range(len(found.paradigms))
    for group in names:
        own = [index for index in places if found.paradigms[index].group == group]
        axes.barh(
            own,
            [100 * found.paradigms[index].accuracy for index in own],
            xerr=[200 * found.paradigms[index].error for index in own],
            color=_COLOURS[names.index(group) % len(_COLOURS)],
            error_kw={"elinewidth": 0.8},
        )
        axes.text(101, sum(own) / len(own), group, va="center", fontsize=8)
    axes.axvline(50, color="black", linewidth=0.8, linestyle="--", label="chance")
    axes.set_yticks(places, [each.name for each in found.paradigms], fontsize=7)
    axes.set_ylim(len(found.paradigms) - 0.4, -0.6)  # the first one at the top
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="lower left", fontsize=8)
    with replacing(path) as file:
        figure.savefig(file, format="png", metadata={"Software": None})
