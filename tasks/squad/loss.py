"""Start and end of an answer above BERT (Devlin et al., arXiv:1810.04805, section 4.2)."""

from __future__ import annotations

from typing import Any

import mxnet as mx

from tasks.networks import FusedBertBelow, PlainBert

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


class FusedSpanLoss(FusedBertBelow):
    """The same on the fused operators."""

    def hybrid_forward(
        self, F: Any, input_ids: Any, segment_ids: Any, valid_lengths: Any, *labels: Any, **weights: Any
    ) -> tuple[Any, Any, Any]:
        tokens = self.encode(self.layers(F, weights), input_ids, segment_ids, valid_lengths)
        if self.packs_sequences:
            tokens, valid_lengths = F.bert_unpack(tokens, valid_lengths, input_ids)
        return self.head(tokens, valid_lengths, *labels)
