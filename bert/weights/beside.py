"""Facts in the files beside weights: the configuration, the vocabulary, whether upper case is kept.

bert_config.json, config.json   sizes and GELU, as bert.config_file reads them
vocab.txt                       a token a line, in the order of the embedding's rows
vocab.json                      GluonNLP's BERTVocab
tokenizer.json                  Hugging Face's, where there is no vocab.txt
tokenizer_config.json           do_lower_case
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any, Sequence

from base.errors import InputError
from base.json_files import open_regular, read_json_object
from bert.config_file import read_config_file
from bert.weights.assembly import Beside
from data.tokenizing.vocab import MAX_VOCAB_BYTES, load_vocab, vocabulary_from_tokens

_TOKENS = "idx_to_token"  # GluonNLP's key


def look_beside(folder: str, flag: str, gelu: str) -> Beside:
    """Facts that the files of a folder give about the weights in it.

    Args:
        flag: the option that names the weights, for messages.
        gelu: the form that the weights' format means where the configuration leaves it open, as "gelu" in
            Google's spelling does.

    Raises:
        InputError: one of the files is damaged, or asks for what is no plain BERT.
    """

    def first(*names: str) -> str:
        """The path of the first of these files that is there; empty for none."""
        return next(filter(os.path.isfile, (os.path.join(folder, name) for name in names)), "")

    found = Beside()
    if path := first("config.json", "bert_config.json"):
        file = read_config_file(path, flag)
        config = replace(file.config, activation=gelu) if file.gelu_open else file.config
        notes = (f"{path}: unknown keys {', '.join(file.unknown_keys)}",) if file.unknown_keys else ()
        found = Beside(config, file.vocab_size, source=path, notes=notes)
    vocabulary, lower = None, None
    if path := first("vocab.txt", "vocab.json"):
        vocabulary = read_vocabulary(path, flag)
    elif path := first("tokenizer.json"):
        vocabulary, lower = _from_tokenizer(path, flag)
    if path := first("tokenizer_config.json"):
        told = _json(path, flag).get("do_lower_case")
        lower = told if isinstance(told, bool) else lower
    return replace(found, vocabulary=vocabulary, cased=None if lower is None else not lower)


def read_vocabulary(path: str, flag: str) -> Sequence[str]:
    """The tokens of a vocab.txt or of GluonNLP's vocabulary in JSON.

    Raises:
        InputError: the file cannot be read, is neither, or lacks a special token.
    """
    try:
        with open_regular(path, f"{flag} {path}") as file:
            begins = file.read(1)
        if begins != b"{":
            return load_vocab(path).tokens
        tokens = _json(path, flag).get(_TOKENS)
        if not isinstance(tokens, list) or not all(type(token) is str for token in tokens):
            raise InputError(f"{path} is no vocabulary of GluonNLP ({_TOKENS} is no list of tokens)")
        return vocabulary_from_tokens(tokens, path).tokens
    except OSError as error:
        raise InputError(f"{flag}: cannot read {path}: {error.strerror}") from error
    except InputError as error:
        raise error if str(error).startswith(flag) else InputError(f"{flag}: {error}") from error


def gluonnlp_vocabulary(tokens: Sequence[str]) -> str:
    """The tokens as gluonnlp.vocab.BERTVocab.from_json reads them."""
    special = {"padding_token": "[PAD]", "mask_token": "[MASK]", "sep_token": "[SEP]", "cls_token": "[CLS]"}
    content = {
        _TOKENS: list(tokens),
        "token_to_idx": {token: index for index, token in enumerate(tokens)},
        "reserved_tokens": sorted(special.values()),
        "unknown_token": "[UNK]",
        "identifiers_to_tokens": special,
    }
    return json.dumps(content)


def _from_tokenizer(path: str, flag: str) -> tuple[Sequence[str] | None, bool | None]:
    """Tokens of a tokenizer.json with a WordPiece model, and whether it lowers case; None for others."""
    content = _json(path, flag)
    model, normalizer = content.get("model"), content.get("normalizer")
    if not isinstance(model, dict) or model.get("type", "WordPiece") != "WordPiece":
        return None, None
    ids = model.get("vocab")
    if not isinstance(ids, dict):
        return None, None
    tokens = sorted(ids, key=lambda token: ids[token] if type(ids[token]) is int else -1)
    if [ids[token] for token in tokens] != list(range(len(tokens))):
        raise InputError(
            f"{flag}: {path} is damaged (its tokens' ids are not 0, 1, 2, ...); give a vocab.txt"
        )
    lower = normalizer.get("lowercase") if isinstance(normalizer, dict) else None
    try:
        tokens = list(vocabulary_from_tokens(tokens, path).tokens)
    except InputError as error:
        raise InputError(f"{flag}: {error}") from error
    return tokens, lower if isinstance(lower, bool) else None


def _json(path: str, flag: str) -> dict[str, Any]:
    return read_json_object(path, MAX_VOCAB_BYTES, f"{flag} {path}")
