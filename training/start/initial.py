"""Parameters that a run begins with (--init_from): found among our checkpoints or in any file that
`bert.weights.opening` reads, moved to another vocabulary (--init_vocab), and compared with the run's model
and vocabulary before mxnet is imported."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from typing import Mapping, Sequence

import numpy as np

from base.errors import InputError
from bert.configuration import BertConfig, recorded_config
from bert.weights.bare_params import check_finite, distinct_shapes
from bert.weights.names import DECODER, DECODER_BIAS, EMBEDDING
from bert.weights.opening import open_weights
from bert.weights.tensors import Tensor, Weights
from data.tokenizing.vocab import WORDPIECE, Vocabulary
from training.checkpoint import (
    BEST,
    BEST_FILE,
    PARAMS,
    Checkpoint,
    best_step,
    list_steps,
    load_step,
    newest_complete,
    params_path,
    step_of,
    verified,
)
from training.start.options import RESETS, StartConfig
from training.start.vocabulary import FILES, saved_vocabulary

_AT_STEP = re.compile(rf"(.+):(\d+|{BEST})")


def find_weights(given: str, flag: str, config: BertConfig | None = None) -> Weights:
    """The weights that an option names.

    Args:
        given: a folder of our checkpoints, of which the newest complete one is taken (a folder that holds it
            as `ckpt` will do); FOLDER:STEP, one of them, or FOLDER:best; or whatever `open_weights` reads.
        flag: the option, for messages.
        config: as `open_weights` has it.

    Raises:
        InputError: no such checkpoint, none that is complete, or as `open_weights`.
    """
    match = _AT_STEP.fullmatch(given)
    if match and not os.path.exists(given):
        folder = _checkpoint_folder(match[1]) or match[1]
        if match[2] != BEST:
            return _at_step(folder, int(match[2]), flag, config)
        if not os.path.exists(os.path.join(folder, BEST_FILE)):
            raise InputError(
                f"{flag} {given}: no {BEST_FILE} there, which a run with --keep_best has; name a step"
            )
        return _at_step(folder, best_step(folder), flag, config)
    folder = _checkpoint_folder(given)
    if folder is not None:
        passed_over: list[str] = []
        found = newest_complete(folder, passed_over.append, needed=(PARAMS,))
        if found is not None:
            return _of_checkpoint(folder, found, flag, passed_over)
        if list_steps(folder):
            raise InputError(f"{flag} {folder} holds no complete checkpoint: {passed_over[0]}")
        bare = max(name for name in os.listdir(folder) if step_of(name) is not None)
        return open_weights(os.path.join(folder, bare), flag, config)
    step, folder = step_of(given), os.path.dirname(given) or "."
    if step is not None and step in list_steps(folder):
        return _at_step(folder, step, flag, config)
    return open_weights(given, flag, config)


def _checkpoint_folder(given: str) -> str | None:
    """The folder with numbered checkpoints that a path means; None for any other path."""
    for folder in (given, os.path.join(given, "ckpt")):
        if os.path.isdir(folder) and any(step_of(name) is not None for name in os.listdir(folder)):
            return folder
    return None


def _at_step(folder: str, step: int, flag: str, config: BertConfig | None) -> Weights:
    if step in list_steps(folder):
        try:
            found = verified(folder, step, needed=(PARAMS,))
        except InputError as error:
            raise InputError(f"{flag} {folder}:{step}: {error}") from error
        return _of_checkpoint(folder, found, flag, [])
    if os.path.isfile(params_path(folder, step)):
        return open_weights(params_path(folder, step), flag, config)
    steps = list_steps(folder)
    available = f"available: {', '.join(map(str, steps))}" if steps else "it holds no checkpoints"
    raise InputError(f"{flag} {folder}:{step}: no checkpoint of this step; {available}")


def _of_checkpoint(folder: str, found: Checkpoint, flag: str, notes: Sequence[str]) -> Weights:
    """Weights with what their manifest says of them, which is whole."""
    manifest, path = found.manifest or {}, found.params_path
    weights = open_weights(path, flag, recorded_config(manifest, f"{flag} {path}"))
    options = manifest.get("options")
    cased = options.get("cased") if isinstance(options, dict) else None
    vocabulary, more = None, []
    try:
        vocabulary = saved_vocabulary(folder, manifest)
    except InputError as error:
        more = [f"{error}: left out"]
    if vocabulary is not None and vocabulary.kind != WORDPIECE:
        more = [f"the vocabulary is {FILES[vocabulary.kind]} beside it, which has no vocab.txt"]
        vocabulary = None
    if vocabulary is not None and len(vocabulary) > weights.vocab_size:
        raise InputError(
            f"{flag} {path} has embeddings of {weights.vocab_size} tokens, but the run's vocabulary in "
            f"{folder} has {len(vocabulary)}; name the folder of one run"
        )
    tokens = None if vocabulary is None else vocabulary.tokens
    return replace(weights, vocabulary=tokens, cased=cased, notes=(*notes, *weights.notes, *more))


OF_TOKENS = (EMBEDDING, DECODER, DECODER_BIAS)  # parameters with a row for each token


def with_vocabulary(
    source: str, weights: Weights, tokens: Sequence[str] | None, rows: int
) -> tuple[Weights, Sequence[int]]:
    """The weights for other tokens.

    Args:
        source: the option and the weights, for messages.
        tokens: the vocabulary, in the order of the ids; None where it is not known.
        rows: of the word embedding, as many as there are tokens or more.

    Returns:
        The weights with so many rows, and the numbers of those that have to be drawn, which are zero until
        then. The notes say how many tokens are kept.

    Raises:
        InputError: one of the vocabularies is not known.
    """
    if tokens is None:
        raise InputError("--init_vocab: name this run's vocabulary with --vocab")
    if weights.vocabulary is None:
        raise InputError(
            f"{source}: --init_vocab needs the vocabulary of these weights; put their vocab.txt beside them"
        )
    there = {token: number for number, token in enumerate(weights.vocabulary)}
    places = np.full(rows, -1, np.int64)
    places[: len(tokens)] = [there.get(token, -1) for token in tokens]
    kept = np.flatnonzero(places >= 0)

    def moved(tensor: Tensor) -> Tensor:
        shape = (rows, *tensor.shape[1:])

        def read() -> np.ndarray:
            array = np.zeros(shape, tensor.dtype)
            array[kept] = tensor.read()[places[kept]]
            return array

        return Tensor(shape, tensor.dtype, read)

    note = (
        f"--init_vocab: {len(kept):,} of {len(tokens):,} tokens keep the rows that they have in "
        f"{weights.source}, {len(tokens) - len(kept):,} are drawn anew"
    )
    tensors = {name: moved(each) if name in OF_TOKENS else each for name, each in weights.tensors.items()}
    found = replace(weights, tensors=tensors, vocabulary=tuple(tokens), notes=(*weights.notes, note))
    return found, tuple(np.flatnonzero(places < 0).tolist())


POSITIONS = "encoder.position_weight"
_NETWORK = "a network of"
FLAG = "--init_from"
_NEW_TOKENS = "add --init_vocab, which keeps the rows of tokens that both vocabularies have,"
_PARTIAL = "or add --init_partial, which takes what fits and begins the rest with random numbers"


@dataclass(frozen=True)
class Initial:
    """Parameters to begin with.

    Attributes:
        source: their path, for messages.
        tensors: by structural name, without a tied decoder's weight. The position embedding may have more
            rows than the run's, or with --init_partial fewer: the first ones are taken.
        messages: sentences for people: what was assumed, and what begins random.
        checkpoint: the one that they belong to, where it is one of ours.
        anew: numbers of the tokens whose rows keep the random numbers that the model has there.
    """

    source: str
    tensors: Mapping[str, Tensor]
    messages: list[str] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    anew: Sequence[int] = ()


@dataclass(frozen=True)
class Wanted:
    """The run's side: its network, its vocabulary where it is known, and whether it `trains` and saves."""

    bert: BertConfig
    vocab_size: int
    vocabulary: Vocabulary | None
    trains: bool = True


