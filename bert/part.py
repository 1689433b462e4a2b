"""A part of a BERT: some of its layers in a row, with the ends of the network that belong to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Collection, Iterator

import mxnet as mx
from gluonnlp.model.bert import BERTModel

from bert.configuration import BertConfig, Dropout
from bert.model import HEADS, build_model, each_once
from bert.weights.bare_params import expected_shapes
from bert.weights.names import DECODER, EMBEDDING, layer_of

# Parameters whose shapes GluonNLP leaves to the first batch, in the order of the forward pass.
_LATE = ("proj.weight", "ffn.ffn_1.weight", "ffn.ffn_2.weight")  # of a layer
_LATE_HEADS = ("pooler.weight", "classifier.weight", "decoder.0.weight")
_EMBEDDINGS = ("word_embed.", "token_type_embed.", "encoder.position_weight", "encoder.layer_norm.")


@dataclass(frozen=True)
class ModelPart:
    """Layers `begin` to `end` - 1 of a BERT of this configuration. The first part has the embeddings too, the
    last one the heads. The word embedding, where it is the decoder's weight, is on both."""

    config: BertConfig
    begin: int
    end: int

    @property
    def first(self) -> bool:
        return self.begin == 0

    @property
    def last(self) -> bool:
        return self.end == self.config.layers

    def holds(self, name: str) -> bool:
        """Whether the parameter of this structural name is on the part."""
        layer = layer_of(name)
        if layer is not None:
            return self.begin <= layer < self.end
        if self.config.tied and name in (EMBEDDING, DECODER):
            return self.first or self.last
        return self.first if name.startswith(_EMBEDDINGS) else self.last


def whole(config: BertConfig) -> ModelPart:
    """All of a BERT."""
    return ModelPart(config, 0, config.layers)


def build_part(
    part: ModelPart, vocab_size: int, dropout: float | Dropout, heads: Collection[str] = HEADS
) -> BERTModel:
    """A BERT of which only the parameters of a part may be used: the others have a shape and no memory, also
    when `allocate` has been called. See `bert.model.build_model`."""
    bert = build_model(part.config, vocab_size, dropout, heads)
    shapes = expected_shapes(part.config, vocab_size)
    for name, parameter in bert._collect_params_with_prefix().items():
        parameter.shape = shapes[name]  # GluonNLP leaves some to the first batch
    return bert


def allocate(bert: BERTModel, part: ModelPart, device: mx.Context, dtype: str) -> None:
    """Gives the parameters of a part of `bert`, from `build_part`, their memory; they hold zeros."""
    bert.cast(dtype)
    for name, parameter in each_once(bert._collect_params_with_prefix()).items():
        if part.holds(name):
            parameter.initialize(mx.init.Zero(), ctx=device, force_reinit=True)
            parameter.set_data(mx.nd.zeros(parameter.shape, device, dtype))


def initial_arrays(
    bert: BERTModel, device: mx.Context, seed: int, stdev: float
) -> Iterator[tuple[str, mx.nd.NDArray]]:
    """The float32 numbers that `bert.model.initialize` gives the parameters of a whole model, one parameter
    at a time: no more than one is in memory. `bert`: from `build_part`.

    They are drawn in the same order from the same generator: those parameters first whose shapes GluonNLP
    knows from the beginning, then the others as a forward pass meets them.
    """
    mx.random.seed(seed)
    named = each_once(bert._collect_params_with_prefix())
    names = {parameter.name: name for name, parameter in named.items()}
    ordered = [names[each] for each in bert.collect_params()]
    cells = [f"encoder.transformer_cells.{layer}." for layer in range(len(bert.encoder.transformer_cells))]
    late = [
        name for name in (*(cell + end for cell in cells for end in _LATE), *_LATE_HEADS) if name in ordered
    ]
    for name in [*(name for name in ordered if name not in late), *late]:
        original = named[name]
        drawn = mx.gluon.Parameter(original.name, shape=original.shape, init=original.init)
        drawn.initialize(ctx=device, default_init=mx.init.Normal(stdev))
        yield name, drawn.data()
