"""Many generated broken files; what they are and what is asked of the reader: fuzz_worker.py."""

from __future__ import annotations

import json
import sys

import pytest

from tests.processes import run_command

SEED = 2026
# Files of each format, and how many of them must have been refused, or read with instances left out.
FILES = {"npz": (250, 165), "tfrecord": (250, 220), "ofrecord": (250, 220), "random": (300, 300)}


def run_worker(format, first, count, directory):
    command = [sys.executable, "-m", "tests.data.formats.fuzz_worker", format, SEED, first, count, directory]
    return run_command(command, env={"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("format", sorted(FILES))
def test_broken_files_give_sound_instances_or_one_clear_error(tmp_path, format):
    count, enough = FILES[format]
    result = run_worker(format, 0, count, tmp_path).check()
    outcomes = json.loads(result.stdout.splitlines()[-1])
    assert sum(outcomes.values()) == count
    assert outcomes["refused"] + outcomes["skipped"] >= enough, outcomes


def test_broken_hdf5_files_do_no_more_harm_than_ending_their_process(tmp_path):
    """The same for HDF5, whose library may crash or run in circles: then the process ends, and no more.

    The store is built in worker processes for that reason. Such files must stay rare.
    """
    count, first, ended = 400, 0, []
    while first < count:
        result = run_worker("hdf5", first, count - first, tmp_path)
        if result.returncode == 0:
            break
        assert result.returncode < 0, result.stderr[-2000:]  # by a signal, not by an exception
        index = int(result.stdout.splitlines()[-1].split()[1])
        ended.append((index, result.returncode))
        first = index + 1
    assert len(ended) <= 2, ended
