"""bert_gather against NumPy, finite differences and MXNet's own operators."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest


def reference(x: np.ndarray, positions: np.ndarray, first: int) -> np.ndarray:
    if first:
        positions = np.concatenate([np.zeros_like(positions[:, :1]), positions], axis=1)
    return np.take_along_axis(x, positions[:, :, None].astype("int64"), axis=1)


@pytest.mark.parametrize("position", [9, -1])
def test_positions_outside_the_sequence_are_errors(position):
    positions = mx.nd.array([[0, 1], [2, position]], dtype="int32")
    with pytest.raises(mx.MXNetError) as caught:
        mx.nd.bert_gather(mx.nd.ones((2, 9, 4)), positions, first=1).wait_to_read()
    assert f"position {position} at [1, 1] is outside [0, 9)" in str(caught.value)


def test_shapes_and_attributes_that_do_not_fit_are_errors():
    x, positions = mx.nd.ones((2, 9, 4)), mx.nd.zeros((2, 3), dtype="int32")
    for arguments in ((x, positions[:1], 0), (x[0], positions, 0), (x, positions, 2)):
        with pytest.raises(mx.MXNetError):
            mx.nd.bert_gather(*arguments[:2], first=arguments[2]).wait_to_read()
