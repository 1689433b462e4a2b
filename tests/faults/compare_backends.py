"""Figure 12: every backend trains as one process does that has the micro-batches of all ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import numpy as np

from tests.faults.figure import Damage, Parts, Program, Setting, Tally, endless, named
from tests.faults.jobs import ONE_THREAD
from tests.processes import ROOT, run_ranks

WORKER = ROOT / "tests" / "comm" / "equality_worker.py"
COMMUNICATORS = {"hvd_mpi": "horovod", "hvd_gloo": "horovod", "byteps": "byteps"}
# How far a run may be from one process's, in times of what rounding at random does to that: of four runs the
# largest difference until a step, or of a parameter. LAMB divides rounding errors by their own size, so that
# it is 1e-7 with some seeds and 1e-5 with others.
TIMES = 4.0
LEAST = 2.0**-21  # relative: a few roundings of the loss itself
# Key biases: their gradients are rounding and nothing else (tests/comm/test_equality.py).
WITHOUT_EFFECT = "proj_key.bias"
DAMAGED = """\
import sys
from pathlib import Path
import tests.comm.equality_worker as worker
make = worker.make_communicator
def damaged(name):
    communicator = make(name)
    average = communicator.scaled_average  # of gradients; `average` is for the counts that divide them
    def wrong(arrays):
{body}
        return factor
    communicator.scaled_average = wrong
    return communicator
worker.make_communicator = damaged
worker.main(sys.argv[1], Path(sys.argv[2]), worker.World(*map(int, sys.argv[3:])))
"""
BODIES = {
    "the last gradient is not averaged": "        factor = average(arrays[:-1])",
    "gradients are summed, not averaged": """
        factor = average(arrays)
        for array in arrays:
            array *= communicator.size""",
    "32 numbers are off by 0.01%": """
        factor = average(arrays)
        arrays[0].reshape((-1,))[:32] *= 1.0001""",
}


class Seen(NamedTuple):
    """The report of one rank on one run."""

    steps: dict[str, list]
    gradients: dict[str, np.ndarray]
    parameters: dict[str, np.ndarray]


def read(path: Path) -> Seen:
    """The files of a rank; `path`: the beginning of their names."""
    arrays = []
    for kind in ("gradients", "parameters"):
        with np.load(f"{path}.{kind}.npz") as file:
            arrays.append({name: file[name] for name in file.files})
    return Seen(json.loads(Path(f"{path}.steps.json").read_text(encoding="utf-8")), *arrays)


def same_steps(found: Seen, expected: Seen) -> bool:
    """repr: it tells two floats apart unless they have the same bits, and calls NaN and NaN the same."""
    return repr(found.steps) == repr(expected.steps)


def cases(setting: Setting) -> Iterator[str]:
    """Two and three ranks with other data each; over BytePS as workers, and as local ranks of one."""
    sizes = ((2, 1), (3, 1), (2, 2), (3, 3)) if setting.backend == "byteps" else ((2, 1), (3, 1))
    return endless(*({"ranks": ranks, "local": local} for ranks, local in sizes))(setting)


def launch(setting: Setting, backend: str, directory: Path, parts: Parts) -> dict[str, list[Seen]]:
    """Runs the case's ranks, or for the backend "local" one process alone; returns what each has seen."""
    from tests.comm.equality_worker import RUNS  # imports mxnet, which the command itself does without

    alone = backend == "local"
    ranks, local = (1, 1) if alone else (int(parts["ranks"]), int(parts["local"]))
    code = WORKER if alone or not setting.damage else DAMAGED.format(body=BODIES[setting.damage])
    directory.mkdir(parents=True, exist_ok=True)
    run_ranks(
        code,
        ranks,
        "none" if alone else setting.launcher,
        timeout=200,
        env={**ONE_THREAD, "BYTEPS_REPRODUCIBLE": "1"},  # servers add more than two workers' in one order
        args=[backend, directory, parts["ranks"], parts["seed"]],
        local_ranks=local,
    ).check()
    return {run: [read(directory / f"{rank}.{run}") for rank in range(ranks)] for run in RUNS}


