"""Step by step against the algorithms in float64 NumPy, written here from the papers; the optimizer's options
in a real run, from one checkpoint to the next."""

from __future__ import annotations

from typing import Any, Sequence

import mxnet as mx
import numpy as np
import pytest

from base.errors import InputError
from bert.operators import load_operators
from tests.bert.operators.test_muon import orthogonal
from tests.training.small_runs import trained
from tests.training.staged import read_params, states_of
from tests.training.tiny import same_bits
from training.optimizer.optimizer import PIECE, Optimizer, Rule, clip_factor, global_norm
from training.optimizer.states import MomentType

SHAPES = {
    "word_embed.0.weight": (50, 16),
    "encoder.position_weight": (8, 16),
    "encoder.transformer_cells.0.ffn.ffn_1.weight": (64, 16),
    "encoder.transformer_cells.0.ffn.ffn_1.bias": (64,),
    "encoder.transformer_cells.0.layer_norm.gamma": (16,),
    "encoder.transformer_cells.0.layer_norm.beta": (16,),
}
NAMES = list(SHAPES)
MATRIX = NAMES[2]  # Muon's
STEPS = 25
OTHER = {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-3, "weight_decay": 0.1}  # than the usual numbers


@pytest.fixture(params=[False, True], ids=["mxnet", "native"])
def native(request: pytest.FixtureRequest) -> bool:
    """Whether to ask for the fused operators; a test that takes this runs with both."""
    if request.param and not load_operators():
        pytest.skip("the fused operators have not been built")
    return request.param


class Reference:
    """LAMB: Algorithm 2 of arXiv:1904.00962; without the ratio, AdamW: Algorithm 2 of arXiv:1711.05101; for a
    layer's matrices Muon: Jordan et al. 2024, with the weight decay and the size of arXiv:2502.16982."""

    def __init__(
        self,
        kind: str,
        weights: Sequence[np.ndarray],
        bias_correction: bool = False,
        lower_bound: float = 0.0,
        upper_bound: float = np.inf,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        names: Sequence[str] = NAMES,
    ):
        self.kind, self.names = kind, names
        self.weights = [weight.astype(np.float64) for weight in weights]
        self.means = [np.zeros(weight.shape) for weight in weights]
        self.vars = [np.zeros(weight.shape) for weight in weights]
        self.bias_correction = bias_correction or kind in ("adamw", "muon")
        self.bounds = (lower_bound, upper_bound)
        # MXNet's operators take float32 hyperparameters, which makes 1 - 0.999 smaller by 1.3e-5 of itself.
        self.beta1, self.beta2 = float(np.float32(beta1)), float(np.float32(beta2))
        self.epsilon, self.weight_decay = epsilon, weight_decay
        self.t = 0

    def step(self, gradients: Sequence[np.ndarray], lr: float, rescale: float = 1.0) -> None:
        self.t += 1
        for i, name in enumerate(self.names[: len(self.weights)]):
            gradient = gradients[i].astype(np.float64) * rescale
            if self.kind == "muon" and name.endswith(".weight") and "transformer_cells" in name:
                self.means[i] = 0.95 * self.means[i] + gradient
                update = 0.3 * np.sqrt(max(gradient.shape)) * orthogonal(gradient + 0.95 * self.means[i])
                self.weights[i] = self.weights[i] - lr * (update + self.weight_decay * self.weights[i])
                continue
            self.means[i] = self.beta1 * self.means[i] + (1 - self.beta1) * gradient
            self.vars[i] = self.beta2 * self.vars[i] + (1 - self.beta2) * np.square(gradient)
            mean, var = self.means[i], self.vars[i]
            if self.bias_correction:
                mean = mean / (1 - self.beta1**self.t)
                var = var / (1 - self.beta2**self.t)
            update = mean / (np.sqrt(var) + self.epsilon)
            ratio = 1.0
            if name.split(".")[-1] not in ("bias", "gamma", "beta"):
                update = update + self.weight_decay * self.weights[i]
                if self.kind == "lamb":
                    weight_norm = np.clip(np.sqrt(np.sum(self.weights[i] ** 2)), *self.bounds)
                    update_norm = np.sqrt(np.sum(update**2))
                    ratio = weight_norm / update_norm if weight_norm > 0 and update_norm > 0 else 1.0
            self.weights[i] = self.weights[i] - lr * ratio * update


def random_weights(seed: int = 0, scale: float = 0.1) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    return [generator.normal(0, scale, shape).astype(np.float32) for shape in SHAPES.values()]


