"""Which backend computed what the others did."""

from __future__ import annotations

import math

import pytest

from comparison.record import Interval
from comparison.reporting.losses import (
    CONFIRMED,
    UNCONFIRMED,
    UNDECIDED,
    WRONG,
    curve,
    first_difference,
    greatest_difference,
    judge,
    not_finite,
    tolerance,
)
from comparison.settings import Setting
from tests.comparison.synthetic import LOG, STEPS, TOKENS, loss_at, record

DTYPE, WORKERS = "float32", 2


def launches(backend, scale=1.0, repeats=2, **changes):
    setting = Setting(backend, WORKERS, DTYPE, 512)
    times = [0.07 + 0.01 * repeat for repeat in range(repeats)]  # times may differ, losses may not
    return [record(setting, repeat, times[repeat], scale, **changes) for repeat in range(repeats)]


def kinds(records, dtype=DTYPE):
    return {backend: each.kind for backend, each in judge(records, dtype).items()}


def test_equal_losses_are_confirmed_whatever_the_time():
    records = {"a": launches("a"), "b": launches("b", scale=1 + 1e-6), "c": launches("c")}
    assert set(kinds(records).values()) == {CONFIRMED}


def test_the_one_that_differs_from_two_is_wrong_and_the_line_says_where():
    records = {"a": launches("a"), "b": launches("b", scale=1.001, from_step=30), "c": launches("c")}
    judged = judge(records, DTYPE)
    assert [each.kind for each in judged.values()] == [CONFIRMED, WRONG, CONFIRMED]
    expected = f"{loss_at(40) * 1.001:.5g} instead of {loss_at(40):.5g}"
    assert judged["b"].reason == f"wrong: losses differ (first at step 40: mlm_loss {expected})"


def test_a_difference_in_the_warm_up_counts():
    records = {"a": launches("a"), "b": launches("b"), "c": launches("c", scale=1.01)}
    assert "first at step 10:" in judge(records, DTYPE)["c"].reason


def test_two_that_differ_are_both_without_a_figure():
    judged = judge({"a": launches("a"), "b": launches("b", scale=0.99)}, DTYPE)
    assert [each.kind for each in judged.values()] == [UNDECIDED, UNDECIDED]
    assert judged["a"].reason.endswith("which is right cannot be told from two")


def test_half_is_no_majority():
    pairs = {"a": 1.0, "b": 1.0, "c": 1.01, "d": 1.01}
    judged = judge({name: launches(name, scale) for name, scale in pairs.items()}, DTYPE)
    assert {each.kind for each in judged.values()} == {UNDECIDED}
    assert "from four" in judged["d"].reason


def test_three_that_all_differ():
    pairs = {"a": 1.0, "b": 1.01, "c": 1.02}
    assert set(kinds({name: launches(name, scale) for name, scale in pairs.items()}).values()) == {UNDECIDED}


def test_a_backend_alone_is_not_confirmed():
    assert kinds({"a": launches("a")}) == {"a": UNCONFIRMED}
    assert judge({}, DTYPE) == {}


def test_a_backend_that_does_not_repeat_itself_is_wrong_and_has_no_vote():
    shaky = [launches("b")[0], launches("b", scale=1.01)[1]]
    judged = judge({"a": launches("a"), "b": shaky, "c": launches("c")}, DTYPE)
    assert [each.kind for each in judged.values()] == [CONFIRMED, WRONG, CONFIRMED]
    assert "repeats of the same launch differ (repeat 1, at step 10: mlm_loss" in judged["b"].reason
    assert kinds({"a": launches("a"), "b": shaky}) == {"a": UNCONFIRMED, "b": WRONG}


