"""Copies that bert_lamb packs as it updates their weights: the bits of bert_pack of the new weights."""

from __future__ import annotations

from typing import Sequence

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators.test_lamb import arrays_of, on_device, reference, update

# Weights of more than a chunk, parts of a chunk, three side by side, and what ends within a block.
SHAPES = [(7,), (256, 768), (96, 64), (32, 64), (33, 64), (40, 3072), (5, 17), (3, 17), (768,)]
GROUPS = [[1], [2, 3, 4], [5], [6, 7]]  # of the last the first part does not end with a block


def pack(weights: Sequence[mx.nd.NDArray], dtype: str) -> mx.nd.NDArray:
    attributes = {"num_weights": len(weights), "dtype": dtype}
    # Bytes that fill up the last line are not written.
    zeros = mx.nd.zeros_like(mx.nd.bert_pack(*weights, **attributes))
    return mx.nd.bert_pack(*weights, out=zeros, **attributes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bfloat16x3"])
@pytest.mark.parametrize("state", ["float32", "bfloat16"])
def test_copies_are_those_of_the_new_weights(state, dtype):
    values = arrays_of(SHAPES)
    if state == "bfloat16":
        values[2:] = [[np.zeros((*shape, 2), np.uint8) for shape in SHAPES] for _ in range(2)]
    kinds = [[mx.nd.array(array, dtype=array.dtype) for array in kind] for kind in values]
    groups = [[kinds[0][index] for index in group] for group in GROUPS]
    copies = [pack(group, dtype) for group in groups]
    before = [copy.asnumpy() for copy in copies]
    names = ",".join("+".join(map(str, group)) for group in GROUPS)
    options = {"adapted": "110100101", "state": state, "seed": 1}
    for t in (1, 2):
        update([*kinds, copies], t=t, packed=names, packed_dtype=dtype, **options)
        for group, copy in zip(groups, copies):
            if dtype != "float32" or len(group) > 1:  # else nothing is packed
                np.testing.assert_array_equal(copy.asnumpy(), pack(group, dtype).asnumpy())
    if dtype != "float32":
        assert all((old != copy.asnumpy()).any() for old, copy in zip(before, copies))


def test_the_update_is_the_same():
    values = arrays_of(SHAPES)
    kinds = on_device(values)
    copies = [pack([kinds[0][index] for index in group], "bfloat16") for group in GROUPS]
    names = ",".join("+".join(map(str, group)) for group in GROUPS)
    update([*kinds, copies], packed=names, packed_dtype="bfloat16")
    expected = reference(values, "1" * len(SHAPES), "1" * len(SHAPES))
    for found, wanted in zip([*kinds[0], *kinds[2], *kinds[3]], [*expected[0], *expected[1], *expected[2]]):
        np.testing.assert_allclose(found.asnumpy(), wanted, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("packed", ["9", "0", "1,1", "2+5", "x", ","])
def test_groups_that_cannot_be(packed):
    kinds = on_device(arrays_of(SHAPES))
    with pytest.raises(mx.MXNetError):
        copies = [mx.nd.zeros((8,), dtype="uint8") for _ in packed.split(",")]
        update([*kinds, copies], packed=packed, packed_dtype="bfloat16")
        mx.nd.waitall()
