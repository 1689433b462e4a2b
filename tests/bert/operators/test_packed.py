"""Operators on sequences end to end against float64 NumPy, finite differences, and their padded selves."""

from __future__ import annotations

from functools import partial

import mxnet as mx
import numpy as np
import pytest

from bert.fused import places_of
from tests.bert.operators import test_attention, test_embed
from tests.bert.operators.checking import EPS, TRAIN, assert_gradients_match, kept_scale, run

# Lengths, padded length, heads, head size: lengths of 1 and full ones; one head of many and of few rows,
# which threads share; a sequence alone.
CASES = [
    ([1, 5, 7, 3], 7, 2, 5),
    ([1], 4, 1, 1),
    ([70, 1, 33, 64, 65], 70, 2, 8),
    ([130, 20], 130, 1, 16),
    ([1, 1, 1], 1, 3, 4),
    ([40, 128, 17], 128, 2, 64),
    ([300, 2], 300, 1, 33),
]
MULTIPLES = [1, 16]  # with 16 there are rows of no sequence


def packed(padded: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Rows (T, ...) of (B, L, ...); NaN in rows of no sequence, which nobody may read."""
    rows = padded[places[:, 0], places[:, 1]]
    rows[places[:, 0] < 0] = np.nan if rows.dtype.kind == "f" else 0
    return rows


def padded_again(rows: np.ndarray, places: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """(B, L, ...) of rows, 0 behind the ends."""
    padded = np.zeros((*shape, *rows.shape[1:]), rows.dtype)
    inside = places[:, 0] >= 0
    padded[places[inside, 0], places[inside, 1]] = rows[inside]
    return padded


def inputs_of(case: tuple, multiple: int, rng: np.random.Generator) -> tuple:
    """Lengths, places, and qkv and the context's gradient with padding; 0 where it is padding."""
    lengths, longest, heads, size = np.array(case[0], np.int32), *case[1:]
    places = places_of(lengths, longest, multiple)
    inside = (np.arange(longest) < lengths[:, None])[..., None]
    qkv, gradient = (
        (rng.standard_normal((len(lengths), longest, columns)) * inside).astype(np.float32)
        for columns in (3 * heads * size, heads * size)
    )
    return lengths, places, qkv, gradient


def attend(rows: np.ndarray, places: np.ndarray, gradient: np.ndarray, heads: int, **attributes) -> tuple:
    """Context and gradient of bert_attention on rows."""
    operator = partial(test_attention.attend, heads=heads, **attributes)
    context, (found,) = run(operator, [rows, places], np.nan_to_num(gradient), [0])
    return context, found


@pytest.mark.parametrize("multiple", MULTIPLES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_stays_within_sequences(case, multiple):
    rng = np.random.default_rng(1)
    lengths, places, qkv, gradient = inputs_of(case, multiple, rng)
    rows, heads = packed(qkv, places), case[2]
    context, found = attend(rows, places, packed(gradient, places), heads)
    expected = test_attention.reference(qkv.astype(np.float64), lengths, heads)
    inside = places[:, 0] >= 0
    np.testing.assert_allclose(context[inside], packed(expected, places)[inside], rtol=0, atol=5e-6)
    assert (context[~inside] == 0).all() and (found[~inside] == 0).all()

    def function(q: np.ndarray) -> np.ndarray:
        return test_attention.reference(q, lengths, heads)

    padded_gradient = padded_again(found, places, qkv.shape[:2])
    assert_gradients_match(function, [qkv], [padded_gradient], [0], gradient, rng)


@pytest.mark.parametrize("multiple", MULTIPLES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_in_bfloat16(case, multiple):
    rng = np.random.default_rng(2)
    lengths, places, qkv, gradient = inputs_of(case, multiple, rng)
    context, found = attend(packed(qkv, places), places, packed(gradient, places), case[2], dtype="bfloat16")
    expected, backward = test_attention.rounded_reference(qkv, lengths, case[2])
    shape = qkv.shape[:2]
    inside = (np.arange(shape[1]) < lengths[:, None])[..., None]
    test_attention.assert_close_but_for_rounding(padded_again(context, places, shape), expected * inside)
    gradients = padded_again(found, places, shape), backward(gradient) * inside
    for part, wanted in zip(*(np.split(each, 3, axis=2) for each in gradients)):
        test_attention.assert_close_but_for_rounding(part, wanted)


def test_dropout_of_probabilities_is_the_same_backward_and_independent_between_rows():
    rng = np.random.default_rng(3)
    lengths, longest, heads, rate = np.array([90, 41, 90], np.int32), 90, 3, 0.2
    places = places_of(lengths, longest, 16)
    qkv = test_attention.unit_values(len(lengths), longest, heads, rng)
    inside = (np.arange(longest) < lengths[:, None])[..., None]
    gradient = (rng.standard_normal((3, longest, heads * longest)) * inside).astype(np.float32)
    mx.random.seed(1)
    context, found = attend(packed(qkv, places), places, packed(gradient, places), heads, dropout=rate)
    seen = padded_again(context, places, qkv.shape[:2])
    factors = test_attention.factors_of(qkv, lengths, heads, seen)
    pairs = np.broadcast_to((inside & inside.swapaxes(1, 2))[:, None], factors.shape)
    kept = factors > 0.5
    test_attention.assert_dropped_independently(kept, rate, pairs)

    def function(q: np.ndarray) -> np.ndarray:
        return test_attention.reference(q, lengths, heads, kept * kept_scale(rate)) * inside

    assert_gradients_match(function, [qkv], [padded_again(found, places, qkv.shape[:2])], [0], gradient, rng)


def embed(*arrays: mx.nd.NDArray, dropout: float = 0.0) -> mx.nd.NDArray:
    *tables, places = arrays
    mode = mx.nd.array([TRAIN])
    return mx.nd.bert_embed(*tables, mode, places, dropout=dropout, eps=EPS, packed=1)[0]


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize("multiple", MULTIPLES)
def test_embedding_is_that_of_the_tokens_alone(multiple, rate):
    """With the padded operator's dropout; what it computes there is tested against NumPy."""
    rng = np.random.default_rng(4)
    lengths, sizes = np.array([3, 9, 1, 6], np.int32), (4, 9, 20, 30, 12, 2)
    places = places_of(lengths, sizes[1], multiple)
    arrays = test_embed.random_inputs(sizes, rng)
    inside = (np.arange(sizes[1]) < lengths[:, None])[..., None]
    gradient = (rng.standard_normal((*sizes[:2], sizes[2])) * inside).astype("float32")
    mx.random.seed(5)
    padded, expected = run(
        partial(test_embed.fused, dropout=rate), arrays, gradient, test_embed.DIFFERENTIABLE
    )
    mx.random.seed(5)
    rows, found = run(
        partial(embed, dropout=rate),
        [*arrays, places],
        np.nan_to_num(packed(gradient, places)),
        test_embed.DIFFERENTIABLE,
    )
    np.testing.assert_array_equal(padded_again(rows, places, sizes[:2]), padded * inside)
    assert (rows[places[:, 0] < 0] == 0).all()
    for own, other in zip(found, expected):
        np.testing.assert_allclose(own, other, rtol=0, atol=2e-6)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("multiple", MULTIPLES)
def test_positions_are_those_within_a_sequence(multiple, first):
    rng = np.random.default_rng(6)
    lengths, units = np.array([4, 1, 9], np.int32), 17
    places = places_of(lengths, 9, multiple)
    x = rng.standard_normal((3, 9, units)).astype("float32")
    positions = (rng.integers(0, 9, (3, 5)) % lengths[:, None]).astype("int32")
    gradient = rng.standard_normal((3, first + 5, units)).astype("float32")
    expected, (padded_gradient,) = run(partial(mx.nd.bert_gather, first=first), [x, positions], gradient, [0])
    output, (found,) = run(
        lambda x, p, where: mx.nd.bert_gather(x, p, where, first=first, packed=1),
        [packed(x, places), positions, places],
        gradient,
        [0],
    )
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(padded_again(found, places, (3, 9)), padded_gradient)
    assert (found[places[:, 0] < 0] == 0).all()


@pytest.mark.parametrize("multiple", MULTIPLES)
def test_unpacking(multiple):
    rng = np.random.default_rng(7)
    lengths, units = np.array([4, 1, 9, 2], np.int32), 5
    places = places_of(lengths, 11, multiple)
    rows = packed(rng.standard_normal((4, 11, units)).astype("float32"), places)
    like = mx.nd.zeros((4, 11), dtype="int32")
    output_gradient = rng.standard_normal((4, 11, units)).astype("float32")
    output, (found,) = run(
        lambda x, where: mx.nd.bert_unpack(x, where, like), [rows, places], output_gradient, [0]
    )
    np.testing.assert_array_equal(output, padded_again(rows, places, (4, 11)))
    inside = places[:, 0] >= 0
    np.testing.assert_array_equal(found[inside], packed(output_gradient, places)[inside])
    assert (found[~inside] == 0).all()
    arrays = mx.nd.array(rows), mx.nd.array(places, dtype="int32")
    assert mx.nd.bert_unpack(*arrays, like)[1].asnumpy().tolist() == lengths.tolist()


@pytest.mark.parametrize(
    "places, row",
    [
        ([[1, 0], [1, 1]], 0),  # does not begin with sequence 0
        ([[0, 1], [0, 2]], 0),  # nor with its first token
        ([[0, 0], [0, 2]], 1),  # a token is left out
        ([[0, 0], [2, 0]], 1),  # a sequence
        ([[0, 0], [-1, -1], [0, 1]], 2),  # goes on behind the rows of none
        ([[0, 0], [-1, -1], [1, 0]], 2),
        ([[0, 0], [-1, 0]], 1),
    ],
)
def test_places_that_do_not_follow_each_other_are_errors(places, row):
    where = mx.nd.array(places, dtype="int32")
    with pytest.raises(mx.MXNetError, match=rf"of row {row} does not follow the one before"):
        test_attention.attend(mx.nd.zeros((len(places), 6)), where, 1)[0].wait_to_read()


def test_places_that_do_not_fit_the_other_inputs_are_errors():
    places = mx.nd.array(places_of(np.array([2, 3]), 3), dtype="int32")
    rows = mx.nd.zeros((5, 4))

    def gather(positions: list) -> mx.nd.NDArray:
        return mx.nd.bert_gather(rows, mx.nd.array(positions, dtype="int32"), places, first=1, packed=1)

    def unpack(*shape: int) -> mx.nd.NDArray:
        return mx.nd.bert_unpack(rows, places, mx.nd.zeros(shape, dtype="int32"))[0]

    tables = [mx.nd.ones(shape) for shape in ((4, 4), (2, 4), (3, 4), (4,), (4,))]

    def of_ids(*shape: int) -> mx.nd.NDArray:
        return embed(*[mx.nd.zeros(shape, dtype="int32")] * 2, *tables, places)

    for call, message in (
        (lambda: gather([[1], [3]]), r"position 3 at \[1, 0\] is outside \[0, 3\)"),
        (lambda: gather([[2], [0]]), r"position 2 at \[0, 0\] is outside \[0, 2\)"),
        (lambda: gather([[1]]), "positions are for 1 sequences, places for 2"),
        (lambda: unpack(1, 3), "do not fit into 1 of length 3"),
        (lambda: unpack(2, 2), "do not fit into 2 of length 2"),
        (lambda: of_ids(2, 2), "token 2 of sequence 1, input_ids have 2 sequences of 2"),
        (lambda: of_ids(1, 3), "input_ids have 1 sequences of 3"),
    ):
        with pytest.raises(mx.MXNetError, match=message):
            call().wait_to_read()


@pytest.mark.parametrize("lengths", [[0, 3], [2, 5], [-1, 2]])
def test_lengths_that_are_none_are_errors(lengths):
    with pytest.raises(ValueError, match="are outside"):
        places_of(np.array(lengths), 4)
