"""Pipelines against one process that takes the same micro-batches: every number of stages and replicas, both
schedules and placements, several micro-batches a step, clipping, and one step that overflows.

    python -m tests.pipelines [--steps 50] [--quick]

prints a table and exits with 1 where something differs by more than LOSSES, or where a damage goes unseen.

What is equal bit for bit: both schedules, and both placements, with each other (gradients are summed in the
order of the micro-batches); the ranks of a stage; the word embedding on the first and the last stage. In the
first step, before anything is updated, the losses of all numbers of stages and of one process: every layer
sees the same inputs, weights and dropout. After that the numbers of stages differ by rounding: each stage
rounds its own norm to float32 before the squares are added, so that the clipping factor differs in its last
bits; and the two parts of the word embedding's gradient, of tokens and of the decoder, are each summed over
the micro-batches (and averaged over the replicas) before they are added, where one process adds them in each
micro-batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Sequence

import numpy as np

from tests.pipelines_worker import DAMAGES, Case
from tests.processes import run_ranks

WORKER = Path(__file__).with_name("pipelines_worker.py")
LOSSES = 1e-5  # greatest difference of a loss, relative to one of at least 1
BFLOAT16 = 0.02  # the same in bfloat16, where a difference in a weight's last bits may be rounded up to 2^-8
COUNTS = {2: (3, 1), 3: (1, 2, 1), 4: (1, 1, 1, 1)}  # layers of each stage of a model of four
LAYERS = 4


@dataclass(frozen=True)
class Found:
    """A run on ranks. `sums`: (steps, sums) over the replicas; `parameters`: of the whole model."""

    sums: np.ndarray
    norm: np.ndarray
    applied: list[bool]
    parameters: dict[str, np.ndarray]
    errors: tuple[str, ...]


@dataclass(frozen=True)
class Compared:
    """Differences between two runs: greatest of a loss, of a norm (relative), of a parameter; whether the
    first step's losses, and everything, have the same bits."""

    loss: float
    norm: float
    parameter: float
    first_bits: bool
    bits: bool


def launch(cases: Sequence[Case], size: int, directory: Path, timeout: float = 300.0) -> dict[str, Found]:
    """Runs cases on so many ranks, all in one launch."""
    listed = json.dumps([asdict(case) for case in cases])
    launcher = "mpirun" if size > 1 else "none"
    run_ranks(WORKER, size, launcher, timeout=timeout, args=[directory, listed]).check()
    return {case.name: read(case, size, directory) for case in cases}


def read(case: Case, size: int, directory: Path) -> Found:
    """The outcome of a case. Raises AssertionError where ranks that must agree do not."""
    reports, held = [], []
    for rank in range(size if case.stages > 1 else 1):
        with np.load(directory / f"{case.name}-{rank}.npz") as arrays:
            reports.append(json.loads(str(arrays["report"])))
            held.append({name: arrays[name] for name in arrays.files if name != "report"})
    for report in reports:
        assert (report["norm"], report["applied"]) == (reports[0]["norm"], reports[0]["applied"])
    last = [each for each in reports if each.get("place", {}).get("stage", 0) == case.stages - 1]
    parameters: dict[str, np.ndarray] = {}
    for arrays in held:
        for name, array in arrays.items():
            known = parameters.setdefault(name, array)
            assert case.damage or known.tobytes() == array.tobytes(), f"{case.name}: {name} differs"
    return Found(
        np.sum([each["sums"] for each in last], axis=0),
        np.array(reports[0]["norm"]),
        reports[0]["applied"],
        parameters,
        tuple(each.get("error", "") for each in reports),
    )