def test_less_work_is_wrong_even_with_the_same_losses():
    """Such a backend would look fast: half the tokens in half the time have the same rate."""
    lazy = []
    for each in launches("b"):
        half = [
            line._replace(tokens_per_s=line.tokens_per_s / 2, sequences_per_s=line.sequences_per_s / 2)
            for line in each.intervals
        ]
        lazy.append(record(each.setting, each.repeat, intervals=tuple(half)))
    judged = judge({"a": launches("a"), "b": lazy, "c": launches("c")}, DTYPE)
    whole = WORKERS * TOKENS
    assert judged["b"].kind == WRONG
    assert f"work differs (first at step 30: tokens a step {whole / 2:.5g}" in judged["b"].reason


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "unheard of"])
def test_the_tolerance_lies_between_agreement_and_difference(dtype):
    limit = tolerance(dtype)
    near, far = 1 + 0.9 * limit, 1 + 1.2 * limit
    assert set(kinds({"a": launches("a"), "b": launches("b", near)}, dtype).values()) == {CONFIRMED}
    assert set(kinds({"a": launches("a"), "b": launches("b", far)}, dtype).values()) == {UNDECIDED}


def test_the_tolerance_grows_late():
    """One rounding of the dtype is well inside, and a per cent well outside, however long the run."""
    assert tolerance("float32", 100) == tolerance("float32", 1) == tolerance("float32")
    assert tolerance("float32", 500) == pytest.approx(5 * tolerance("float32"))
    assert 2**-24 * 1000 < tolerance("float32") < tolerance("bfloat16") < 0.01
    whole = launches("a")[0]
    late = [each._replace(step=each.step + 1000) for each in whole.intervals]
    other = [each._replace(mlm_loss=each.mlm_loss * (1 + 5 * tolerance(DTYPE))) for each in late]
    first, second = (curve(record(whole.setting, intervals=tuple(lines))) for lines in (late, other))
    assert first_difference(second, first, DTYPE) is None


def test_the_next_sentence_loss_is_compared_too():
    lines = [each._replace(nsp_loss=0.7) for each in launches("a")[0].intervals]
    other = record(Setting("b", WORKERS, DTYPE, 512), intervals=tuple(lines))
    found = first_difference(curve(other), curve(launches("a")[0]), DTYPE)
    assert (found.step, found.name, found.found) == (30, "nsp_loss", 0.7)


def test_a_loss_near_zero_is_not_compared_by_its_ratio():
    setting = Setting("a", WORKERS, DTYPE, 512)
    lines = [each._replace(nsp_loss=1e-9) for each in record(setting).intervals]
    other = [each._replace(nsp_loss=3e-9) for each in lines]
    first, second = (curve(record(setting, intervals=tuple(each))) for each in (lines, other))
    assert first_difference(first, second, DTYPE) is None


def test_a_missing_line_is_a_difference():
    whole = launches("a")[0]
    short = record(whole.setting, intervals=whole.intervals[:-1])
    found = first_difference(curve(short), curve(whole), DTYPE)
    assert found.step == STEPS and str(found).endswith("is missing")
    assert str(first_difference(curve(whole), curve(short), DTYPE)).endswith("is there")


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_what_is_not_finite_is_named(value):
    whole = launches("a")[0]
    broken = (*whole.intervals[:-1], whole.intervals[-1]._replace(mlm_loss=value))
    assert not_finite(whole) is None
    assert not_finite(record(whole.setting, intervals=broken)) == f"mlm_loss is not finite at step {STEPS}"


def test_greatest_difference_is_over_all_steps_and_curves():
    curves = [curve(launches(name, scale)[0]) for name, scale in (("a", 1.0), ("b", 1.0001), ("c", 0.9999))]
    assert greatest_difference(curves) == pytest.approx(0.0002 / 1.0001)
    assert greatest_difference(curves[:1]) is None
    assert greatest_difference(curves[:1] * 2) == 0.0


def test_a_curve_has_every_line():
    found = curve(launches("a")[0])
    assert list(found) == list(range(LOG, STEPS + 1, LOG))
    assert found[LOG]["tokens a step"] == pytest.approx(WORKERS * TOKENS)
    assert isinstance(launches("a")[0].intervals[0], Interval)
