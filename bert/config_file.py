"""bert_config.json: the shape of a BERT as Google, NVIDIA and Hugging Face write it.

Standard library only. A key that would change the network into one which the code does not have is an error
that names it; of the rest, those that nothing is known of are listed, not judged.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Callable, Mapping, NamedTuple

from base.errors import InputError
from base.json_files import read_json_object
from bert.configuration import GELU_FORMS, LAYER_NORM_EPSILON, LEAST_EPSILON, RELU, BertConfig, is_epsilon

MOST_BYTES = 1 << 20
_LARGEST = 1 << 24  # of a size: what is above is a mistake, not a model

SIZE_KEYS = {
    "num_hidden_layers": "layers",
    "hidden_size": "units",
    "num_attention_heads": "heads",
    "intermediate_size": "hidden",
    "max_position_embeddings": "positions",
    "type_vocab_size": "token_types",
}
_HUGGING_FACE = ("model_type", "architectures", "transformers_version")  # keys of its files alone
# "gelu" itself is the error function in Hugging Face's and NVIDIA's code and tanh in Google's.
_GELU = "gelu"
_FORMS = {
    "gelu_python": "erf",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
    "gelu_accurate": "tanh",
    RELU: RELU,
}
_GELU_FORM = "gelu_form"  # which of the two, in files that convert.py writes
_EPSILON, _TIED = ("layer_norm_eps", "layer_norm_epsilon"), "tie_word_embeddings"
# Keys whose other values ask for what the code does not have.
_FIXED: dict[str, tuple[Any, ...]] = {
    "model_type": ("bert",),
    "position_embedding_type": ("absolute",),
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
}
# Keys that say nothing about the network in pretraining: where it comes from, how to run or fine-tune it.
_WITHOUT_EFFECT = {
    *("architectures", "transformers_version", "_name_or_path", "torch_dtype", "dtype", "torchscript"),
    *("use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "gradient_checkpointing"),
    *("chunk_size_feed_forward", "classifier_dropout", "output_attentions", "output_hidden_states"),
    *("return_dict", "id2label", "label2id", "num_labels", "problem_type", "finetuning_task"),
    *("pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head"),
    *("pooler_type", "directionality"),
}
_OWN = (
    *("vocab_size", "hidden_act", _GELU_FORM, "embedding_size", *_EPSILON, _TIED),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range"),
)


class ConfigFile(NamedTuple):
    """A file's content.

    Attributes:
        config: with GELU by erf where `gelu_open`.
        vocab_size: rows of the word embedding; None where the file does not say.
        unknown_keys: nothing is known of them here.
        dropout, attention_dropout: rates; None where the file does not say.
        initial_stdev: of random weights; None where the file does not say.
        hidden_act: as in the file.
        gelu_open: the file says "gelu" in Google's and NVIDIA's form, and so not which.
    """

    config: BertConfig
    vocab_size: int | None
    unknown_keys: tuple[str, ...]
    dropout: float | None
    attention_dropout: float | None
    initial_stdev: float | None
    hidden_act: str
    gelu_open: bool

    def with_gelu(self, form: str, source: str) -> BertConfig:
        """The configuration with GELU in this form, which a user asks for by --gelu.

        Raises:
            InputError: the file names the other one; "gelu" alone is no name of a form.
        """
        named = _FORMS.get(self.hidden_act, form)
        if named != form:
            words = "no GELU" if named == RELU else f"the {named} form"
            raise InputError(
                f"--gelu {form}: hidden_act of {source} is {self.hidden_act}, which is {words}; "
                "leave --gelu out or change the file"
            )
        return replace(self.config, activation=form)


def read_config_file(path: str, flag: str) -> ConfigFile:
    """The BERT that a bert_config.json or config.json describes.

    Args:
        flag: the option that names the file, for the beginning of error messages.

    Raises:
        InputError: the file cannot be read or is no such file; or a key, which is named, is missing, has no
            value of its kind, or asks for another network than this code's.
    """
    source = f"{flag} {path}"
    try:
        content = read_json_object(path, MOST_BYTES, source)
    except InputError as error:
        raise InputError(f"{error}; name the model's bert_config.json") from error
    _check_fixed(content, _FIXED, source)  # first: sizes have other names in the files of other models
    sizes: dict[str, Any] = {field: _size(content, key, source) for key, field in SIZE_KEYS.items()}
    tied = content.get(_TIED, True)
    if not isinstance(tied, bool):
        raise InputError(f"{source}: {_TIED} is {_shown(tied)}, not true or false")
    config = BertConfig(**sizes, epsilon=_epsilon(content, source), tied=tied)
    if config.units % config.heads:
        raise InputError(
            f"{source}: num_attention_heads {config.heads} do not divide hidden_size {config.units}"
        )
    _check_fixed(content, {"embedding_size": (config.units,)}, source)
    hidden_act, activation = _activation(content, source)
    known = {*SIZE_KEYS, *_FIXED, *_WITHOUT_EFFECT, *_OWN}
    rate = (source, "from 0 to below 1", lambda each: 0 <= each < 1)
    return ConfigFile(
        config=replace(config, activation=activation or "erf"),
        vocab_size=None if content.get("vocab_size") is None else _size(content, "vocab_size", source),
        unknown_keys=tuple(key for key in content if key not in known),
        dropout=_number(content, "hidden_dropout_prob", *rate),
        attention_dropout=_number(content, "attention_probs_dropout_prob", *rate),
        initial_stdev=_number(content, "initializer_range", source, "above 0", lambda each: 0 < each < 1e3),
        hidden_act=hidden_act,
        gelu_open=activation is None,
    )


def _size(content: Mapping[str, Any], key: str, source: str) -> int:
    if key not in content:
        raise InputError(f"{source}: {key} is missing; it has to describe a whole BERT")
    value = content[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _LARGEST:
        raise InputError(f"{source}: {key} is {_shown(value)}, not a whole number from 1 to {_LARGEST:,}")
    return value


def _number(
    content: Mapping[str, Any], key: str, source: str, wanted: str, fits: Callable[[float], bool]
) -> float | None:
    value = content.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not fits(value):
        raise InputError(f"{source}: {key} is {_shown(value)}, not a number {wanted}")
    return float(value)


def _epsilon(content: Mapping[str, Any], source: str) -> float:
    """The epsilon of LayerNorm under either of its names."""
    found = {key: content[key] for key in _EPSILON if content.get(key) is not None}
    for key, value in found.items():
        if not is_epsilon(value):
            raise InputError(
                f"{source}: {key} is {_shown(value)}, not a number from {LEAST_EPSILON:g} to below 1"
            )
    values = {*found.values()} or {LAYER_NORM_EPSILON}
    if len(values) > 1:
        raise InputError(f"{source}: {' and '.join(found)} differ; leave one of them out")
    return float(values.pop())


def _check_fixed(content: Mapping[str, Any], fixed: Mapping[str, tuple[Any, ...]], source: str) -> None:
    for key, accepted in fixed.items():
        if key in content and not any(_same(content[key], value) for value in accepted):
            raise InputError(
                f"{source}: {key} is {_shown(content[key])}, and this code has {_shown(accepted[0])} only"
            )


def _activation(content: Mapping[str, Any], source: str) -> tuple[str, str | None]:
    """hidden_act, and the activation; None where the file leaves open which form of GELU that is."""
    name = content.get("hidden_act", _GELU)
    if name != _GELU and not (isinstance(name, str) and name in _FORMS):
        raise InputError(
            f"{source}: hidden_act is {_shown(name)}, and this code has {', '.join([_GELU, *_FORMS])} only"
        )
    if _GELU_FORM in content:
        form = content[_GELU_FORM]
        if form not in GELU_FORMS or form != _FORMS.get(name, form):
            raise InputError(
                f"{source}: {_GELU_FORM} is {_shown(form)}; it is {' or '.join(GELU_FORMS)}, and with "
                f"hidden_act {name} {_FORMS.get(name, 'either')}"
            )
        return name, str(form)
    is_open = name == _GELU and not any(key in content for key in _HUGGING_FACE)
    return name, None if is_open else _FORMS.get(name, "erf")


def _same(found: Any, wanted: Any) -> bool:
    """Equal, and not a truth value for a number."""
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
