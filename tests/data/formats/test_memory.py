"""Peak memory of reading, writing and converting, in processes of their own: it must not grow with the
file."""

from __future__ import annotations

import os
import sys

import pytest

from data.formats.files import FORMATS
from tests.processes import run_command

# Writes N times 512 instances of 512 tokens (all the same 512, so that making them takes no time).
WRITE = """
import sys
import numpy as np
from data.formats.files import write_instances
from data.formats.records import Gathered, PretrainingArrays
format = sys.argv[1]
generator = np.random.default_rng(0)
ids = generator.integers(1, 30000, (512, 512)).astype(np.uint16)
positions = np.tile(np.arange(1, 77, dtype=np.uint16), (512, 1))
weights, labels = np.ones((512, 76), np.float32), np.zeros(512, np.uint8)
segments, lengths = np.ones((512, 512), np.uint8), np.full(512, 512, np.int32)
block = PretrainingArrays(ids, segments, positions, ids[:, :76], weights, labels, lengths)

def take(path, blocks):
    rows = 512 * blocks
    whole = PretrainingArrays(*(
        Gathered((rows, *one.shape[1:]), lambda first, stop, one=one: one[np.arange(first, stop) % 512])
        for one in block
    ))
    assert write_instances(path, format, whole, compress=False) == rows
"""
READ = """
import sys
from data.formats.files import read_instances

def take(path, blocks):
    assert sum(len(block.valid_lengths) for block in read_instances(path, 30000)) == 512 * blocks
"""
CONVERT = """
import sys
from tests.data.instance_files import build_instances

def take(path, blocks):
    build_instances([path], 30000, path + ".store")
"""
GROWTH = """
from resource import RUSAGE_CHILDREN, getrusage
from base.memory import peak_of

def peak():
    return max(peak_of(), getrusage(RUSAGE_CHILDREN).ru_maxrss << 10)

take(sys.argv[2], 6)
before = peak()
take(sys.argv[3], int(sys.argv[4]))
print(peak() - before)
"""


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_is_never_held_whole(tmp_path, format):
    """Bytes that writing, reading or converting a large file takes beyond those of a small one."""
    small, large = tmp_path / "small", tmp_path / "large"
    arguments = [format, small, large, 60 if format in ("npz", "hdf5") else 24]
    one_thread = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    for program in (WRITE, READ, *([CONVERT] if format == "npz" else [])):
        command = [sys.executable, "-c", program + GROWTH, *arguments]
        growth = int(run_command(command, env=one_thread).check().stdout)
        assert growth < 12 << 20, program  # what the allocator happens to keep
    assert os.path.getsize(large) - os.path.getsize(small) > 25 << 20
