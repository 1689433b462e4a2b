"""Histograms: bars in a terminal, and a picture as PNG."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Sequence

import numpy as np

from base.drawing import new_figure
from base.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589"
_FULL = "\u2588"
_MOST_BINS = 16
_BLUE, _GREY, _RED = "#3b6ea5", "#555555", "#c44e52"


class Bin(NamedTuple):
    """The number of values in first..last, both included; `last` None stands for all above."""

    first: int
    last: int | None
    number: int

    @property
    def name(self) -> str:
        """The range in words."""
        if self.last is None:
            return f"{self.first}+"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def bins(
    counts: Sequence[Sequence[int]], multiple: int = 1, most: int = _MOST_BINS, tail: float = 0.0
) -> list[Bin]:
    """About `most` bins of one width, a multiple of `multiple`, that hold all (value, number) pairs.

    `counts` is sorted by value, whole numbers from 0; a value of 0 gets a bin of its own. Bins end at
    multiples of their width. Empty ones before the first value are left out. With `tail`, a share, so many of
    the largest values may share one last bin: single ones would stretch the axis.
    """
    result = [Bin(0, 0, number) for value, number in counts if value == 0]
    values = np.array([pair for pair in counts if pair[0] > 0], dtype=np.int64).reshape(-1, 2)
    if not len(values):
        return result
    below = np.cumsum(values[:, 1])
    end = int(values[np.searchsorted(below, (1 - tail) * below[-1]), 0])
    low = int(values[0, 0]) - 1
    width = next(step for step in _steps(multiple) if (end - 1) // step - low // step < most)
    first, last = low // width, (end - 1) // width
    place = np.minimum((values[:, 0] - 1) // width - first, last - first + 1)
    totals = np.bincount(place, values[:, 1], minlength=last - first + 1).astype(np.int64).tolist()
    for number, total in enumerate(totals):
        start = (first + number) * width
        result.append(Bin(start + 1, start + width if number <= last - first else None, total))
    return result


def _steps(multiple: int) -> Iterator[int]:
    """Rising widths: 1, 2, 5, 10, 20, 50, ... or the multiple doubled again and again."""
    if multiple > 1:
        yield from (multiple << exponent for exponent in itertools.count())
    yield from (step * 10**exponent for exponent in itertools.count() for step in (1, 2, 5))


def bars(shown: Sequence[Bin], width: int, unicode: bool = True) -> list[str]:
    """A line for each bin, of at most `width` columns: its range, a bar, its count and its share."""
    total = sum(each.number for each in shown) or 1
    most = max((each.number for each in shown), default=0) or 1
    names = [each.name for each in shown]
    counts = [f"{each.number:,}" for each in shown]
    name_width, count_width = max(map(len, names)), max(map(len, counts))
    room = max(10, width - name_width - count_width - 12)
    return [
        f"  {name:>{name_width}} {bar(each.number / most, room, unicode):<{room}} "
        f"{count:>{count_width}} {each.number / total:6.1%}"
        for name, count, each in zip(names, counts, shown)
    ]


def bar(share: float, room: int, unicode: bool) -> str:
    """A bar of `share` (0 to 1) of `room` columns; anything above 0 is seen."""
    eighths = round(share * room * 8)
    if share > 0:
        eighths = max(eighths, 1)
    if not unicode:
        return "#" * max(eighths // 8, int(share > 0))
    return (_FULL * (eighths // 8) + _EIGHTHS[eighths % 8]).strip()


def draw_lengths(path: str, title: str, facts: dict[str, Any]) -> None:
    """Write a PNG of what `data.inspect` counted: lengths of sequences with the bounds of their buckets, and
    lengths of sentences (for text) or predictions a sequence (for ready instances).

    The file is written whole or not at all. Raises OSError when it cannot be.
    """
    figure = new_figure((12, 4.8))
    left, right = figure.subplots(1, 2, gridspec_kw={"width_ratios": [3, 2]})
    figure.suptitle(title)

    batches, lengths = facts["batches"], facts["lengths"]
    bounds = [bucket["padded_to"] for bucket in batches["buckets"]]
    # Nearly all sequences are of full length; on a linear axis the others would not be seen.
    log = max(count for _, count in lengths["counts"]) > 0.2 * lengths["number"]
    left.set(
        title=f"{lengths['number']:,} sequences; {batches['padding_share']:.1%} of positions are padding "
        f"({len(bounds)} bucket{'s' * (len(bounds) != 1)})",
        xlabel="tokens, with [CLS] and [SEP]",
        ylabel="sequences" + " (log scale)" * log,
        yscale="log" if log else "linear",
    )
    if log:
        left.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "")
    _draw_counts(left, lengths["counts"], bounds[-1], 64)
    ends = [bound + 0.5 for bound in bounds]
    style = {"color": _RED, "linestyle": "--", "linewidth": 1}
    left.vlines(ends, 0, 1, transform=left.get_xaxis_transform(), label="a bucket ends here", **style)
    left.legend(loc="upper left", framealpha=0.9)

    if "text" in facts:
        shown = facts["text"]["sentence_lengths"]
        # The longest one in a hundred would squeeze all others into a corner.
        below = np.cumsum([count for _, count in shown["counts"]])
        end = shown["counts"][int(np.searchsorted(below, 0.99 * below[-1]))][0]
        words = (f"{shown['number']:,} sentences (shortest 99%)", "tokens", "sentences")
    else:
        shown = facts["masks"]["predictions_per_sequence"]
        end = shown["largest"]
        words = (f"predictions of {shown['number']:,} sequences", "masked tokens", "sequences")
    right.set(title=words[0], xlabel=words[1], ylabel=words[2])
    _draw_counts(right, shown["counts"], end, 80)
    right.axvline(shown["mean"], color=_GREY, linestyle=":", label=f"mean {shown['mean']:.1f}")
    right.legend()
    with replacing(path) as handle:
        figure.savefig(handle, format="png", metadata={"Software": None})


def _draw_counts(axes: Axes, counts: Sequence[Sequence[int]], high: int, most: int) -> None:
    """At most `most` bars of one width, a power of 2, for the (value, number) pairs up to `high`."""
    values, numbers = np.array(counts).T
    width = next(1 << power for power in itertools.count() if high <= most << power)
    edges = np.arange(-0.5 if values[0] == 0 else 0.5, high + width + 0.5, width)
    axes.hist(values, edges, weights=numbers, color=_BLUE, rwidth=0.92)
    axes.set_xlim(0, high * 1.02)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
