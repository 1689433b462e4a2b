"""BERT and both of its losses as one hybrid block, on MXNet's operators and on the fused CPU operators: MXNet
then plans one graph for the forward pass."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from gluonnlp.model.bert import BERTModel

from bert.configuration import BertConfig, Dropout
from bert.fused import FusedBert, Layers, SameValues
from bert.part import ModelPart
from bert.weights.names import DECODER, EMBEDDING
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
        self, F: Any, input_ids: Any, segment_ids: Any, valid_lengths: Any, masked_positions: Any, *given: Any
    ) -> tuple[Any, Any]:
        outputs = self.bert(input_ids, segment_ids, self.lengths(F, valid_lengths), masked_positions)
        next_sentence, decoded = outputs[-2:]
        return losses(F, next_sentence, decoded, given)


def losses(F: Any, next_sentence: Any, decoded: Any, given: Sequence[Any]) -> tuple[Any, Any]:
    """The outputs of `PretrainingLoss`, from the logits of both heads, (B, 2) and (B, P, vocabulary).

    `given`: its inputs from `masked_ids` on."""
    masked_ids, masked_weights = given[:2]
    decoded = F.cast(decoded, dtype="float32")
    mlm_losses = -F.pick(F.log_softmax(decoded, axis=-1), masked_ids, axis=-1) * masked_weights
    mlm_hits = F.broadcast_equal(F.argmax(decoded, axis=-1), F.cast(masked_ids, dtype="float32"))
    mlm = F.sum(mlm_losses), F.sum(mlm_hits * masked_weights)
    return _with_next_sentence(F, mlm, F.cast(next_sentence, dtype="float32"), given[2:])


def _with_next_sentence(F: Any, mlm: tuple[Any, Any], logits: Any, given: Sequence[Any]) -> tuple[Any, Any]:
    """The outputs, from the masked-LM sums of losses and of hits, and the next sentence's logits (B, 2).

    `given`: labels (B,), -1 for sequences without a second part, which count for nothing; both factors."""
    labels, mlm_factor, nsp_factor = given
    known = F.cast(labels >= 0, dtype="float32")
    nsp_sum = F.sum(-F.pick(F.log_softmax(logits, axis=-1), labels, axis=-1) * known)
    nsp_hits = F.broadcast_equal(F.argmax(logits, axis=-1), F.cast(labels, dtype="float32"))
    loss = mlm[0] * mlm_factor + nsp_sum * nsp_factor
    return loss, F.BlockGrad(F.concat(mlm[0], nsp_sum, mlm[1], F.sum(nsp_hits), dim=0))


_SAME = "decoder's word embedding"


class FusedPretrainingLoss(FusedBert):
    """The losses of `PretrainingLoss` on the fused operators, with its inputs, outputs and parameters.

    It differs in rounding, in the random numbers behind dropout, and in the work that it leaves out: above
    its attention the top layer computes only the tokens that the losses need, the first and the masked ones.

    Where it has all of BERT, the word embedding, if it is the decoder's weight, has one gradient from one
    operator. Parts leave it to MXNet to add two, to the same bits.
    """

    def __init__(
        self,
        bert: BERTModel,
        config: BertConfig,
        dtype: str,
        dropout: float | Dropout,
        part: ModelPart | None = None,
    ):
        products = ["decoder.0.weight"] if part is None or part.last else []
        super().__init__(bert, config, dtype, dropout, products, part)
        self.one_word_gradient = part is None and config.tied
        if self.one_word_gradient:
            decoder = SameValues(f"{self.prefix}decoder_weight", self._reg_params[EMBEDDING])
            self.params.update({decoder.name: decoder})
            self._reg_params[_SAME] = decoder

    def hybrid_forward(
        self,
        F: Any,
        input_ids: Any,
        segment_ids: Any,
        valid_lengths: Any,
        masked_positions: Any,
        *given: Any,
        **weights: Any,
    ) -> tuple[Any, Any]:
        layers = self.layers(F, weights)
        rows = decoder = None
        if self.one_word_gradient:
            rows, decoder = layers.words(input_ids, valid_lengths, given[0])
        x = layers.embed(input_ids, segment_ids, valid_lengths, rows)
        x = self.through(layers, x, valid_lengths, masked_positions)
        return self.losses(layers, x, given, decoder)

    def losses(self, layers: Layers, x: Any, given: Sequence[Any], decoder: Any = None) -> tuple[Any, Any]:
        """The outputs, from the first and the masked tokens above all layers, (B, 1 + P, units).

        `given`: the inputs from `masked_ids` on; `decoder`: from Layers.words, None where the decoder's
        weight has a gradient of its own."""
        F, weights = layers.F, layers.weights
        classified = classify(layers, F.slice_axis(x, axis=1, begin=0, end=1), self._config.units)
        masked = F.slice_axis(x, axis=1, begin=1, end=None)
        hidden = F.reshape(transform(layers, masked), shape=(-3, 0))
        of_decoder = [] if decoder is None else [decoder]
        weight = decoder_weight(weights) if decoder is None else weights[_SAME]
        losses, hits, *unread = F.bert_decode_loss(
            hidden, weight, weights["decoder.3.bias"],
            F.reshape(given[0], shape=(-1,)), F.reshape(given[1], shape=(-1,)), *of_decoder,
            deferred=len(of_decoder), dtype=layers.dtype,
        )  # fmt: skip
        loss = F.bert_unread(F.sum(losses), *unread, outputs=len(unread))
        return _with_next_sentence(F, (loss, F.sum(hits)), classified, given[2:])


def classify(layers: Layers, first: Any, units: int) -> Any:
    """Pooler and next-sentence classifier, (B, 1, U) -> (B, 2): products of B rows, too small to matter."""
    F, weights = layers.F, layers.weights
    pooled = F.FullyConnected(first, weights["pooler.weight"], weights["pooler.bias"], num_hidden=units)
    return F.FullyConnected(
        F.tanh(pooled), weights["classifier.weight"], weights["classifier.bias"], num_hidden=2
    )


def decoder_weight(weights: Mapping[str, Any]) -> Any:
    """Of the masked-LM head: the word embedding, or a weight of its own."""
    return weights[DECODER if DECODER in weights else EMBEDDING]


def transform(layers: Layers, masked: Any) -> Any:
    """The masked-LM head before its product with `decoder_weight`, (B, P, U) -> the same."""
    return layers.layer_norm(layers.activated(masked, "decoder.0"), "decoder.2")
