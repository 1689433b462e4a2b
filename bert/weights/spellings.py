"""The names that files really have: prefixes, older spellings, what optimizers leave.

A name in a file is a weight of a BERT (`Weight`), something else that may be left out, such as an
optimizer's moment (`IGNORED`), or part of a network that is no plain BERT (`FOREIGN`): leaving that out would
change what the network computes.
"""

from __future__ import annotations

import re
from typing import Callable, Iterable, NamedTuple, Union

from bert.weights.names import DECODER_BIAS, EMBEDDING, TABLE

IGNORED, FOREIGN = "ignored", "foreign"


class Weight(NamedTuple):
    """A weight: its structural name in GluonNLP, and whether the file has it transposed.

    `folded`: the attention heads have an axis of their own.
    """

    name: str
    kernel: bool = False
    folded: bool = False


Meaning = Union[Weight, str]
Spelling = Callable[[str], Meaning]


def gluonnlp(name: str) -> Meaning:
    """Block.save_parameters' structural names, those of a BERTClassifier around a BERT, and the global names
    of `collect_params().save` and `export`, such as bertencoder0_transformer3_proj_weight."""
    name = re.sub(r"\A(arg:)?(bert\.)?", "", name)
    if "." not in name:
        for pattern, replacement in _GLOBAL:
            name = pattern.sub(replacement, name)
    foreign = name.startswith(("encoder.", "word_embed.", "token_type_embed."))
    return _look_up(_GLUONNLP, name) or (FOREIGN if foreign else IGNORED)


def _look_up(table: dict[str, Weight], name: str) -> Weight | None:
    """The weight of a name, whose first number may be that of a layer: "{layer}" in the table."""
    number = _NUMBER.search(name)
    if name in table or number is None:
        return table.get(name)
    found = table.get(f"{name[: number.start()]}{{layer}}{name[number.end() :]}")
    return found._replace(name=found.name.replace("{layer}", number[0])) if found else None


_NUMBER = re.compile(r"(?<=[._/])\d+(?=[./])")
_GLUONNLP = {row.gluonnlp: Weight(row.gluonnlp) for row in TABLE}
_IN_A_CELL = {
    "dotproductselfattentioncell#_(query|key|value)_(weight|bias)": r"attention_cell.proj_\2.\3",
    "proj_(weight|bias)": r"proj.\2",
    "layernorm#_(gamma|beta)": r"layer_norm.\2",
    "positionwiseffn#_ffn_([12])_(weight|bias)": r"ffn.ffn_\2.\3",
    "positionwiseffn#_layernorm#_(gamma|beta)": r"ffn.layer_norm.\2",
}
_CELL, _STRUCTURAL = "bertencoder#_transformer(#)_", r"encoder.transformer_cells.\1."
_NAMES = {  # "#" stands for the counter of a block
    "bertencoder#_position_weight": "encoder.position_weight",
    "bertencoder#_layernorm#_(gamma|beta)": r"encoder.layer_norm.\1",
    **{f"{_CELL}{each}": f"{_STRUCTURAL}{name}" for each, name in _IN_A_CELL.items()},
    "bertmodel#_word_embed_embedding#_weight": EMBEDDING,
    "bertmodel#_word_embed_embedding#_bias": DECODER_BIAS,
    "bertmodel#_token_type_embed_embedding#_weight": "token_type_embed.0.weight",
    "bertmodel#_pooler_(weight|bias)": r"pooler.\1",
    "bertmodel#_cls_(weight|bias)": r"classifier.\1",
    "bertmodel#_dense#_(weight|bias)": r"decoder.0.\1",
    "bertmodel#_layernorm#_(gamma|beta)": r"decoder.2.\1",
}
_GLOBAL = [(re.compile(each.replace("#", r"\d+") + r"\Z"), name) for each, name in _NAMES.items()]


def huggingface(name: str) -> Meaning:
    """Hugging Face's names and NVIDIA's, as state dictionaries have them: in a wrapper ("module.", "model.")
    or not, with "bert." or without, LayerNorm's numbers as weight and bias or as gamma and beta, dense layers
    with an activation inside (NVIDIA's `dense_act`)."""
    name = _WRAPPERS.sub("", name)
    if name.startswith(("embeddings.", "encoder.layer.", "pooler.")):
        name = f"bert.{name}"
    name = name.replace(".dense_act.", ".dense.")
    name = re.sub(r"\.LayerNorm\.gamma\Z", ".LayerNorm.weight", name)
    name = re.sub(r"\.LayerNorm\.beta\Z", ".LayerNorm.bias", name)
    if name in ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids"):  # 0, 1, 2, ...; no weights
        return IGNORED
    return _look_up(_HUGGING_FACE, name) or (FOREIGN if name.startswith("bert.") else IGNORED)


_WRAPPERS = re.compile(r"\A(?:(?:module|model|state_dict|model_state_dict)\.)+")
_HUGGING_FACE = {
    **{row.huggingface: Weight(row.gluonnlp) for row in TABLE},
    "cls.predictions.decoder.bias": Weight(DECODER_BIAS),  # the second name of cls.predictions.bias
}


