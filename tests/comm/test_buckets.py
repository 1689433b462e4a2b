from __future__ import annotations

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
