"""The weights and the vocabulary that fine-tuning begins with, found before MXNet is imported."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, replace
from typing import Any, Mapping, Sequence

from base.command_line import path_name
from base.errors import InputError
from base.options import flag, option
from bert.configuration import BertConfig
from bert.weights.bare_params import check_finite, expected_shapes
from bert.weights.beside import read_vocabulary
from bert.weights.names import POOLER, part_of
from bert.weights.params_file import read_index
from bert.weights.tensors import Tensor, Weights
from data.tokenizing.tokenizer import TokenizerSettings, load_sentencepiece
from data.tokenizing.vocab import load_vocab
from training.checkpoint import step_of
from training.start.initial import Initial, with_vocabulary
from training.start.pretrained import PretrainedConfig, described_tokenizer, find_described
from training.start.start import newest_manifest

INIT_FROM, MODEL_PARAMETERS = "--init_from", "--model_parameters"


@dataclass(frozen=True)
class BeginningConfig:
    """The options about weights. At most one of `init_from` (BERT) and `model_parameters` (with the head) is
    given; without, everything begins with random numbers, and `described` has a model and a vocabulary."""

    described: PretrainedConfig
    init_from: str | None = None
    model_parameters: str | None = option(
        "a model fine-tuned by this script, with its head: to evaluate, or to go on training",
        path_name,
        "WEIGHTS",
    )
    sentencepiece: str | None = None
    init_vocab: bool = False
    uncased: bool = flag("expect weights that ignore case; they say so by themselves")


@dataclass(frozen=True)
class TaskParameters:
    """Parameters that a task's network has: of BERT the encoder, with the pooler where it `has_pooler`; above
    it the `head`, shapes by name."""

    has_pooler: bool
    head: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Found:
    """The model to fine-tune, and the tokenizer of its vocabulary. `weights` is None for random numbers."""

    bert: BertConfig
    vocab_size: int
    tokenizer: TokenizerSettings
    weights: Weights | None
    flag: str = INIT_FROM
    initial_stdev: float | None = None  # of random weights, as --config_file says it
    anew: Sequence[int] = ()  # as training.start.initial.Initial has it


def find_beginning(config: BeginningConfig) -> Found:
    """Opens what the options name; the numbers are read later.

    Raises:
        InputError: as `find_described` and `described_tokenizer`; nothing says what to begin with.
    """
    given, flag = config.model_parameters or config.init_from, INIT_FROM
    if config.model_parameters:
        flag = MODEL_PARAMETERS
        if config.init_from:
            raise InputError(f"{INIT_FROM} and {MODEL_PARAMETERS} exclude each other: both bring BERT")
    described = config.described
    anew: Sequence[int] = ()
    if config.init_vocab and (flag != INIT_FROM or given is None or config.sentencepiece):
        raise InputError(f"--init_vocab needs {INIT_FROM}, and --vocab, this run's own vocabulary")
    if given is None:
        return _random(config)
    # Beside them is their own vocabulary then, which --vocab does not name.
    weights = find_described(given, flag, replace(described, vocab=None) if config.init_vocab else described)
    if config.init_vocab:
        tokens = read_vocabulary(described.vocab, "--vocab") if described.vocab else None
        source = f"{flag} {weights.source}"
        weights, anew = with_vocabulary(source, weights, tokens, len(tokens or ()))
    if weights.config.token_types < 2:
        raise InputError(f"{flag} {weights.source} has one token type, and pairs of texts need two")
    tokenizer = described_tokenizer(weights, flag, config.described, config.sentencepiece)
    if config.uncased and tokenizer.cased:
        raise InputError(f"--uncased: {flag} {weights.source} keeps upper case; leave the option out")
    file = config.described.config_file
    stdev = file.initial_stdev if file else None
    return Found(weights.config, weights.vocab_size, tokenizer, weights, flag, stdev, anew)


def manifest_before(options: argparse.Namespace, found: Found) -> dict[str, Any]:
    """The manifest of the fine-tuned checkpoint that the run goes on from, or evaluates; empty where there is
    none, or none that can be read."""
    manifest = newest_manifest(options.ckpt_dir) if options.resume else None
    if manifest is None and options.model_parameters and found.weights is not None:
        source = found.weights.source
        manifest = newest_manifest(os.path.dirname(source) or ".", step_of(source) or -1)
    return manifest or {}


def _random(config: BeginningConfig) -> Found:
    described = config.described
    file = described.config_file
    bert = file.config if file else described.model
    if bert is None or not (described.vocab or config.sentencepiece):
        raise InputError(
            f"nothing to begin with: give {INIT_FROM} (pretrained weights), or for random ones --model and "
            "--vocab"
        )
    if described.vocab and config.sentencepiece:
        raise InputError("--vocab and --sentencepiece exclude each other: each brings its own vocabulary")
    if config.sentencepiece:
        vocabulary = load_sentencepiece(config.sentencepiece)
    else:
        vocabulary = load_vocab(str(described.vocab))
    rows = (file.vocab_size if file else None) or len(vocabulary)
    if rows < len(vocabulary):
        raise InputError(
            f"--config_file {described.config_path}: vocab_size is {rows}, but --vocab has "
            f"{len(vocabulary)} tokens"
        )
    tokenizer = TokenizerSettings(vocabulary, config.sentencepiece, described.cased)
    return Found(bert, rows, tokenizer, None, initial_stdev=file.initial_stdev if file else None)


def take_initial(found: Found, parameters: TaskParameters) -> Initial | None:
    """The parameters to begin with, all of them looked at; None for random ones.

    Raises:
        InputError: --model_parameters has no head of this task; numbers that are not finite.
    """
    weights = found.weights
    if weights is None:
        return None
    wanted = expected_shapes(found.bert, found.vocab_size)
    parts = (None, POOLER) if parameters.has_pooler else (None,)
    needed = [name for name in wanted if part_of(name) in parts]
    tensors = {name: weights.tensors[name] for name in needed if name in weights.tensors}
    messages = list(weights.notes)
    source = f"{found.flag} {weights.source}"
    random = [] if len(tensors) == len(needed) else ["the pooler, which they lack"]
    if found.flag == MODEL_PARAMETERS:
        tensors.update(_head(source, weights, parameters))
    else:
        random.append("the head of the task")
    if random:
        messages.append(f"{weights.source}: random numbers for {' and '.join(random)}")
    check_finite(source, tensors)
    return Initial(weights.source, tensors, messages, anew=found.anew)


def _head(source: str, weights: Weights, parameters: TaskParameters) -> dict[str, Tensor]:
    """The head's tensors, which `find_weights` leaves out."""
    if weights.format != "gluonnlp":
        raise InputError(f"{source}: a head can be read from this project's checkpoints only")
    index = read_index(weights.source)
    tensors = {}
    for name, shape in parameters.head.items():
        tensor = index.get(name)
        if tensor is None or tensor.shape != shape:
            there = "lacks" if tensor is None else f"has {tensor.shape} for"
            raise InputError(
                f"{source} {there} {name} {shape}, the head of this task; name a checkpoint that was "
                f"fine-tuned for it, or train one from these weights with {INIT_FROM}"
            )
        tensors[name] = tensor
    return tensors