def find_initial(start: StartConfig, wanted: Wanted) -> Initial | None:
    """The parameters that --init_from names, all of them looked at; None without it.

    Raises:
        InputError: they are missing, damaged, not finite or of another model or vocabulary; a part is missing
            or does not fit and --init_partial is not given; --reset keeps states that they do not have.
    """
    if start.init_from is None:
        return None
    weights = find_weights(start.init_from, FLAG, wanted.bert)
    source = f"{FLAG} {weights.source}"
    checkpoint: Checkpoint | None = None
    anew: Sequence[int] = ()
    if start.init_vocab:
        tokens = wanted.vocabulary.tokens if wanted.vocabulary else None
        weights, anew = with_vocabulary(source, weights, tokens, wanted.vocab_size)
    if start.resets != frozenset(RESETS):
        checkpoint = _with_states(source, weights, start)
    messages = list(weights.notes)
    if start.init_partial:
        tensors, left = _fitting(weights, wanted)
        if not tensors:
            raise InputError(f"{source}: nothing of it fits this run's model ({'; '.join(left)})")
        messages += left
    else:
        _check_whole(source, weights, wanted)
        tensors = dict(weights.tensors)
        rows = tensors[POSITIONS].shape[0]
        if rows > wanted.bert.positions:
            messages.append(
                f"{weights.source}: of its {rows} positions the first {wanted.bert.positions} are taken"
            )
    check_finite(source, tensors)
    return Initial(weights.source, tensors, messages, checkpoint, anew)


