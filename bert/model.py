"""BERT with its pooler and pretraining heads, or without, built from GluonNLP's blocks."""

from __future__ import annotations

import math
from typing import Any, Collection, Mapping

import mxnet as mx
from gluonnlp.model.bert import BERTEncoder, BERTModel

from bert.configuration import DROPOUT, INITIAL_STDEV, RELU, BertConfig, Dropout

POOLER, CLASSIFIER, DECODER = HEADS = ("pooler", "classifier", "decoder")


def build_model(
    config: BertConfig,
    vocab_size: int,
    dropout: float | Dropout = DROPOUT,
    heads: Collection[str] = HEADS,
) -> BERTModel:
    """An uninitialized BERT with pooler, next-sentence classifier and masked-LM decoder.

    Parameter names and shapes are GluonNLP's, so its fine-tuning scripts load the saved `.params`.

    Args:
        vocab_size: rows of the word embedding, which a tied decoder shares.
        heads: of HEADS, those to build; the classifier needs the pooler.
    """
    rates = Dropout.of(dropout)
    encoder = BERTEncoder(
        num_layers=config.layers,
        units=config.units,
        hidden_size=config.hidden,
        max_length=config.positions,
        num_heads=config.heads,
        dropout=rates.hidden,
        layer_norm_eps=config.epsilon,
        activation={"erf": "gelu", RELU: RELU}.get(config.activation) or TanhGELU(),
    )
    for cell in encoder.transformer_cells:  # GluonNLP gives it the encoder's rate
        cell.attention_cell.dropout_layer = mx.gluon.nn.Dropout(rates.attention)
    model = BERTModel(
        encoder=encoder,
        vocab_size=vocab_size,
        token_type_vocab_size=config.token_types,
        units=config.units,
        embed_size=config.units,
        use_pooler=POOLER in heads,
        use_classifier=CLASSIFIER in heads,
        use_decoder=DECODER in heads,
    )
    if DECODER in heads:  # GluonNLP has no arguments for these
        layers = model.decoder._children
        if config.activation != "erf":
            layers["1"] = mx.gluon.nn.Activation(RELU) if config.activation == RELU else TanhGELU()
        if not config.tied:
            with model.decoder.name_scope():
                layers["3"] = mx.gluon.nn.Dense(vocab_size, flatten=False, in_units=config.units)
    return model


class TanhGELU(mx.gluon.HybridBlock):
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks and Gimpel, arXiv:1606.08415, section 2).

    GluonNLP's GELU(approximate=True) has a gradient of NaN where the cube of x is beyond its dtype: from 41
    on in float16. Here the argument of tanh stops where that is 1. (1 + tanh(u)) / 2 is sigmoid(2 u), which
    takes fewer operators.
    """

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        near = F.clip(x, a_min=-12, a_max=12)
        factor = 2 * math.sqrt(2 / math.pi)
        return x * F.sigmoid(near * (factor + (0.044715 * factor) * F.square(near)))


def initialize(
    model: BERTModel, device: mx.Context, dtype: str, seed: int, stdev: float = INITIAL_STDEV
) -> None:
    """Random parameters, the same for the same seed: N(0, stdev^2) weights, zero biases, unit LayerNorms."""
    mx.random.seed(seed)
    model.initialize(mx.init.Normal(stdev), ctx=device)
    # GluonNLP leaves some shapes to the first batch; optimizer and checkpoints need them now.
    tokens = mx.nd.zeros((1, 8), ctx=device)
    model(tokens, tokens, mx.nd.array([8], ctx=device), mx.nd.zeros((1, 1), ctx=device))
    model.cast(dtype)


def initialize_head(head: mx.gluon.Block, bert: BERTModel, dtype: str) -> None:
    """Random parameters for a head on the device of `bert`, as `initialize` draws them; in float32, or in
    float16 for that dtype."""
    (device,) = next(iter(bert.collect_params().values())).list_ctx()
    head.initialize(mx.init.Normal(INITIAL_STDEV), ctx=device)
    head.cast("float16" if dtype == "float16" else "float32")


def trainable(model: BERTModel) -> dict[str, mx.gluon.Parameter]:
    """Parameters by GluonNLP's structural name, each once (a tied decoder's weight is the word embedding)."""
    return each_once(model._collect_params_with_prefix())


def network_parameters(network: Any) -> dict[str, mx.gluon.Parameter]:
    """All parameters of a task's network by the names that checkpoints have: GluonNLP's structural ones of
    its `bert`, of which a network of a `part` has some, then those of its `head`, if it has one."""
    named = dict(network.bert._collect_params_with_prefix())
    part = getattr(network, "part", None)
    if part is not None:
        named = {name: parameter for name, parameter in named.items() if part.holds(name)}
    head = getattr(network, "head", None)
    return {**named, **head._collect_params_with_prefix()} if head is not None else named


def live_arrays(named: Mapping[str, mx.gluon.Parameter]) -> dict[str, mx.nd.NDArray]:
    """The arrays of parameters, by the same names."""
    return {name: parameter.data() for name, parameter in named.items()}


def trained(network: Any) -> dict[str, mx.gluon.Parameter]:
    """Those of `network_parameters` that are trained, each once."""
    return each_once(network_parameters(network))


def each_once(named: Mapping[str, mx.gluon.Parameter]) -> dict[str, mx.gluon.Parameter]:
    """Those of named parameters that are trained, each under its first name."""
    found = {}
    seen = set()
    for name, parameter in named.items():
        if parameter.grad_req != "null" and id(parameter) not in seen:
            seen.add(id(parameter))
            found[name] = parameter
    return found
