"""Weights to begin with: those of our checkpoints, or of any file that `bert.weights.opening` reads."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import Any, Mapping, Sequence

from base.errors import InputError
from bert.configuration import BertConfig, recorded_config
from bert.weights.opening import open_weights
from bert.weights.tensors import Weights
from data.tokenizing.vocab import WORDPIECE
from training.checkpoint import (
    BEST,
    BEST_FILE,
    PARAMS,
    Checkpoint,
    best_step,
    list_steps,
    newest_complete,
    params_path,
    step_of,
    verified,
)
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
        return _at_step(folder, _step(folder, match[2], f"{flag} {given}"), flag, config)
    folder = _checkpoint_folder(given)
    if folder is not None:
        return _newest(folder, flag, config)
    step, folder = step_of(given), os.path.dirname(given) or "."
    if step is not None and step in list_steps(folder):
        return _at_step(folder, step, flag, config)
    return open_weights(given, flag, config)


def _step(folder: str, text: str, source: str) -> int:
    if text != BEST:
        return int(text)
    if not os.path.exists(os.path.join(folder, BEST_FILE)):
        raise InputError(f"{source}: no {BEST_FILE} there, which a run with --keep_best has; name a step")
    return best_step(folder)


def _checkpoint_folder(given: str) -> str | None:
    """The folder with numbered checkpoints that a path means; None for any other path."""
    for folder in (given, os.path.join(given, "ckpt")):
        if os.path.isdir(folder) and any(step_of(name) is not None for name in os.listdir(folder)):
            return folder
    return None


def _newest(folder: str, flag: str, config: BertConfig | None) -> Weights:
    passed_over: list[str] = []
    found = newest_complete(folder, passed_over.append, needed=(PARAMS,))
    if found is not None:
        return _of_checkpoint(folder, found, flag, passed_over)
    if list_steps(folder):
        raise InputError(f"{flag} {folder} holds no complete checkpoint: {passed_over[0]}")
    bare = max(name for name in os.listdir(folder) if step_of(name) is not None)
    return open_weights(os.path.join(folder, bare), flag, config)


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
    vocabulary, cased, more = _vocabulary(folder, manifest)
    if vocabulary is not None and len(vocabulary) > weights.vocab_size:
        raise InputError(
            f"{flag} {path} has embeddings of {weights.vocab_size} tokens, but the run's vocabulary in "
            f"{folder} has {len(vocabulary)}; name the folder of one run"
        )
    return replace(weights, vocabulary=vocabulary, cased=cased, notes=(*notes, *weights.notes, *more))


def _vocabulary(
    folder: str, manifest: Mapping[str, Any]
) -> tuple[Sequence[str] | None, bool | None, list[str]]:
    """The tokens, whether upper case is kept, and what a reader should know of them."""
    options = manifest.get("options")
    cased = options.get("cased") if isinstance(options, dict) else None
    try:
        vocabulary = saved_vocabulary(folder, manifest)
    except InputError as error:
        return None, cased, [f"{error}: left out"]
    if vocabulary is None:
        return None, cased, []
    if vocabulary.kind != WORDPIECE:
        return None, cased, [f"the vocabulary is {FILES[vocabulary.kind]} beside it, which has no vocab.txt"]
    return vocabulary.tokens, cased, []
