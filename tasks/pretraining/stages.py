"""Stages of a pretraining network: some of its layers, with the embeddings on the first one, both heads and
losses on the last. Together they compute what the whole network does, bit for bit.

The task's `inputs` makes a list of a batch's arrays; a stage gets the slice `takes` of that list. The first
stage gets tokens, segments and lengths. Every other stage gets the activations of the stage before it, then
lengths. The last stage also gets what the losses need, and the factors. A stage returns activations; the last
one returns the loss and the sums.
"""

from __future__ import annotations

from typing import Any

import mxnet as mx
from gluonnlp.model.bert import BERTModel

from bert.configuration import LAYER_NORM_EPSILON, Dropout
from bert.part import ModelPart
from tasks.networks import PlainBert
from tasks.pretraining.loss import FusedPretrainingLoss, losses

_HIDDEN = 2  # operators of a layer that drop activations: both branches beside the residual


class OfPart(mx.gluon.HybridBlock):
    """A network of which only a `part` of `bert` may be used."""

    @property
    def takes(self) -> slice:
        """The arrays of a batch that a stage takes: of tokens, segments, lengths, positions, ids and weights
        of the masks, and labels of the next sentence."""
        return slice(0 if self.part.first else 2, None if self.part.last else 3)

    def collect_params(self, select: str | None = None) -> mx.gluon.ParameterDict:
        """Those of the part alone: MXNet warns of parameters that a block has and does not use."""
        found, own = super().collect_params(select), self.bert._collect_params_with_prefix()
        others = {parameter.name for name, parameter in own.items() if not self.part.holds(name)}
        kept = mx.gluon.ParameterDict(found.prefix)
        kept.update({name: parameter for name, parameter in found.items() if name not in others})
        return kept


class FusedStage(OfPart, FusedPretrainingLoss):
    """A stage on the fused operators. Activations are (B, L, units) float32."""

    def __init__(self, bert: BERTModel, part: ModelPart, dtype: str, dropout: float | Dropout):
        super().__init__(bert, part.config, dtype, dropout, part)

    def activations(self, rows: int, length: int) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of what travels between stages."""
        return (rows, length, self._config.units), "float32"

    def skip_dropout(self, rows: int, length: int) -> None:
        """Draws from MXNet's generator what the stages before this one draw for a micro-batch: the dropout of
        a layer is then the same on any stage. Each operator with dropout draws one key, whatever its size."""
        layers, (hidden, attention) = self.part.begin, self._dropout
        x, one = mx.nd.zeros((1, 1)), mx.nd.zeros((1,))
        drawn = bool(hidden) * (1 + _HIDDEN * layers) + bool(attention) * layers
        for _ in range(0 if self.part.first else drawn):
            mx.nd.bert_add_norm(
                x, one, x, one, one, one, dropout=0.5, eps=LAYER_NORM_EPSILON
            )  # whose mode is not 1: it drops

    def forward(self, *inputs: mx.nd.NDArray) -> Any:
        """Computes on arrays; a stage keeps padding, and has other inputs than the whole network."""
        return mx.gluon.HybridBlock.forward(self, *inputs)

    def hybrid_forward(self, F: Any, *inputs: Any, **weights: Any) -> Any:
        layers = self.layers(F, weights)
        given = list(inputs)
        if self.part.first:
            tokens, segments = given.pop(0), given.pop(0)
            lengths = given.pop(0)
            x = layers.embed(tokens, segments, lengths)
        else:
            x, lengths = given.pop(0), given.pop(0)
        if not self.part.last:
            return self.through(layers, x, lengths)
        x = self.through(layers, x, lengths, given.pop(0))
        return self.losses(layers, x, given)


class PlainStage(OfPart, PlainBert):
    """A stage on MXNet's operators, as GluonNLP's BERTModel uses them. Activations are (L, B, units)."""

    def __init__(self, bert: BERTModel, part: ModelPart, dtype: str, dropout: float | Dropout):
        super().__init__(bert, dtype)
        self.part = part
        self._dropout = Dropout.of(dropout)
        if part.first:
            self._reg_params["positions"] = bert.encoder.position_weight

    def activations(self, rows: int, length: int) -> tuple[tuple[int, ...], str]:
        """Shape and dtype of what travels between stages."""
        return (length, rows, self.part.config.units), self._dtype

    def skip_dropout(self, rows: int, length: int) -> None:
        """Draws from MXNet's generator what the stages before this one draw for a micro-batch: the dropout of
        a layer is then the same on any stage. MXNet draws as many numbers as an array has elements."""
        if self.part.first:
            return
        (device,) = (
            next(iter(self.bert.pooler.collect_params().values())).list_ctx()
            if self.part.last
            else (self.bert.encoder.transformer_cells[self.part.begin].proj.weight.list_ctx())
        )
        shape, dtype = self.activations(rows, length)
        hidden = mx.nd.ones(shape, device, dtype), self._dropout.hidden
        squares = (rows * self.part.config.heads, length, length)
        scores = mx.nd.ones(squares, device, dtype), self._dropout.attention
        for array, rate in [hidden, *[scores, hidden, hidden] * self.part.begin]:
            if rate:
                mx.nd.Dropout(array, p=rate, mode="always")

    def hybrid_forward(self, F: Any, *inputs: Any, **weights: Any) -> Any:
        given = list(inputs)
        bert, encoder = self.bert, self.bert.encoder
        if self.part.first:
            x = bert.word_embed(given.pop(0)) + bert.token_type_embed(given.pop(0))
            x = x.transpose((1, 0, 2))
        else:
            x = given.pop(0)
        lengths = self.lengths(F, given.pop(0))
        steps = F.contrib.arange_like(x, axis=0)
        of_queries = F.broadcast_add(
            F.reshape(lengths, shape=(-1, 1)), F.reshape(F.zeros_like(steps), shape=(1, -1))
        )
        of_queries = F.cast(of_queries, dtype="int32")
        if self.part.first:
            size = self.part.config
            embedded = F.Embedding(steps, weights["positions"], size.positions, size.units)
            x = F.broadcast_add(x, F.expand_dims(embedded, axis=1))
            if self._dropout.hidden:
                x = encoder.dropout_layer(x)
            x = encoder.layer_norm(x)
        for index in range(self.part.begin, self.part.end):
            x, _ = encoder.transformer_cells[index](x, of_queries)
        if not self.part.last:
            return x
        positions = given.pop(0)
        x = F.SequenceMask(x, sequence_length=lengths, use_sequence_length=True, axis=0)
        x = x.transpose((1, 0, 2))
        next_sentence = bert.classifier(bert._apply_pooling(x))
        decoded = bert._decode(F, x, positions)
        return losses(F, next_sentence, decoded, given)
