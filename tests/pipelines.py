"""Pipelines against one process that takes the same micro-batches, over 50 steps: 1 to 4 stages, 1 and 2
replicas, 1, 4 and 7 micro-batches, both schedules and placements, every step clipped, and one that overflows.

    python -m tests.pipelines [--steps 50] [--stages 1 2 3 4] [--json pipelines.json]

prints tables and exits with 1 where a loss differs by more than LOSSES, where schedules or placements do not
give the same bits, where a step is not clipped or another one than that with the overflow is skipped, or
where a damage goes unseen.

What is equal bit for bit: both schedules, and both placements, with each other (gradients are summed in the
order of the micro-batches); the ranks of a stage; the word embedding on the first and the last stage. In the
first step, beside as many replicas without stages: losses, and all gradients but the word embedding's, which
is equal too with one micro-batch and one replica. After that the numbers of stages differ by rounding: each
stage rounds its own norm to float32 before the squares are added, so that the clipping factor differs in its
last bits; and the two parts of the word embedding's gradient, of tokens and of the decoder, are each summed
over the micro-batches (and averaged over the replicas) before they are added, where one process adds them in
each micro-batch. Beside one process, more replicas sum in another order, with stages or without.

Training enlarges any such difference. How much is measured beside it: one process that begins with one
weight changed in its last bit ("nudged").
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Sequence

import numpy as np

from base.tables import Row, Table, markdown
from bench.harness import write_figures
from bert.weights.names import EMBEDDING
from tests.pipelines_worker import CLIP_NORM, STALE, SWAPPED, UNTIED, Case
from tests.processes import run_ranks
from training.pipeline.options import SCHEDULES
from training.pipeline.placement import PLACEMENTS

WORKER = Path(__file__).with_name("pipelines_worker.py")
LOSSES = 1e-5  # greatest difference of a loss, relative to one of at least 1
BFLOAT16 = 0.02  # the same in bfloat16, where a difference in a weight's last bits may be rounded up to 2^-8
LAYERS = 4
COUNTS = {1: (LAYERS,), 2: (3, 1), 3: (1, 2, 1), 4: (1, 1, 1, 1)}  # layers of each stage
MICRO_BATCHES = (1, 4, 7)
REPLICAS = (1, 2)
OTHERS = (("mxnet", "mxnet", "float32"), ("bfloat16", "fused", "bfloat16"))
TIME_LIMIT = 3600.0  # seconds for a launch


@dataclass(frozen=True)
class Found:
    """A run on ranks. `sums`: (steps, sums) over the replicas; `loss`: (steps,), as every rank has it for its
    decisions; `parameters`: of the whole model;
    `gradients`: digests of those of the first step, by name."""

    sums: np.ndarray
    norm: np.ndarray
    loss: np.ndarray
    applied: list[bool]
    parameters: dict[str, np.ndarray]
    gradients: dict[str, str]
    errors: tuple[str, ...]


@dataclass(frozen=True)
class Compared:
    """Differences between two runs: greatest of a loss, summed or for decisions, of a norm (relative), of a
    parameter; whether the first step's losses, and everything, have the same bits; names of the first step's
    gradients that have not."""

    loss: float
    norm: float
    parameter: float
    first_bits: bool
    bits: bool
    other_gradients: tuple[str, ...]


def launch(cases: Sequence[Case], size: int, directory: Path) -> dict[str, Found]:
    """Runs cases on so many ranks, all in one launch."""
    listed = json.dumps([asdict(case) for case in cases])
    launcher = "mpirun" if size > 1 else "none"
    run_ranks(WORKER, size, launcher, timeout=TIME_LIMIT, args=[directory, listed]).check()
    return {case.name: read(case, size, directory) for case in cases}


def read(case: Case, size: int, directory: Path) -> Found:
    """The outcome of a case. Raises AssertionError where ranks that must agree do not."""
    reports, held = [], []
    for rank in range(size if case.stages > 1 or case.shared else 1):
        with np.load(directory / f"{case.name}-{rank}.npz") as arrays:
            reports.append(json.loads(str(arrays["report"])))
            held.append({name: arrays[name] for name in arrays.files if name != "report"})
    for report in reports:
        assert all(report[name] == reports[0][name] for name in ("norm", "loss", "applied")), case.name
    last = [each for each in reports if each.get("place", {}).get("stage", 0) == case.stages - 1]
    parameters: dict[str, np.ndarray] = {}
    gradients: dict[str, str] = {}
    for report in reports:
        for name, digest in report["gradients"].items():
            assert case.damage or gradients.get(name, digest) == digest, f"{case.name}: gradient of {name}"
            gradients[name] = digest
    for arrays in held:
        for name, array in arrays.items():
            known = parameters.setdefault(name, array)
            assert case.damage or known.tobytes() == array.tobytes(), f"{case.name}: {name} differs"
    return Found(
        np.sum([each["sums"] for each in last], axis=0),
        np.array(reports[0]["norm"]),
        np.array(reports[0]["loss"]),
        reports[0]["applied"],
        parameters,
        gradients,
        tuple(each.get("error", "") for each in reports),
    )


def compare(found: Found, expected: Found) -> Compared:
    """Differences; raises AssertionError where parameters or skipped steps are others."""
    assert sorted(found.parameters) == sorted(expected.parameters)
    assert found.applied == expected.applied
    finite = np.array(expected.applied)
    scale = np.maximum(1.0, np.abs(expected.sums[finite]))
    loss = np.abs(found.sums[finite] - expected.sums[finite])[:, :2] / scale[:, :2]
    decided = np.abs(found.loss[finite] / expected.loss[finite] - 1)
    norm = np.abs(found.norm[finite] / expected.norm[finite] - 1)
    pairs = [(found.parameters[name], array) for name, array in expected.parameters.items()]
    return Compared(
        float(max(loss.max(), decided.max())),
        float(norm.max()),
        max(float(np.abs(one.astype(np.float64) - other).max()) for one, other in pairs),
        bool(np.array_equal(found.sums[0], expected.sums[0])),
        all(one.tobytes() == other.tobytes() for one, other in pairs)
        and np.array_equal(found.sums[finite], expected.sums[finite]),
        tuple(sorted(n for n, bits in expected.gradients.items() if found.gradients.get(n) != bits)),
    )


def reference(case: Case) -> Case:
    """The run of one process with the same micro-batches."""
    return replace(case, name=f"alone-{case.name}", counts=(LAYERS,), placement="intra_first", start="")


def base_case(stages: int, replicas: int, micro_batches: int, steps: int) -> Case:
    """The run of which the matrix has variants."""
    return Case(
        f"{replicas}-{micro_batches}",
        COUNTS[stages],
        replicas,
        micro_batches,
        steps=steps,
        overflow=overflow_of(steps),
    )


def overflow_of(steps: int) -> int:
    """The step with an overflow."""
    return max(2, steps * 2 // 5)


def alone(steps: int) -> list[Case]:
    """Runs of one process, with the micro-batches of 1 and 2 replicas, also nudged."""
    wholes = (base_case(1, replicas, each, steps) for replicas in REPLICAS for each in MICRO_BATCHES)
    return [
        replace(reference(whole), name=f"{kind}-{whole.name}", nudged=kind == "nudged")
        for whole in wholes
        for kind in ("alone", "nudged")
    ]


def variants(base: Case) -> list[Case]:
    """The same run with both schedules and placements; without stages there is one."""
    if base.stages == 1:
        return [replace(base, name=f"ranks-{base.name}", shared=True)]
    return [
        replace(base, name=f"{base.name}-{schedule}-{placement}", schedule=schedule, placement=placement)
        for schedule in SCHEDULES
        for placement in PLACEMENTS
    ]


def compare_all(
    base: Case, found: Sequence[Found], known: dict[str, Found]
) -> tuple[dict[str, Any], list[str], list[str]]:
    """The runs of both schedules and placements, the worst of them: figures, cells of a row, faults.

    Figures: `to_one`: differences from one process. `to_ranks`: from as many replicas without stages.
    `nudge`: difference of a loss of one process that begins with one weight changed in its last bit.
    `alike`: whether all runs have the same bits. `clipped`: steps in which the gradient was clipped, of
    `steps` that were applied; `skipped`: numbers of those that were not.

    Args:
        known: the runs of `alone`, and those of one stage, by name.
    """
    one, ranks, nudged = (known[f"{kind}-{base.name}"] for kind in ("alone", "ranks", "nudged"))
    to_one = max((compare(each, one) for each in found), key=lambda each: each.loss)
    to_ranks = max(
        (compare(each, ranks) for each in found),
        key=lambda each: (not each.first_bits, len(each.other_gradients), each.loss),
    )
    first, nudge = found[0], compare(nudged, one).loss
    beside = [compare(each, first) for each in found]
    alike = all(each.bits and not each.other_gradients for each in beside)
    norms = first.norm[np.array(first.applied)]
    clipped, steps = int((norms > CLIP_NORM).sum()), len(norms)
    skipped = tuple(step for step, applied in enumerate(first.applied, 1) if not applied)
    other = ", ".join(to_ranks.other_gradients)
    wrong = {
        f"a loss differs by {to_one.loss:.1e}": to_one.loss > LOSSES,
        "schedules and placements differ": not alike,
        "losses of the first step are not those without stages": not to_ranks.first_bits,
        f"gradients of the first step differ: {other}": set(to_ranks.other_gradients) - {EMBEDDING},
        f"{clipped} of {steps} steps clipped": clipped != steps,
        f"skipped steps {skipped}, not {base.overflow}": skipped != (base.overflow,),
    }
    same = "all" if not other else "all but the word embedding's"
    if set(to_ranks.other_gradients) - {EMBEDDING}:
        same = f"all but {len(to_ranks.other_gradients)}"
    cells = [f"{base.stages} x {base.replicas}", str(base.accumulate), str(len(found))]
    cells += [f"{each:.1e}" for each in (to_one.loss, nudge, to_one.norm, to_one.parameter)]
    cells += [_bits(to_one.first_bits), _bits(to_ranks.first_bits), same, _bits(to_ranks.bits), _bits(alike)]
    figures = {"stages": base.stages, "replicas": base.replicas, "micro_batches": base.accumulate}
    figures.update(to_one=asdict(to_one), to_ranks=asdict(to_ranks), nudge=nudge, runs=len(found))
    figures.update(alike=alike, clipped=clipped, steps=steps, skipped=skipped)
    return figures, cells, [fault for fault, is_so in wrong.items() if is_so]


def matrix_table(rows: list[Row], steps: int) -> Table:
    """All rows."""
    head = ("stages x replicas", "micro-batches", "runs", "loss", "nudged", "norm", "parameter")
    head += ("losses 1, one process", "losses 1, ranks", "gradients 1, ranks", "all steps, ranks")
    notes = [
        f"{steps} steps of bert_4_32_4, dropout 0.1, every applied step clipped, step {overflow_of(steps)} "
        "skipped for an overflow. loss, norm, parameter: greatest differences from one process; nudged: "
        "that of one process which begins with one weight changed in its last bit. losses 1, gradients 1: "
        "bits of the first step; ranks: as many replicas without stages."
    ]
    return Table("Pipelines and one process", (*head, "schedules, placements"), rows, names=2, notes=notes)


def _bits(same: bool) -> str:
    return "same bits" if same else "rounding"


def others(steps: int) -> list[Case]:
    """The other operators and dtypes on four ranks, which take the same micro-batches in two replicas of two
    stages, in four stages, and without stages; and damages, each with a sound run beside it."""
    two = Case("two", COUNTS[2], replicas=2, steps=steps)
    four = replace(two, counts=COUNTS[4], replicas=1, accumulate=8)
    cases = []
    for name, operators, dtype in OTHERS:
        base = replace(two, name=name, operators=operators, dtype=dtype)
        cases += [reference(base), base, replace(base, name=f"{name}-gpipe", schedule="gpipe")]
        cases.append(replace(four, name=f"{name}-four", operators=operators, dtype=dtype))
        ranks = replace(base, name=f"{name}-ranks", counts=COUNTS[1], replicas=4, accumulate=2, shared=True)
        cases.append(ranks)
    two, four = (replace(each, steps=min(steps, 4)) for each in (two, four))
    cases += [reference(replace(two, name="short"))]
    for name, base in ((STALE, two), (UNTIED, two), (SWAPPED, four)):
        cases += [replace(base, name=f"sound-{name}"), replace(base, name=name, damage=name)]
    return cases


def check_others(found: dict[str, Found]) -> tuple[list[Table], list[str]]:
    """Tables of `others`, and what is wrong."""
    rows, faults = [], []
    for name, _, dtype in OTHERS:
        kinds = (("2 x 2", ""), ("4 x 1", "-four"), ("four ranks without stages", "-ranks"))
        for kind, end in kinds:
            one = compare(found[f"{name}{end}"], found[f"alone-{name}"])
            same = len(found[name].gradients) - len(one.other_gradients)
            cells = [name, kind, f"{one.loss:.1e}", f"{one.norm:.1e}", f"{one.parameter:.1e}"]
            rows.append(Row([*cells, _bits(one.first_bits), f"{same} of {len(found[name].gradients)}"]))
            if one.loss > (BFLOAT16 if dtype == "bfloat16" else LOSSES):
                faults.append(f"{name}, {kind}: a loss differs by {one.loss:.1e}")
            if end == "-four" and (set(one.other_gradients) - {EMBEDDING} or not one.first_bits):
                faults.append(f"{name}: the first step of four stages differs: {one.other_gradients}")
        if not compare(found[f"{name}-gpipe"], found[name]).bits:
            faults.append(f"{name}: schedules differ")
    head: tuple[str, ...] = ("", "8 micro-batches", "loss", "norm", "parameter", "losses 1", "gradients 1")
    tables = [Table("Other operators, beside one process", head, rows, names=2)]
    rows = []
    for damage in (STALE, SWAPPED, UNTIED):
        sound = compare(found[f"sound-{damage}"], found["alone-short"]).loss
        loss = compare(found[damage], found["alone-short"]).loss
        rows.append(Row([damage, f"{sound:.1e}", f"{loss:.1e}", f"{loss / LOSSES:,.0f}"]))
        if not sound <= LOSSES < loss / 10:
            faults.append(f"{damage}: a loss differs by {loss:.1e}, without the damage by {sound:.1e}")
    head = ("damage, 4 steps", "loss without it", "loss", "times the limit")
    return [*tables, Table("Damages", head, rows)], faults


def main() -> int:
    """Runs everything; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--stages", type=int, nargs="+", choices=COUNTS, default=list(COUNTS))
    parser.add_argument("--json", help="write all figures there")
    options = parser.parse_args()
    faults: list[str] = []
    matrix: list[dict[str, Any]] = []
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        known = launch(alone(options.steps), 1, folder)
        for replicas in REPLICAS:
            for stages in sorted({1, *options.stages}):  # one stage is what the others are compared with
                bases = [base_case(stages, replicas, each, options.steps) for each in MICRO_BATCHES]
                cases = [each for base in bases for each in variants(base)]
                known.update(launch(cases, stages * replicas, folder))
                for base in bases:
                    found = [known[each.name] for each in variants(base)]
                    figures, cells, wrong = compare_all(base, found, known)
                    matrix.append(figures)
                    rows.append(Row(cells))
                    where = f"{stages} x {replicas}, {base.accumulate} micro-batches"
                    print(f"{where}: {'; '.join(wrong) or 'as it must be'}", file=sys.stderr, flush=True)
                    faults += [f"{where}: {each}" for each in wrong]
        tables, wrong = check_others(launch(others(options.steps), 4, folder))
    tables.insert(0, matrix_table(rows, options.steps))
    print("\n".join(markdown(each) for each in tables))
    faults += wrong
    print("\n".join(faults) or "all as it must be")
    if options.json:
        figures = {"steps": options.steps, "faults": faults, "matrix": matrix}
        figures["tables"] = [{"head": each.head, "rows": [row.cells for row in each.rows]} for each in tables]
        write_figures(options.json, figures)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
