"""Figures of a log interval and of an evaluation, against sums made by hand."""

from __future__ import annotations

import math
import time

import mxnet as mx
import numpy as np
import pytest

from comm.local import LocalCommunicator
from data.pretraining.batches import Batch
from tasks.pretraining.loss import SUMS
from tests.bert.tiny import joined, random_batch, tiny_network
from training.evaluation import evaluate
from training.metrics import Stopwatch, Totals, losses_and_accuracies
from training.step import device_inputs


@pytest.fixture
def batches() -> list[Batch]:
    rng = np.random.default_rng(0)
    return [random_batch(rng, rows, 12, 4, least_masked=1) for rows in (3, 5, 2)]


def totals_of(*steps: tuple[list[Batch], list[float], bool]) -> dict[str, float]:
    totals = Totals(mx.cpu())
    for taken, sums, finite in steps:
        totals.add(taken, mx.nd.array(sums), finite)
    return totals.over_ranks(LocalCommunicator())


def test_sums_and_counts_add_up(batches):
    found = totals_of((batches[:2], [20, 6, 4, 5], True), (batches[2:], [10, 1, 2, 1], True))
    assert [found[name] for name in SUMS] == [30, 7, 6, 6]
    assert found["masked_positions"] == sum(batch.masked_weights.sum() for batch in batches)
    assert found["sequences"] == 10
    assert found["tokens"] == sum(batch.valid_lengths.sum() for batch in batches) < found["padded_tokens"]
    assert found["padded_tokens"] == 10 * 12
    means = losses_and_accuracies(found)
    assert means["mlm_loss"] == pytest.approx(30 / found["masked_positions"])
    assert means["mlm_acc"] == pytest.approx(6 / found["masked_positions"])
    assert means["nsp_loss"] == pytest.approx(0.7) and means["nsp_acc"] == pytest.approx(0.6)


def test_a_step_that_was_not_finite_counts_its_tokens_only(batches):
    nan = [math.nan] * 4
    found = totals_of((batches[:1], [20, 6, 4, 2], True), (batches[1:], nan, False))
    assert found["sequences"] == 10 and found["tokens"] == sum(b.valid_lengths.sum() for b in batches)
    means = losses_and_accuracies(found)
    assert means["mlm_loss"] == pytest.approx(20 / batches[0].masked_weights.sum())
    assert means["nsp_loss"] == pytest.approx(2.0)


def test_what_does_not_exist_is_none(batches):
    unmasked = batches[0]._replace(masked_weights=np.zeros_like(batches[0].masked_weights))
    means = losses_and_accuracies(totals_of(([unmasked], [0, 6, 0, 2], True)))
    assert means["mlm_loss"] is None and means["mlm_acc"] is None and means["nsp_loss"] == 2.0
    assert set(losses_and_accuracies(totals_of()).values()) == {None}
    assert losses_and_accuracies(totals_of((batches, [math.inf, 6, 0, 2], True)))["mlm_loss"] is None


def test_reset_begins_a_new_interval(batches):
    totals = Totals(mx.cpu())
    totals.add(batches, mx.nd.array([1, 2, 3, 4]))
    totals.reset()
    assert set(totals.over_ranks(LocalCommunicator()).values()) == {0.0}


def test_the_stopwatch_does_not_count_pauses():
    begun = time.monotonic()
    watch = Stopwatch()
    time.sleep(0.05)
    with watch:
        time.sleep(0.3)
    first = watch.lap()
    assert 0.05 <= first <= time.monotonic() - begun - 0.3
    time.sleep(0.02)
    second = watch.lap()
    assert second >= 0.02, "a lap begins where the last one ended, without its pauses"
    assert first + second <= time.monotonic() - begun - 0.3


class TestEvaluation:
    @pytest.fixture(scope="class")
    def network(self):
        return tiny_network(dropout=0.5, spread=0.2)

    def run(self, network, batches) -> dict:
        return evaluate(network, iter(batches), LocalCommunicator(), mx.cpu())

    def test_means_over_the_whole_set_however_it_is_divided(self, network, batches):
        apart, together = self.run(network, batches), self.run(network, [joined(batches)])
        assert apart["eval_sequences"] == together["eval_sequences"] == 10 and apart["eval_s"] > 0
        assert set(apart) == {
            *("eval_mlm_loss", "eval_nsp_loss", "eval_mlm_acc", "eval_nsp_acc", "eval_sequences", "eval_s")
        }
        for name in ("eval_mlm_loss", "eval_nsp_loss", "eval_mlm_acc", "eval_nsp_acc"):
            assert apart[name] == pytest.approx(together[name], rel=1e-5)

        one = mx.nd.ones((1,))
        _, sums = network(*device_inputs(joined(batches), mx.cpu()), one, one)
        mlm, nsp, mlm_hits, nsp_hits = sums.asnumpy()
        masked = sum(batch.masked_weights.sum() for batch in batches)
        expected = {"eval_mlm_loss": mlm / masked, "eval_mlm_acc": mlm_hits / masked}
        expected.update({"eval_nsp_loss": nsp / 10, "eval_nsp_acc": nsp_hits / 10})
        assert {name: apart[name] for name in expected} == pytest.approx(expected, rel=1e-5)

    def test_dropout_is_off(self, network, batches):
        mx.random.seed(1)
        first = self.run(network, batches)
        mx.random.seed(2)
        assert self.run(network, batches)["eval_mlm_loss"] == first["eval_mlm_loss"]

    def test_a_rank_without_a_share(self, network):
        found = self.run(network, [])
        assert found["eval_sequences"] == 0 and found["eval_mlm_loss"] is None
