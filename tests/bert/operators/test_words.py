"""bert_words with bert_embed (looked_up=1) and bert_decode_loss (deferred=1), bit for bit against the two
operators that use the word table themselves; tests/bert/test_one_word_gradient.py has them in graphs."""

from __future__ import annotations

from functools import partial

import mxnet as mx
import numpy as np
import pytest

from bert.fused import places_of
from tests.bert.operators.checking import EPS, TRAIN, fails, run, same_in_variants
from tests.bert.operators.test_packed import packed as rows_of

# batch, length, units, vocabulary, decoder's rows, share of these that count; 9000 words are several chunks
SIZES = [
    (1, 1, 1, 1, 1, 1.0),
    (2, 5, 7, 11, 3, 1.0),
    (3, 33, 65, 300, 17, 0.5),
    (2, 40, 33, 5003, 40, 0.6),
    (4, 30, 32, 9000, 50, 1.0),
    (2, 9, 16, 50, 20, 0.0),
]
DTYPES = ["float32", "bfloat16", "bfloat16x3"]


def random_inputs(sizes: tuple, seed: int = 0) -> dict[str, np.ndarray]:
    """Many tokens occur repeatedly, and some are the last words of the table."""
    batch, length, units, vocabulary, rows, share = sizes
    rng = np.random.default_rng(seed)
    ids = np.minimum(rng.geometric(0.1, (batch, length)) - 1, vocabulary - 1).astype("int32")
    ids[0, 0] = ids[-1, -1] = vocabulary - 1
    normal = partial(rng.standard_normal, dtype="float32")
    weights = ((rng.random(rows) < share) * rng.uniform(0.5, 2, rows)).astype("float32")
    return {
        "ids": ids,
        "word": normal((vocabulary, units)) * np.float32(2 / units**0.5),
        "hidden": normal((rows, units)),
        "bias": normal(vocabulary),
        "labels": rng.integers(0, vocabulary, rows).astype("int32"),
        "weights": weights,
        "of_rows": normal((batch, length, units)),  # gradients
        "of_losses": normal(rows),
    }


def arrays_of(inputs: dict[str, np.ndarray]) -> dict[str, mx.nd.NDArray]:
    return {name: mx.nd.array(array, dtype=array.dtype) for name, array in inputs.items()}