def random_gradients(step: int, dtype: Any = np.float32) -> list[np.ndarray]:
    generator = np.random.default_rng(1000 + step)
    # Sizes as far apart as those of embeddings and LayerNorms.
    return [
        (generator.normal(0, 0.05 * 3.0**-i, shape)).astype(dtype) for i, shape in enumerate(SHAPES.values())
    ]


def on_device(arrays: Sequence[np.ndarray]) -> list[mx.nd.NDArray]:
    return [mx.nd.array(array, dtype=array.dtype) for array in arrays]


def assert_close(
    found: Sequence[mx.nd.NDArray], expected: Sequence[np.ndarray], relative: float, name: str = ""
) -> None:
    """Elementwise, relative to the element, or to the tensor's mean where one is close to zero."""
    for i, (array, value) in enumerate(zip(found, expected)):
        scale = float(np.abs(value).mean())
        np.testing.assert_allclose(
            array.asnumpy(), value, rtol=relative, atol=relative * scale, err_msg=f"{name} {NAMES[i]}"
        )


@pytest.mark.parametrize(
    "kind, options",
    [
        *((kind, options) for kind in ("lamb", "bertadam", "adamw") for options in ({}, OTHER)),
        ("lamb", {"bias_correction": True}),
        ("lamb", {"lower_bound": 5.0}),
        ("lamb", {"upper_bound": 0.5}),
        ("lamb", {"lower_bound": 1.0, "upper_bound": 2.0}),
        ("lamb", {"weight_decay": 0.0}),
    ],
)
def test_float32_follows_the_reference(native: bool, kind: str, options: dict) -> None:
    values = random_weights()
    weights = on_device(values)
    optimizer = Optimizer(kind, NAMES, weights, Rule(**options), native)
    reference = Reference(kind, values, **options)
    for step in range(1, STEPS + 1):
        gradients = random_gradients(step)
        lr, rescale = 0.01 * step / STEPS, 0.1 * step
        optimizer.step(on_device(gradients), lr, rescale)
        reference.step(gradients, lr, rescale)
        assert_close(weights, reference.weights, 1e-5, f"step {step}")
    state = optimizer.state()
    for i, name in enumerate(NAMES):
        np.testing.assert_allclose(state[f"{name}.mean"], reference.means[i], rtol=1e-5, atol=1e-8)
        np.testing.assert_allclose(state[f"{name}.var"], reference.vars[i], rtol=1e-5)
    assert optimizer.t == STEPS
    # The comparison means something only if training moved the weights by much more than its tolerance.
    for before, after in zip(values, reference.weights):
        assert np.abs(after - before).mean() > 1e-2 * np.abs(before).mean()


@pytest.mark.parametrize("kind", ["lamb", "bertadam", "adamw"])
def test_float16_follows_the_reference_through_its_master_weights(kind: str) -> None:
    start = [value.astype(np.float16) for value in random_weights()]
    weights = on_device(start)
    optimizer = Optimizer(kind, NAMES, weights, Rule(**OTHER))
    reference = Reference(kind, start, **OTHER)
    scale = 2.0**10
    for step in range(1, STEPS + 1):
        gradients = [(g * scale).astype(np.float16) for g in random_gradients(step)]
        optimizer.step(on_device(gradients), 0.01, 1 / scale)
        reference.step(gradients, 0.01, 1 / scale)
        state = optimizer.state()
        masters = [state[f"{name}.master"] for name in NAMES]
        assert_close(on_device(masters), reference.weights, 1e-5, f"step {step}")
        for weight, master in zip(weights, masters):
            assert weight.dtype == np.float16 and master.dtype == np.float32
            np.testing.assert_array_equal(weight.asnumpy(), master.astype(np.float16))


