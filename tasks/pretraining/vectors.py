"""Vectors of texts: the hidden states of a layer, pooled."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Sequence

import mxnet as mx
import numpy as np
from gluonnlp.model.bert import BERTModel

from bert.fused import FusedBert
from bert.weights.tensors import Weights
from tasks.networks import PlainBert
from tasks.pretraining.scores import Computing, Encoded, inputs_of, opened

CLS, MEAN = "cls", "mean"


class Vectors(PlainBert):
    """Pooled hidden states on MXNet's operators: (B, L), (B, L), (B,) int32 -> (B, units) float32."""

    def __init__(self, pooling: str, bert: BERTModel):
        super().__init__(bert)
        self._pooling = pooling

    def hybrid_forward(self, F: Any, input_ids: Any, segment_ids: Any, valid_lengths: Any) -> Any:
        lengths = self.lengths(F, valid_lengths)
        return pooled(F, self.bert(input_ids, segment_ids, lengths), lengths, self._pooling)


class FusedVectors(FusedBert):
    """The same on the fused operators."""

    def __init__(self, pooling: str, *arguments: Any):
        super().__init__(*arguments)
        self._pooling = pooling

    def hybrid_forward(
        self, F: Any, input_ids: Any, segment_ids: Any, valid_lengths: Any, **weights: Any
    ) -> Any:
        x = self.encode(self.layers(F, weights), input_ids, segment_ids, valid_lengths)
        if self.packs_sequences:
            x, lengths = F.bert_unpack(x, valid_lengths, input_ids)
        else:
            lengths = F.cast(valid_lengths, dtype="float32")
        return pooled(F, x, lengths, self._pooling)


def pooled(F: Any, x: Any, lengths: Any, pooling: str) -> Any:
    """(B, L, units), (B,) float32 -> (B, units): the first token, or the mean of all within the lengths."""
    within = F.SequenceMask(x, lengths, use_sequence_length=True, axis=1)
    if pooling == CLS:
        return F.reshape(F.slice_axis(within, axis=1, begin=0, end=1), shape=(0, -1))
    return F.broadcast_div(F.sum(within, axis=1), F.reshape(lengths, shape=(-1, 1)))


class Embedder:
    """A BERT with weights from anywhere, up to layer `layer` (0: the embedding with its LayerNorm), and the
    pooling, CLS or MEAN, of what comes out of it. Raises InputError as `opened`."""

    def __init__(self, weights: Weights, computing: Computing, layer: int, pooling: str):
        lower = replace(
            weights, config=replace(weights.config, layers=layer)
        )  # what is above is not computed
        networks = partial(Vectors, pooling), partial(FusedVectors, pooling)
        self._network, self._device = opened(lower, computing, *networks, heads=())

    def __call__(self, batch: Sequence[Encoded]) -> np.ndarray:
        """Vectors of inputs, which are computed together, (B, units) float32."""
        arrays = [mx.nd.array(each, ctx=self._device, dtype="int32") for each in inputs_of(batch)]
        return self._network(*arrays).asnumpy()