def one_gradient(
    inputs: dict[str, np.ndarray], dtype: str, lengths: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Rows, losses and the gradients of the word table, hidden states and bias where both ends share it."""
    given = arrays_of(inputs)
    word = given["word"]
    word.attach_grad()
    word.grad[:] = np.nan  # every number of it must be written
    given["hidden"].attach_grad()
    given["bias"].attach_grad()
    places, of_rows = [], given["of_rows"]
    if lengths is not None:
        where = places_of(lengths, inputs["ids"].shape[1], 16)
        places = [mx.nd.array(where, dtype="int32")]
        of_rows = mx.nd.array(rows_of(inputs["of_rows"], where))
    with mx.autograd.record():
        rows, decoder = mx.nd.bert_words(
            word, given["ids"], given["labels"], *places, packed=len(places), dtype=dtype
        )
        losses = mx.nd.bert_decode_loss(
            given["hidden"], word.detach(), given["bias"], given["labels"], given["weights"], decoder,
            deferred=1, dtype=dtype,
        )[0]  # fmt: skip
    mx.autograd.backward([rows, losses], [of_rows, given["of_losses"]])
    return {
        "rows": rows.asnumpy(),
        "losses": losses.asnumpy(),
        **{name: given[name].grad.asnumpy() for name in ("word", "hidden", "bias")},
    }


def sums_of_rows(ids: np.ndarray, of_rows: np.ndarray, vocabulary: int) -> np.ndarray:
    """Of each word its rows' sum in float32, one after the other: any number of threads has these bits."""
    sums = np.zeros((vocabulary, of_rows.shape[-1]), np.float32)
    for word, row in zip(ids.reshape(-1), of_rows.reshape(-1, of_rows.shape[-1])):
        sums[word] += row
    return sums


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_bits_of_two_gradients_added(sizes, dtype):
    inputs = random_inputs(sizes)
    found = one_gradient(inputs, dtype)

    decoder = [inputs[name] for name in ("hidden", "word", "bias", "labels", "weights")]
    losses, (hidden, word, bias) = run(
        lambda *given: mx.nd.bert_decode_loss(*given, dtype=dtype), decoder, inputs["of_losses"], range(3)
    )
    np.testing.assert_array_equal(found["losses"], losses)
    np.testing.assert_array_equal(found["hidden"], hidden)
    np.testing.assert_array_equal(found["bias"], bias)
    np.testing.assert_array_equal(found["rows"], inputs["word"][inputs["ids"]])
    expected = word + sums_of_rows(inputs["ids"], inputs["of_rows"], sizes[3])
    np.testing.assert_array_equal(found["word"], expected)
    assert np.abs(expected).max() > 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_with_padding_left_out(dtype):
    """Padding's tokens have no rows and no part in the gradient."""
    inputs = random_inputs((4, 30, 24, 3000, 20, 0.7))
    lengths = np.array([30, 1, 17, 8])
    kept = np.arange(30) < lengths[:, None]
    found = one_gradient(inputs, dtype, lengths)
    where = places_of(lengths, 30, 16)
    belongs = where[:, 0] >= 0
    np.testing.assert_array_equal(found["rows"][belongs], inputs["word"][inputs["ids"][kept]])
    assert not belongs.all() and (found["rows"][~belongs] == 0).all()
    none = {**inputs, "of_rows": np.zeros_like(inputs["of_rows"])}
    decoder = one_gradient(none, dtype)["word"]
    sums = sums_of_rows(inputs["ids"][kept], inputs["of_rows"][kept], 3000)
    np.testing.assert_array_equal(found["word"], decoder + sums)


@pytest.mark.parametrize("packed", [False, True])
def test_rows_alone_have_a_gradient_too(packed):
    """Nothing is made of `decoder`: MXNet then gives it a gradient of zeros."""
    inputs = random_inputs((2, 9, 5, 70_001, 20, 1))
    given = arrays_of(inputs)
    word = given["word"]
    word.attach_grad()
    word.grad[:] = np.nan
    lengths = np.array([9, 4])
    where = places_of(lengths, 9, 16)
    kept = np.arange(9) < (lengths[:, None] if packed else 9) * np.ones((2, 1))
    places = [mx.nd.array(where, dtype="int32")] if packed else []
    with mx.autograd.record():
        rows = mx.nd.bert_words(
            word, given["ids"], given["labels"], *places, packed=len(places), dtype="bfloat16"
        )[0]
    rows.backward(mx.nd.array(rows_of(inputs["of_rows"], where)) if packed else given["of_rows"])
    expected = sums_of_rows(inputs["ids"][kept], inputs["of_rows"][kept], 70_001)
    np.testing.assert_array_equal(word.grad.asnumpy(), expected)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_embedding_of_rows_is_that_of_the_table(dropout, packed):
    rng = np.random.default_rng(3)
    batch, length, units, vocabulary = 3, 19, 40, 60
    ids = rng.integers(0, vocabulary, (batch, length)).astype("int32")
    segments = rng.integers(0, 2, (batch, length)).astype("int32")
    shapes = ((vocabulary, units), (2, units), (25, units), (units,), (units,))
    floats = [rng.standard_normal(shape).astype("float32") for shape in shapes]
    where = places_of(np.array([19, 2, 11]), length, 16)
    places = [mx.nd.array(where, dtype="int32")] if packed else []
    belongs = where[:, 0] >= 0
    shape = (len(where), units) if packed else (batch, length, units)
    dy = rng.standard_normal(shape).astype("float32")

    def embed(*given: mx.nd.NDArray, looked_up: int) -> mx.nd.NDArray:
        mx.random.seed(4)
        return mx.nd.bert_embed(
            *given, mx.nd.array([TRAIN]), *places,
            packed=len(places), dropout=dropout, eps=EPS, looked_up=looked_up,
        )[0]  # fmt: skip

    looked_up = ids[where[:, 0], where[:, 1]] if packed else ids
    rows = floats[0][looked_up]
    if packed:
        rows[~belongs] = 0
    others = range(3, 7)
    y, (of_table, *expected) = run(partial(embed, looked_up=0), [ids, segments, *floats], dy, [2, *others])
    found_y, (of_rows, *found) = run(
        partial(embed, looked_up=1), [ids, segments, rows, *floats[1:]], dy, [2, *others]
    )
    np.testing.assert_array_equal(found_y, y)
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)
    if packed:
        assert (of_rows[~belongs] == 0).all()
        ids, of_rows = ids[where[belongs, 0], where[belongs, 1]], of_rows[belongs]
    np.testing.assert_array_equal(sums_of_rows(ids, of_rows, vocabulary), of_table)


def test_numbers_that_are_none_reach_the_gradient():
    """The overflow that a loss scaler looks for."""
    inputs = random_inputs((2, 5, 7, 11, 3, 1.0))
    for name in ("of_rows", "of_losses", "hidden"):
        broken = {**inputs, name: inputs[name].copy()}
        broken[name].flat[0] = np.inf
        for dtype in DTYPES:
            assert not np.isfinite(one_gradient(broken, dtype)["word"]).all()


@same_in_variants
def test_what_does_not_fit_is_an_error():
    inputs = random_inputs((2, 5, 7, 11, 4, 1))
    for value in (-1, 11):  # MXNet may run the backward pass all the same
        wrong = {**inputs, "ids": inputs["ids"].copy()}
        wrong["ids"][1, 2] = value
        with fails("token"):
            one_gradient(wrong, "float32")

    given = arrays_of(inputs)
    word = given["word"]
    word.attach_grad()

    def decode(decoder: mx.nd.NDArray) -> mx.nd.NDArray:
        others = (given[name] for name in ("bias", "labels", "weights"))
        return mx.nd.bert_decode_loss(
            given["hidden"], word.detach(), *others, decoder, deferred=1, dtype="float32"
        )[0]

    with mx.autograd.record():
        decoder = mx.nd.bert_words(word, given["ids"], given["labels"], dtype="float32")[1]
        twice = decode(decoder) + decode(decoder)
    with fails("for one bert_decode_loss alone"):
        twice.backward()
        word.grad.wait_to_read()
    with pytest.raises(mx.MXNetError):  # of another number of rows
        decode(mx.nd.bert_words(word, given["ids"], mx.nd.zeros((40,), dtype="int32"), dtype="float32")[1])
    with pytest.raises(mx.MXNetError):  # rows of another shape
        mx.nd.bert_embed(
            given["ids"], given["ids"], mx.nd.ones((2, 4, 7)), mx.nd.ones((2, 7)), mx.nd.ones((9, 7)),
            mx.nd.ones((7,)), mx.nd.ones((7,)), mx.nd.ones((1,)), dropout=0, eps=EPS, looked_up=1,
        ).wait_to_read()  # fmt: skip