def tensorflow(name: str) -> Meaning:
    """Google's and NVIDIA's variables. Those of optimizers are named after a weight, with something behind:
    `/adam_m`, `/adam_v`, `/LAMB`."""
    found = _look_up(_TENSORFLOW, name)
    foreign = name.startswith("bert/") and not _look_up(_TENSORFLOW, name.rpartition("/")[0])
    return found or (FOREIGN if foreign else IGNORED)


_TENSORFLOW = {row.tensorflow: Weight(row.gluonnlp, row.kernel) for row in TABLE if row.tensorflow}


def is_object_path(name: str) -> bool:
    """Whether TensorFlow 2's Checkpoint gave the name: a path through Python objects."""
    return name.endswith(_VALUE)


def object_paths(names: Iterable[str]) -> Spelling:
    """The spelling of a checkpoint of the TensorFlow Model Garden (official/nlp), by all of its names.

    Its functional encoders number their layers (layer_with_weights-0 to -3 are the embeddings and their
    LayerNorm, then come the cells, then perhaps a pooler), its later ones name them.
    """
    paths = [name for name in names if is_object_path(name)]
    cells = [int(match[1]) for match in map(_NUMBERED_CELL.match, paths) if match]
    pooler = f"layer_with_weights-{max(cells, default=0) + 1}"
    own_pooler = any(path.startswith("next_sentence..pooler_dense/") for path in paths)

    def spelling(name: str) -> Meaning:
        if not is_object_path(name) or "/.OPTIMIZER_SLOT/" in name:
            return IGNORED
        path = re.sub(r"\A(?:model/|encoder/)+", "", name[: -len(_VALUE)])
        if path.startswith(f"{pooler}/"):
            # Where the next-sentence head has a pooler of its own, the encoder's is not trained.
            path = "unused" if own_pooler else path.replace(pooler, "_pooler_layer", 1)
        match = re.fullmatch(r"layer_with_weights-(\d+)/(_.*)", path)
        if match:
            path = f"_transformer_layers/{int(match[1]) - 4}/{match[2]}"
        path = _PATHS_OF_LAYERS.get(path, path)
        foreign = path.startswith(("layer_with_weights-", "_transformer_layers/", "_embedding"))
        return _look_up(_PATHS, path) or (FOREIGN if foreign else IGNORED)

    return spelling


_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
_NUMBERED_CELL = re.compile(r"(?:model/|encoder/)*layer_with_weights-(\d+)/_attention_layer/")
_PATHS_OF_LAYERS = {
    "layer_with_weights-0/embeddings": "_embedding_layer/embeddings",
    "layer_with_weights-1/embeddings": "_position_embedding_layer/embeddings",
    "layer_with_weights-1/position_embeddings": "_position_embedding_layer/embeddings",
    "layer_with_weights-2/embeddings": "_type_embedding_layer/embeddings",
    "layer_with_weights-3/gamma": "_embedding_norm_layer/gamma",
    "layer_with_weights-3/beta": "_embedding_norm_layer/beta",
    "masked_lm/embedding_table": "_embedding_layer/embeddings",
}


_OBJECT, _CELLS = "_transformer_layers/{layer}", "encoder.transformer_cells.{layer}"
_ATTENTION = f"{_OBJECT}/_attention_layer"
_OF_LAYERS = {
    "_embedding_norm_layer": "encoder.layer_norm",
    f"{_ATTENTION}/_query_dense": f"{_CELLS}.attention_cell.proj_query",
    f"{_ATTENTION}/_key_dense": f"{_CELLS}.attention_cell.proj_key",
    f"{_ATTENTION}/_value_dense": f"{_CELLS}.attention_cell.proj_value",
    f"{_ATTENTION}/_output_dense": f"{_CELLS}.proj",
    f"{_OBJECT}/_attention_output_dense": f"{_CELLS}.proj",
    f"{_OBJECT}/_attention_layer_norm": f"{_CELLS}.layer_norm",
    f"{_OBJECT}/_intermediate_dense": f"{_CELLS}.ffn.ffn_1",
    f"{_OBJECT}/_output_dense": f"{_CELLS}.ffn.ffn_2",
    f"{_OBJECT}/_output_layer_norm": f"{_CELLS}.ffn.layer_norm",
    "_pooler_layer": "pooler",
    "next_sentence..pooler_dense": "pooler",
    "masked_lm/dense": "decoder.0",
    "masked_lm/layer_norm": "decoder.2",
}
_PATHS = {
    "_embedding_layer/embeddings": Weight(EMBEDDING),
    "_position_embedding_layer/embeddings": Weight("encoder.position_weight"),
    "_type_embedding_layer/embeddings": Weight("token_type_embed.0.weight"),
    **{
        # A path ends as Google's name; in the attention's projections heads have an axis of their own.
        f"{path}/{row.tensorflow.rpartition('/')[2]}": Weight(row.gluonnlp, row.kernel, ".proj" in layer)
        for path, layer in _OF_LAYERS.items()
        for row in TABLE
        if row.gluonnlp.rpartition(".")[0] == layer
    },
    "masked_lm/output_bias.Sbias": Weight(DECODER_BIAS),
    "classification_heads/0/out_proj/kernel": Weight("classifier.weight", kernel=True),
    "classification_heads/0/out_proj/bias": Weight("classifier.bias"),
}
