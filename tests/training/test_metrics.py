"""Figures of a log interval and of an evaluation, against sums made by hand."""

from __future__ import annotations

import itertools
import math
import time

import mxnet as mx
import numpy as np
import pytest

from comm.local import LocalCommunicator
from data.pretraining.sources import Batch
from tasks.pretraining.loss import SUMS
from tests.training.tiny import TASK, joined, random_batch, tiny_network
from training.metrics import Gathered, Stopwatch, Totals, evaluate, figures, forward


@pytest.fixture
def batches() -> list[Batch]:
    rng = np.random.default_rng(0)
    return [random_batch(rng, rows, 12, 4, least_masked=1) for rows in (3, 5, 2)]


def totals_of(*steps: tuple[list[Batch], list[float], bool]) -> Gathered:
    totals = Totals(TASK, mx.cpu())
    for taken, sums, finite in steps:
        totals.add(taken, mx.nd.array(sums), finite)
    return totals.over_ranks(LocalCommunicator())


def test_sums_and_counts_add_up(batches):
    gathered = totals_of((batches[:2], [20, 6, 4, 5], True), (batches[2:], [10, 1, 2, 1], True))
    found = {**gathered.losses, **gathered.counts}
    assert [found[name] for name in SUMS] == [30, 7, 6, 6]
    assert found["masked_positions"] == sum(batch.masked_weights.sum() for batch in batches)
    assert found["sequences"] == 10
    assert found["tokens"] == sum(batch.valid_lengths.sum() for batch in batches) < found["padded_tokens"]
    assert found["padded_tokens"] == 10 * 12
    means = figures(TASK, gathered)
    assert means["mlm_loss"] == pytest.approx(30 / found["masked_positions"])
    assert means["mlm_acc"] == pytest.approx(6 / found["masked_positions"])
    assert means["nsp_loss"] == pytest.approx(0.7) and means["nsp_acc"] == pytest.approx(0.6)


def test_a_step_that_was_not_finite_counts_its_tokens_only(batches):
    nan = [math.nan] * 4
    found = totals_of((batches[:1], [20, 6, 4, 2], True), (batches[1:], nan, False))
    tokens = sum(batch.valid_lengths.sum() for batch in batches)
    assert found.counts["sequences"] == 10 and found.counts["tokens"] == tokens
    means = figures(TASK, found)
    assert means["mlm_loss"] == pytest.approx(20 / batches[0].masked_weights.sum())
    assert means["nsp_loss"] == pytest.approx(2.0)


def test_what_does_not_exist_is_none(batches):
    unmasked = batches[0]._replace(masked_weights=np.zeros_like(batches[0].masked_weights))
    means = figures(TASK, totals_of(([unmasked], [0, 6, 0, 2], True)))
    assert means["mlm_loss"] is None and means["mlm_acc"] is None and means["nsp_loss"] == 2.0
    assert set(figures(TASK, totals_of()).values()) == {None}
    assert figures(TASK, totals_of((batches, [math.inf, 6, 0, 2], True)))["mlm_loss"] is None


def samples(rng: np.random.Generator, batch: Batch, number: int) -> tuple[list, np.ndarray, np.ndarray]:
    """Steps for `totals_of`, the weights of `batch` thinned out; their MLM losses and masked positions."""
    steps, masks = [], []
    for _ in range(number):
        weights = batch.masked_weights * (rng.random(batch.masked_weights.shape) < 0.7)
        masks.append(float(weights.sum()))
        loss = 6.0 * masks[-1] + rng.normal(0, 0.3 * math.sqrt(masks[-1]))
        steps.append(([batch._replace(masked_weights=weights)], [loss, 6, 4, 5], True))
    return steps, np.float32([step[1][0] for step in steps]).astype(float), np.array(masks)


def test_the_standard_error_is_that_of_the_mean_over_unequal_samples():
    rng = np.random.default_rng(1)
    batch = random_batch(rng, 16, 40, 6, least_masked=6)
    steps, losses, masks = samples(rng, batch, 60)
    nan = ([batch], [math.nan] * 4, False)
    found = figures(TASK, totals_of(*steps, nan))["mlm_loss_se"]
    mean = losses.sum() / masks.sum()
    by_hand = math.sqrt(60 / 59 * ((losses - mean * masks) ** 2).sum()) / masks.sum()
    assert found == pytest.approx(by_hand, rel=1e-6)
    # The spread of the means of samples drawn anew from these.
    drawn = rng.integers(0, 60, (20_000, 60))
    assert found == pytest.approx((losses[drawn].sum(1) / masks[drawn].sum(1)).std(), rel=0.05)


def test_the_standard_error_keeps_its_digits_where_losses_hardly_differ():
    rng = np.random.default_rng(2)
    batch = random_batch(rng, 4096, 40, 6, least_masked=6)  # a float32 sum has 7 digits
    steps = [([batch], [150_000 + (number % 2), 6, 4, 5], True) for number in range(1000)]
    masked = float(batch.masked_weights.sum())
    found = figures(TASK, totals_of(*steps))["mlm_loss_se"]
    assert found == pytest.approx(0.5 / masked / math.sqrt(999), rel=1e-3)


