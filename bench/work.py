"""The training step that bench/step.py measures: its sizes, its matrix products and its memory.

Standard library only: the workers of all contestants read it, whatever their environment has.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, NamedTuple, Sequence

VOCABULARY = 30522  # BERT's uncased one
DROPOUT = 0.1
MODELS = {"base": "bert_12_768_12", "large": "bert_24_1024_16"}
DTYPES = ("float32", "bfloat16")
SPLIT = "bfloat16x3"  # ours alone: the peers, which have no such products, then compute in float32


class Batch(NamedTuple):
    """Sequences, tokens of each, masked positions of each."""

    sequences: int
    length: int
    masked: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.length

    @property
    def needed(self) -> int:
        """Positions that the losses look at: the masked ones and the first."""
        return self.sequences * (1 + self.masked)


BATCHES = {128: Batch(8, 128, 20), 512: Batch(2, 512, 80)}  # by length: the recipe's two stages


class Size(NamedTuple):
    layers: int
    units: int
    heads: int


class Work(NamedTuple):
    """One step that all contestants take: a model of MODELS or by its name, a length of BATCHES, a dtype."""

    model: str
    length: int
    dtype: str

    @property
    def size(self) -> Size:
        """Raises ValueError for a model of another form."""
        return size_of(self.model)

    @property
    def batch(self) -> Batch:
        return BATCHES[self.length]

    @property
    def peers_dtype(self) -> str:
        """The dtype that contestants without our operators compute in."""
        return "float32" if self.dtype == SPLIT else self.dtype

    @property
    def words(self) -> list[str]:
        """Command-line words of a worker, for `read`."""
        return [self.model, str(self.length), self.dtype]

    @classmethod
    def read(cls, words: Sequence[str]) -> Work:
        model, length, dtype = words
        return cls(model, int(length), dtype)

    def __str__(self) -> str:
        return f"{self.model}, {self.batch.sequences} x {self.length} tokens, {self.dtype}"


class Product(NamedTuple):
    """`times` times `batch` products of (rows, inner) by (inner, columns) in the forward pass. The backward
    pass has two of the same cost for each: one for the gradient of either factor."""

    times: int
    batch: int
    rows: int
    columns: int
    inner: int
    weights: bool  # one factor is a parameter


def native_dtypes(machine: Mapping[str, Any]) -> list[str]:
    """Those that the processor of base/machine.py's description multiplies."""
    return [dtype for dtype in DTYPES if dtype == "float32" or machine["native_bf16"]]


def size_of(model: str) -> Size:
    """The size of "base", "large" or `bert_LAYERS_UNITS_HEADS`; ValueError for another form."""
    match = re.fullmatch(r"bert_([1-9]\d*)_([1-9]\d*)_([1-9]\d*)", MODELS.get(model, model))
    if not match:
        raise ValueError(f"{model}: use {', '.join(MODELS)} or bert_LAYERS_UNITS_HEADS")
    size = Size(*map(int, match.groups()))
    if size.units % size.heads:
        raise ValueError(f"{model}: {size.heads} heads do not divide {size.units} units")
    return size


def products(size: Size, batch: Batch, decoded: int | None = None, top: int | None = None) -> list[Product]:
    """The matrix products of a forward pass.

    Args:
        decoded: positions for which the vocabulary is scored, by default the masked ones, as GluonNLP and
            ours do it. Hugging Face's BertForPreTraining does it for all tokens.
        top: positions that the top layer goes on with above its attention, by default all. The losses look at
            `batch.needed` of them; the fused operators compute no others.
    """
    units, heads, length = size.units, size.heads, batch.length
    decoded = batch.sequences * batch.masked if decoded is None else decoded
    chosen = []
    for layers, rows in ((size.layers - 1, batch.tokens), (1, batch.tokens if top is None else top)):
        attention = layers, batch.sequences * heads
        chosen += [
            Product(layers, 1, batch.tokens, 3 * units, units, True),  # query, key, value
            Product(*attention, length, length, units // heads, False),  # scores
            Product(*attention, length, units // heads, length, False),  # weighted values
            Product(layers, 1, rows, units, units, True),  # output of the attention
            Product(layers, 1, rows, 4 * units, units, True),
            Product(layers, 1, rows, units, 4 * units, True),
        ]
    chosen += [
        Product(1, 1, batch.sequences, units, units, True),  # pooler
        Product(1, 1, batch.sequences, 2, units, True),  # next sentence
        Product(1, 1, decoded, units, units, True),  # masked LM: transform
        Product(1, 1, decoded, VOCABULARY, units, True),  # masked LM: scores of the vocabulary
    ]
    return [product for product in chosen if product.times]


def gflop(chosen: list[Product]) -> float:
    """Floating-point operations of a step's matrix products in 10^9, forward and backward; a multiplication
    and an addition are two."""
    return 3 * sum(2 * p.times * p.batch * p.rows * p.columns * p.inner for p in chosen) / 1e9


def parameters(size: Size) -> int:
    """Trainable numbers of the model with both heads."""
    layers, units, _ = size
    layer = 12 * units**2 + 13 * units
    embeddings = (VOCABULARY + 512 + 2 + 2) * units
    heads = 2 * (units**2 + units) + 2 * units + VOCABULARY + 2 * units + 2
    return layers * layer + embeddings + heads


def memory_estimate(size: Size, batch: Batch) -> float:
    """Bytes that a contestant's process is likely to need at most, to decide how many fit at a time.

    Weights, gradients and two moments; activations by the count of Korthikanti et al., arXiv:2205.05198, with
    32 bits; scores of the vocabulary for all tokens and their gradients; libraries; and a fifth on top.
    """
    tokens = batch.tokens
    activations = size.layers * (68 * tokens * size.units + 10 * size.heads * tokens * batch.length)
    scores = 3 * 4 * tokens * VOCABULARY
    return 1.2 * (16 * parameters(size) + activations + scores + 0.6e9)
