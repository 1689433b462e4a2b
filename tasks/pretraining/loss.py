"""BERT and both of its losses as one hybrid block: MXNet then plans one graph for the forward pass."""

from __future__ import annotations

from typing import Any

from tasks.networks import PlainBert

SUMS = ("mlm_loss", "nsp_loss", "mlm_correct", "nsp_correct")  # the order of the second output


class PretrainingLoss(PlainBert):
    """Masked-LM and next-sentence cross entropy (Devlin et al., arXiv:1810.04805, section 3.1).

    The caller passes the factors of both sums, `mlm_factor` = 1 / (masked positions in the step) and
    `nsp_factor` = 1 / (pairs in the step), over all micro-batches of the step: gradients accumulated
    over micro-batches are then those of one large batch, however the masks fall.

    Inputs (B sequences of L tokens, P masked positions each):
        input_ids, segment_ids (B, L); valid_lengths (B,); masked_positions, masked_ids (B, P);
        masked_weights (B, P), 0 where a position is padding; next_sentence_labels (B,), -1 for none;
        mlm_factor, nsp_factor (1,), loss scale included.
    Outputs:
        loss (1,): mlm_factor * sum of MLM losses + nsp_factor * sum of NSP losses, float32.
        sums (4,): as named by SUMS, without the factors, float32, no gradient.
    """

    def hybrid_forward(
        self,
        F: Any,
        input_ids: Any,
        segment_ids: Any,
        valid_lengths: Any,
        masked_positions: Any,
        masked_ids: Any,
        masked_weights: Any,
        next_sentence_labels: Any,
        mlm_factor: Any,
        nsp_factor: Any,
    ) -> tuple[Any, Any]:
        outputs = self.bert(input_ids, segment_ids, self.lengths(F, valid_lengths), masked_positions)
        next_sentence, decoded = outputs[-2:]
        labels = (masked_ids, masked_weights, next_sentence_labels)
        return losses(F, next_sentence, decoded, labels, (mlm_factor, nsp_factor))


def next_sentence_losses(F: Any, logits: Any, labels: Any) -> Any:
    """Cross entropies (B,) of logits (B, 2); 0 where a label is -1, of sequences without a second part."""
    known = F.cast(labels >= 0, dtype="float32")
    return -F.pick(F.log_softmax(logits, axis=-1), labels, axis=-1) * known


def losses(
    F: Any, next_sentence: Any, decoded: Any, labels: tuple[Any, Any, Any], factors: tuple[Any, Any]
) -> tuple[Any, Any]:
    """The outputs of `PretrainingLoss`, from the logits of both heads, (B, 2) and (B, P, vocabulary).

    `labels`: masked_ids, masked_weights, next_sentence_labels; `factors`: mlm_factor, nsp_factor."""
    masked_ids, masked_weights, next_sentence_labels = labels
    mlm_factor, nsp_factor = factors
    decoded = F.cast(decoded, dtype="float32")
    next_sentence = F.cast(next_sentence, dtype="float32")
    mlm_losses = -F.pick(F.log_softmax(decoded, axis=-1), masked_ids, axis=-1) * masked_weights
    nsp_losses = next_sentence_losses(F, next_sentence, next_sentence_labels)
    mlm_sum, nsp_sum = F.sum(mlm_losses), F.sum(nsp_losses)
    mlm_hits = F.broadcast_equal(F.argmax(decoded, axis=-1), F.cast(masked_ids, dtype="float32"))
    nsp_hits = F.broadcast_equal(
        F.argmax(next_sentence, axis=-1), F.cast(next_sentence_labels, dtype="float32")
    )
    loss = mlm_sum * mlm_factor + nsp_sum * nsp_factor
    sums = F.concat(mlm_sum, nsp_sum, F.sum(mlm_hits * masked_weights), F.sum(nsp_hits), dim=0)
    return loss, F.BlockGrad(sums)
