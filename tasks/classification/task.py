"""Classification and regression as tasks: a label or a number from the first token of BERT (Devlin et al.,
arXiv:1810.04805, section 4.1), losses and figures."""

from __future__ import annotations

import math
from typing import Any, Mapping, Sequence

import mxnet as mx
import numpy as np
from gluonnlp.model.bert import BERTModel

from bert.arrays import on_device
from bert.configuration import BertConfig, Dropout
from bert.flops import Size, forward_flops
from bert.fused import FusedBert
from bert.model import POOLER, initialize_head
from data.classification.features import Batch
from tasks.base import Floors, Panel, Task, ratio
from tasks.networks import PlainBert


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


class FusedLabelLoss(FusedBert):
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


class Classification(Task):
    """One of `num_labels` labels for each example; 0 stands for regression.

    Examples without a label have -1, or NaN for regression, and count for no figure. `shown`: the scores of
    an evaluation for people, the first one of which is plotted.
    """

    name = "classification"
    heads = (POOLER,)
    denominators = ("labels",)
    judged = ("label_loss", "labels")

    def __init__(self, num_labels: int, shown: Sequence[str]):
        self._num_labels = num_labels
        self._scores = shown
        self.shown = {"label_loss": ".4f", "label_acc": ".1%", **dict.fromkeys(shown, ".4f")}
        self.sums = ("label_loss", "label_correct") if num_labels else ("label_loss",)

    def network(
        self, bert: BERTModel, config: BertConfig, dtype: str, dropout: float | Dropout, operators: str
    ) -> LabelLoss | FusedLabelLoss:
        """The hybridized loss above `bert`, with a head of random weights."""
        head = LabelHead(config.units, self._num_labels, Dropout.of(dropout).hidden)
        initialize_head(head, bert, dtype)
        network: LabelLoss | FusedLabelLoss
        if operators == "fused":
            network = FusedLabelLoss(bert, config, dtype, dropout)
        else:
            network = LabelLoss(bert, dtype)
        network.head = head
        network.hybridize(static_alloc=True, static_shape=True)
        return network

    def inputs(self, batch: Batch, device: mx.Context) -> list[mx.nd.NDArray]:
        """The network's inputs, `known` last."""
        known = self._known(batch)
        labels = np.where(known, batch.labels, 0).astype(batch.labels.dtype)
        texts = (batch.input_ids, batch.segment_ids, batch.valid_lengths)
        arrays = (*texts, labels, known.astype(np.float32))
        return [on_device(array, device) for array in arrays]

    def count(self, batches: Sequence[Batch]) -> tuple[float]:
        """Examples with a label."""
        return (float(sum(int(self._known(batch).sum()) for batch in batches)),)

    def flops(self, batch: Batch, size: Size, operators: str) -> int:
        """Of all positions of the batch; behind the top layer's attention the fused operators' count is that
        of the first token."""
        rows, length = batch.input_ids.shape
        encoder = forward_flops(
            size, rows, length, predictions=0, top_rows=1 if operators == "fused" else None
        )
        head = rows * 2 * size.units * (size.units + max(1, self._num_labels))
        return encoder.encoder + encoder.attention + head

    def figures(self, totals: Mapping[str, float]) -> dict[str, float | None]:
        """Mean loss, in nats, or squared error for regression; and the share of right labels."""
        count = totals["labels"]
        found = {"label_loss": ratio(totals["label_loss"], count)}
        if self._num_labels:
            found["label_acc"] = ratio(totals["label_correct"], count)
        return found

    def panels(self, floors: Floors) -> list[Panel]:
        """The loss, with guessing, and the first score of evaluations."""
        if self._num_labels:
            loss = Panel("label_loss", "label", "nats", {"guessing": math.log(self._num_labels)})
        else:
            loss = Panel("label_loss", "squared error", "", {})
        return [loss, *(Panel(name, name, "", {}) for name in self._scores[:1])]

    def _known(self, batch: Batch) -> np.ndarray:
        return batch.labels >= 0 if self._num_labels else np.isfinite(batch.labels)
