"""Peak memory of reading and writing, in processes of their own: it must not grow with the file."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from data.formats.write import FORMATS
from tests.processes import LIMIT, ROOT

# Writes N times 512 instances of 512 tokens (all the same 512, so that making them takes no time).
WRITE = """
import resource, sys
import numpy as np
from data.formats.write import write_instances
from data.formats.records import Gathered, PretrainingArrays
path, format, blocks = sys.argv[1], sys.argv[2], int(sys.argv[3])
generator = np.random.default_rng(0)
ids = generator.integers(1, 30000, (512, 512)).astype(np.uint16)
positions = np.tile(np.arange(1, 77, dtype=np.uint16), (512, 1))
weights, labels = np.ones((512, 76), np.float32), np.zeros(512, np.uint8)
segments, lengths = np.ones((512, 512), np.uint8), np.full(512, 512, np.int32)
block = PretrainingArrays(ids, segments, positions, ids[:, :76], weights, labels, lengths)
gathered = [
    Gathered((512 * blocks, *one.shape[1:]), lambda first, stop, one=one: one[np.arange(first, stop) % 512])
    for one in block
]
assert write_instances(path, format, PretrainingArrays(*gathered), compress=False) == 512 * blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
"""
READ = """
import resource, sys
from data.formats.read import read_instances
path, blocks = sys.argv[1], int(sys.argv[2])
assert sum(len(block.valid_lengths) for block in read_instances(path, 30000)) == 512 * blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
"""


def peak(program, *arguments):
    """Bytes resident at most."""
    result = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
    )
    assert result.returncode == 0, result.stderr[-2000:]
    return int(result.stdout)


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_is_never_held_whole(tmp_path, format):
    small, large = str(tmp_path / "small"), str(tmp_path / "large")
    blocks = 60 if format in ("npz", "hdf5") else 24
    writing = [peak(WRITE, small, format, 6), peak(WRITE, large, format, blocks)]
    more = os.path.getsize(large) - os.path.getsize(small)
    assert more > 25 << 20
    reading = [peak(READ, small, 6), peak(READ, large, blocks)]
    allowed = 8 << 20  # what the allocator happens to keep
    assert reading[1] - reading[0] < allowed, (more, reading)
    assert writing[1] - writing[0] < allowed, (more, writing)
