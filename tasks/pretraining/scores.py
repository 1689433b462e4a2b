"""Answers for text that is no training example: scores of every token at chosen places, of the tokens that
stand there and of the next sentence; vectors of texts, the pooled hidden states of a layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Callable, Collection, NamedTuple, Sequence

import mxnet as mx
import numpy as np
from gluonnlp.model.bert import BERTModel

from base.errors import InputError
from bert.configuration import KEEP, REMOVE
from bert.fused import FusedBert
from bert.model import DECODER, HEADS, build_model, initialize
from bert.operators import check_fused, choose_operators
from bert.weights.names import EMBEDDING
from bert.weights.tensors import Weights
from data.minimal_pairs import Batch
from tasks.networks import PlainBert
from tasks.pretraining.loss import classify, decoder_weight, transform


class Encoded(NamedTuple):
    """One input: token ids with [CLS] and [SEP], 0 or 1 for each as its segment, and the places of masks."""

    ids: Sequence[int]
    segments: Sequence[int]
    masks: Sequence[int]


class Probabilities(NamedTuple):
    """Answers to an input. `tokens`: (masks, rows of the embedding) float64, each row sums up to 1.
    `next_sentence`: that the second sentence follows the first."""

    tokens: np.ndarray
    next_sentence: float


class Scores(PlainBert):
    """Logits on MXNet's operators: (B, L), (B, L), (B,), (B, P) int32 -> (B, P, tokens), (B, 2) float32."""

    def hybrid_forward(
        self, F: Any, input_ids: Any, segment_ids: Any, valid_lengths: Any, positions: Any
    ) -> tuple[Any, Any]:
        lengths = self.lengths(F, valid_lengths)
        next_sentence, decoded = self.bert(input_ids, segment_ids, lengths, positions)[-2:]
        return decoded, next_sentence


class FusedScores(FusedBert):
    """The same on the fused operators."""

    def hybrid_forward(
        self, F: Any, input_ids: Any, segment_ids: Any, valid_lengths: Any, positions: Any, **weights: Any
    ) -> tuple[Any, Any]:
        layers = self.layers(F, weights)
        x = self.encode(layers, input_ids, segment_ids, valid_lengths, positions)
        hidden = transform(layers, F.slice_axis(x, axis=1, begin=1, end=None))
        decoded = F.FullyConnected(
            hidden, decoder_weight(weights), weights["decoder.3.bias"],
            num_hidden=self._reg_params[EMBEDDING].shape[0], flatten=False,
        )  # fmt: skip
        return decoded, classify(layers, F.slice_axis(x, axis=1, begin=0, end=1), self._config.units)


class LogLikelihood(PlainBert):
    """log p, in nats, of tokens at chosen places on MXNet's operators: (B, L), (B, L), (B,), (B, P), (B, P)
    int32 -> (B, P) float32."""

    def hybrid_forward(
        self, F: Any, input_ids: Any, segment_ids: Any, valid_lengths: Any, positions: Any, labels: Any
    ) -> Any:
        decoded = self.bert(input_ids, segment_ids, self.lengths(F, valid_lengths), positions)[-1]
        return F.pick(F.log_softmax(decoded, axis=-1), labels, axis=-1)


class FusedLogLikelihood(FusedBert):
    """The same on the fused operators."""

    def hybrid_forward(
        self,
        F: Any,
        input_ids: Any,
        segment_ids: Any,
        valid_lengths: Any,
        positions: Any,
        labels: Any,
        **weights: Any,
    ) -> Any:
        layers = self.layers(F, weights)
        x = self.encode(layers, input_ids, segment_ids, valid_lengths, positions)
        hidden = F.reshape(transform(layers, F.slice_axis(x, axis=1, begin=1, end=None)), shape=(-3, 0))
        flat = F.reshape(labels, shape=(-1,))
        losses = F.bert_decode_loss(
            hidden, decoder_weight(weights), weights["decoder.3.bias"],
            flat, F.ones_like(F.cast(flat, dtype="float32")), deferred=0, dtype=layers.dtype,
        )[0]  # fmt: skip
        return F.reshape_like(-losses, F.cast(labels, dtype="float32"))


@dataclass(frozen=True)
class Computing:
    """Operators, padding and dtype of a network, as these options have them. `padding` None:
    removed where the operators can."""

    operators: str
    padding: str | None
    dtype: str = "float32"


