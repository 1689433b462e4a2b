"""Names of a BERT's weights: GluonNLP's, Google's (TensorFlow) and Hugging Face's, in one table.

A dense weight is (outputs, inputs) in GluonNLP and Hugging Face, and a `kernel` of (inputs, outputs) in
TensorFlow: kernels alone are transposed. The word embedding is a tied decoder's weight too, which only
GluonNLP and Hugging Face name.
"""

from __future__ import annotations

import re
from typing import Iterator, NamedTuple

EMBEDDING, DECODER = "word_embed.0.weight", "decoder.3.weight"  # one array under two names, if tied
DECODER_BIAS = "decoder.3.bias"
POOLER, NEXT_SENTENCE, MASKED_LM = "pooler", "next-sentence head", "masked-LM head"
_PARTS = {"pooler.": POOLER, "classifier.": NEXT_SENTENCE, "decoder.": MASKED_LM}
_LAYER = "{layer}"


class Names(NamedTuple):
    """The names of one weight; `kernel`: TensorFlow has it transposed. "{layer}" stands for a number, ""
    for no name."""

    gluonnlp: str
    tensorflow: str
    huggingface: str
    kernel: bool = False


def _dense(gluonnlp: str, tensorflow: str) -> Iterator[Names]:
    path = tensorflow.replace("/layer_", "/layer/").replace("/", ".")
    yield Names(f"{gluonnlp}.weight", f"{tensorflow}/kernel", f"{path}.weight", kernel=True)
    yield Names(f"{gluonnlp}.bias", f"{tensorflow}/bias", f"{path}.bias")


def _norm(gluonnlp: str, tensorflow: str) -> Iterator[Names]:
    path = tensorflow.replace("/layer_", "/layer/").replace("/", ".")
    yield Names(f"{gluonnlp}.gamma", f"{tensorflow}/gamma", f"{path}.weight")
    yield Names(f"{gluonnlp}.beta", f"{tensorflow}/beta", f"{path}.bias")


def _embedding(gluonnlp: str, which: str) -> Names:
    return Names(gluonnlp, f"bert/embeddings/{which}", f"bert.embeddings.{which}.weight")


_CELL, _BLOCK = f"encoder.transformer_cells.{_LAYER}", f"bert/encoder/layer_{_LAYER}"
TABLE: tuple[Names, ...] = (
    _embedding(EMBEDDING, "word_embeddings"),
    _embedding("token_type_embed.0.weight", "token_type_embeddings"),
    _embedding("encoder.position_weight", "position_embeddings"),
    *_norm("encoder.layer_norm", "bert/embeddings/LayerNorm"),
    *_dense(f"{_CELL}.attention_cell.proj_query", f"{_BLOCK}/attention/self/query"),
    *_dense(f"{_CELL}.attention_cell.proj_key", f"{_BLOCK}/attention/self/key"),
    *_dense(f"{_CELL}.attention_cell.proj_value", f"{_BLOCK}/attention/self/value"),
    *_dense(f"{_CELL}.proj", f"{_BLOCK}/attention/output/dense"),
    *_norm(f"{_CELL}.layer_norm", f"{_BLOCK}/attention/output/LayerNorm"),
    *_dense(f"{_CELL}.ffn.ffn_1", f"{_BLOCK}/intermediate/dense"),
    *_dense(f"{_CELL}.ffn.ffn_2", f"{_BLOCK}/output/dense"),
    *_norm(f"{_CELL}.ffn.layer_norm", f"{_BLOCK}/output/LayerNorm"),
    *_dense("pooler", "bert/pooler/dense"),
    *_dense("decoder.0", "cls/predictions/transform/dense"),
    *_norm("decoder.2", "cls/predictions/transform/LayerNorm"),
    Names(DECODER, "", "cls.predictions.decoder.weight"),
    Names(DECODER_BIAS, "cls/predictions/output_bias", "cls.predictions.bias"),
    Names("classifier.weight", "cls/seq_relationship/output_weights", "cls.seq_relationship.weight"),
    Names("classifier.bias", "cls/seq_relationship/output_bias", "cls.seq_relationship.bias"),
)
_BY_GLUONNLP = {row.gluonnlp: row for row in TABLE}
_IN_A_CELL = re.compile(r"encoder\.transformer_cells\.(\d+)\.")


def names_of(structural: str) -> Names:
    """All names of the weight that GluonNLP calls `structural`. KeyError for what is no weight of a BERT."""
    match = _IN_A_CELL.match(structural)
    if not match:
        return _BY_GLUONNLP[structural]
    row = _BY_GLUONNLP[_IN_A_CELL.sub(f"{_CELL}.", structural, count=1)]
    layer = match[1]
    return Names(
        structural, row.tensorflow.replace(_LAYER, layer), row.huggingface.replace(_LAYER, layer), row.kernel
    )


def layer_of(structural: str) -> int | None:
    """The number of the layer that a weight belongs to; None for the embeddings and the heads."""
    match = _IN_A_CELL.match(structural)
    return int(match[1]) if match else None


def part_of(structural: str) -> str | None:
    """The part that a model may lack to which a weight belongs, None for the encoder and its embeddings."""
    return next((part for head, part in _PARTS.items() if structural.startswith(head)), None)
