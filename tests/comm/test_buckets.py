from __future__ import annotations

import random

import pytest

from comm.byteps.communicator import Bucket, make_buckets


def test_buckets_are_filled_from_the_end():
    arrays = [("float32", size) for size in (40, 30, 30, 10, 20)]
    assert make_buckets(arrays, 64) == [
        Bucket((2, 3, 4), "float32", 60),
        Bucket((1,), "float32", 30),
        Bucket((0,), "float32", 40),
    ]


def test_an_array_that_fills_a_bucket_is_alone():
    arrays = [("float32", size) for size in (8, 64, 100, 8)]
    assert [bucket.indices for bucket in make_buckets(arrays, 64)] == [(3,), (2,), (1,), (0,)]


def test_a_bucket_has_one_dtype():
    arrays = [("float32", 8), ("float16", 8), ("float16", 8), ("float32", 8)]
    assert [(bucket.indices, bucket.dtype) for bucket in make_buckets(arrays, 64)] == [
        ((3,), "float32"),
        ((1, 2), "float16"),
        ((0,), "float32"),
    ]


def test_no_arrays_no_buckets():
    assert make_buckets([], 64) == []


@pytest.mark.parametrize("seed", range(20))
def test_every_array_is_in_one_bucket_and_none_overflows(seed):
    draw = random.Random(seed)
    arrays = [(draw.choice(["float16", "float32"]), draw.randint(1, 200)) for _ in range(100)]
    buckets = make_buckets(arrays, 128)
    assert [index for bucket in reversed(buckets) for index in bucket.indices] == list(range(100))
    for bucket in buckets:
        assert bucket.nbytes == sum(arrays[index][1] for index in bucket.indices)
        assert {arrays[index][0] for index in bucket.indices} == {bucket.dtype}
        assert len(bucket.indices) == 1 or bucket.nbytes <= 128
