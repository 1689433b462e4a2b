"""BERT's embedding and transformer layers on the fused CPU operators of native/operators."""

from __future__ import annotations

from typing import Any, Iterable, Mapping

import mxnet as mx
import numpy as np
from gluonnlp.model.bert import BERTModel

from bert.arrays import on_device
from bert.configuration import BertConfig, Dropout
from bert.model import trainable
from bert.part import ModelPart, whole

_SQUARES = "squares"  # among the weights: 0, whose gradient is the sum of squares that layers have counted
# Rows are rounded up to a multiple: in float32 oneDNN makes a product for each number of rows, and keeps it.
_ROWS_MULTIPLE = 16


class FusedBert(mx.gluon.HybridBlock):
    """A BERT whose layers a subclass calls in its `hybrid_forward`, to put its heads and losses above them.

    A backward pass overwrites the gradients, also under grad_req "add": MXNet does not report grad_req to
    extension operators. training.step adds the micro-batches' gradients up.

    Args:
        bert: from bert.model.build_model for `config`, initialized, in float32, on the CPU.
        dtype: of the factors of matrix products. "bfloat16" rounds each factor; "bfloat16x3" writes each as
            the sum of two bfloat16 numbers, except in the attention and the scores of the vocabulary, which
            stay float32. Everything else is float32, the sums within products included.
        dropout: the rate, or both rates.
        head_products: names of the weights that the heads above multiply by `Layers.product`.
        part: of `bert`, what this network has; None for all.
    """

    adds_in_backward = False  # whether grad_req "add" is heeded
    packs_sequences = False  # whether rows are the tokens of all sequences end to end, without padding
    recomputes = False  # whether what layers keep for their backward pass is computed again there

    def __init__(
        self,
        bert: BERTModel,
        config: BertConfig,
        dtype: str,
        dropout: float | Dropout,
        head_products: Iterable[str] = (),
        part: ModelPart | None = None,
    ):
        super().__init__(prefix="fused_")
        self._dtype = dtype
        self._dropout = Dropout.of(dropout)
        self._config = config
        self.bert = bert
        self.part = part or whole(config)
        parameters = {name: each for name, each in trainable(bert).items() if self.part.holds(name)}
        for name, parameter in parameters.items():
            self._reg_params[name] = parameter
        # Names of weights that are multiplied together -> their copy in the layout that the products want.
        self._packed: dict[tuple[str, ...], mx.gluon.Parameter] = {}
        products: list[tuple[str, ...]] = []
        for cell in map(_cell, range(self.part.begin, self.part.end)):
            products.append(_projections(cell, ".weight"))
            products += [(f"{cell}{name}.weight",) for name in ("proj", "ffn.ffn_1", "ffn.ffn_2")]
        for weights in [*products, *((name,) for name in head_products)]:
            pack = self._pack([parameters[name].data() for name in weights])
            packed = _Packed(
                f"{self.prefix}packed{len(self._packed)}",
                shape=pack.shape, dtype="uint8", grad_req="null", init="zeros",
            )  # fmt: skip
            self.params.update({packed.name: packed})
            packed.initialize(ctx=mx.cpu())
            self._packed[weights] = packed
            self._reg_params["packed " + weights[0]] = packed

    def _pack(self, weights: list[mx.nd.NDArray], out: mx.nd.NDArray | None = None) -> mx.nd.NDArray:
        return mx.nd.bert_pack(*weights, num_weights=len(weights), dtype=self._dtype, out=out)

    def pack_weights(self) -> None:
        """Casts and rearranges the weights. Call it whenever the weights have changed, unless the update has
        written `packed_copies` itself."""
        for names, packed in self.packed_copies().items():
            self._pack([self._reg_params[name].data() for name in names], out=packed)

    def packed_copies(self) -> dict[tuple[str, ...], mx.nd.NDArray]:
        """The live copies that `pack_weights` writes, in `packed_dtype`, by the names of their weights."""
        return {
            names: packed.data()
            for names, packed in self._packed.items()
            if self._dtype != "float32" or len(names) > 1  # else the product takes the weight as it is
        }

    @property
    def packed_dtype(self) -> str:
        """The dtype of the packed copies."""
        return self._dtype

    def count_squares(self) -> None:
        """Has each backward pass from now on sum the squares of the gradients that it writes for the layers'
        weights, so that the global norm need not read them again."""
        if _SQUARES not in self._reg_params:
            squares = mx.gluon.Parameter(f"{self.prefix}{_SQUARES}", shape=(1,), init="zeros")
            squares.initialize(ctx=mx.cpu())
            self.params.update({squares.name: squares})
            self._reg_params[_SQUARES] = squares  # an attribute would be another parameter
            self._clear_cached_op()

    def counted_squares(self) -> tuple[frozenset[str], mx.nd.NDArray]:
        """Names of the weights, and the sum of the squares of their gradients in the last backward pass, (1,)
        float32; call `count_squares` before that pass. The sum is infinite where float32 cannot hold it, even
        if it can hold the root."""
        return frozenset(self._counted), self._reg_params[_SQUARES].grad()

    def remove_padding(self) -> None:
        """Leaves padding out of all layers from now on. Call it before the first batch. Only rounding changes
        the losses, and dropout, which draws other masks."""
        self.packs_sequences = True

    def recompute(self) -> None:
        """Has layers keep nothing but their results from now on: the backward pass computes the rest again,
        to the same bits. Call it before the first batch. Where both rates of dropout differ, attentions
        keep what they did."""
        self.recomputes = True

    def forward(self, input_ids: mx.nd.NDArray, segment_ids: Any, valid_lengths: Any, *others: Any) -> Any:
        """Calls `hybrid_forward` on arrays. Where padding is left out, places (see `encode`) replace
        `valid_lengths`: the number of rows must be known before a graph runs.

        Raises:
            ValueError: a sequence without tokens, or longer than `input_ids`, where padding is left out.
        """
        if self.packs_sequences:
            places = places_of(valid_lengths.asnumpy(), input_ids.shape[1], _ROWS_MULTIPLE)
            valid_lengths = on_device(places, input_ids.ctx)
        return super().forward(input_ids, segment_ids, valid_lengths, *others)

    def layers(self, F: Any, weights: Mapping[str, Any]) -> Layers:
        """The operations of this network in a `hybrid_forward`, which MXNet calls with `F` and `weights`."""
        layers = Layers(F, weights, self._config, self._dtype, self._dropout, self.packs_sequences)
        layers.halves["recompute"] = int(self.recomputes)
        self._counted = layers.counted
        return layers

    def encode(
        self, layers: Layers, input_ids: Any, segment_ids: Any, valid_lengths: Any, positions: Any = None
    ) -> Any:
        """Embeds the tokens and applies all layers.

        Args:
            input_ids, segment_ids: (B, L) int32.
            valid_lengths: (B,) int32; places (T, 2) int32 where padding is left out (`places_of`).
            positions: (B, P) int32; above its attention the top layer then computes only the first token and
                these. None computes all tokens.

        Returns:
            (B, 1 + P, units) float32, the first token before those at `positions`; without,
            (B, L, units), or (T, units) where padding is left out.
        """
        x = layers.embed(input_ids, segment_ids, valid_lengths)
        return self.through(layers, x, valid_lengths, positions)

    def through(self, layers: Layers, x: Any, valid_lengths: Any, positions: Any = None) -> Any:
        """Applies the layers of this network's part to `x`, (B, L, units); for the rest see `encode`."""
        for index in range(self.part.begin, self.part.end):
            top = index == self._config.layers - 1
            x = layers.layer(index, x, valid_lengths, positions if top else None)
        return x