def attempt(setting: Setting, parts: Parts) -> Tally:
    """50 steps with one and with three micro-batches, and the former again."""
    from tests.training.tiny import same_bits

    case = named(**parts)
    seen = launch(setting, COMMUNICATORS[setting.backend], setting.work / case, parts)
    folder = setting.shared / f"alone-{case}"
    alone = launch(setting, "local", folder, parts)
    failures = [
        f"{run}: {text}"
        for run, ranks in seen.items()
        for text in compared(ranks, alone[run][0], rounded(folder, run), run)
    ]
    for rank, (one, other) in enumerate(zip(seen["accumulate-1"], seen["accumulate-1-again"])):
        if not (same_steps(one, other) and same_bits(one.parameters, other.parameters)):
            failures.append(f"accumulate-1-again: rank {rank} has other bits than the first time")
    wrong = len({failure.partition(":")[0] for failure in failures})
    return Tally(len(seen), len(seen) - wrong, tuple(failures))


def rounded(folder: Path, run: str) -> list[Seen]:
    """One process's runs with gradients that are rounded at random."""
    from tests.comm.equality_worker import ROUNDED

    return [read(folder / f"{seed}.{run}.rounded") for seed in range(ROUNDED)]


def compared(ranks: list[Seen], alone: Seen, roundings: list[Seen], run: str) -> list[str]:
    """Differences between the ranks of a run, and to one process beyond its `roundings`: texts."""
    from tests.comm.equality_worker import MASKED, ROWS, RUNS
    from tests.training.tiny import same_bits

    found = []
    first = ranks[0]
    for number, other in enumerate(ranks[1:], 1):
        if not (
            same_bits(first.parameters, other.parameters) and same_bits(first.gradients, other.gradients)
        ):
            found.append(f"rank {number} holds other bits than rank 0")
    for name in ("applied", "scale"):
        if any(rank.steps[name] != alone.steps[name] for rank in ranks):
            found.append(f"{name} differs from one process")
    rows = len(ranks) * RUNS[run] * ROWS

    def losses(sums: Any) -> np.ndarray:
        sums = np.array(sums)
        return sums[:, 0] / (rows * MASKED) + sums[:, 1] / rows

    # The step that overflows has a huge number as norm, and as loss the difference of two.
    applied = np.array(alone.steps["applied"])
    of_ranks = np.sum([rank.steps["sums"] for rank in ranks], axis=0)
    of_alone, *of_roundings = (losses(each.steps["sums"]) for each in (alone, *roundings))
    norm, wanted_norm, *norms = (np.array(each.steps["grad_norm"]) for each in (first, alone, *roundings))
    for name, values, wanted, others in (
        ("loss", losses(of_ranks), of_alone, of_roundings),
        ("gradient norm", norm, wanted_norm, norms),
    ):
        off, *usual = (np.abs(each - wanted)[applied] / np.abs(wanted)[applied] for each in (values, *others))
        limit = TIMES * np.maximum.accumulate(np.max(usual, axis=0)) + LEAST
        worst = int(np.argmax(off / limit))
        if not off[worst] < limit[worst]:
            found.append(
                f"{name} is off by {off[worst]:.2g} of one process's, rounding allows {limit[worst]:.2g}"
            )
    for name, wanted in alone.parameters.items():
        off, *usual = (
            np.linalg.norm(each.parameters[name].astype(np.float64) - wanted) / np.linalg.norm(wanted)
            for each in (first, *roundings)
        )
        limit = TIMES * max(usual) + LEAST
        if not off < limit and not name.endswith(WITHOUT_EFFECT):
            found.append(f"{name} is off by {off:.2g} of one process's, rounding allows {limit:.2g}")
            break
    return found


CASE = named(ranks=2, local=1, seed=5)
PROGRAM = Program(
    "12",
    "50 steps of LAMB, 2 and 3 ranks, against one process: losses, norms, parameters",
    "within rounding, ranks to the bit",
    weight=0.5,
    seconds=30,
    cases=cases,
    attempt=attempt,
    damages={
        "the last gradient is not averaged": Damage(CASE, "holds other bits"),
        "gradients are summed, not averaged": Damage(CASE, "gradient norm is off"),
        "32 numbers are off by 0.01%": Damage(CASE, "is off by"),
    },
    note=f"within {TIMES:g} times what gradients that are rounded at random, as much as another order of"
    " their sums may, do to one process (four runs a case); key biases, which have no effect, aside; repeated"
    " to the bit, over BytePS with --reproducible",
)
