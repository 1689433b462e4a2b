"""Each operator against its float64 reference, and what holds for all of them, as one table."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, NamedTuple, Sequence

import mxnet as mx
import numpy as np
import pytest

from tests.bert.operators import test_attention as attention
from tests.bert.operators import test_decode_loss as decode_loss
from tests.bert.operators import test_dense as dense
from tests.bert.operators import test_embed as embed
from tests.bert.operators import test_feed_forward as feed_forward
from tests.bert.operators import test_gather as gather
from tests.bert.operators import test_gelu as gelu
from tests.bert.operators import test_norm as norm
from tests.bert.operators import test_self_attention as self_attention
from tests.bert.operators.checking import (
    EPS,
    PREDICT,
    TRAIN,
    assert_gradients_match,
    kept_scale,
    same_in_variants,
)


class Operator(NamedTuple):
    """`apply`: (F, mode, dropout, packed weights, *arrays) -> the operator's outputs, the first of which is
    compared with `reference` of the arrays. `arrays`: from a size and a generator. `packs`: groups of indices
    of weights that it takes packed. `atol`: of the output; `tolerance`: of gradients. `graph`: the size
    in a graph, if not the last of them. Both layers have gradients of large sizes in their own files."""

    apply: Callable[..., Any]
    reference: Callable[..., np.ndarray]
    arrays: Callable[[Any, np.random.Generator], list[np.ndarray]]
    sizes: Sequence[Any]
    differentiable: Sequence[int]
    atol: float
    tolerance: float = 5e-4
    packs: Sequence[Sequence[int]] = ()
    graph: Any = None

    def given(self, arrays: Sequence[np.ndarray], mode: float) -> list[mx.nd.NDArray]:
        """The arrays and what `on` takes in front of them."""
        inputs = [mx.nd.array(array, dtype=array.dtype) for array in arrays]
        packed = [
            mx.nd.bert_pack(*(inputs[i] for i in group), num_weights=len(group), dtype="float32")
            for group in self.packs
        ]
        return [mx.nd.array([mode]), *packed, *inputs]

    def on(self, F: Any, dropout: float, *given: Any) -> Any:  # noqa: N803
        """The first output."""
        mode, *rest = given
        packed, arrays = rest[: len(self.packs)], rest[len(self.packs) :]
        outputs = self.apply(F, mode, dropout, packed, *arrays)
        return outputs if isinstance(outputs, mx.nd.NDArray) else outputs[0]


def gather_arrays(sizes, rng):
    batch, length, units, count = sizes
    positions = rng.integers(0, length, (batch, count)).astype("int32")
    positions[:, count // 2 :] = 0  # padding: several times the same row
    return [rng.standard_normal((batch, length, units)).astype("float32"), positions]


def of_gelu(form: str) -> Operator:
    return Operator(
        lambda F, mode, rate, packed, x, bias: F.bert_bias_gelu(x, bias, form=form),
        partial(gelu.reference, form=form),
        lambda shape, rng: [rng.standard_normal(s).astype("float32") * 2 for s in (shape, shape[-1:])],
        [(1, 1), (5,), (3, 5), (2, 3, 17), (7, 16), (4, 129), (2, 40, 64)],
        (0, 1),
        1e-6,
        2e-4,
    )


def of_gather(first: int) -> Operator:
    return Operator(
        lambda F, mode, rate, packed, *arrays: F.bert_gather(*arrays, first=first),
        partial(gather.reference, first=first),
        gather_arrays,
        [(1, 1, 1, 1), (2, 5, 3, 7), (3, 20, 17, 6), (8, 33, 64, 5)],
        (0,),
        0,
        2e-4,
    )


def of_attention(heads: int) -> Operator:
    return Operator(
        lambda F, mode, rate, packed, qkv, lengths: F.bert_attention(
            qkv, lengths, mode, heads=heads, dropout=rate, dtype="float32"
        ),
        partial(attention.reference, heads=heads),
        lambda shape, rng: list(attention.random_inputs(shape, rng)),
        [shape for shape in attention.SHAPES if shape[2] == heads],
        (0,),
        5e-6,
        2e-4,
    )


def of_self_attention(heads: int) -> Operator:
    return Operator(
        lambda F, mode, rate, packed, *arrays: F.bert_self_attention(
            *arrays, mode, *packed, heads=heads, dtype="float32", dropout=rate, eps=EPS
        ),
        partial(self_attention.reference, heads=heads),
        self_attention.random_inputs,
        [(3, 9, heads, 5)],
        # The gradient of the keys' bias is 0 but for rounding.
        [index for index in self_attention.FLOATS if index != self_attention.KEY_BIAS],
        3e-5,
        packs=[(2, 3, 4), (8,)],
        graph=[shape for shape in self_attention.SHAPES if shape[2] == heads][-1],
    )


def of_feed_forward(form: str) -> Operator:
    return Operator(
        lambda F, mode, rate, packed, *arrays: F.bert_feed_forward(
            *arrays, mode, *packed, dtype="float32", form=form, dropout=rate, eps=EPS
        ),
        partial(feed_forward.reference, form=form),
        lambda size, rng: feed_forward.random_inputs(*size, rng),
        feed_forward.SHAPES[:3],
        feed_forward.FLOATS,
        2e-5,
        packs=[(1,), (3,)],
        graph=feed_forward.SHAPES[-1],
    )


OPERATORS = {
    **{f"gelu {form}": of_gelu(form) for form in ("erf", "tanh", "relu")},
    "layer_norm": Operator(
        lambda F, mode, rate, packed, *arrays: F.bert_layer_norm(*arrays, eps=EPS),
        norm.layer_norm,
        lambda shape, rng: [norm.random_inputs(shape, rng)[index] for index in (0, 3, 4)],
        norm.SHAPES,
        range(3),
        1e-5,
    ),
    "add_norm": Operator(
        lambda F, mode, rate, packed, *arrays: F.bert_add_norm(*arrays, mode, dropout=rate, eps=EPS),
        norm.add_norm,
        norm.random_inputs,
        norm.SHAPES,
        range(5),
        1e-5,
    ),
    "embed": Operator(
        lambda F, mode, rate, packed, *arrays: F.bert_embed(*arrays, mode, dropout=rate, eps=EPS),
        embed.reference,
        embed.random_inputs,
        embed.SIZES,
        embed.DIFFERENTIABLE,
        1e-5,
    ),
    **{f"gather, first {first}": of_gather(first) for first in (0, 1)},
    "dense": Operator(
        lambda F, mode, rate, packed, *arrays: F.bert_dense(
            *arrays, *packed, num_weights=2, bias=1, dtype="float32"
        ),
        lambda x, first, second, *biases: x @ np.concatenate([first, second]).T + np.concatenate(biases),
        lambda size, rng: dense.arrays(rng, *size),
        [((3, 4), [6, 9], 7, 1), ((33,), [130, 2], 100, 1)],
        range(5),
        2e-4,
        packs=[(1, 2)],
    ),
    "decode_loss": Operator(
        lambda F, mode, rate, packed, *arrays: F.bert_decode_loss(*arrays, dtype="float32"),
        decode_loss.cross_entropy,
        lambda size, rng: decode_loss.arrays(rng, *size),
        [(12, 9, 30, 0.7), (30, 8, 70, 0.3)],
        range(3),
        2e-5,
    ),
    **{f"attention, {heads} heads": of_attention(heads) for heads in (1, 2, 3)},
    **{f"self_attention, {heads} heads": of_self_attention(heads) for heads in (1, 2, 3)},
    **{f"feed_forward {form}": of_feed_forward(form) for form in ("erf", "tanh")},
}
DROPPING = ["add_norm", "embed", "attention, 2 heads", "self_attention, 2 heads", "feed_forward erf"]
CASES = [(name, size, 0.0, TRAIN) for name, operator in OPERATORS.items() for size in operator.sizes]
CASES += [(name, OPERATORS[name].sizes[-1], 0.9, PREDICT) for name in DROPPING]


def outcome(name: str, arrays: Sequence[np.ndarray], dy: np.ndarray, mode=TRAIN, rate=0.0, call=None) -> list:
    """The output and the gradients, of which every number must be written."""
    operator = OPERATORS[name]
    given = operator.given(arrays, mode)
    inputs = given[1 + len(operator.packs) :]
    for index in operator.differentiable:
        inputs[index].attach_grad()
        inputs[index].grad[:] = np.nan
    with mx.autograd.record():
        output = (call or partial(operator.on, mx.nd, rate))(*given)
    output.backward(mx.nd.array(dy))
    return [output.asnumpy(), *(inputs[index].grad.asnumpy() for index in operator.differentiable)]


def inputs_of(name: str, size: Any) -> tuple[list[np.ndarray], np.ndarray, np.random.Generator]:
    """Arrays, a gradient of the output, and the generator behind them."""
    rng = np.random.default_rng(1)
    arrays = OPERATORS[name].arrays(size, rng)
    shape = OPERATORS[name].reference(*arrays).shape
    return arrays, rng.standard_normal(shape).astype("float32"), rng


@pytest.mark.parametrize("name, size, rate, mode", CASES, ids=str)
def test_output_and_gradients(name, size, rate, mode):
    operator = OPERATORS[name]
    arrays, dy, rng = inputs_of(name, size)
    output, *gradients = outcome(name, arrays, dy, mode, rate)
    doubles = [array.astype("float64") if array.dtype.kind == "f" else array for array in arrays]
    np.testing.assert_allclose(output, operator.reference(*doubles), rtol=1e-6, atol=operator.atol)
    assert_gradients_match(
        operator.reference, arrays, gradients, operator.differentiable, dy, rng, operator.tolerance
    )


@pytest.mark.parametrize(
    "name, index, size, rate",
    [
        ("add_norm", 0, (3, 65), 0.5),
        ("add_norm", 0, (2, 40, 148), 0.1),
        ("embed", 2, (3, 9, 65, 20, 12, 2), 0.4),
    ],
)
def test_dropout(name, index, size, rate):
    """Factors show where the first floats and gamma are one, all others zero: kept is what is above 0."""
    operator = OPERATORS[name]
    arrays, dy, rng = inputs_of(name, size)
    plain = [array * 0 for array in arrays]
    plain[index] += 1
    plain[-2] += 1
    mx.random.seed(5)
    factors = np.where(outcome(name, plain, dy, rate=rate)[0] > 0, kept_scale(rate), 0.0)
    assert 0.7 * rate < (factors == 0).mean() < 1.3 * rate
    mx.random.seed(5)
    output, *gradients = outcome(name, arrays, dy, rate=rate)
    reference = partial(operator.reference, factors=factors)
    np.testing.assert_allclose(output, reference(*arrays), atol=operator.atol)
    assert_gradients_match(reference, arrays, gradients, operator.differentiable, dy, rng, operator.tolerance)


class Graph(mx.gluon.HybridBlock):
    """An operator between others, in memory that MXNet plans."""

    def __init__(self, name: str):
        super().__init__()
        self._operator = OPERATORS[name]

    def hybrid_forward(self, F, *given):  # noqa: N803
        return self._operator.on(F, 0.3, *given) * 1


@pytest.mark.parametrize("name", OPERATORS)
def test_in_a_graph_and_again(name):
    """The same bits: each time from the same seed, and in a hybridized block in its planned memory."""
    arrays, dy, _ = inputs_of(name, OPERATORS[name].graph or OPERATORS[name].sizes[-1])
    graph = Graph(name)
    graph.hybridize(static_alloc=True, static_shape=True)
    found = []
    for call in (None, None, graph, graph):  # the graph's first call traces it
        mx.random.seed(9)
        found.append(outcome(name, arrays, dy, rate=0.3, call=call))
    for again in found[1:]:
        for first, other in zip(found[0], again):
            np.testing.assert_array_equal(first, other)


@same_in_variants
@pytest.mark.parametrize("name", OPERATORS)
def test_shapes_that_do_not_fit_are_errors(name):
    operator = OPERATORS[name]
    for index in operator.differentiable[1:]:
        arrays, _, _ = inputs_of(name, operator.sizes[-1])
        arrays[index] = arrays[index][..., :-1].copy()
        with pytest.raises(mx.MXNetError):
            operator.on(mx.nd, 0.0, *operator.given(arrays, TRAIN)).wait_to_read()
            mx.nd.waitall()