class _Packed(mx.gluon.Parameter):
    """A copy of weights that has no gradient.

    Each forward pass gets a handle of its own on the memory. MXNet notes in an array without a gradient which
    graph it belongs to, and the first backward pass deletes the note. A second graph that shares the array
    and still waits for its backward pass would then fail.
    """

    def data(self, ctx: mx.Context | None = None) -> mx.nd.NDArray:
        return super().data(ctx).detach()


class SameValues(mx.gluon.Parameter):
    """The values of another parameter, in the same memory, without a gradient.

    Each forward pass gets a handle of its own, as with `_Packed`.
    """

    def __init__(self, name: str, original: mx.gluon.Parameter):
        super().__init__(name, grad_req="null", shape=original.shape, dtype=original.dtype)
        self._original = original

    def data(self, ctx: mx.Context | None = None) -> mx.nd.NDArray:
        return self._original.data(ctx).detach()


class Layers:
    """The network's operations by the structural names of their parameters.

    Args:
        F: mx.nd or mx.sym.
        weights: arrays or symbols by structural name, and the packed copies of `FusedBert`.
        packs: whether activations are rows (T, units) of sequences end to end instead of (B, L, units), with
            places instead of lengths.
    """

    def __init__(
        self,
        F: Any,
        weights: Mapping[str, Any],
        config: BertConfig,
        dtype: str,
        dropout: Dropout,
        packs: bool,
    ):
        self.F = F
        self._packs = packs
        self.weights = weights
        self.dtype = dtype
        self._dropout, self._attention_dropout = {"dropout": dropout.hidden}, {"dropout": dropout.attention}
        self._eps = {"eps": config.epsilon}
        self._heads = config.heads
        self._form = config.activation
        # MXNet does not tell extension operators whether it trains or predicts, this does: dropout of a one
        # leaves 1 in prediction and 0 or 2 in training.
        self._mode = F.Dropout(F.ones((1,)), p=0.5)
        # Every layer has the mode as an input, whose gradient nobody needs. The layers therefore return the
        # sum of squares of their weights' gradients as that gradient.
        self.counts = _SQUARES in weights
        self.halves = {"squares": int(self.counts)}  # attributes of both halves of a layer
        self.counted: list[str] = []  # weights whose gradients' squares are counted
        if self.counts:
            self._mode = F.BlockGrad(self._mode) + weights[_SQUARES]
        self._unread: list[Any] = []  # outputs that the last operator keeps for its backward pass alone

    def words(self, input_ids: Any, valid_lengths: Any, predicted_ids: Any) -> tuple[Any, Any]:
        """Looks words up in a table that is the decoder's weight too (native/operators/words.cc).

        Returns:
            The words' rows, for `embed`, and an array for the decoder with a row for each of
            `predicted_ids`.
        """
        places = [valid_lengths] if self._packs else []
        rows, decoder = self.F.bert_words(
            self.weights["word_embed.0.weight"], input_ids, predicted_ids, *places,
            packed=len(places), dtype=self.dtype,
        )  # fmt: skip
        return rows, decoder

    def embed(self, input_ids: Any, segment_ids: Any, valid_lengths: Any, rows: Any = None) -> Any:
        """(B, L) tokens and segments -> (B, L, units): three embeddings, LayerNorm, dropout.

        `rows`: the words' rows, from `words`; None looks them up here."""
        places = [valid_lengths] if self._packs else []
        return self.F.bert_embed(
            input_ids, segment_ids, self.weights["word_embed.0.weight"] if rows is None else rows,
            self.weights["token_type_embed.0.weight"], self.weights["encoder.position_weight"],
            *self._norm("encoder.layer_norm"), self._mode, *places, packed=len(places),
            looked_up=int(rows is not None), **self._dropout, **self._eps,
        )[0]  # fmt: skip

    def layer(self, index: int, x: Any, valid_lengths: Any, positions: Any = None) -> Any:
        """Transformer layer `index`: (B, L, units) -> the same; with `positions` as `FusedBert.encode`.

        Call the layers in order, each with the result of the one before.
        """
        cell = _cell(index)
        if positions is None:
            x = self._self_attention(cell, x, valid_lengths)
        else:
            x = self._attention_at(cell, x, valid_lengths, positions)
        return self._feed_forward(f"{cell}ffn.", x)

    def _self_attention(self, cell: str, x: Any, valid_lengths: Any) -> Any:
        projections = _projections(cell)
        names = [*projections, f"{cell}proj"]
        weights, biases = ([self.weights[f"{name}.{part}"] for name in names] for part in ("weight", "bias"))
        packed = [self.weights[f"packed {name}.weight"] for name in (projections[0], f"{cell}proj")]
        if self._dropout != self._attention_dropout:  # the operator for all of it has one rate
            projected = self._dense(x, projections, biases[:3])
            context, *self._unread = self.F.bert_attention(
                projected, valid_lengths, self._next_mode(),
                heads=self._heads, dtype=self.dtype, **self._attention_dropout,
            )  # fmt: skip
            y, *self._unread = self.F.bert_add_norm(
                self.product(context, f"{cell}proj"), biases[3], x, *self._norm(f"{cell}layer_norm"),
                self._next_mode(), **self._dropout, **self._eps,
            )  # fmt: skip
            return y
        y, *self._unread = self.F.bert_self_attention(
            x, valid_lengths, *weights[:3], *biases[:3], weights[3], biases[3],
            *self._norm(f"{cell}layer_norm"), self._next_mode(), *packed,
            heads=self._heads, dtype=self.dtype, **self._dropout, **self._eps, **self.halves,
        )  # fmt: skip
        self.counted += [f"{name}.weight" for name in names]
        return y

    def _attention_at(self, cell: str, x: Any, valid_lengths: Any, positions: Any) -> Any:
        """The attention half of a layer; after the attention only the first token and `positions` go on."""
        names = _projections(cell)
        projected = self._dense(x, names, [self.weights[f"{name}.bias"] for name in names])
        context = self.F.bert_attention(
            projected, valid_lengths, self._next_mode(),
            heads=self._heads, dtype=self.dtype, **self._attention_dropout,
        )[0]  # fmt: skip
        places = [valid_lengths] if self._packs else []
        context, x = (
            self.F.bert_gather(each, positions, *places, first=1, packed=len(places)) for each in (context, x)
        )
        return self.F.bert_add_norm(
            self.product(context, f"{cell}proj"), self.weights[f"{cell}proj.bias"], x,
            *self._norm(f"{cell}layer_norm"), self._mode, **self._dropout, **self._eps,
        )[0]  # fmt: skip

    def product(self, x: Any, name: str) -> Any:
        """x W^T without the bias, which the next operator adds."""
        return self._dense(x, (name,), [])

    def activated(self, x: Any, name: str) -> Any:
        """The configuration's activation of x W^T + b."""
        return self.F.bert_bias_gelu(self.product(x, name), self.weights[f"{name}.bias"], form=self._form)

    def layer_norm(self, x: Any, name: str) -> Any:
        """LayerNorm over the last axis."""
        return self.F.bert_layer_norm(x, *self._norm(name), **self._eps)

    def _feed_forward(self, name: str, x: Any) -> Any:
        first, second = f"{name}ffn_1", f"{name}ffn_2"
        weights = [self.weights[f"{each}.{part}"] for each in (first, second) for part in ("weight", "bias")]
        packed = [self.weights[f"packed {each}.weight"] for each in (first, second)]
        y, *self._unread = self.F.bert_feed_forward(
            x, *weights, *self._norm(f"{name}layer_norm"), self._next_mode(), *packed,
            dtype=self.dtype, form=self._form, **self._dropout, **self._eps, **self.halves,
        )  # fmt: skip
        self.counted += [f"{first}.weight", f"{second}.weight"]
        return y

    def _next_mode(self) -> Any:
        """The mode for the next operator.

        It passes through bert_unread, together with the outputs that the operator before keeps for its own
        backward pass: MXNet then writes no zeros as their gradients (native/operators/unread.cc).
        """
        unread, self._unread = self._unread, []
        if not unread:
            return self._mode
        if not self.counts:
            return self.F.bert_unread(self._mode, *unread, outputs=len(unread))
        # Two copies, for the next operator and for those after it: with static memory MXNet loses the sum of
        # more gradients of one array.
        mode, self._mode = self.F.bert_unread(self._mode, *unread, outputs=len(unread), copies=2)
        return mode

    def _dense(self, x: Any, names: tuple[str, ...], biases: list[Any]) -> Any:
        """x W^T + b for several W and b side by side."""
        weights = [self.weights[f"{name}.weight"] for name in names]
        packed = self.weights[f"packed {names[0]}.weight"]
        return self.F.bert_dense(
            x, *weights, *biases, packed, num_weights=len(names), bias=int(bool(biases)), dtype=self.dtype
        )

    def _norm(self, name: str) -> tuple[Any, Any]:
        return self.weights[f"{name}.gamma"], self.weights[f"{name}.beta"]


def places_of(lengths: np.ndarray, longest: int, multiple: int = 1) -> np.ndarray:
    """The sequence of each row and the position in it, of sequences end to end, int32 (T, 2). T is the sum of
    the lengths, rounded up to a multiple; rows beyond the sum have (-1, -1).

    Raises:
        ValueError: a length outside [1, longest].
    """
    if lengths.min() < 1 or lengths.max() > longest:
        raise ValueError(f"lengths of {lengths.min()} to {lengths.max()} tokens are outside [1, {longest}]")
    total = int(lengths.sum())
    places = np.full((-(-total // multiple) * multiple, 2), -1, np.int32)
    places[:total, 0] = np.repeat(np.arange(len(lengths)), lengths)
    begins = np.cumsum(lengths) - lengths
    places[:total, 1] = np.arange(total) - np.repeat(begins, lengths)
    return places


def _cell(index: int) -> str:
    return f"encoder.transformer_cells.{index}."


def _projections(cell: str, suffix: str = "") -> tuple[str, ...]:
    return tuple(f"{cell}attention_cell.proj_{part}{suffix}" for part in ("query", "key", "value"))