def compare(found: Found, expected: Found) -> Compared:
    """Differences; raises AssertionError where parameters or skipped steps are others."""
    assert sorted(found.parameters) == sorted(expected.parameters)
    assert found.applied == expected.applied
    finite = np.array(expected.applied)
    scale = np.maximum(1.0, np.abs(expected.sums[finite]))
    loss = np.abs(found.sums[finite] - expected.sums[finite])[:, :2] / scale[:, :2]
    norm = np.abs(found.norm[finite] / expected.norm[finite] - 1)
    pairs = [(found.parameters[name], array) for name, array in expected.parameters.items()]
    return Compared(
        float(loss.max()),
        float(norm.max()),
        max(float(np.abs(one.astype(np.float64) - other).max()) for one, other in pairs),
        bool(np.array_equal(found.sums[0], expected.sums[0])),
        all(one.tobytes() == other.tobytes() for one, other in pairs)
        and np.array_equal(found.sums[finite], expected.sums[finite]),
    )


def reference(case: Case) -> Case:
    """The run of one process with the same micro-batches."""
    return replace(case, name=f"alone-{case.name}", counts=(LAYERS,), placement="intra_first", start="")


def matrix(stages: int, replicas: int, steps: int) -> list[Case]:
    """The cases of one number of ranks."""
    cases = []
    for accumulate in (1, 4, 7):
        base = Case(
            f"{accumulate}",
            COUNTS[stages],
            replicas,
            accumulate,
            steps=steps,
            overflow=max(2, steps * 2 // 5),
        )
        cases.append(reference(base))
        for schedule in ("1f1b", "gpipe"):
            cases.append(replace(base, name=f"{accumulate}-{schedule}", schedule=schedule))
        if replicas > 1:
            cases.append(replace(base, name=f"{accumulate}-inter", placement="inter_first"))
    return cases


def others(steps: int) -> list[Case]:
    """The other operators and dtypes, on two ranks; and damages, each to be seen."""
    cases = []
    for name, operators, dtype in (("plain", "mxnet", "float32"), ("bfloat16", "fused", "bfloat16")):
        base = Case(name, COUNTS[2], operators=operators, dtype=dtype, steps=steps)
        cases += [reference(base), base]
    cases += [reference(Case("sound", COUNTS[2], steps=steps)), Case("sound", COUNTS[2], steps=steps)]
    return cases + [Case(damage, COUNTS[2], steps=min(steps, 4), damage=damage) for damage in DAMAGES[:3]]


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="two stages alone")
    options = parser.parse_args()
    print(
        "stages x replicas  micro-batches  loss      norm      parameter  first step  1f1b, gpipe and inter"
    )
    good = True
    for stages, replicas in [(2, 1)] if options.quick else [(s, r) for s in COUNTS for r in (1, 2)]:
        with tempfile.TemporaryDirectory() as folder:
            cases = matrix(stages, replicas, options.steps)
            found = launch(cases, stages * replicas, Path(folder), timeout=3600)
        for accumulate in (1, 4, 7):
            names = [name for name in found if name.startswith(f"{accumulate}-")]
            worst = [compare(found[name], found[f"alone-{accumulate}"]) for name in names]
            bits = all(compare(found[name], found[names[0]]).bits for name in names)
            loss, norm, size = (max(getattr(e, k) for e in worst) for k in ("loss", "norm", "parameter"))
            first = all(each.first_bits for each in worst) or replicas > 1
            print(
                f"{stages} x {replicas:<14} {accumulate:<14} {loss:<9.1e} {norm:<9.1e} {size:<10.1e} "
                f"{'same bits' if all(e.first_bits for e in worst) else 'rounding':<11} "
                f"{'same bits' if bits else 'DIFFER'}",
                flush=True,
            )
            good &= loss <= LOSSES and bits and first
    with tempfile.TemporaryDirectory() as folder:
        found = launch(others(options.steps), 2, Path(folder), timeout=3600)
    for name in ("plain", "bfloat16", "sound"):
        difference = compare(found[name], found[f"alone-{name}"])
        print(f"{name}: {difference}")
        good &= difference.loss <= (BFLOAT16 if name == "bfloat16" else LOSSES) and difference.first_bits
    for damage in DAMAGES[:3]:
        steps = len(found[damage].sums)
        loss = np.abs(found[damage].sums - found["sound"].sums[:steps])[:, :2].max()
        print(f"{damage}: a loss differs by {loss:.1e}")
        good &= bool(loss > 100 * LOSSES)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
