"""A run on a disk that is full at each of its first writes; tests/faults/fill_disk.py is the long form."""

from __future__ import annotations

import os

import pytest

from tests.faults.fill_disk import WRITERS, attack
from tests.training.small_runs import handlers

__all__ = ["handlers"]  # a fixture for all tests of this module


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_run_ends_with_one_line_and_goes_on_when_there_is_room(tmp_path):
    """Of the pages that are free there are none for run.yaml, for metrics, for events, for a checkpoint."""
    outcome = attack(tmp_path, [WRITERS[0]._replace(pages=(2, 3, 4, 24, 25))])
    assert outcome.tried == outcome.held == 8, outcome.failures
