"""SQuAD as a task: start and end of an answer above BERT (Devlin et al., arXiv:1810.04805, section 4.2),
their losses and figures."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

import mxnet as mx
import numpy as np
from gluonnlp.model.bert import BERTModel

from bert.arrays import on_device
from bert.configuration import BertConfig, Dropout
from bert.flops import Size, forward_flops
from bert.fused import FusedBert
from bert.model import initialize_head
from data.questions.windows import QuestionBatch
from tasks.base import Floors, Panel, Task, ratio
from tasks.networks import PlainBert

SUMS = ("span_loss", "span_correct")  # the order of the second output
_MASKED = -1e9  # a logit behind a window's last token: its probability is 0 in float32


class SpanHead(mx.gluon.HybridBlock):
    """A logit for the start and one for the end at every token, and their cross entropy.

    Inputs: tokens (B, L, units); valid_lengths, starts, ends (B,) int32, positions of the answer's first and
    last token, 0 ([CLS]) for none; known (B,) float32, 0 where the answer is not known; factor (1,).
    Outputs:
        loss (1,): factor * sum of the windows' losses, each the mean of the start's and the end's, whose
            softmax is over the window's tokens; with `over_padding` over all L positions, as that of Google's
            run_squad.py and transformers' BertForQuestionAnswering.
        sums (2,): that sum without the factor, and windows whose likeliest start and end are both right.
        logits (B, 2, L): of starts and ends, float32.
    """

    def __init__(self, units: int, over_padding: bool):
        super().__init__(prefix="")
        self.over_padding = over_padding
        self.span_classifier = mx.gluon.nn.Dense(2, flatten=False, in_units=units)

    def hybrid_forward(
        self,
        F: Any,
        tokens: Any,
        valid_lengths: Any,
        starts: Any,
        ends: Any,
        known: Any,
        factor: Any,
    ) -> tuple[Any, Any, Any]:
        logits = F.cast(self.span_classifier(tokens), dtype="float32")
        if not self.over_padding:
            lengths = F.cast(valid_lengths, dtype="float32")
            logits = F.SequenceMask(logits, lengths, use_sequence_length=True, value=_MASKED, axis=1)
        logits = F.transpose(logits, axes=(0, 2, 1))
        places = F.stack(starts, ends, axis=1)
        losses = -F.mean(F.pick(F.log_softmax(logits, axis=-1), places, axis=-1), axis=-1) * known
        hits = F.broadcast_equal(F.argmax(logits, axis=-1), F.cast(places, dtype="float32"))
        total = F.sum(losses)
        sums = F.concat(total, F.sum(F.min(hits, axis=-1) * known), dim=0)
        return total * factor, F.BlockGrad(sums), F.BlockGrad(logits)


class SpanLoss(PlainBert):
    """BERT and SpanHead on MXNet's operators. Inputs: input_ids, segment_ids (B, L) int32, then SpanHead's
    but for the tokens."""

    def hybrid_forward(
        self, F: Any, input_ids: Any, segment_ids: Any, valid_lengths: Any, *labels: Any
    ) -> tuple[Any, Any, Any]:
        above: list[Any] = []
        last = self.bert.encoder.transformer_cells[-1]
        with last.register_forward_hook(lambda cell, inputs, outputs: above.append(outputs[0])):
            tokens = self.bert(input_ids, segment_ids, self.lengths(F, valid_lengths))
        if self.head.over_padding:  # GluonNLP's encoder ends with zeros in its place
            tokens = F.transpose(above[0], axes=(1, 0, 2))
        return self.head(tokens, valid_lengths, *labels)


class FusedSpanLoss(FusedBert):
    """The same on the fused operators."""

    def hybrid_forward(
        self, F: Any, input_ids: Any, segment_ids: Any, valid_lengths: Any, *labels: Any, **weights: Any
    ) -> tuple[Any, Any, Any]:
        tokens = self.encode(self.layers(F, weights), input_ids, segment_ids, valid_lengths)
        if self.packs_sequences:
            tokens, valid_lengths = F.bert_unpack(tokens, valid_lengths, input_ids)
        return self.head(tokens, valid_lengths, *labels)


class QuestionAnswering(Task):
    """Spans of contexts as answers (Rajpurkar et al., arXiv:1606.05250, 1806.03822).

    A batch's windows whose answer is not known, as in evaluation, have a start of -1 and count for no figure.
    `over_padding`: see tasks.squad.task.SpanHead.
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
            network = FusedSpanLoss(bert, config, dtype, dropout)
        else:
            network = SpanLoss(bert, dtype)
        network.head = head
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
