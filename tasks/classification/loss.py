"""A label or a number from the first token of BERT (Devlin et al., arXiv:1810.04805, section 4.1)."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from tasks.networks import FusedBertBelow, PlainBert


class LabelHead(mx.gluon.HybridBlock):
    """Dropout and a dense layer on the pooled first token, and their loss.

    `num_labels` classes; 0 for regression, with one output.

    Inputs: pooled (B, units); labels (B,), int32 classes or float32 numbers; known (B,) float32, 0 where
    there is no label; factor (1,).
    Outputs:
        loss (1,): factor * sum of cross entropies, or of squared errors for regression.
        sums (2,): that sum without the factor, and right classes; (1,) for regression, the sum alone.
        outputs (B, max(1, num_labels)): logits, or predicted numbers, float32.
    """

    def __init__(self, units: int, num_labels: int, dropout: float):
        super().__init__(prefix="")
        self._num_labels = num_labels
        self.dropout = mx.gluon.nn.Dropout(dropout)
        self.label_classifier = mx.gluon.nn.Dense(max(1, num_labels), in_units=units)

    def hybrid_forward(
        self, F: Any, pooled: Any, labels: Any, known: Any, factor: Any
    ) -> tuple[Any, Any, Any]:
        outputs = F.cast(self.label_classifier(self.dropout(pooled)), dtype="float32")
        if self._num_labels:
            total = F.sum(-F.pick(F.log_softmax(outputs, axis=-1), labels, axis=-1) * known)
            hits = F.broadcast_equal(F.argmax(outputs, axis=-1), F.cast(labels, dtype="float32"))
            sums = F.concat(total, F.sum(hits * known), dim=0)
        else:
            total = F.sum(F.square(F.reshape(outputs, shape=(-1,)) - labels) * known)
            sums = total
        return total * factor, F.BlockGrad(sums), F.BlockGrad(outputs)


class LabelLoss(PlainBert):
    """BERT and LabelHead on MXNet's operators. Inputs: input_ids, segment_ids (B, L), valid_lengths (B,)
    int32, then LabelHead's but for the first."""

    def hybrid_forward(
        self, F: Any, input_ids: Any, segment_ids: Any, valid_lengths: Any, *labels: Any
    ) -> tuple[Any, Any, Any]:
        _, pooled = self.bert(input_ids, segment_ids, self.lengths(F, valid_lengths))
        return self.head(pooled, *labels)


class FusedLabelLoss(FusedBertBelow):
    """The same on the fused operators: above its attention the top layer computes only the first token."""

    def hybrid_forward(
        self, F: Any, input_ids: Any, segment_ids: Any, valid_lengths: Any, *labels: Any, **weights: Any
    ) -> tuple[Any, Any, Any]:
        # The operator wants a position besides the first token's, which it always computes.
        again = F.zeros_like(F.slice_axis(input_ids, axis=1, begin=0, end=1))
        x = self.encode(self.layers(F, weights), input_ids, segment_ids, valid_lengths, again)
        first = F.reshape(F.slice_axis(x, axis=1, begin=0, end=1), shape=(0, -1))
        pooled = F.FullyConnected(
            first, weights["pooler.weight"], weights["pooler.bias"], num_hidden=self._config.units
        )
        return self.head(F.tanh(pooled), *labels)
