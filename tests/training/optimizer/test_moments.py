"""Optimizers whose moments are bfloat16: what they compute, what a checkpoint takes of them, and conversions;
runs with --optimizer_state bfloat16: resumed, with the other type, and estimated.

tests/bert/operators/test_bfloat16_moments.py has a single update, rounding by rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from base.errors import InputError
from bert.operators import load_operators
from bert.weights.tensors import BFLOAT16, native
from comm.base import BROADCAST_DTYPES, check_arrays
from tests.training.optimizer.test_optimizer import (
    NAMES,
    OTHER,
    Reference,
    on_device,
    random_gradients,
    random_weights,
)
from tests.training.small_runs import command, parts_of, trained
from tests.training.staged import arrays_of, copy_step, states_of
from training.estimate import estimate
from training.optimizer.optimizer import Optimizer, Rule
from training.optimizer.states import Bfloat16Moment, MomentType, check_moments, converted

if not load_operators():
    pytest.skip("the fused operators have not been built", allow_module_level=True)


def make(
    dtype: str = "bfloat16", seed: int = 0, kind: str = "lamb", **options: float
) -> tuple[Optimizer, list[mx.nd.NDArray]]:
    weights = on_device(random_weights())
    return Optimizer(kind, NAMES, weights, Rule(**options), True, MomentType(dtype, seed)), weights


def train(optimizer: Optimizer, first: int, last: int) -> None:
    for step in range(first, last + 1):
        optimizer.step(on_device(random_gradients(step)), 0.01)


@pytest.mark.parametrize("options", [{}, OTHER])
@pytest.mark.parametrize("kind", ["lamb", "bertadam", "adamw"])
def test_it_follows_the_reference_as_far_as_bfloat16_goes(kind: str, options: dict) -> None:
    optimizer, weights = make(kind=kind, **options)
    reference = Reference(kind, random_weights(), **options)
    start = random_weights()
    for step in range(1, 26):
        gradients = random_gradients(step)
        optimizer.step(on_device(gradients), 0.01)
        reference.step(gradients, 0.01)
    state = optimizer.state()
    for i, name in enumerate(NAMES):
        # 25 roundings of 2^-8 at most, one after the other, and nearly independent of each other.
        for kept, exact in ((f"{name}.mean", reference.means[i]), (f"{name}.var", reference.vars[i])):
            error = native(state[kept]) - exact
            assert np.sqrt(np.mean(error**2)) < 0.02 * np.sqrt(np.mean(exact**2)), kept
            chance = 4 * error.std() / np.sqrt(error.size)
            assert abs(error.mean()) < chance + 1e-3 * np.abs(exact).mean(), kept
        moved, expected = weights[i].asnumpy() - start[i], reference.weights[i] - start[i]
        assert np.sqrt(np.mean((moved - expected) ** 2)) < 0.02 * np.sqrt(np.mean(expected**2)), name


def test_a_checkpoint_has_them_in_their_type_and_ranks_can_send_them() -> None:
    optimizer, weights = make()
    train(optimizer, 1, 1)
    for name, view in optimizer.state_views().items():
        if name == "t":
            continue
        assert isinstance(view, Bfloat16Moment) and view.dtype == view.asnumpy().dtype == BFLOAT16
        assert view.shape == view.asnumpy().shape == weights[NAMES.index(name.rpartition(".")[0])].shape
    live = list(optimizer.state_arrays().values())
    check_arrays(live, BROADCAST_DTYPES)
    assert sum(array.size for array in live) == 2 * 2 * sum(weight.size for weight in weights)  # bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_states_of_the_other_type_are_converted(dtype: str) -> None:
    source, _ = make("bfloat16" if dtype == "float32" else "float32")
    train(source, 1, 3)
    state = source.state()
    target, _ = make(dtype)
    target.restore(state)
    assert target.t == 3
    for name, value in target.state().items():
        if name == "t":
            continue
        before, after = (native(each).astype(np.float64) for each in (state[name], value))
        if dtype == "float32":
            np.testing.assert_array_equal(after, before)
        else:  # half a unit in the last place
            assert (np.abs(after - before) <= 2.0**-8 * np.abs(before)).all() and (after != before).any()


def test_conversion_to_bfloat16_rounds_to_the_nearest_and_ties_to_even() -> None:
    cases = {
        0x3F800000: 0x3F80, 0x3F807FFF: 0x3F80, 0x3F808000: 0x3F80, 0x3F808001: 0x3F81, 0x3F818000: 0x3F82,
        0xBF818000: 0xBF82, 0x00000000: 0, 0x80000000: 0x8000, 0x7F800000: 0x7F80, 0x7F7FFFFF: 0x7F80,
        0x00018000: 0x0002,
    }  # fmt: skip
    nans = (0x7FC00000, 0x7F800001, 0xFFFFFFFF)
    raw = converted(np.array([*cases, *nans], np.uint32).view(np.float32), "bfloat16")
    assert raw is not None and raw.shape == (len(cases) + 3, 2) and raw.dtype == np.uint8
    found = raw.view(np.uint16)[:, 0]
    assert found[:-3].tolist() == list(cases.values())
    assert (found[-3:] & 0x7FFF > 0x7F80).all()


def test_a_master_is_float32() -> None:
    weights = [weight.astype(np.float16) for weight in on_device(random_weights())]
    state = Optimizer("lamb", NAMES, weights).state()
    name = f"{NAMES[0]}.master"
    state[name] = np.zeros(state[name].shape, BFLOAT16)
    with pytest.raises(InputError, match=r"master is bfloat16 \(50, 16\), this run needs float32"):
        Optimizer("lamb", NAMES, weights).restore(state)


def test_bfloat16_needs_the_fused_operators() -> None:
    check_moments("float32", "mxnet", False)
    check_moments("bfloat16", "fused", False)
    for on_gpu, remedy in ((False, "make setup"), (True, "GPUs")):
        with pytest.raises(InputError, match=f"^--optimizer_state bfloat16 needs the fused .*{remedy}"):
            check_moments("bfloat16", "mxnet", on_gpu)


WORDS = ("--operators", "fused", "--num_steps", "6", "--ckpt_interval", "3", "--log_interval", "1")
LOW = ("--optimizer_state", "bfloat16")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert trained(folder, *WORDS, *LOW, "--seed", "3") == 0
    return folder


def dtypes(folder: Path, step: int = 6) -> set[np.dtype]:
    """Types of a checkpoint's moments."""
    return {array.dtype for name, array in states_of(folder, step).items() if name != "t"}


