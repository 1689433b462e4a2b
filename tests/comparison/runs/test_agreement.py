"""Backends that computed the same as the others, and those that did not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from comparison.runs.agreement import (
    CONFIRMED,
    UNCONFIRMED,
    UNDECIDED,
    WRONG,
    compared,
    differences,
    greatest_difference,
    judge,
    limits_of,
)
from comparison.runs.record import Record
from comparison.settings import Group, Setting
from tests.comparison.synthetic import LOG, SHA256, STEPS, norm_at, record

TWO, THREE = Group(2, "float32", 512), Group(3, "float32", 512)
CPUS: dict = {"gpus": 0, "compression": "none", "fused": False}
SHORT = SHA256[:12]


def launches(backend, scale=1.0, repeats=2, group=THREE, **changes):
    setting = Setting(backend, *group)
    times = [0.07 + 0.01 * repeat for repeat in range(repeats)]  # times may differ, losses may not
    return [record(setting, repeat, times[repeat], scale, **changes) for repeat in range(repeats)]


def changed(records, from_step=0, **factors) -> list[Record]:
    """Fields of the intervals after `from_step` times a factor."""

    def lines(intervals):
        return tuple(
            each._replace(**{name: getattr(each, name) * factor for name, factor in factors.items()})
            if each.step > from_step
            else each
            for each in intervals
        )

    return [replace(each, warm_up=lines(each.warm_up), intervals=lines(each.intervals)) for each in records]


def kinds(records, group=THREE, facts=CPUS):
    return {backend: each.kind for backend, each in judge(records, group, facts).items()}


def apart(found, expected, group=THREE):
    return differences(found, expected, limits_of(group, CPUS))


@pytest.mark.parametrize("workers", [2, 3, 8])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("facts", [CPUS, {**CPUS, "gpus": 8}, {**CPUS, "compression": "fp16"}])
def test_a_sum_instead_of_the_mean_is_wrong_though_losses_are_equal(workers, dtype, facts):
    """Clipping and LAMB leave the losses, and all parameters, as they are."""
    group = Group(workers, dtype, 512)
    summing = changed(launches("b", group=group), grad_norm=workers)
    records = {"a": launches("a", group=group), "b": summing, "c": launches("c", group=group)}
    judged = judge(records, group, facts)
    assert [each.kind for each in judged.values()] == [CONFIRMED, WRONG, CONFIRMED]
    norm = f"{norm_at(10) * workers:.5g} instead of {norm_at(10):.5g}"
    assert judged["b"].reason == f"wrong: gradient norms differ (first at step 10: gradient norm {norm})"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lr", "learning rates"),
        ("tokens_per_s", "numbers of tokens"),
        ("padded_tokens_per_s", "numbers of tokens"),
        ("sequences_per_s", "numbers of sequences"),
        ("mlm_loss", "losses"),
        ("nsp_loss", "losses"),
        ("grad_norm", "gradient norms"),
    ],
)
@pytest.mark.parametrize("group", [TWO, THREE])
def test_the_line_names_what_differs(name, kind, group):
    """A single interval, the last one."""
    records = {each: launches(each, group=group) for each in "abc"}
    records["c"] = changed(records["c"], STEPS - LOG, **{name: 1.1})
    judged = judge(records, group, CPUS)
    assert [each.kind for each in judged.values()] == [CONFIRMED, CONFIRMED, WRONG]
    assert judged["c"].short == f"{kind} differ"
    assert judged["c"].reason.startswith(f"wrong: {kind} differ (first at step {STEPS}: ")


@pytest.mark.parametrize("name", ["lr", "tokens_per_s", "padded_tokens_per_s", "sequences_per_s"])
def test_the_work_is_equal_everywhere(name):
    """A token of a hundred million, and any learning rate but the same."""
    group = Group(8, "float16", 512)
    records = {"a": launches("a", group=group), "b": launches("b", group=group)}
    records["b"] = changed(records["b"], **{name: 1 + 1e-8})
    assert set(kinds(records, group, {**CPUS, "gpus": 8}).values()) == {UNDECIDED}


def test_two_workers_leave_no_room_between_backends():
    """a + b = b + a: a bit of a loss, of a gradient norm or of the parameters is a difference."""
    for change in (
        lambda each: changed(each, mlm_loss=1 + 2**-50),
        lambda each: changed(each, nsp_loss=1 + 2**-50),
        lambda each: changed(each, grad_norm=1 + 2**-50),
        lambda each: [replace(one, params_sha256="f" * 64) for one in each],
    ):
        for group, expected in ((TWO, UNDECIDED), (THREE, CONFIRMED)):
            records = {"a": launches("a", group=group), "b": change(launches("b", group=group))}
            assert set(kinds(records, group).values()) == {expected}
            assert kinds(records, group, {**CPUS, "gpus": 2})["a"] == CONFIRMED
            assert kinds(records, group, {**CPUS, "compression": "fp16"})["a"] == CONFIRMED


def test_all_that_differs_is_named_at_once():
    records = {name: launches(name, group=TWO) for name in "abc"}
    other = changed(records["c"], from_step=30, mlm_loss=1.01, grad_norm=1.5, tokens_per_s=2.0)
    records["c"] = [replace(each, params_sha256="f" * 64) for each in other]
    found = judge(records, TWO, CPUS)["c"]
    assert found.short == "numbers of tokens, losses, gradient norms and final parameters differ"
    assert "(first at step 40: tokens a step " in found.reason


@pytest.mark.parametrize(
    ("scales", "number"), [((1.0, 0.99), "two"), ((1.0, 1.0, 1.01, 1.01), "four")]
)  # half is no majority
def test_without_a_majority_nobody_has_a_figure(scales, number):
    judged = judge({str(place): launches("a", scale) for place, scale in enumerate(scales)}, THREE, CPUS)
    assert {each.kind for each in judged.values()} == {UNDECIDED}
    assert judged["0"].reason.endswith(f"which is right cannot be told from {number}")


def test_a_backend_alone_is_not_confirmed():
    assert kinds({"a": launches("a")}) == {"a": UNCONFIRMED}
    assert judge({}, THREE, CPUS) == {}


def test_a_backend_that_does_not_repeat_itself_is_wrong_and_has_no_vote():
    shaky = [launches("b")[0], launches("b", scale=1.01)[1]]
    judged = judge({"a": launches("a"), "b": shaky, "c": launches("c")}, THREE, CPUS)
    assert [each.kind for each in judged.values()] == [CONFIRMED, WRONG, CONFIRMED]
    assert "wrong: repeats differ in losses (repeat 2, first at step 10: mlm_loss" in judged["b"].reason
    assert kinds({"a": launches("a"), "b": shaky}) == {"a": UNCONFIRMED, "b": WRONG}


@pytest.mark.parametrize(
    ("backend", "workers", "facts", "same"),
    [
        ("hvd_mpi", 1, CPUS, True),
        ("hvd_mpi", 2, CPUS, True),
        ("byteps", 2, CPUS, True),
        ("hvd_gloo", 3, CPUS, True),
        ("byteps", 3, CPUS, False),  # servers add in the order of arrival
        ("hvd_mpi", 3, {**CPUS, "fused": True}, False),
        ("hvd_mpi", 2, {**CPUS, "fused": True}, True),
        ("byteps", 3, {**CPUS, "reproducible": True}, True),
        ("hvd_mpi", 1, {**CPUS, "gpus": 1}, False),
        ("byteps", 2, {**CPUS, "compression": "onebit"}, True),
        ("byteps", 2, {**CPUS, "compression": "dithering"}, False),
    ],
)
def test_where_repeats_must_save_the_same_parameters(backend, workers, facts, same):
    group = Group(workers, "float32", 512)
    first, second = launches(backend, group=group)
    shaky = {backend: [first, replace(second, params_sha256="f" * 64)]}
    found = judge(shaky, group, facts)[backend]
    assert found.kind == (WRONG if same else UNCONFIRMED)
    assert limits_of(group, facts, backend).same_bits == same
    if same:
        assert found.reason == (
            f"wrong: repeats differ in final parameters (repeat 2, first at step {STEPS}: final parameters"
            f" ffffffffffff instead of {SHORT})"
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "unheard of"])
@pytest.mark.parametrize("name", ["mlm_loss", "grad_norm"])
def test_the_limit_lies_between_agreement_and_difference(dtype, name):
    group = Group(3, dtype, 512)
    limits = limits_of(group, CPUS)
    limit = limits.loss if name == "mlm_loss" else limits.grad_norm
    for factor, kind in ((0.9, CONFIRMED), (1.2, UNDECIDED)):
        other = changed(launches("b", group=group), **{name: 1 + factor * limit})
        assert set(kinds({"a": launches("a", group=group), "b": other}, group).values()) == {kind}


def test_the_limits_grow_late():
    """One rounding of the dtype is well inside, and a forgotten division outside, however long the run."""
    limits, half = (limits_of(Group(3, dtype, 512), CPUS) for dtype in ("float32", "bfloat16"))
    assert limits.at(100) == limits.at(1) == limits
    assert limits.at(500).loss == pytest.approx(5 * limits.loss)
    assert limits.at(500).grad_norm == pytest.approx(5 * limits.grad_norm)
    assert 2**-24 * 1000 < limits.loss < half.loss < 0.01
    assert half.at(2000).grad_norm < 0.5
    whole = launches("a")[0]
    late = [each._replace(step=each.step + 1000) for each in whole.intervals]
    other = [each._replace(mlm_loss=each.mlm_loss * (1 + 5 * limits.loss)) for each in late]
    first, second = (record(whole.setting, intervals=tuple(lines)) for lines in (late, other))
    assert not apart(second, first)


def test_compressed_gradients_are_given_what_half_precision_is():
    found = limits_of(THREE, {**CPUS, "compression": "fp16"})
    assert found == limits_of(THREE._replace(dtype="bfloat16"), CPUS)
    assert found.loss > limits_of(THREE, CPUS).loss


def test_a_loss_near_zero_is_not_compared_by_its_ratio():
    setting = Setting("a", *THREE)
    lines = [each._replace(nsp_loss=1e-9) for each in record(setting).intervals]
    other = [each._replace(nsp_loss=3e-9) for each in lines]
    first, second = (record(setting, intervals=tuple(each)) for each in (lines, other))
    assert not apart(first, second)


def test_what_only_one_has_is_a_difference():
    whole = launches("a")[0]
    short = record(whole.setting, intervals=whole.intervals[:-1])
    found = apart(short, whole)
    assert {each.step for each in found} == {STEPS} and str(found[0]).endswith("is missing")
    assert str(apart(whole, short)[0]).endswith("is there")
    bare = record(whole.setting, intervals=tuple(each._replace(grad_norm=None) for each in whole.intervals))
    assert str(apart(bare, whole)[0]) == "at step 30: gradient norm is missing"
    assert not apart(bare, bare)


def test_greatest_difference_is_over_all_steps_and_launches():
    found = [launches(name, scale)[0] for name, scale in (("a", 1.0), ("b", 1.0001), ("c", 0.9999))]
    (found[2],) = changed(found[2:], from_step=50, grad_norm=1.25)
    greatest = greatest_difference(found)
    assert greatest["losses"] == pytest.approx(0.0002 / 1.0001)
    assert greatest["gradient norms"] == pytest.approx(0.2)
    assert greatest_difference(found[:1] * 2) == {"losses": 0.0, "gradient norms": 0.0}


def test_the_statement_of_what_is_compared():
    def words(groups, **facts):
        return compared([Setting("hvd_mpi", *group) for group in groups], {**CPUS, **facts})

    exact = "must be equal to the last bit"
    both = words([Group(1, "float32", 8), TWO, THREE, Group(4, "bfloat16", 8)])
    assert "With 1 and 2 workers, on CPUs" in both and exact in both
    assert "With more than two workers sums are rounded" in both
    assert "in float32 0.0001 and 0.001; in bfloat16 0.001 and 0.01" in both
    assert exact not in words([THREE]) and "relative amounts" not in words([TWO])
    assert "On gpus" not in words([TWO], gpus=2) and "On GPUs sums" in words([TWO], gpus=2)
    assert "With --compression fp16 sums" in words([TWO], compression="fp16")