def _with_states(source: str, weights: Weights, start: StartConfig) -> Checkpoint:
    """The checkpoint of ours that the weights belong to."""
    step, checkpoint = step_of(weights.source), None
    if step is not None:
        checkpoint = load_step(os.path.dirname(weights.source), step)
    if checkpoint is None or checkpoint.manifest is None:
        kept = [name for name in RESETS if name not in start.resets]
        raise InputError(
            f"--reset {start.reset}: {source} has parameters only and no {' or '.join(kept)} to take over, "
            "which the checkpoints of these scripts have; leave --reset out"
        )
    return checkpoint


def _check_whole(source: str, weights: Weights, wanted: Wanted) -> None:
    """Raises InputError unless all of the run's parameters are there in their shapes."""
    other = _differences(weights, wanted)
    if other:
        theirs = ", ".join(f"{name} {found}" for name, found, _ in other)
        ours = ", ".join(f"{name} {needed}" for name, _, needed in other)
        words = f" {_NEW_TOKENS}" if "vocabulary size" in ours else ""
        raise InputError(
            f"{source} has {theirs}, this run {ours}; name its model and vocabulary,{words} {_PARTIAL}"
        )
    if weights.missing:
        raise InputError(
            f"{source} lacks the {', the '.join(weights.missing)}; name a whole file, {_PARTIAL}"
        )
    difference = _first_other_token(weights, wanted)
    if difference:
        raise InputError(
            f"{source}: {difference}; give this run the vocabulary of the file, {_NEW_TOKENS} {_PARTIAL}"
        )


def _differences(weights: Weights, wanted: Wanted) -> list[tuple[str, object, object]]:
    """Names and values, the file's and the run's, of the sizes that must be the same and are not."""
    theirs, ours = weights.config, wanted.bert
    pairs = [
        (name, getattr(theirs, name), getattr(ours, name))
        for name in ("layers", "units", "heads", "hidden", "token_types")
    ]
    pairs.append((_NETWORK, theirs.network, ours.network))
    pairs.append(("vocabulary size", weights.vocab_size, wanted.vocab_size))
    if theirs.positions < ours.positions:
        pairs.append(("positions", theirs.positions, ours.positions))
    return [(name, found, needed) for name, found, needed in pairs if found != needed]


def _first_other_token(weights: Weights, wanted: Wanted) -> str | None:
    """A sentence on the first token that differs, where both vocabularies are known."""
    if weights.vocabulary is None or wanted.vocabulary is None:
        return None
    for number, (theirs, ours) in enumerate(zip(weights.vocabulary, wanted.vocabulary.tokens)):
        if theirs != ours:
            return f"its token {number} is {ascii(theirs)}, this run's is {ascii(ours)}"
    return None


def _fitting(weights: Weights, wanted: Wanted) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors that fit, and sentences on those that do not."""
    needed = distinct_shapes(wanted.bert, wanted.vocab_size)
    tensors: dict[str, Tensor] = {}
    random: list[str] = []
    messages: list[str] = []
    other_tokens = _first_other_token(weights, wanted)
    for name, shape in needed.items():
        tensor = weights.tensors.get(name)
        if tensor is None:
            random.append(f"{name} (not there)")
        elif name in (EMBEDDING, DECODER, DECODER_BIAS) and other_tokens:
            random.append(f"{name} ({other_tokens})")
        elif name == POSITIONS and tensor.shape[1:] == shape[1:]:
            tensors[name] = tensor
            if tensor.shape[0] < shape[0]:
                random.append(f"{name} from position {tensor.shape[0]} on ({shape[0]} are needed)")
        elif tensor.shape == shape:
            tensors[name] = tensor
        else:
            random.append(f"{name} ({_shape(tensor.shape)} instead of {_shape(shape)})")
    unused = [name for name in weights.tensors if name not in needed]
    if random:
        messages.append(f"{weights.source}: not taken, so that it begins random: {', '.join(random)}")
    if unused:
        messages.append(f"{weights.source}: this run's model has no place for {', '.join(unused)}")
    for name, theirs, ours in _differences(weights, wanted):
        if name in ("heads", _NETWORK):  # no shape depends on them
            messages.append(
                f"{weights.source} has {name} {theirs}, this run {ours}: it computes something else"
            )
    return tensors, messages


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
