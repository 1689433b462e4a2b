"""Thousands of damaged files of weights; what they are and what readers do with them: fuzz_worker.py."""

from __future__ import annotations

import json
import sys

import pytest

from tests.processes import run_command

SEED = 2026
# Rounds, and how many files at least are rejected: damage to elements cannot be noticed in every format.
FORMATS = {"safetensors": (500, 1300), "bundle": (500, 1600), "pickled": (500, 1200), "params": (1000, 800)}


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_damaged_files_are_read_or_end_in_one_line(tmp_path, format):
    rounds, enough = FORMATS[format]
    words = [sys.executable, "-m", "tests.bert.weights.fuzz_worker", format, SEED, rounds, tmp_path]
    result = run_command(words, env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}).check()
    outcomes = json.loads(result.stdout.splitlines()[-1])
    assert outcomes["rejected"] >= enough and outcomes["read"] > 0, outcomes
