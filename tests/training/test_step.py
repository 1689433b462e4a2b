"""One step: accumulation, clipping, skipping, dropout. Several real ranks: tests/comm/test_equality.py."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Iterable

import mxnet as mx
import numpy as np
import pytest

import bert.operators
from bert.model import trainable, trained
from bert.operators import load_operators
from comm.compression import ErrorFeedback, PiecesCommunicator
from comm.local import LocalCommunicator
from data.pretraining.sources import Batch
from tests.training.tiny import (
    TASK,
    Waiting,
    gradients,
    joined,
    make_step,
    random_batch,
    relative_difference,
    same_bits,
    tiny_network,
    weights,
)
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import DynamicScaler, LossScaler
from training.optimizer.states import MomentType
from training.step import dropout_seed

SPREAD = 0.1
BATCH = random_batch(np.random.default_rng(4), 4, 12, 4, least_masked=1)
# Matrices of a transformer layer.
KINDS = [f"attention_cell.proj_{part}" for part in ("query", "key", "value")]
KINDS += ["proj", "ffn.ffn_1", "ffn.ffn_2"]


def uneven_batches(count: int) -> list:
    """Micro-batches of 1 to 4 sequences of different lengths, with 0 to 5 masked positions each."""
    rng = np.random.default_rng(count)
    lengths = rng.choice([8, 12, 16], count)
    found = [random_batch(rng, 1 + index % 4, int(length), 5) for index, length in enumerate(lengths)]
    masked = [float(batch.masked_weights.sum()) for batch in found]
    assert count == 1 or len(set(masked)) > 1
    return found


def poisoned(value: float) -> Batch:
    """The batch with a weight of which the gradient is not finite."""
    masked_weights = BATCH.masked_weights.copy()
    masked_weights[1, 0] = value
    return BATCH._replace(masked_weights=masked_weights)


def norm_of(arrays: Iterable[np.ndarray]) -> float:
    return math.sqrt(sum(float(np.sum(array.astype(np.float64) ** 2)) for array in arrays))


class TestAccumulation:
    """apache/mxnet#16686 reports wrong results of grad_req='add' with many accumulations."""

    @pytest.mark.parametrize("count", [1, 2, 7, 33])
    def test_equals_one_large_batch(self, count):
        batches = uneven_batches(count)
        many, one = tiny_network(spread=SPREAD), tiny_network(spread=SPREAD)
        before = weights(many)
        assert same_bits(before, weights(one))
        # With so large an epsilon the update depends on the gradient's size; usually it hardly does.
        options = {"kind": "bertadam", "epsilon": 0.1}
        accumulated, _ = make_step(many, accumulate=count, **options)
        large, _ = make_step(one, accumulate=1, **options)

        for step in (1, 2):  # in the second one the gradients of the first must be gone
            results = accumulated(step, batches, lr=0.1), large(step, [joined(batches)], lr=0.1)
            assert [result.applied for result in results] == [True, True]
            found, expected = gradients(many), gradients(one)
            assert relative_difference(found, expected) < 1e-6
            tied = {"word_embed.0.weight": expected["word_embed.0.weight"]}
            assert relative_difference({name: found[name] for name in tied}, tied) < 1e-6
            assert results[0].grad_norm == pytest.approx(results[1].grad_norm, rel=1e-6)
            np.testing.assert_allclose(results[0].sums.asnumpy(), results[1].sums.asnumpy(), rtol=2e-6)
        changes = [
            {name: after[name].astype(np.float64) - before[name] for name in before}
            for after in (weights(many), weights(one))
        ]
        assert relative_difference(changes[0], changes[1]) < 1e-5
        assert relative_difference(weights(many), weights(one)) < 1e-6


def test_the_gradient_is_of_the_mean_losses():
    """grad_req 'write', one batch: what the sums say, divided by the counts, is what was differentiated."""
    network = tiny_network(spread=SPREAD)
    step, _ = make_step(network)
    factors = 1 / BATCH.masked_weights.sum(), 1 / 4

    def loss() -> float:
        mlm, nsp = step(1, [BATCH], lr=1e-30).sums.asnumpy()[:2].astype(np.float64)
        return mlm * factors[0] + nsp * factors[1]

    loss()
    bias = network.bert.decoder[2].beta
    slope, size = bias.grad().asnumpy(), 0.02
    bias.set_data(bias.data() + size * mx.nd.array(slope))
    above = loss()
    bias.set_data(bias.data() - 2 * size * mx.nd.array(slope))
    assert (above - loss()) / (2 * size) == pytest.approx(float((slope**2).sum()), rel=1e-2)


