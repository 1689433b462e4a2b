from __future__ import annotations

import random

import pytest

from comm.buckets import Bucket, make_buckets


def test_buckets_are_filled_from_the_end():
    """Each has one dtype; what fills one by itself is alone."""
    sizes = (40, 8, 64, 20, 30, 34, 10, 20)
    arrays = [("float16" if index == 3 else "float32", size) for index, size in enumerate(sizes)]
    assert make_buckets(arrays, 64) == [
        Bucket((5, 6, 7), "float32", 64),
        Bucket((4,), "float32", 30),
        Bucket((3,), "float16", 20),
        Bucket((2,), "float32", 64),
        Bucket((0, 1), "float32", 48),
    ]
    assert make_buckets([], 64) == []


@pytest.mark.parametrize("seed", range(5))
def test_every_array_is_in_one_bucket_and_none_overflows(seed):
    draw = random.Random(seed)
    arrays = [(draw.choice(["float16", "float32"]), draw.randint(1, 200)) for _ in range(100)]
    buckets = make_buckets(arrays, 128)
    assert [index for bucket in reversed(buckets) for index in bucket.indices] == list(range(100))
    for bucket in buckets:
        assert bucket.nbytes == sum(arrays[index][1] for index in bucket.indices)
        assert {arrays[index][0] for index in bucket.indices} == {bucket.dtype}
        assert len(bucket.indices) == 1 or bucket.nbytes <= 128
