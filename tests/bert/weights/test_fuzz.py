"""Thousands of damaged files of weights; what they are and what readers do with them: fuzz_worker.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.processes import LIMIT, ROOT

SEED = 2026
# Rounds, and how many files at least are rejected: damage to elements cannot be noticed in every format.
FORMATS = {"safetensors": (500, 1300), "bundle": (500, 1600), "pickled": (500, 1200), "params": (1000, 800)}


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_damaged_files_are_read_or_end_in_one_line(tmp_path, format):
    rounds, enough = FORMATS[format]
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.bert.weights.fuzz_worker",
            format,
            str(SEED),
            str(rounds),
            str(tmp_path),
        ],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    outcomes = json.loads(result.stdout.splitlines()[-1])
    assert outcomes["rejected"] >= enough and outcomes["read"] > 0, outcomes