def opened(
    weights: Weights,
    computing: Computing,
    plain: Callable[[BERTModel], mx.gluon.HybridBlock],
    fused: Callable[..., FusedBert],
    heads: Collection[str],
) -> Callable[..., list[np.ndarray]]:
    """A network with weights from anywhere on the first GPU or the CPU, as a function of arrays of whole
    numbers that returns arrays float32, or raises InputError where they are not finite.

    Args:
        plain, fused: the network on MXNet's operators and on ours.
        heads: those of bert.model.HEADS that it has.

    Raises:
        InputError: operators, padding or a dtype that cannot be had, or weights that cannot be read or are
            not finite.
    """
    device = mx.gpu() if mx.context.num_gpus() else mx.cpu()
    chosen = choose_operators(computing.operators, computing.dtype, device)
    padding = computing.padding or (REMOVE if chosen == "fused" else KEEP)
    if padding == REMOVE:
        check_fused("--padding remove", chosen)
    bert = build_model(weights.config, weights.vocab_size, dropout=0.0, heads=heads)
    initialize(bert, device, "float32", seed=0)  # a head that the weights lack is never looked at
    named = bert._collect_params_with_prefix()
    for name in filter(named.__contains__, weights.tensors):
        array = weights.tensors[name].read().astype(np.float32, copy=False)
        if not np.isfinite(array).all():
            raise InputError(f"{weights.source}: {name} has numbers that are not finite in float32")
        named[name].set_data(mx.nd.array(array, ctx=device, dtype="float32"))
    if chosen == "fused":
        products = ["decoder.0.weight"] if DECODER in heads else []
        network = fused(bert, weights.config, computing.dtype, 0.0, products)
        network.pack_weights()
        if padding == REMOVE:
            network.remove_padding()
    else:
        network = plain(bert)
    network.hybridize()

    def compute(*columns: np.ndarray) -> list[np.ndarray]:
        outputs = network(*(mx.nd.array(each, ctx=device, dtype="int32") for each in columns))
        found = [each.asnumpy() for each in (outputs if isinstance(outputs, (list, tuple)) else [outputs])]
        if not all(np.isfinite(each).all() for each in found):
            raise InputError(f"{weights.source}: its numbers are so large that the outputs are not finite")
        return found

    return compute


class TokenScorer:
    """Log-likelihoods of tokens by a BERT with weights from anywhere. Raises InputError as `opened`."""

    def __init__(self, weights: Weights, computing: Computing):
        self._network = opened(weights, computing, LogLikelihood, FusedLogLikelihood, [DECODER])

    def __call__(self, batch: Batch) -> np.ndarray:
        """log p, in nats, of the labels of a batch, (B,) float64."""
        segments = np.zeros_like(batch.ids)
        (found,) = self._network(batch.ids, segments, batch.lengths, batch.places, batch.labels)
        return found[:, 0].astype(np.float64)


class Predictor:
    """Probabilities by a BERT with weights from anywhere, in float32. Raises InputError as `opened`."""

    def __init__(self, weights: Weights, computing: Computing):
        self._network = opened(weights, computing, Scores, FusedScores, HEADS)

    def __call__(self, batch: Sequence[Encoded]) -> list[Probabilities]:
        """Answers to inputs, which are computed together."""
        masks = _padded([each.masks for each in batch])
        decoded, next_sentence = self._network(*inputs_of(batch), masks)
        return [
            Probabilities(_softmax(decoded[row, : len(each.masks)]), float(_softmax(next_sentence[row])[0]))
            for row, each in enumerate(batch)
        ]


def inputs_of(batch: Sequence[Encoded]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token ids and segments (B, L), 0 behind the shorter inputs, and lengths (B,), all int32."""
    lengths = np.array([len(each.ids) for each in batch], np.int32)
    return _padded([each.ids for each in batch]), _padded([each.segments for each in batch]), lengths


def _padded(rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Rows of different lengths as one array int32 with a column at least, 0 behind the shorter ones."""
    found = np.zeros((len(rows), max(1, *map(len, rows))), np.int32)
    for row, values in zip(found, rows):
        row[: len(values)] = values
    return found


def _softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True, initial=-np.inf)
    exponentials = np.exp(shifted)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


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
        # What is above the layer is not computed.
        lower = replace(weights, config=replace(weights.config, layers=layer))
        networks = partial(Vectors, pooling), partial(FusedVectors, pooling)
        self._network = opened(lower, computing, *networks, heads=())

    def __call__(self, batch: Sequence[Encoded]) -> np.ndarray:
        """Vectors of inputs, which are computed together, (B, units) float32."""
        return self._network(*inputs_of(batch))[0]
