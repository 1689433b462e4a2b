"""Checkpoints through kills and failing disks, in short; tests/faults/kill_saving.py is the long form.
Each attack finds a program that saves carelessly."""

from __future__ import annotations

from tests.faults.kill_saving import apart, disks, kills


def test_of_the_checkpoints_begun_at_most_the_last_is_missing_after_a_kill(tmp_path):
    outcome, caught = apart(kills, 25, 1, tmp_path)
    assert outcome.tried == outcome.held == 25, outcome.failures
    assert caught > 5, "too few kills met a file that was being written"


def test_each_write_that_fails_is_an_error_and_leaves_the_last_checkpoint(tmp_path):
    outcome = apart(disks, tmp_path)
    assert outcome.tried == outcome.held >= 10, outcome.failures


def test_saving_carelessly_is_found(tmp_path):
    (tmp_path / "kills").mkdir()
    outcome, _ = apart(kills, 40, 0, tmp_path / "kills", "careless")
    assert any("look complete and are not" in each for each in outcome.failures), outcome.failures
    outcome = apart(disks, tmp_path, "careless")
    assert any("what is left is" in each for each in outcome.failures), outcome.failures
