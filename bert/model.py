"""BERT with its two pretraining heads, built from GluonNLP's blocks."""

from __future__ import annotations

import mxnet as mx
from gluonnlp.model.bert import BERTEncoder, BERTModel

from bert.configuration import LAYER_NORM_EPSILON, parse_model
from data.options import MAX_POSITIONS

INITIAL_STDEV = 0.02  # Devlin et al., arXiv:1810.04805, the released code
DROPOUT = 0.1  # the same, section A.2


def build_model(name: str, vocab_size: int, dropout: float = DROPOUT) -> BERTModel:
    """An uninitialized BERT with pooler, next-sentence classifier and masked-LM decoder.

    Parameter names and shapes are GluonNLP's, so its fine-tuning scripts load the saved `.params`.

    Args:
        name: `bert_LAYERS_UNITS_HEADS`.
        vocab_size: rows of the word embedding, which the decoder shares.

    Raises:
        InputError: a name of another form.
    """
    layers, units, heads = parse_model(name)
    encoder = BERTEncoder(
        num_layers=layers,
        units=units,
        hidden_size=4 * units,
        max_length=MAX_POSITIONS,
        num_heads=heads,
        dropout=dropout,
        layer_norm_eps=LAYER_NORM_EPSILON,
    )
    return BERTModel(
        encoder=encoder, vocab_size=vocab_size, token_type_vocab_size=2, units=units, embed_size=units
    )


def initialize(model: BERTModel, device: mx.Context, dtype: str, seed: int) -> None:
    """Random parameters, the same for the same seed: N(0, 0.02) weights, zero biases, unit LayerNorms."""
    mx.random.seed(seed)
    model.initialize(mx.init.Normal(INITIAL_STDEV), ctx=device)
    # GluonNLP leaves some shapes to the first batch; optimizer and checkpoints need them now.
    tokens = mx.nd.zeros((1, 8), ctx=device)
    model(tokens, tokens, mx.nd.array([8], ctx=device), mx.nd.zeros((1, 1), ctx=device))
    model.cast(dtype)


def trainable(model: BERTModel) -> dict[str, mx.gluon.Parameter]:
    """Parameters by GluonNLP's structural name, each once (the decoder's weight is the word embedding)."""
    named = {}
    seen = set()
    for name, parameter in model._collect_params_with_prefix().items():
        if parameter.grad_req != "null" and id(parameter) not in seen:
            seen.add(id(parameter))
            named[name] = parameter
    return named
