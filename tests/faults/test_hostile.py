"""Hostile inputs of each kind, in short; figure 5 of `python -m tests.faults` is the long form."""

from __future__ import annotations

import json
import sys

import pytest

from tests.faults.hostile import KINDS
from tests.processes import ROOT, run_command

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_hostile_is_read_or_rejected_in_a_line(tmp_path, kind):
    """Among the seed's inputs are those that were tracebacks or waited for ever."""
    words = [sys.executable, "-m", "tests.faults.hostile", kind, "1", "150", str(tmp_path)]
    result = run_command(words, env=ONE_THREAD, cwd=ROOT).check()
    assert sum(json.loads(result.stdout.splitlines()[-1]).values()) == 150