def test_the_standard_error_needs_some_samples(batches):
    step = (batches, [20, 6, 4, 5], True)
    assert figures(TASK, totals_of(*[step] * 7))["mlm_loss_se"] is None
    assert figures(TASK, totals_of(*[step] * 8))["mlm_loss_se"] == pytest.approx(0, abs=1e-6)


def test_the_stopwatch_counts_no_pauses_and_adds_what_earlier_runs_have_spent():
    begun = time.monotonic()
    watch = Stopwatch(100.0)
    time.sleep(0.05)
    with watch:
        inside = watch.total
        time.sleep(0.3)
        assert watch.total == inside, "it stands still in a pause"
    assert 100.05 <= inside <= watch.total
    first = watch.lap()
    assert 0.05 <= first <= time.monotonic() - begun - 0.3
    time.sleep(0.02)
    second = watch.lap()
    assert second >= 0.02, "a lap begins where the last one ended, without its pauses"
    assert first + second <= time.monotonic() - begun - 0.3
    assert 100 + first + second <= watch.total <= 100 + time.monotonic() - begun - 0.3
    for least in (500.0, 200.0):
        watch.at_least(least)
        assert watch.total >= 500
    assert watch.lap() <= time.monotonic() - begun, "no part of what it was set forward by"


class TestEvaluation:
    @pytest.fixture(scope="class")
    def network(self):
        return tiny_network(dropout=0.5, spread=0.2)

    def run(self, network, batches, controls=()) -> dict:
        order = itertools.chain(*zip(batches, controls)) if controls else batches
        passes = forward(TASK, network, order, mx.cpu())
        return evaluate(TASK, passes, LocalCommunicator(), mx.cpu(), controlled=bool(controls))

    def test_means_over_the_whole_set_however_it_is_divided(self, network, batches):
        names = ("eval_mlm_loss", "eval_nsp_loss", "eval_mlm_acc", "eval_nsp_acc")
        apart, together = self.run(network, batches), self.run(network, [joined(batches)])
        assert apart["eval_sequences"] == together["eval_sequences"] == 10 and apart["eval_s"] > 0
        assert set(apart) == {*names, "eval_sequences", "eval_s", "eval_mlm_loss_se"}
        for name in names:
            assert apart[name] == pytest.approx(together[name], rel=1e-5)

        one = mx.nd.ones((1,))
        _, sums = network(*TASK.inputs(joined(batches), mx.cpu()), one, one)
        mlm, nsp, mlm_hits, nsp_hits = sums.asnumpy()
        masked = sum(batch.masked_weights.sum() for batch in batches)
        expected = {"eval_mlm_loss": mlm / masked, "eval_mlm_acc": mlm_hits / masked}
        expected.update({"eval_nsp_loss": nsp / 10, "eval_nsp_acc": nsp_hits / 10})
        assert {name: apart[name] for name in expected} == pytest.approx(expected, rel=1e-5)

    def test_the_gain_of_context_is_paired_by_batch(self, network):
        rng = np.random.default_rng(4)
        batches = [random_batch(rng, 4, 12, 4, least_masked=1) for _ in range(40)]
        controls = [each._replace(input_ids=np.roll(each.input_ids, 1, axis=0)) for each in batches]
        one = mx.nd.ones((1,))
        losses = [
            [network(*TASK.inputs(each, mx.cpu()), one, one)[1].asnumpy()[0] for each in some]
            for some in (batches, controls)
        ]
        own, other = np.array(losses, dtype=float)
        masks = np.array([each.masked_weights.sum() for each in batches])
        gain = (other - own).sum() / masks.sum()
        error = math.sqrt(40 / 39 * ((other - own - gain * masks) ** 2).sum()) / masks.sum()
        found = self.run(network, batches, controls)
        assert found["eval_mlm_loss"] == pytest.approx(own.sum() / masks.sum(), rel=1e-5)
        assert found["eval_context_gain"] == pytest.approx(gain, abs=1e-5)
        assert found["eval_context_gain_se"] == pytest.approx(error, rel=1e-3)
        parts = found["eval_parts"]
        assert parts["count"] == [masks[each::32].sum() for each in range(32)]
        assert parts["loss"] == pytest.approx([own[each::32].sum() for each in range(32)], rel=1e-4)

    def test_dropout_is_off(self, network, batches):
        mx.random.seed(1)
        first = self.run(network, batches)
        mx.random.seed(2)
        assert self.run(network, batches)["eval_mlm_loss"] == first["eval_mlm_loss"]

    def test_a_rank_without_a_share(self, network):
        found = self.run(network, [])
        assert found["eval_sequences"] == 0 and found["eval_mlm_loss"] is None
