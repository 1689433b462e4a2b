"""The rate of a large matrix product on the device of this process, which utilisation is measured against."""

from __future__ import annotations

import time
from typing import Any, Callable, Sequence

import mxnet as mx
import numpy as np

ROWS = 2048  # and columns of both matrices


def matrix_peak(dtype: str, products: Sequence[str], device: mx.Context, seconds: float) -> float:
    """Operations a second of the fastest of several products of two square matrices of ROWS rows.

    No random state is touched: a run that measures takes the same steps as one that does not.

    Args:
        dtype: "float32", "float16", or "bfloat16" or "bfloat16x3", which the fused operators alone multiply.
        products: of "mxnet" and "fused": the operators that take part; at least one.
        seconds: about how long to measure; each takes part twice at least, after one call to warm up.
    """
    few = np.random.default_rng(0).standard_normal((16, ROWS), dtype=np.float32)
    matrix = np.tile(few, (ROWS // 16, 1))  # a new matrix would take longer than its product
    left, right = (mx.nd.array(matrix, ctx=device, dtype=_stored(dtype)) for _ in range(2))
    calls: list[Callable[[], Any]] = []
    if "mxnet" in products:
        calls.append(lambda: mx.nd.FullyConnected(left, right, no_bias=True, num_hidden=ROWS))
    if "fused" in products:
        packed = mx.nd.bert_pack(right, num_weights=1, dtype=dtype)
        calls.append(lambda: mx.nd.bert_dense(left, right, packed, num_weights=1, bias=0, dtype=dtype))
    times: list[float] = []
    for call in calls:
        call().wait_to_read()
    end = time.perf_counter() + seconds
    while len(times) < 2 * len(calls) or time.perf_counter() < end:
        for call in calls:
            begun = time.perf_counter()
            call().wait_to_read()
            times.append(time.perf_counter() - begun)
    return 2 * ROWS**3 / min(times)


def _stored(dtype: str) -> str:
    return "float16" if dtype == "float16" else "float32"  # bfloat16 is how they are multiplied