def test_a_resumed_run_is_the_same_to_the_bit(whole: Path, tmp_path: Path) -> None:
    folder = copy_step(whole, 3, tmp_path / "half")
    assert trained(folder, *WORDS, *LOW, "--resume") == 0  # the seed is the checkpoint's
    assert arrays_of(folder, 6) == arrays_of(whole, 6)
    assert dtypes(whole) == {BFLOAT16} and states_of(whole, 6)["t"] == 6
    assert '\noptimizer_state: "bfloat16"\n' in (whole / "run.yaml").read_text()


def test_a_run_goes_on_with_the_other_type(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_step(whole, 3, tmp_path / "half")
    types = ("bfloat16", "float32")
    for steps, words, (before, now) in (("6", (), types), ("7", LOW, types[::-1])):  # and back again
        assert trained(folder, *WORDS, *words, "--resume", "--num_steps", steps) == 0
        said = f"--optimizer_state {now}: the checkpoint's run had {before}; its moments are converted"
        assert said in "".join(capsys.readouterr())
    assert dtypes(folder) == {np.dtype(np.float32)} and dtypes(folder, 7) == {BFLOAT16}


def test_the_estimate_counts_it(tmp_path: Path) -> None:
    def of(*words: Any) -> Any:
        (part,) = parts_of(command(tmp_path / "run", *WORDS, *words))
        return estimate(part, "local", {})

    full, low = of(), of(*LOW)
    count = full.parts["optimizer states"] // 8
    assert low.parts["optimizer states"] == 4 * count
    assert full.copied - low.copied == 4 * count
    assert full.of_process - low.of_process == 4 * count
