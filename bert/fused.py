"""BERT and both of its losses on the fused CPU operators of native/operators."""

from __future__ import annotations

from typing import Any

import mxnet as mx
from gluonnlp.model.bert import BERTModel

from bert.model import LAYER_NORM_EPSILON, trainable


class FusedPretrainingLoss(mx.gluon.HybridBlock):
    """What tasks.pretraining.loss.PretrainingLoss computes, with the same inputs, outputs and parameters.

    It differs in rounding, in the random numbers behind dropout, and in the work that it leaves out: above
    its attention the top layer computes only what the losses look at, the first token and the masked ones.

    Its gradients replace what is in their arrays, also under grad_req "add": MXNet does not tell extension
    operators to add (training.step sums them up).

    Args:
        bert: from bert.model.build_model, initialized, in float32, on the CPU.
        dtype: "float32", or "bfloat16" for matrix products of numbers rounded to that type. Everything else,
            sums within the products included, is float32 in both.
        dropout: its rate.
        heads: attention heads.
    """

    adds_in_backward = False  # whether grad_req "add" is heeded

    def __init__(self, bert: BERTModel, dtype: str, dropout: float, heads: int):
        super().__init__(prefix="fused_")
        if dtype not in ("float32", "bfloat16"):
            raise ValueError(f"the fused operators compute in float32 or bfloat16, not in {dtype}")
        self._dtype = dtype
        self._dropout = {"dropout": dropout}
        self._heads = heads
        self._eps = {"eps": LAYER_NORM_EPSILON}
        self.bert = bert
        parameters = trainable(bert)
        self._units = parameters["pooler.weight"].shape[0]
        self._layers = 1 + max(
            int(name.split(".")[2]) for name in parameters if name.startswith("encoder.transformer_cells.")
        )
        for name, parameter in parameters.items():
            self._reg_params[name] = parameter
        # Names of weights that are multiplied together -> their copy in the layout that the products want.
        self._packed: dict[tuple[str, ...], mx.gluon.Parameter] = {}
        for weights in self._multiplied():
            pack = self._pack([parameters[name].data() for name in weights])
            packed = self.params.get(
                f"packed{len(self._packed)}", shape=pack.shape, dtype="uint8", grad_req="null", init="zeros"
            )
            packed.initialize(ctx=mx.cpu())
            self._packed[weights] = packed
            self._reg_params["packed " + weights[0]] = packed

    def _multiplied(self) -> list[tuple[str, ...]]:
        """Names of the weights of each product that goes through bert_dense."""
        groups = []
        for index in range(self._layers):
            cell = f"encoder.transformer_cells.{index}."
            attention = tuple(
                f"{cell}attention_cell.proj_{part}.weight" for part in ("query", "key", "value")
            )
            groups.append(attention)
            groups += [(f"{cell}{name}.weight",) for name in ("proj", "ffn.ffn_1", "ffn.ffn_2")]
        return [*groups, ("decoder.0.weight",)]

    def _pack(self, weights: list[mx.nd.NDArray], out: mx.nd.NDArray | None = None) -> mx.nd.NDArray:
        return mx.nd.bert_pack(*weights, num_weights=len(weights), dtype=self._dtype, out=out)

    def pack_weights(self) -> None:
        """Casts and rearranges the weights; to be called whenever they have changed, once for each step."""
        for names, packed in self._packed.items():
            if self._dtype != "float32" or len(names) > 1:  # else the product takes the weight as it is
                self._pack([self._reg_params[name].data() for name in names], out=packed.data())

    def hybrid_forward(
        self,
        F,
        input_ids,
        segment_ids,
        valid_lengths,
        masked_positions,
        masked_ids,
        masked_weights,
        next_sentence_labels,
        mlm_factor,
        nsp_factor,
        **weights,
    ):
        net = _Network(F, weights, self._dtype)
        # Extension operators are not told whether MXNet trains or predicts, this tells them: dropout of a one
        # leaves 1 in prediction and 0 or 2 in training.
        mode = F.Dropout(F.ones((1,)), p=0.5)
        x = F.bert_embed(
            input_ids, segment_ids, weights["word_embed.0.weight"], weights["token_type_embed.0.weight"],
            weights["encoder.position_weight"], *net.norm("encoder.layer_norm"), mode,
            **self._dropout, **self._eps,
        )[0]  # fmt: skip
        for index in range(self._layers):
            cell = f"encoder.transformer_cells.{index}."
            projections = [f"{cell}attention_cell.proj_{part}" for part in ("query", "key", "value")]
            context = F.bert_attention(
                net.dense(x, *projections), valid_lengths, mode, heads=self._heads, **self._dropout
            )[0]
            if index == self._layers - 1:
                context = F.bert_gather(context, masked_positions, first=1)
                x = F.bert_gather(x, masked_positions, first=1)
            x = self._add_norm(net, f"{cell}proj", context, x, f"{cell}layer_norm", mode)
            hidden = F.bert_bias_gelu(net.product(x, f"{cell}ffn.ffn_1"), weights[f"{cell}ffn.ffn_1.bias"])
            x = self._add_norm(net, f"{cell}ffn.ffn_2", hidden, x, f"{cell}ffn.layer_norm", mode)

        classified = self._classify(net, F.slice_axis(x, axis=1, begin=0, end=1))
        nsp_losses = -F.pick(F.log_softmax(classified, axis=-1), next_sentence_labels, axis=-1)
        nsp_hits = F.broadcast_equal(
            F.argmax(classified, axis=-1), F.cast(next_sentence_labels, dtype="float32")
        )
        mlm_losses, mlm_hits = self._decode(
            net, F.slice_axis(x, axis=1, begin=1, end=None), masked_ids, masked_weights
        )
        mlm_sum, nsp_sum = F.sum(mlm_losses), F.sum(nsp_losses)
        loss = mlm_sum * mlm_factor + nsp_sum * nsp_factor
        sums = F.concat(mlm_sum, nsp_sum, F.sum(mlm_hits), F.sum(nsp_hits), dim=0)
        return loss, F.BlockGrad(sums)

    def _add_norm(self, net: _Network, dense: str, x: Any, residual: Any, norm: str, mode: Any) -> Any:
        return net.F.bert_add_norm(
            net.product(x, dense), net.weights[f"{dense}.bias"], residual, *net.norm(norm), mode,
            **self._dropout, **self._eps,
        )[0]  # fmt: skip

    def _classify(self, net: _Network, first: Any) -> Any:
        """(B, 1, U) -> (B, 2): a product of B rows, too small to matter."""
        F, weights = net.F, net.weights
        pooled = F.FullyConnected(
            first, weights["pooler.weight"], weights["pooler.bias"], num_hidden=self._units
        )
        return F.FullyConnected(
            F.tanh(pooled), weights["classifier.weight"], weights["classifier.bias"], num_hidden=2
        )

    def _decode(self, net: _Network, masked: Any, ids: Any, factors: Any) -> tuple[Any, Any]:
        """(B, P, U) -> losses and hits (B * P,)."""
        F, weights = net.F, net.weights
        hidden = F.bert_bias_gelu(net.product(masked, "decoder.0"), weights["decoder.0.bias"])
        hidden = F.bert_layer_norm(hidden, *net.norm("decoder.2"), **self._eps)
        hidden = F.reshape(hidden, shape=(-3, 0))
        outputs = F.bert_decode_loss(
            hidden, weights["word_embed.0.weight"], weights["decoder.3.bias"],
            F.reshape(ids, shape=(-1,)), F.reshape(factors, shape=(-1,)), dtype=self._dtype,
        )  # fmt: skip
        return outputs[0], outputs[1]


class _Network:
    """Products and norms by the structural name of their parameters."""

    def __init__(self, F: Any, weights: dict[str, Any], dtype: str):
        self.F = F
        self.weights = weights
        self._dtype = dtype

    def dense(self, x: Any, *names: str) -> Any:
        """x W^T + b for several W and b side by side."""
        return self._dense(x, names, [self.weights[f"{name}.bias"] for name in names])

    def product(self, x: Any, name: str) -> Any:
        """x W^T; the bias is added by whatever comes next."""
        return self._dense(x, (name,), [])

    def _dense(self, x: Any, names: tuple[str, ...], biases: list[Any]) -> Any:
        weights = [self.weights[f"{name}.weight"] for name in names]
        packed = self.weights[f"packed {names[0]}.weight"]
        return self.F.bert_dense(
            x, *weights, *biases, packed, num_weights=len(names), bias=int(bool(biases)), dtype=self._dtype
        )

    def norm(self, name: str) -> tuple[Any, Any]:
        return self.weights[f"{name}.gamma"], self.weights[f"{name}.beta"]
