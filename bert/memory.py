"""The memory of a BERT in training, from the shapes alone. MXNet is not imported.

Parameters, gradients and optimizer states are counted exactly. Activations are what the forward pass keeps
for the backward pass, operator by operator, and the gradients of one layer; `IN_FLIGHT` is the share that the
allocator and MXNet's plan take on top, measured on CPUs (docs/training.md has the figures).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from bert.configuration import BFLOAT16X3, BertConfig
from bert.weights.bare_params import distinct_shapes

FLOAT32 = 4  # bytes
MOMENT_BYTES = {"float32": 4, "bfloat16": 2}  # of a number of mean or variance, by --optimizer_state
IN_FLIGHT = 1.2
FUSED, MXNET = "fused", "mxnet"
# The fused operators in bfloat16 where the processor multiplies it: they keep numbers as such.
TILES = "tiles"
_HEADS = ("pooler.", "classifier.", "decoder.")


class Batch(NamedTuple):
    """A micro-batch of a process: sequences, tokens of each, masked tokens of each (0 without the pretraining
    heads). `kept`: micro-batches that are on their way at once, whose activations wait for their backward
    passes; more than one in pipelines alone. `recompute`: whether layers keep their results only."""

    rows: int
    length: int
    predictions: int
    kept: int = 1
    recompute: bool = False


class Ends(NamedTuple):
    """Whether a part of the network has the embeddings, below its layers, and the heads, above them."""

    first: bool = True
    last: bool = True


WHOLE = Ends()


def parameter_count(config: BertConfig, vocab_size: int, pretraining: bool = True) -> int:
    """Numbers that are trained, each once. `pretraining`: with
    its heads; without, the head of a fine-tuning task is too small to count."""

    def count(layers: int) -> int:
        shapes = distinct_shapes(replace(config, layers=layers), vocab_size)
        return sum(math.prod(shapes[each]) for each in shapes if pretraining or not each.startswith(_HEADS))

    one, two = count(1), count(2)
    return one + (config.layers - 1) * (two - one)  # however many layers are asked for


def matrix_count(config: BertConfig) -> int:
    """Numbers in the matrices of the layers."""
    return config.layers * (4 * config.units * config.units + 2 * config.units * config.hidden)


def packed_bytes(config: BertConfig, dtype: str) -> int:
    """Copies of the weights in the layout that the fused operators multiply: in float32 of queries, keys and
    values, which are one product there; in bfloat16 of all, one for each pass (or one in float32 where
    bfloat16 is emulated); in bfloat16x3 two times that."""
    if dtype in ("bfloat16", BFLOAT16X3):
        parts = 2 if dtype == BFLOAT16X3 else 1
        return parts * FLOAT32 * matrix_count(config)
    return FLOAT32 * config.layers * 3 * config.units * config.units


def gradient_bytes_in_flight(
    config: BertConfig, vocab_size: int, batch: Batch, operators: str, ends: Ends = WHOLE
) -> int:
    """A tied word embedding is used twice. The fused operators hand one use's gradient on as two factors, one
    number of which is for a word and a masked token; elsewhere both are arrays of the embedding's size before
    they are added. Where only one use is here, the other one's arrives."""
    if not any(ends) or not config.tied:
        return 0
    if operators == MXNET or not all(ends):
        return 2 * FLOAT32 * vocab_size * config.units
    item = FLOAT32 // 2 if operators == TILES else FLOAT32
    return item * vocab_size * _up_to(batch.rows * batch.predictions, 16)


def activation_bytes(
    config: BertConfig, vocab_size: int, batch: Batch, operators: str, item: int, ends: Ends = WHOLE
) -> int:
    """Memory of forward and backward passes beyond parameters and gradients.

    Args:
        config: with as many layers as there are here.
        operators: FUSED, TILES or MXNET.
        item: bytes of a number: 4; 2 in float16.
        ends: of the network that are here. The part's input is the embeddings' sum, or what has arrived.

    Of a token and layer the fused operators keep 8 units + 1 hidden numbers: queries, keys and values (3),
    attended values, two products and two sums of the residual branch; what goes into the activation. On tiles
    the first four and the last are half as large. Their attention keeps no scores. With `recompute` they keep
    the sums of the two halves, and of one layer at a time the others. MXNet's keep 10 units +
    2.5 hidden (copies for heads, masks of dropout) and of each head 3.25 squares of the length: scores,
    probabilities, these after dropout, and its mask.
    """
    tokens, masked = batch.rows * batch.length, batch.rows * batch.predictions
    units, hidden = config.units, config.hidden
    backward = tokens * (2 * units + 3 * hidden)  # gradients of one layer
    if operators in (FUSED, TILES):
        of_token = 4 * units + (4 * units + hidden) * (0.5 if operators == TILES else 1)
        of_top, again = 5 * units + hidden, 0.0
        if batch.recompute:
            again, of_token, of_top = tokens * (of_token - 2 * units), 2 * units, 3 * units
        layers: float = config.layers * tokens * of_token
        if ends.last:
            top_tokens = min(tokens, batch.rows + masked) if batch.predictions else tokens
            layers += top_tokens * of_top + tokens * (4 * units - of_token)
        scores: float = vocab_size * _up_to(masked, 16)
    else:
        squares = 3.25 * batch.rows * config.heads * batch.length**2
        layers, again = config.layers * (tokens * (10 * units + 2.5 * hidden) + squares), 0.0
        scores = 2.5 * vocab_size * masked
    heads = masked * 4 * units
    embedding = tokens * 2 * units
    kept = batch.kept * (layers + embedding + (scores + heads if ends.last else 0))
    return int(IN_FLIGHT * item * (kept + again + backward))


def _up_to(number: int, step: int) -> int:
    return -(-number // step) * step