class TestClipping:
    def first_moments(self, clip_norm, scaler=None) -> tuple[float, dict[str, np.ndarray], dict]:
        network = tiny_network(spread=SPREAD)
        step, optimizer = make_step(network, clip_norm=clip_norm, scaler=scaler)
        result = step(1, [BATCH], lr=0.01)
        moments = {name: array for name, array in optimizer.state().items() if name.endswith(".mean")}
        return result.grad_norm, moments, gradients(network)

    def test_the_update_sees_a_gradient_of_the_greatest_norm(self):
        """The first moment after one step is 0.1 times the gradient that the update was made with."""
        grad_norm, moments, gradient = self.first_moments(clip_norm=0.25)
        assert grad_norm == pytest.approx(norm_of(gradient.values()), rel=1e-5) and grad_norm > 1
        assert norm_of(moments.values()) / 0.1 == pytest.approx(0.25, rel=1e-5)
        expected = {f"{name}.mean": 0.1 * 0.25 / grad_norm * array for name, array in gradient.items()}
        assert relative_difference(moments, expected) < 1e-5

    @pytest.mark.parametrize("clip_norm", [0.0, 1e6])
    def test_a_smaller_gradient_stays_as_it_is(self, clip_norm):
        for scale in (1.0, 8.0):
            grad_norm, moments, _ = self.first_moments(clip_norm, LossScaler(scale))
            assert norm_of(moments.values()) / 0.1 == pytest.approx(grad_norm, rel=1e-5)

    def test_the_loss_scale_is_taken_out_before(self):
        """A power of two as scale changes neither the reported norm nor what is clipped."""
        plain = self.first_moments(clip_norm=0.25)
        scaled = self.first_moments(clip_norm=0.25, scaler=LossScaler(1024.0))
        assert scaled[0] == pytest.approx(plain[0], rel=1e-6)
        assert relative_difference(scaled[1], plain[1]) < 1e-6
        assert norm_of(scaled[2].values()) == pytest.approx(1024 * plain[0], rel=1e-5)


class Disagreeing(LocalCommunicator):
    """Another rank that says no to some of what all must agree on."""

    def __init__(self, *others: bool):
        self.others = list(others)
        self.asked: list[list[bool]] = []

    def all_agree(self, flags):
        self.asked.append(list(flags))
        return [flag and other for flag, other in zip(flags, self.others)]


class Summing(LocalCommunicator):
    """Leaves sums over two ranks that have the same, and says so."""

    def scaled_average(self, arrays):
        for array in arrays:
            array *= 2
        return 2.0


def test_sums_of_gradients_give_the_bits_of_means():
    networks = [tiny_network(spread=SPREAD) for _ in "ab"]
    pairs = zip(networks, (LocalCommunicator, Summing))
    steps = [make_step(each, clip_norm=0.25, communicator=by())[0] for each, by in pairs]
    first, second = (step(1, [BATCH], lr=0.01) for step in steps)
    assert [step.factor for step in steps] == [1, 2] and first.grad_norm == second.grad_norm > 0.25
    assert same_bits(weights(networks[0]), weights(networks[1]))


class Pair(LocalCommunicator):
    """Two ranks that have the same."""

    size = 2

    def average(self, arrays):
        pass


class Slow(LocalCommunicator):
    """The means of a step's counts arrive late."""

    def average(self, arrays):
        if len(arrays) == 1:
            arrays[0][:] = mx.nd.Custom(arrays[0], op_type="waiting")
        else:  # the gradients
            Waiting.released.set()


def test_the_passes_are_queued_while_the_counts_travel():
    network = tiny_network(spread=SPREAD, model="bert_1_32_2")
    step, _ = make_step(network)
    expected = step(1, [BATCH], lr=1e-30).grad_norm
    Waiting.released.clear()
    step, _ = make_step(network, communicator=Slow())
    assert step(1, [BATCH], lr=1e-30).grad_norm == expected
    assert Waiting.in_time, "the step has waited for the counts before it queued its passes"