@pytest.mark.parametrize(
    "native, dtype", [(False, "float32"), (False, "float16"), (True, "float32")], indirect=["native"]
)
def test_muon_follows_the_reference(native: bool, dtype: str) -> None:
    """The operator's products are of bfloat16."""
    start = [value.astype(dtype) for value in random_weights()]
    weights = on_device(start)
    optimizer = Optimizer("muon", NAMES, weights, Rule(**OTHER), native)
    reference = Reference("muon", start, **OTHER)
    for step in range(1, STEPS + 1):
        gradients = [gradient.astype(dtype) for gradient in random_gradients(step)]
        lr, rescale = 0.01 * step / STEPS, 0.1 * step
        optimizer.step(on_device(gradients), lr, rescale)
        reference.step(gradients, lr, rescale)
    state = optimizer.state()
    assert f"{MATRIX}.var" not in state and f"{MATRIX}.mean" in state
    for i, name in enumerate(NAMES):
        np.testing.assert_allclose(state[f"{name}.mean"], reference.means[i], rtol=1e-5, atol=1e-7)
        found = state[f"{name}.master"] if dtype == "float16" else weights[i].asnumpy()
        error = np.linalg.norm(found - reference.weights[i])
        tolerance = 0.03 if native and name == MATRIX else 1e-4
        assert error < tolerance * np.linalg.norm(start[i] - reference.weights[i]), name


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_zero_weights_take_the_plain_update_and_stay_zero_without_gradients(native: bool, dtype: str) -> None:
    values = [np.zeros(shape, dtype) for shape in SHAPES.values()]
    weights = on_device(values)
    optimizer, reference = Optimizer("lamb", NAMES, weights, native=native), Reference("lamb", values)
    for step in range(23):
        gradients = values if step < 3 else random_gradients(step, dtype)
        optimizer.step(on_device(gradients), 0.01)
        reference.step(gradients, 0.01)
        expected = reference.weights
        if dtype == "float16":
            expected = [value.astype(np.float16) for value in expected]
        assert_close(weights, expected, 1e-5 if dtype == "float32" else 2e-3)
        assert all(weight.asnumpy().any() == (step >= 3) for weight in weights)


def test_norms_of_a_tensor_of_several_pieces(native: bool) -> None:
    shape = (3, PIECE)  # 786,432 elements; one running float32 sum of them is 1e-3 off
    value = np.full(shape, 0.02, np.float32)
    weights = [mx.nd.array(value)]
    optimizer, reference = Optimizer("lamb", NAMES[:1], weights, native=native), Reference("lamb", [value])
    gradient = np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)
    for _ in range(2):
        optimizer.step([mx.nd.array(gradient)], 0.1)
        reference.step([gradient], 0.1)
    # The ratio shows in how far the weights have moved.
    moved = weights[0].asnumpy() - value
    np.testing.assert_allclose(moved, reference.weights[0] - value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_global_norm(native: bool, dtype: str) -> None:
    generator = np.random.default_rng(3)
    arrays = [generator.normal(0, 0.5, shape).astype(dtype) for shape in [(PIECE * 2 + 17,), (300, 7), (1,)]]
    arrays.append(np.full((1000, 1000), 0.25, dtype))
    expected = np.sqrt(sum(np.sum(array.astype(np.float64) ** 2) for array in arrays))
    assert global_norm(on_device(arrays), native=native) == pytest.approx(expected, rel=1e-5)


def test_global_norm_of_float16_beyond_its_range() -> None:
    # The squares, 3.6e9 each, and their sum are far above float16's 65504.
    assert global_norm([mx.nd.full((100, 100), 60000.0, dtype="float16")]) == pytest.approx(6e6, rel=1e-3)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_one_bad_element_makes_the_norm_non_finite(native: bool, bad: float, dtype: str) -> None:
    for position in (0, PIECE, PIECE + 9):
        array = np.zeros(PIECE + 10, dtype)
        array[position] = bad
        assert not np.isfinite(global_norm(on_device([np.ones(3, dtype), array]), native=native))


def test_a_gradient_of_zeros_is_not_clipped() -> None:
    assert clip_factor(0.0, 1.0, 8.0) == 0.125


@pytest.mark.parametrize(
    "kind, native, dtype, moments",
    [
        *(
            (kind, native, dtype, "float32")
            for kind in ("lamb", "bertadam", "adamw", "muon")
            for native in (False, True)
            for dtype in ("float32", "float16")
        ),
        *((kind, True, "float32", "bfloat16") for kind in ("lamb", "bertadam", "adamw")),
    ],
    indirect=["native"],
)
def test_restored_state_continues_bit_for_bit(native: bool, kind: str, dtype: str, moments: str) -> None:
    def make(weights: Sequence[np.ndarray], seed: int = 5) -> tuple[Optimizer, list[mx.nd.NDArray]]:
        own = on_device([value.astype(dtype) for value in weights])
        return Optimizer(kind, NAMES, own, native=native, moments=MomentType(moments, seed)), own

    def train(optimizer: Optimizer, *steps: int) -> None:
        for step in range(*steps):
            optimizer.step(on_device(random_gradients(step, dtype)), 0.01)

    first, weights = make(random_weights())
    train(first, 5)
    saved_state = first.state()
    second, resumed_weights = make([weight.asnumpy() for weight in weights])
    train(second, 1)
    for weight, value in zip(resumed_weights, weights):
        weight[:] = value
    second.restore(saved_state)
    assert same_bits(second.state(), saved_state) and second.t == 5
    train(first, 5, 12), train(second, 5, 12)
    for a, b in zip(weights, resumed_weights):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())
    assert same_bits(second.state(), first.state())
    if moments == "bfloat16":
        other, _ = make(random_weights(), seed=6)
        train(other, 12)
        assert not same_bits(other.state(), first.state())


