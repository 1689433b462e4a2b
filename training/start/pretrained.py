"""Options about weights that do not say everything about themselves: vocabulary, heads, form of GELU.

For the commands that open any weights. MXNet is not imported.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, replace
from typing import Any, Callable

from base.command_line import path_name
from base.errors import InputError
from base.options import add_options, flag, option, options_in, taken
from bert.config_file import ConfigFile, read_config_file
from bert.configuration import GELU_FORMS, RELU, SIZES, BertConfig, named_config
from bert.weights.beside import read_vocabulary
from bert.weights.exporting import looks_cased
from bert.weights.tensors import Weights
from data.tokenizing.tokenizer import TokenizerSettings, load_sentencepiece
from data.tokenizing.vocab import SENTENCEPIECE, vocabulary_from_tokens
from training.start.initial import find_weights
from training.start.vocabulary import FILES


@dataclass(frozen=True)
class PretrainedConfig:
    """Facts about weights; None and False: not given. `model` and `config_file` are what `name` and
    `config_path` say."""

    vocab: str | None = option(
        "vocab.txt or GluonNLP's vocabulary in JSON, in the order of the embedding's rows (default: the one "
        "beside the weights, or of the run)",
        path_name,
    )
    cased: bool = flag("upper case is kept (default: as beside the weights)")
    name: str | None = option(
        "bert_LAYERS_UNITS_HEADS, for weights that nothing beside them says the heads of (default: heads of "
        "64 units, as in every BERT of Google's)",
        name="model",
    )
    config_path: str | None = option(
        "a bert_config.json or config.json in place of --model", path_name, name="config_file"
    )
    gelu: str | None = option(
        "the form that the weights were trained with (default: as beside the weights; tanh for TensorFlow, "
        "erf for others)",
        choices=GELU_FORMS,
    )
    model: BertConfig | None = None
    config_file: ConfigFile | None = None


def add_pretrained_options(add: Callable[..., Any]) -> None:
    """Adds the options to a parser or a group, by its `add_argument`."""
    add_options(add, options_in(PretrainedConfig), "vocab cased model config_file gelu")


def pretrained_config(options: argparse.Namespace) -> PretrainedConfig:
    """Facts that the options give. Raises InputError, also for a configuration file that cannot be used."""
    if options.model and options.config_file:
        raise InputError("--model and --config_file: give one of them")
    return taken(
        PretrainedConfig,
        options,
        model=named_config(options.model) if options.model else None,
        config_file=read_config_file(options.config_file, "--config_file") if options.config_file else None,
    )


def find_described(given: str, flag: str, config: PretrainedConfig) -> Weights:
    """The weights that `find_weights` finds, with what the options say of them.

    Raises:
        InputError: as `find_weights`; a configuration or a vocabulary that is not theirs.
    """
    shape = config.config_file.config if config.config_file else config.model
    weights = find_weights(given, flag, shape)
    if shape is not None:
        option = f"--config_file {config.config_path}" if config.config_file else f"--model {shape.name}"
        for name in SIZES if config.config_file else SIZES[:3]:
            found, said = getattr(weights.config, name), getattr(shape, name)
            if found != said:
                raise InputError(
                    f"{option} says {said} {name}, but {flag} {weights.source} has {found}; leave the option "
                    "out or name the model of these weights"
                )
        network = replace(weights.config, activation=shape.activation)
        if config.config_file and network != shape:
            raise InputError(
                f"{option} says {shape.description}, but {flag} {weights.source} has {network.description}; "
                "leave the option out or name the configuration of these weights"
            )
    named = config.config_file is not None and not config.config_file.gelu_open
    activation = shape.activation if shape is not None and named else weights.config.activation
    if config.gelu and activation == RELU:
        raise InputError(
            f"--gelu {config.gelu}: {flag} {weights.source} has ReLU and no GELU; leave the option out"
        )
    weights = replace(weights, config=replace(weights.config, activation=config.gelu or activation))
    if config.vocab:
        tokens = read_vocabulary(config.vocab, "--vocab")
        if len(tokens) > weights.vocab_size:
            raise InputError(
                f"--vocab {config.vocab} has {len(tokens)} tokens, but {flag} {weights.source} has "
                f"embeddings of {weights.vocab_size}; name the vocabulary that it was trained with"
            )
        weights = replace(weights, vocabulary=tokens)
    if config.cased:
        return replace(weights, cased=True)
    if weights.cased is not None or weights.vocabulary is None:
        return weights
    guessed = looks_cased(weights.vocabulary)
    words = "has upper case, so it is kept (cased)" if guessed else "has no upper case, so text is lowered"
    note = f"the vocabulary {words}: nothing beside the weights says"
    return replace(weights, cased=guessed, notes=(*weights.notes, note))


def described_tokenizer(
    weights: Weights, flag: str, config: PretrainedConfig, sentencepiece: str | None
) -> TokenizerSettings:
    """The tokenizer of the weights: the vocabulary that is given, or beside them.

    Args:
        flag: the option that names the weights, for messages.
        sentencepiece: a model's path, of --sentencepiece.

    Raises:
        InputError: there is none, or it has more tokens than the weights.
    """
    cased = config.cased or bool(weights.cased)
    beside = os.path.join(os.path.dirname(weights.source), FILES[SENTENCEPIECE])
    model = sentencepiece
    if model is None and weights.vocabulary is None and os.path.isfile(beside):
        model = beside
    if model is not None:
        vocabulary = load_sentencepiece(model)
    elif weights.vocabulary is not None:
        vocabulary = vocabulary_from_tokens(weights.vocabulary, config.vocab or weights.source)
    else:
        raise InputError(
            f"{flag} {weights.source}: no vocabulary lies beside it; give --vocab vocab.txt or "
            "--sentencepiece"
        )
    if len(vocabulary) > weights.vocab_size:
        raise InputError(
            f"{model or flag} has {len(vocabulary)} tokens, but {weights.source} has embeddings of "
            f"{weights.vocab_size}; name the vocabulary that it was trained with"
        )
    return TokenizerSettings(vocabulary, model, cased)