class Noted(LocalCommunicator):
    """Has the arrays that two ranks would exchange."""

    size, together = 2, 1 << 14

    def scaled_average(self, arrays):
        self.arrays = list(arrays)
        return 1.0


@pytest.mark.parametrize("operators", ["mxnet", "fused"])
@pytest.mark.parametrize("count", [1, 3])
def test_small_gradients_are_exchanged_together(count, operators):
    """The same bits as by themselves, in few arrays, none of which is a copy; also in a second step."""
    if operators == "fused" and not load_operators():
        pytest.skip("the operators are not built")
    batches, found = uneven_batches(count), []
    for communicator in (Noted(), LocalCommunicator()):
        network = tiny_network(spread=SPREAD, operators=operators)
        step, _ = make_step(network, count, communicator=communicator)
        for number in (1, 2):
            step(number, batches, lr=0.01)
        found.append([each.asnumpy() for each in step.gradients])
        if isinstance(communicator, Noted):
            exchanged = [each.asnumpy().ravel() for each in communicator.arrays]
            assert len(exchanged) < len(step.gradients) / 3
            communicator.arrays[-1][:] = 7
            assert np.all(step.gradients[-1].asnumpy() == 7)
    assert np.concatenate(exchanged).tobytes() == b"".join(each.tobytes() for each in found[0])
    assert [each.tobytes() for each in found[0]] == [each.tobytes() for each in found[1]]


class TestCountedNorm:
    """Layers on the fused operators count the squares of their weights' gradients as they write them."""

    def stepped(self, *batches, dtype="bfloat16", **options):
        if not load_operators():
            pytest.skip("the operators are not built")
        network = tiny_network(spread=SPREAD, model="bert_3_64_2", operators="fused", dtype=dtype)
        step, _ = make_step(network, accumulate=len(batches), **options)
        return step(1, batches, lr=1e-30), step, network

    @staticmethod
    def norm(arrays) -> float:
        return norm_of(each.asnumpy() for each in arrays)

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_the_norm_is_that_of_all_gradients(self, dtype):
        result, step, network = self.stepped(BATCH, dtype=dtype)
        names, squares = network.counted_squares()
        of_layers = [
            f"encoder.transformer_cells.{layer}.{kind}.weight" for layer in range(3) for kind in KINDS
        ]
        assert names == set(of_layers) - {name for name in of_layers if ".2." in name and "ffn" not in name}
        counted = [each for name, each in zip(trained(network), step.gradients) if name in names]
        assert math.sqrt(squares.asscalar()) == pytest.approx(self.norm(counted), rel=1e-6)
        assert result.grad_norm == pytest.approx(self.norm(step.gradients), rel=1e-6)

    def test_a_norm_whose_square_is_beyond_float32(self):
        result, step, network = self.stepped(BATCH, scaler=LossScaler(1e30))
        assert math.isinf(network.counted_squares()[1].asscalar())
        expected = self.norm(step.gradients) / 1e30
        assert result.applied and result.grad_norm == pytest.approx(expected, rel=1e-5)

    @pytest.mark.parametrize("value", [math.inf, math.nan])
    def test_a_gradient_that_is_not_finite(self, value):
        result, *_ = self.stepped(poisoned(value))
        assert not result.applied and not math.isfinite(result.grad_norm)

    def test_sums_of_micro_batches_are_not_counted(self):
        result, step, _ = self.stepped(BATCH, BATCH._replace(masked_ids=BATCH.masked_ids[::-1].copy()))
        assert result.grad_norm == pytest.approx(self.norm(step.gradients), rel=1e-6)


