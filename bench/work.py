"""The training step that bench/step.py measures: its sizes and its matrix products.

Without MXNet and NumPy: the workers of all contestants read it, whatever their environment has.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

from bert.configuration import BFLOAT16X3, BertConfig, named_config
from bert.flops import BACKWARD, forward_flops, size_of

VOCABULARY = 30522  # BERT's uncased one
DROPOUT = 0.1
MODELS = {"base": "bert_12_768_12", "large": "bert_24_1024_16"}
DTYPES = ("float32", "bfloat16")
SPLIT = BFLOAT16X3  # ours alone: the peers, which have no such products, then compute in float32


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
        """Positions of a sequence that the losses look at: the masked ones and the first."""
        return 1 + self.masked


BATCHES = {128: Batch(8, 128, 20), 512: Batch(2, 512, 80)}  # by length: the recipe's two stages


class Work(NamedTuple):
    """One step that all contestants take: a model of MODELS or by its name, a length of BATCHES, a dtype."""

    model: str
    length: int
    dtype: str

    @property
    def config(self) -> BertConfig:
        """Raises InputError for a model of another form."""
        return named_config(MODELS.get(self.model, self.model))

    @property
    def batch(self) -> Batch:
        return BATCHES[self.length]

    @property
    def peers_dtype(self) -> str:
        """The dtype that contestants without our operators compute in."""
        return "float32" if self.dtype == SPLIT else self.dtype

    def gflop(self, decoded: int | None = None, top: int | None = None) -> float:
        """Floating-point operations of a step's matrix products in 10^9, forward and backward; a
        multiplication and an addition are two.

        Args:
            decoded: positions of a sequence for which the vocabulary is scored, by default the masked ones,
                as GluonNLP and ours do it. Hugging Face's BertForPreTraining does it for all tokens.
            top: positions of a sequence that the top layer goes on with above its attention, by default
                all. The losses look at `batch.needed` of them; the fused operators compute no others.
        """
        sequences, length, masked = self.batch
        size = size_of(self.config, VOCABULARY)
        counted = forward_flops(size, sequences, length, masked if decoded is None else decoded, top)
        return (1 + BACKWARD) * counted.total / 1e9

    @classmethod
    def read(cls, words: Sequence[str]) -> Work:
        """Reads the words of a worker's command line, which are the fields."""
        model, length, dtype = words
        return cls(model, int(length), dtype)

    def __str__(self) -> str:
        return f"{self.model}, {self.batch.sequences} x {self.length} tokens, {self.dtype}"


def native_dtypes(machine: Mapping[str, Any]) -> list[str]:
    """The dtypes that the processor of base/machine.py's description multiplies."""
    return [dtype for dtype in DTYPES if dtype == "float32" or machine["native_bf16"]]


class Product(NamedTuple):
    """`times` products of rows (rows, inner) by weights (inner, columns) in the forward pass. The backward
    pass has two of the same cost for each: one for the gradient of either factor."""

    times: int
    rows: int
    columns: int
    inner: int


def products(work: Work, top: int | None = None) -> list[Product]:
    """The products by weights of a forward pass, each by its shape; `top` as in `Work.gflop`."""
    units, batch, layers = work.config.units, work.batch, work.config.layers
    decoded = batch.sequences * batch.masked
    chosen = [
        Product(layers, batch.tokens, 3 * units, units),  # query, key, value
        Product(1, batch.sequences, units, units),  # pooler
        Product(1, batch.sequences, 2, units),  # next sentence
        Product(1, decoded, units, units),  # masked LM: transform
        Product(1, decoded, VOCABULARY, units),  # masked LM: scores of the vocabulary
    ]
    for times, rows in ((layers - 1, batch.tokens), (1, batch.sequences * (top or batch.length))):
        # output of the attention, feed-forward layer
        shapes = (units, units), (4 * units, units), (units, 4 * units)
        chosen += [Product(times, rows, *shape) for shape in shapes if times]
    return chosen


def gflop(chosen: Sequence[Product]) -> float:
    """Operations of products in 10^9, forward and backward, as `Work.gflop` counts them."""
    return (1 + BACKWARD) * sum(2 * p.times * p.rows * p.columns * p.inner for p in chosen) / 1e9
