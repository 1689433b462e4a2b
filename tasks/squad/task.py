"""SQuAD as a task: losses of an answer's start and end, and their figures."""

from __future__ import annotations

from typing import Mapping, Sequence

import mxnet as mx
import numpy as np
from gluonnlp.model.bert import BERTModel

from bert.arrays import on_device
from bert.configuration import BertConfig, Dropout
from bert.flops import Size, forward_flops
from bert.model import initialize_head
from data.questions.windows import QuestionBatch
from tasks.base import Floors, Panel, Task, ratio
from tasks.squad.loss import SUMS, FusedSpanLoss, SpanHead, SpanLoss


class QuestionAnswering(Task):
    """Spans of contexts as answers (Rajpurkar et al., arXiv:1606.05250, 1806.03822).

    A batch's windows whose answer is not known, as in evaluation, have a start of -1 and count for no figure.
    `over_padding`: see tasks.squad.loss.SpanHead.
    """

    name = "squad"
    sums = SUMS
    denominators = ("windows",)
    judged = ("span_loss", "windows")
    shown = {"span_loss": ".3f", "span_acc": ".1%", "exact_match": ".2f", "f1": ".2f"}
    short = "span"

    def __init__(self, over_padding: bool = False):
        self._over_padding = over_padding

    def network(
        self, bert: BERTModel, config: BertConfig, dtype: str, dropout: float | Dropout, operators: str
    ) -> SpanLoss | FusedSpanLoss:
        """The hybridized losses above `bert`, with a head of random weights."""
        head = SpanHead(config.units, self._over_padding)
        initialize_head(head, bert, dtype)
        network: SpanLoss | FusedSpanLoss
        if operators == "fused":
            network = FusedSpanLoss(bert, head, config, dtype, dropout)
        else:
            network = SpanLoss(bert, dtype, head)
        network.hybridize(static_alloc=True, static_shape=True)
        return network

    def inputs(self, batch: QuestionBatch, device: mx.Context) -> list[mx.nd.NDArray]:
        """The network's inputs, `known` last."""
        known = (batch.starts >= 0).astype(np.float32)
        places = (np.maximum(batch.starts, 0), np.maximum(batch.ends, 0))
        arrays = (batch.input_ids, batch.segment_ids, batch.valid_lengths, *places, known)
        return [on_device(array, device) for array in arrays]

    def count(self, batches: Sequence[QuestionBatch]) -> tuple[float]:
        """Windows whose answer is known."""
        return (float(sum(int((batch.starts >= 0).sum()) for batch in batches)),)

    def flops(self, batch: QuestionBatch, size: Size, operators: str) -> int:
        """Of all positions of the batch: the encoder's, and two logits of each."""
        rows, length = batch.input_ids.shape
        encoder = forward_flops(size, rows, length, predictions=0)
        return encoder.encoder + encoder.attention + 2 * 2 * size.units * rows * length

    def figures(self, totals: Mapping[str, float]) -> dict[str, float | None]:
        """Loss in nats, and the share of windows whose likeliest start and end are right."""
        windows = totals["windows"]
        return {
            "span_loss": ratio(totals["span_loss"], windows),
            "span_acc": ratio(totals["span_correct"], windows),
        }

    def panels(self, floors: Floors) -> list[Panel]:
        """The loss, and the F1 of evaluations."""
        return [Panel("span_loss", "start and end of the answer", "nats", {}), Panel("f1", "F1", "%", {})]