class TestSkipping:
    @pytest.mark.parametrize("value, accumulate", [(math.inf, 1), (math.nan, 3)])
    def test_a_gradient_that_is_not_finite_changes_nothing(self, value, accumulate):
        good, bad = BATCH, poisoned(value)
        network, scaler = tiny_network(spread=SPREAD), DynamicScaler(1024.0)
        step, optimizer = make_step(network, accumulate=accumulate, scaler=scaler)
        assert step(1, [good] * accumulate, lr=0.01).applied  # moments that are not zero
        before, states = weights(network), optimizer.state()
        good_steps = scaler.good_steps
        assert good_steps == 1 and int(states["t"]) == 1

        result = step(2, [good] * (accumulate - 1) + [bad], lr=0.01)

        assert not result.applied and result.keep_going
        assert not math.isfinite(result.grad_norm)
        assert same_bits(weights(network), before) and same_bits(optimizer.state(), states)
        assert (scaler.scale, scaler.good_steps) == (512.0, 0)

        result = step(3, [good] * accumulate, lr=0.01)
        assert result.applied and math.isfinite(result.grad_norm), "nothing of the bad step is left"
        assert all(np.isfinite(array).all() for array in weights(network).values())
        assert int(optimizer.state()["t"]) == 2

    def test_a_step_that_is_bad_on_another_rank_is_skipped_here_too(self):
        network, scaler = tiny_network(spread=SPREAD), DynamicScaler(1024.0)
        communicator = Disagreeing(False, True, True)
        step, optimizer = make_step(network, scaler=scaler, communicator=communicator)
        before, states = weights(network), optimizer.state()
        result = step(1, [BATCH], lr=0.01)
        assert communicator.asked == [[True, True, True]], "this rank's gradient was finite"
        assert not result.applied and result.keep_going and math.isfinite(result.grad_norm)
        assert same_bits(weights(network), before) and same_bits(optimizer.state(), states)
        assert scaler.scale == 512.0

    def test_a_step_that_is_off_is_skipped_and_keeps_its_loss_scale(self):
        """The scale has nothing to do with it; loss and norm are judged without it."""
        network, scaler = tiny_network(spread=SPREAD), DynamicScaler(1024.0)
        expected = make_step(tiny_network(spread=SPREAD))[0](1, [BATCH], lr=0.01)
        step, optimizer = make_step(network, scaler=scaler)
        judged, before, states = [], weights(network), optimizer.state()
        step._settings = replace(step._settings, off=lambda *values: judged.append(values) or "it is off")
        result = step(1, [BATCH], lr=0.01)
        assert not result.applied and result.skipped == "it is off" and scaler.scale == 1024.0
        assert same_bits(weights(network), before) and same_bits(optimizer.state(), states)
        assert judged == [(result.loss, result.grad_norm)]
        assert judged[0] == pytest.approx((expected.loss, expected.grad_norm), rel=1e-5)
        sums, counts = result.sums.asnumpy(), TASK.count([BATCH])
        loss = sums[TASK.sums.index(TASK.judged[0])] / counts[TASK.denominators.index(TASK.judged[1])]
        assert result.loss == pytest.approx(loss, rel=1e-6)

    def test_error_feedback_keeps_nothing_of_a_step_that_is_off(self):
        """The rest of a spike, of which topk sends a hundredth, would come in the steps behind it."""
        after = []
        for spikes in (False, True):
            network = tiny_network(spread=SPREAD, model="bert_1_64_2")
            step, _ = make_step(network, communicator=PiecesCommunicator(Pair(), ErrorFeedback(0.01)))
            if spikes:
                usual = step._settings
                step._settings = replace(usual, off=lambda *values: "it is off")
                assert step(1, [BATCH], lr=0.01).skipped
                step._settings = usual
            assert step(2, [BATCH], lr=0.01).applied
            after.append(weights(network))
        assert same_bits(*after)

    def test_all_ranks_stop_together_after_the_step(self):
        """The step of a rank that was told nothing is made, and then it stops with the others."""
        network = tiny_network(spread=SPREAD)
        step, optimizer = make_step(network, communicator=Disagreeing(True, False, True))
        result = step(1, [BATCH], lr=0.01)
        assert result.applied and not result.keep_going and optimizer.t == 1


