"""Pipelines of real processes against one process: a small cut of `python -m tests.pipelines`; checkpoints
that go from one number of stages to another."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from tests.embedded import built_once
from tests.faults import attack_pipelines
from tests.faults.figure import Setting
from tests.faults.jobs import Job, find, wait_for_checkpoint
from tests.pipelines import COUNTS, LAYERS, LOSSES, compare, launch, reference
from tests.pipelines_worker import CLIP_NORM, DAMAGES, LOOSE, STALE, SWAPPED, UNTIED, Case

TWO = Case("two", COUNTS[2], replicas=2, accumulate=3, steps=3, overflow=2)
FOUR = Case("four", COUNTS[4], replicas=1, accumulate=6, steps=3, overflow=2)
ALONE = reference(TWO)
OWN = replace(TWO, name="own", tied=False, saves=True)  # a decoder of its own
CHAIN = [  # 1 -> 2 -> 4 -> 1, and the same steps without an end between them
    Case("save1", (LAYERS,), replicas=2, accumulate=3, steps=1, saves=True),
    Case("save2", COUNTS[2], replicas=2, accumulate=3, steps=1, start="save1", saves=True),
    Case("save4", COUNTS[4], replicas=1, accumulate=6, steps=1, start="save2", saves=True, tight=True),
    Case("end", (LAYERS,), replicas=2, accumulate=3, steps=1, start="save4"),
    Case("whole", (LAYERS,), replicas=2, accumulate=3, steps=4),
]
CASES = [
    ALONE,
    TWO,
    replace(TWO, name="gpipe", schedule="gpipe"),
    replace(TWO, name="inter", placement="inter_first"),
    FOUR,
    OWN,
    replace(reference(OWN), saves=False),
    *CHAIN,
    *(replace(TWO, name=damage, damage=damage, overflow=0, steps=2) for damage in (STALE, UNTIED)),
    replace(FOUR, name=SWAPPED, damage=SWAPPED, overflow=0, steps=2),
    replace(TWO, name=LOOSE, damage=LOOSE, overflow=0, steps=1, saves=True),
    replace(ALONE, name="alone-damage", overflow=0, steps=2),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return launch(CASES, 4, tmp_path_factory.mktemp("pipelines"))


@pytest.mark.parametrize("name", ["two", "gpipe", "inter", "four", "own"])
def test_pipelines_compute_what_one_process_does(found, name):
    difference = compare(found[name], found["alone-own" if name == "own" else ALONE.name])
    assert difference.loss < LOSSES
    assert difference.norm < 1e-5
    assert found[name].applied == [True, False, True]
    assert (found[name].norm[found[name].applied] > CLIP_NORM).all()


def test_schedules_and_placements_give_the_same_bits(found):
    for name in ("gpipe", "inter"):
        assert compare(found[name], found["two"]).bits


def test_checkpoints_go_from_any_number_of_stages_to_any_other(found):
    at = np.array(found["whole"].sums)
    for steps, name in zip(np.split(np.arange(4), 4), ("save1", "save2", "save4", "end")):
        np.testing.assert_allclose(found[name].sums[:, :2], at[steps][:, :2], rtol=LOSSES)
    whole, end = found["whole"].parameters, found["end"].parameters
    assert all(np.abs(whole[name] - end[name]).max() < 1e-4 for name in whole)


@pytest.mark.parametrize("damage", [STALE, SWAPPED, UNTIED])
def test_damages_are_seen(found, damage):
    sound, damaged = found["alone-damage"].sums[:, :2], found[damage].sums[:, :2]
    assert np.abs(damaged - sound).max() > 100 * LOSSES


def test_a_word_embedding_that_differs_is_not_saved(found):
    assert LOOSE in DAMAGES
    errors = found[LOOSE].errors
    assert len(set(errors)) == 1
    assert "the word embedding" in errors[0]
    assert "differs on ranks 1, 3 from rank 0's" in errors[0]


def test_a_stage_that_stops_is_named_and_the_others_end(tmp_path_factory, tmp_path):
    """One of the attacks of tests/faults/attack_pipelines.py, on two replicas of two stages."""
    case = attack_pipelines.Case(
        3, attack_pipelines.STOPPED, attack_pipelines.STEPS, 0, "1f1b", "intra_first"
    )
    (tmp_path / "embedded").symlink_to(built_once(tmp_path_factory, vocab_size=1024))
    job, directory = Job(Setting("hvd_mpi", 0, tmp_path, tmp_path), 2), tmp_path / "run"
    with attack_pipelines.started(job, case, directory, comm_timeout=30, num_steps="1000,1") as run:
        victim = find(run, "mpirun", case.who)
        wait_for_checkpoint(run, directory)
        os.kill(victim, signal.SIGSTOP)
        result = run.wait()
    assert attack_pipelines.judged(case, result, 0.0, directory, 0) == ""
    assert f"pid {victim}" in result.stderr
