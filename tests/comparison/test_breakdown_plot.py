"""The bars and whiskers of the breakdown, as they are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from comparison.runs.plots import breakdown_figure
from comparison.runs.results import gather
from comparison.settings import Setting
from tests.comparison.synthetic import FACTS, profiled, record

BACKENDS = ("hvd_mpi", "hvd_gloo", "byteps")
COMPUTING = 50.5  # ms of a profiled step


def drawn(exposed: dict[Setting, list[float]]):
    """The axes of the figure for these milliseconds of exposed communication, a value for each profile."""
    records = [record(setting, repeat) for setting in exposed for repeat in range(5)]
    for setting, values in exposed.items():
        records += [profiled(setting, value, 1.0, repeat) for repeat, value in enumerate(values)]
    figure = breakdown_figure(gather(FACTS, records, list(exposed)))
    return None if figure is None else figure.axes[0]


def ends(axes, number: int) -> list[float]:
    """Of the bars, from the top."""
    found = [0.0] * number
    for container in axes.containers:
        if len(container) == number and hasattr(container, "patches"):
            for place, patch in enumerate(container.patches):
                found[place] = max(found[place], patch.get_x() + patch.get_width())
    return found


def whiskers(axes) -> list[tuple[float, float]]:
    return [tuple(segment[:, 0]) for lines in axes.collections for segment in lines.get_segments()]


def settings(batch_size: int = 512) -> list[Setting]:
    return [Setting(backend, 2, "float32", batch_size) for backend in BACKENDS]


def test_bars_are_medians_and_whiskers_go_from_the_fastest_to_the_slowest():
    first, second, third = settings()
    axes = drawn({first: [10, 14, 12], second: [20, 20, 20], third: [30, 31, 38]})
    assert ends(axes, 3) == pytest.approx([COMPUTING + each for each in (12, 20, 31)])
    expected = [(10, 14), (20, 20), (30, 38)]
    assert np.array(whiskers(axes)) == pytest.approx(COMPUTING + np.array(expected))
    words = [text.get_text() for text in axes.texts]
    assert words == ["19% (17% to 22%) exposed", "28% (28% to 28%) exposed", "38% (37% to 43%) exposed"]
    assert "median of 3 profiled launches" in axes.get_title()


def test_a_launch_that_stalled_does_not_squeeze_the_others():
    first, second, third = settings()
    axes = drawn({first: [10, 12, 11], second: [20, 9000, 21], third: [15, 15, 16]})
    longest = COMPUTING + 21
    assert ends(axes, 3)[1] == pytest.approx(longest)
    assert whiskers(axes)[1] == pytest.approx((COMPUTING + 20, 1.25 * longest))  # cut
    assert axes.get_xlim()[1] < 2 * longest
    assert axes.texts[1].get_text().startswith("→ 9,050 ms; ")


def test_a_setting_that_stalled_every_time_is_cut_and_says_its_length():
    first, second, third = settings()
    axes = drawn({first: [10] * 3, second: [9000, 8000, 8500], third: [15] * 3})
    limit = 3 * (COMPUTING + 15)
    assert ends(axes, 3) == pytest.approx([COMPUTING + 10, limit, COMPUTING + 15])
    assert axes.get_xlim()[1] < 1.6 * limit
    assert axes.texts[1].get_text() == "→ 8,550 to 9,050 ms; 99% (99% to 99%) exposed"


def test_long_steps_of_another_group_are_no_outliers():
    small, large = settings(), settings(4096)
    axes = drawn({**{each: [5.0] * 3 for each in small}, **{each: [900.0] * 3 for each in large}})
    assert ends(axes, 6) == pytest.approx([COMPUTING + 5] * 3 + [COMPUTING + 900] * 3)


def test_one_profile_has_no_whisker():
    (first, *_) = settings()
    axes = drawn({first: [10.0]})
    assert whiskers(axes) == [] and axes.get_title().endswith("one profiled launch")
    assert [text.get_text() for text in axes.texts] == ["17% exposed"]
    assert drawn({first: []}) is None