def test_state_is_a_copy_of_plain_arrays() -> None:
    optimizer = Optimizer("lamb", NAMES, on_device(random_weights()))
    optimizer.step(on_device(random_gradients(0)), 0.01)
    state = optimizer.state()
    before = state[f"{NAMES[0]}.mean"].copy()
    optimizer.step(on_device(random_gradients(1)), 0.01)
    np.testing.assert_array_equal(state[f"{NAMES[0]}.mean"], before)
    assert set(state) == {"t", *(f"{name}.{part}" for name in NAMES for part in ("mean", "var"))}
    assert state["t"].dtype == np.int64 and state["t"] == 1
    assert set(optimizer.state_views()) == set(state)
    assert set(optimizer.state_arrays()) == set(state) - {"t"}


def test_wrong_states_are_refused_and_change_nothing() -> None:
    source = Optimizer("lamb", NAMES, on_device(random_weights()))
    source.step(on_device(random_gradients(0)), 0.01)
    state, name = source.state(), f"{NAMES[-1]}.var"
    array = state[name]
    optimizer = Optimizer("lamb", NAMES, on_device(random_weights()))
    for wrong in (
        {other: value for other, value in state.items() if other != name},
        {**state, "decoder.0.weight.mean": np.zeros(3, np.float32)},
        {**state, f"{NAMES[0]}.master": np.zeros(SHAPES[NAMES[0]], np.float32)},
        Optimizer("muon", NAMES, on_device(random_weights())).state(),
        {**state, "t": np.array(-1)},
        *({**state, name: each} for each in (array[:3], *map(array.astype, ("float64", "float16", "O")))),
    ):
        with pytest.raises(InputError, match="the optimizer states"):
            optimizer.restore(wrong)
        assert optimizer.t == 0
        assert not any(each.asnumpy().any() for each in optimizer.state_arrays().values())


def test_gradients_are_left_as_they_are(native: bool) -> None:
    gradients = on_device(random_gradients(0))
    before = [gradient.asnumpy() for gradient in gradients]
    Optimizer("lamb", NAMES, on_device(random_weights()), native=native).step(gradients, 0.01, 0.5)
    for gradient, value in zip(gradients, before):
        np.testing.assert_array_equal(gradient.asnumpy(), value)


WORDS = (
    *("--optimizer", "bertadam", "--num_steps", 8, "--warmup_ratio", 0.25, "--lr", 0.1),
    *("--ckpt_interval", 1, "--dropout", 0),
)
GIVEN = {"beta1": 0.7, "beta2": 0.9, "epsilon": 1e-3, "weight_decay": 0.3}


def test_a_step_has_the_numbers_that_are_given(tmp_path):
    """The second one, from the first one's checkpoint; its gradients follow from the means of both."""
    options = [word for name, value in GIVEN.items() for word in (f"--{name}", value)]
    assert trained(tmp_path / "run", *WORDS, *options) == 0
    weights, after = (read_params(tmp_path / "run", step) for step in (1, 2))
    first, second = (states_of(tmp_path / "run", step) for step in (1, 2))
    names = [name[:-5] for name in first if name.endswith(".mean")]
    assert names, "states are an ordinary npz"
    reference = Reference("bertadam", [weights[name] for name in names], names=names, **GIVEN)
    reference.means, reference.vars = (
        [first[f"{name}.{part}"].astype(np.float64) for name in names] for part in ("mean", "var")
    )
    moved = [
        second[f"{name}.mean"] - GIVEN["beta1"] * first[f"{name}.mean"].astype(np.float64) for name in names
    ]
    reference.step([each / (1 - GIVEN["beta1"]) for each in moved], 0.1)
    for name, weight, variance in zip(names, reference.weights, reference.vars):
        np.testing.assert_allclose(second[f"{name}.var"], variance, rtol=1e-3, atol=1e-9, err_msg=name)
        found = after[name] - weights[name].astype(np.float64)
        np.testing.assert_allclose(found, weight - weights[name], rtol=1e-4, atol=1e-6, err_msg=name)
