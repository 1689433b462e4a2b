"""The floating-point operations of a BERT pretraining step, from the shapes alone. Standard library only.

A product of (m, k) and (k, n) is counted as 2 m k n operations. The backward pass makes two products of each
(the gradients of both factors), so it is twice the forward pass. What is computed again in the backward pass,
or left out because a position is padding, does not change the count: it is the work of the task, not of one
way to do it. Additions, norms, softmax and GELU are not counted.
"""

from __future__ import annotations

from typing import NamedTuple

from bert.configuration import BertConfig


class Flops(NamedTuple):
    """Operations of one forward pass, by part; `backward` is that multiple of each for the backward pass."""

    encoder: int  # the products with weights in the encoder's layers
    attention: int  # queries by keys, probabilities by values
    heads: int  # pooler, next-sentence classifier, transform of the masked positions
    decoder: int  # masked positions by the word embedding

    @property
    def total(self) -> int:
        """Forward."""
        return self.encoder + self.attention + self.heads + self.decoder

    def __add__(self, other: object) -> Flops:
        """The sum part by part, unlike a tuple's."""
        if not isinstance(other, Flops):
            return NotImplemented
        return Flops(*(mine + theirs for mine, theirs in zip(self, other)))


BACKWARD = 2  # times the forward pass


class Size(NamedTuple):
    """The sizes of a BERT. `hidden`: units of its feed-forward layers."""

    layers: int
    units: int
    hidden: int
    vocab_size: int


def size_of(config: BertConfig, vocab_size: int) -> Size:
    """The sizes of the BERT of this configuration, over so many tokens."""
    return Size(config.layers, config.units, config.hidden, vocab_size)


def forward_flops(size: Size, rows: int, length: int, predictions: int, top_rows: int | None = None) -> Flops:
    """One forward pass over `rows` sequences of `length` tokens, `predictions` of them masked.

    Args:
        top_rows: positions of a sequence that go through what follows the attention of the top layer (its
            output product and the feed-forward layer), where only those are computed that a loss looks at;
            None: all.

    In short for a layer, of each token: 8 units^2 + 4 units hidden in products with weights (queries, keys
    and values 6 units^2, output 2) and 4 length units in the attention.
    """
    layers, units, hidden, vocab_size = size
    tokens = rows * length
    top_tokens = tokens if top_rows is None else rows * top_rows
    projections = 2 * 3 * units * units
    beyond = 2 * units * units + 2 * 2 * units * hidden
    masked = rows * predictions
    return Flops(
        encoder=layers * projections * tokens + beyond * ((layers - 1) * tokens + top_tokens),
        attention=layers * 2 * 2 * length * units * tokens,
        heads=rows * (2 * units * units + 2 * units * 2) + masked * 2 * units * units,
        decoder=masked * 2 * units * vocab_size,
    )
