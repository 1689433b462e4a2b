"""The same training, whatever exchanges the gradients: one process, Horovod over MPI, BytePS with two workers
and with two local ranks. (That Gloo has the bits of MPI: tests/test_pretraining.py.)

A tiny BERT learns with training.step.TrainStep and LAMB for 50 steps, with one micro-batch and with three for
each of two ranks, with clipping, a dynamic loss scale, and at step 20 a gradient that overflows on one rank
only. The process of its own takes the micro-batches of both ranks. (equality_worker.py has the numbers.)

What is equal bit for bit:

- The ranks of a run, and a run and its repetition in the same processes.
- All backends with two ranks. a + b = b + a in floating point too, and half of it is exact: with two ranks
  there is only one mean. (With three, (a + b) + c need not be a + (b + c), and backends may differ in the
  last bits.) The loss scale is a power of two and changes no bit.
- With one micro-batch a rank, the first averaged gradient of the two ranks and of the process of its own,
  except for the segment embedding. Dividing by twice as many tokens is what halving the sum is. But where
  gradients are added up, MXNet's Embedding adds token by token onto what is there already, (((a1 + a2) + b1)
  + b2), and two ranks have (a1 + a2) + (b1 + b2).

From there on the process of its own differs, by rounding: the norm that clips has the segment embedding in it
and reaches all parameters. With three micro-batches a rank all its sums are formed in another order. The key
biases differ most, up to a quarter of what is allowed: adding one number to all attention scores of a query
changes nothing, so their gradients are rounding and nothing else, and LAMB divides those by their own size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.comm.equality_worker import (
    CLIP_NORM,
    GROWTH_INTERVAL,
    MASKED,
    OVERFLOW_STEP,
    RANKS,
    ROWS,
    RUNS,
    STEPS,
)
from tests.faults.compare_backends import Seen, compared, read, rounded, same_steps
from tests.processes import once, run_ranks
from tests.training.tiny import same_bits

WORKER = Path(__file__).with_name("equality_worker.py")
ALONE = "one-process"
# name: (communicator, ranks, launcher, its options)
VARIANTS: dict[str, tuple[str, int, str, dict[str, Any]]] = {
    ALONE: ("local", 1, "none", {}),
    "horovod-mpi": ("horovod", RANKS, "mpirun", {}),
    "byteps-workers": ("byteps", RANKS, "byteps", {}),
    "byteps-local-ranks": ("byteps", RANKS, "byteps", {"local_ranks": RANKS}),
}
ON_RANKS = [name for name in VARIANTS if name != ALONE]


@pytest.fixture(scope="module")
def runs_of(tmp_path_factory):
    """Function of a variant's name: {run: [Seen of rank 0, ...]}. Each variant is launched once."""
    return once(lambda variant: launch(variant, tmp_path_factory.mktemp(variant)))


def launch(variant: str, directory: Path) -> dict[str, list[Seen]]:
    backend, ranks, launcher, options = VARIANTS[variant]
    result = run_ranks(
        WORKER,
        ranks,
        launcher,
        env={"OMP_NUM_THREADS": "1"},
        args=[backend, directory],
        **options,
    )
    result.check()
    seen = {run: [read(directory / f"{rank}.{run}") for rank in range(ranks)] for run in RUNS}
    if variant == ALONE:
        seen.update({f"{run}.rounded": rounded(directory, run) for run in RUNS})
    return seen


def losses(ranks: list[Seen], accumulate: int) -> np.ndarray:
    """Masked-LM plus next-sentence loss of each step, means over the global batch. (STEPS,)"""
    sums = np.sum([rank.steps["sums"] for rank in ranks], axis=0)
    rows = RANKS * accumulate * ROWS
    return sums[:, 0] / (rows * MASKED) + sums[:, 1] / rows


@pytest.mark.parametrize("run", RUNS)
def test_the_run_is_one_worth_comparing(runs_of, run):
    """Clipping, the overflow and the learning that the other tests rely on do happen."""
    alone = runs_of(ALONE)[run]
    steps = alone[0].steps
    norms = np.array(steps["grad_norm"])
    overflowed = np.arange(1, STEPS + 1) == OVERFLOW_STEP
    assert np.array_equal(np.isfinite(norms), ~overflowed)
    assert np.array_equal(steps["applied"], ~overflowed)
    assert np.mean(norms[~overflowed] > CLIP_NORM) > 0.8
    learned = losses(alone, RUNS[run])
    assert learned[-5:].mean() < 0.85 * learned[:5].mean()
    # From one step to the next the scale doubles after GROWTH_INTERVAL good ones, and halves in one place.
    factors = np.divide(steps["scale"][1:], steps["scale"][:-1])
    assert np.flatnonzero(factors == 0.5).tolist() == [OVERFLOW_STEP - 1]
    assert np.sum(factors == 2) == (OVERFLOW_STEP - 1) // GROWTH_INTERVAL + (
        (STEPS - 1 - OVERFLOW_STEP) // GROWTH_INTERVAL
    )


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("variant", ON_RANKS)
def test_the_run_is_that_of_one_process(runs_of, variant, run):
    """Losses, norms, scales, parameters; and all ranks hold the same bits, but each has its own share."""
    found, (expected,) = runs_of(variant)[run], runs_of(ALONE)[run]
    assert compared(found, expected, runs_of(ALONE)[f"{run}.rounded"], run) == []
    assert found[0].steps["sums"] != found[1].steps["sums"]
    assert repr(found[0].steps["grad_norm"]) == repr(found[1].steps["grad_norm"])
    assert list(found[0].parameters) == list(expected.parameters)


@pytest.mark.parametrize("variant", ON_RANKS)
def test_the_first_gradient_has_the_bits_of_one_process(runs_of, variant):
    found, expected = (runs_of(name)["accumulate-1"][0].gradients for name in (variant, ALONE))
    assert list(found) == list(expected)
    others = [name for name in expected if found[name].tobytes() != expected[name].tobytes()]
    assert set(others) <= {"token_type_embed.0.weight"}
    assert all(np.any(gradient) for gradient in expected.values())


@pytest.mark.parametrize("variant", ON_RANKS[1:])
def test_all_backends_give_the_same_bits(runs_of, variant):
    found, expected = runs_of(variant), runs_of(ON_RANKS[0])
    for run in RUNS:
        for rank in range(RANKS):
            assert same_steps(found[run][rank], expected[run][rank])
            assert same_bits(found[run][rank].gradients, expected[run][rank].gradients)
            assert same_bits(found[run][rank].parameters, expected[run][rank].parameters)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_repeated_run_gives_the_same_bits(runs_of, variant):
    first, again = (runs_of(variant)[run] for run in ("accumulate-1", "accumulate-1-again"))
    for one, other in zip(first, again):
        assert same_steps(one, other)
        assert same_bits(one.parameters, other.parameters)
