"""Checkpoints through kills and failing disks, in short; tests/faults/kill_saving.py is the long form.
Each attack finds a program that saves carelessly."""

from __future__ import annotations

import pytest

from tests.faults.kill_saving import run


def test_of_the_checkpoints_begun_at_most_the_last_is_missing_after_a_kill(tmp_path):
    outcome = run("kills", tmp_path, "--number", "25", "--seed", "1")
    assert outcome.tried == outcome.held == 25, outcome.failures
    assert outcome.caught > 5, "too few kills met a file that was being written"


def test_each_write_that_fails_is_an_error_and_leaves_the_last_checkpoint(tmp_path):
    outcome = run("disks", tmp_path)
    assert outcome.tried == outcome.held >= 10, outcome.failures


@pytest.mark.parametrize(("attack", "words"), [("kills", ["--number", "8"]), ("disks", [])])
def test_saving_carelessly_is_found(tmp_path, attack, words):
    assert len(run(attack, tmp_path, "--damage", "careless", *words).failures) >= 2