class TestDropout:
    def gradient(self, step_number: int, seed: int = 0, rank: int = 0, dropout: float = 0.1) -> dict:
        """Of one step by a network that has already drawn other masks."""
        network = tiny_network(dropout=dropout, spread=SPREAD)
        seeds = lambda step, number: dropout_seed(seed, step, rank + number)  # noqa: E731
        step, _ = make_step(network, random_seed_of=seeds)
        mx.random.seed(step_number * 17)
        step(step_number + 5, [BATCH], lr=1e-30)
        step(step_number, [BATCH], lr=1e-30)
        return gradients(network)

    def test_the_step_decides_the_masks(self):
        first = self.gradient(3)
        assert same_bits(self.gradient(3), first)
        for other in (self.gradient(4), self.gradient(3, seed=1), self.gradient(3, rank=1)):
            assert relative_difference(other, first) > 1e-3
        without = self.gradient(3, dropout=0.0)
        assert relative_difference(without, first) > 1e-3
        assert same_bits(self.gradient(4, dropout=0.0), without)

    def test_micro_batches_of_a_step_have_masks_of_their_own(self):
        network = tiny_network(dropout=0.1, spread=SPREAD)
        twice, _ = make_step(network, accumulate=2)
        twice(1, [BATCH, BATCH], lr=1e-30)
        found = gradients(network)
        once, _ = make_step(network)
        once(1, [BATCH], lr=1e-30)
        assert relative_difference(found, gradients(network)) > 1e-3

    def test_seeds_differ_by_seed_step_and_rank(self):
        seeds = {
            dropout_seed(seed, step, rank) for seed in range(5) for step in range(100) for rank in range(8)
        }
        assert len(seeds) == 5 * 100 * 8
        assert all(0 <= seed < 2**31 for seed in seeds)  # what mx.random.seed takes


pytestmark = pytest.mark.skipif(not load_operators(), reason="the operators are not built")

WHOLE = random_batch(np.random.default_rng(0), 4, 12, 3, least_masked=1)


def network_of(dtype: str = "bfloat16") -> Any:
    return tiny_network(operators="fused", dtype=dtype, spread=0.1)


def copies(network: Any) -> list[np.ndarray]:
    return [copy.asnumpy() for copy in network.packed_copies().values()]


def fresh(network: Any) -> list[np.ndarray]:
    network.pack_weights()
    return copies(network)


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    assert len(found) == len(expected) > 0
    return all(np.array_equal(*pair) for pair in zip(found, expected))


@pytest.mark.parametrize(
    "dtype, state, kind",
    [
        ("bfloat16", "float32", "lamb"), ("bfloat16", "bfloat16", "adamw"), ("float32", "float32", "lamb"),
        ("bfloat16x3", "float32", "lamb"),
    ],
)  # fmt: skip
def test_they_follow_the_updates(dtype, state, kind, monkeypatch):
    monkeypatch.setattr(bert.operators, "has_amx", lambda cpuinfo: True)  # bfloat16x3 is slow without
    network = network_of(dtype)
    step, _ = make_step(network, kind=kind, moments=MomentType(state, 1))
    before = fresh(network)
    for number in (1, 2):
        assert step(number, [WHOLE], lr=0.01).applied
        found = copies(network)
        assert not same(found, before)
        assert same(found, fresh(network))
        before = found


def test_they_stay_where_a_step_is_skipped():
    network = network_of()
    step, _ = make_step(network)
    assert step(1, [WHOLE], lr=0.01).applied
    before = copies(network)
    word = network.bert.word_embed[0].weight
    held = word.data().copy()
    word.set_data(held * np.inf)
    assert not step(2, [WHOLE], lr=0.01).applied
    word.set_data(held)
    assert same(copies(network), before)
    assert same(copies(network), fresh(network))


def optimizer_of(network: Any, left_out: str = "-", native: bool = True) -> Optimizer:
    named = {name: each.data() for name, each in trainable(network.bert).items() if left_out not in name}
    return Optimizer("lamb", list(named), list(named.values()), native=native)


def test_weights_that_are_not_updated():
    """Whole products may be frozen; one part of a copy may not, where the others are updated."""
    network = network_of()
    optimizer = optimizer_of(network, "ffn_1")
    assert optimizer.pack(network.packed_copies(), network.packed_dtype)
    with pytest.raises(ValueError, match="another network"):
        optimizer.pack(network.packed_copies(), network.packed_dtype)
    assert not optimizer_of(network, "proj_query").pack(network.packed_copies(), network.packed_dtype)
    assert not optimizer_of(network, native=False).pack(network.packed_copies(), network.packed_dtype)
