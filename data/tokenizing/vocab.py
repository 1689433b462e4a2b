"""The vocabulary: tokens, the ids of BERT's special tokens, and which tokens continue a word."""

from __future__ import annotations

import codecs
import hashlib
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

import numpy as np

from base.errors import InputError
from base.json_files import read_regular

WORDPIECE, SENTENCEPIECE = KINDS = ("wordpiece", "sentencepiece")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_VOCAB_BYTES = 64 << 20  # ten times the largest vocabulary in use
MAX_VOCAB_SIZE = 1 << 20  # tokens; four times the largest in use
WORD_START = "\u2581"  # SentencePiece writes the space before a word as this character


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """An immutable vocabulary; token i is `tokens[i]`.

    `is_continuation` is a bool array of shape (len(tokens),): True where a token continues the word before
    it. `sha256` identifies the tokens and their order. `kind` is WORDPIECE ("##" starts a continuation) or
    SENTENCEPIECE (WORD_START starts a word).
    """

    tokens: tuple[str, ...]
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    is_continuation: np.ndarray = field(repr=False)
    sha256: str
    kind: str = WORDPIECE

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of [PAD], [UNK], [CLS], [SEP] and [MASK], in this order."""
        return (self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id)

    def ids(self) -> dict[str, int]:
        """A new token-to-id dictionary."""
        return {token: index for index, token in enumerate(self.tokens)}


def load_vocab(path: str) -> Vocabulary:
    """Read a BERT `vocab.txt`: one token a line, the id being the line's place from 0.

    Raises InputError for a file that cannot be read, is larger than any vocabulary, is not UTF-8, is empty,
    holds an empty line, a NUL or a token twice, or lacks a special token.
    """
    content = read_regular(path, MAX_VOCAB_BYTES, f"the vocabulary {path}")
    tokens: list[str] = []
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if not lines[-1].strip():
        lines.pop()
    for number, raw in enumerate(lines, 1):
        try:
            token = raw.decode("utf-8").rstrip("\r")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, line {number}: not valid UTF-8; is this a BERT vocab.txt?") from error
        if "\0" in token:
            raise InputError(f"{path}, line {number}: a NUL character; is this a BERT vocab.txt in UTF-8?")
        if not token.strip():
            raise InputError(f"{path}, line {number}: an empty line; a vocab.txt has one token on each line")
        tokens.append(token)
    return vocabulary_from_tokens(tokens, path)


def vocabulary_from_tokens(tokens: Sequence[str], source: str = "the vocabulary") -> Vocabulary:
    """A WordPiece vocabulary from its tokens in the order of their ids ('##' starts a continuation).

    `source` names the vocabulary in messages. Raises InputError when it is empty, holds a token twice, or
    lacks one of [PAD], [UNK], [CLS], [SEP], [MASK].
    """
    ids = _unique_ids(tokens, source)
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise InputError(f"{source} lacks {', '.join(missing)}; BERT needs {', '.join(SPECIAL_TOKENS)}")
    return _build(tokens, [ids[token] for token in SPECIAL_TOKENS], WORDPIECE)


def vocabulary_from_pieces(pieces: Sequence[str], unk_id: int, pad_id: int, source: str) -> Vocabulary:
    """The vocabulary of a SentencePiece model, with the demands of GluonNLP's BERTVocab.from_sentencepiece.

    [CLS], [SEP] and [MASK] must be pieces; the unknown and padding pieces are the model's own. A `pad_id` of
    -1 (the trainer's default: no padding piece) is accepted if there is a piece named [PAD] or <pad>.
    Raises InputError naming what the model lacks and how to train one that has it.
    """
    ids = _unique_ids(pieces, source)
    if pad_id < 0:
        pad_id = ids.get("[PAD]", ids.get("<pad>", -1))
    missing = [token for token in ("[CLS]", "[SEP]", "[MASK]") if token not in ids]
    missing += ["a padding piece"] if pad_id < 0 else []
    if missing:
        raise InputError(
            f"{source} lacks {', '.join(missing)}; train the SentencePiece model with "
            "--user_defined_symbols=[CLS],[SEP],[MASK] --pad_id=3"
        )
    special = [pad_id, unk_id, ids["[CLS]"], ids["[SEP]"], ids["[MASK]"]]
    return _build(pieces, special, SENTENCEPIECE)


def save_vocabulary(vocabulary: Vocabulary) -> dict[str, Any]:
    """The vocabulary as a dictionary for JSON: kind, tokens, special ids and sha256."""
    return {
        "kind": vocabulary.kind,
        "tokens": list(vocabulary.tokens),
        "special_ids": list(vocabulary.special_ids),
        "sha256": vocabulary.sha256,
    }


def vocabulary_from_saved(saved: Mapping[str, Any], source: str) -> Vocabulary:
    """The vocabulary that `save_vocabulary` wrote; `source` names where it was read from in messages.

    Raises InputError for anything else: other types, ids beyond the tokens, another checksum.
    """
    content = saved if isinstance(saved, Mapping) else {}
    found: list[Any] = [content.get(name) for name in ("kind", "tokens", "special_ids")]
    kind, tokens, special = found
    fault = ""
    if content is not saved:
        fault = "no dictionary"
    elif kind not in KINDS:
        fault = "unknown kind"
    elif not isinstance(tokens, list) or not all(type(token) is str for token in tokens):
        fault = "tokens are no strings"
    elif (
        not isinstance(special, list)
        or not all(type(index) is int and 0 <= index < len(tokens) for index in special)
        or not len(set(special)) == len(special) == len(SPECIAL_TOKENS)
    ):
        fault = "ids of special tokens"
    if fault:
        raise InputError(f"{source}: the saved vocabulary is damaged ({fault}); write it again")
    _unique_ids(tokens, source)
    try:
        vocabulary = _build(tokens, special, kind)
    except UnicodeEncodeError as error:
        raise InputError(
            f"{source}: the saved vocabulary holds halves of characters; write it again"
        ) from error
    if vocabulary.sha256 != saved.get("sha256"):
        raise InputError(f"{source}: the saved vocabulary does not fit its checksum; write it again")
    return vocabulary


def _unique_ids(tokens: Sequence[str], source: str) -> dict[str, int]:
    if not tokens:
        raise InputError(f"{source} is empty; a BERT vocab.txt has one token on each line")
    ids: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token in ids:
            raise InputError(f"{source} holds {token!r} twice, as ids {ids[token]} and {index}")
        ids[token] = index
    return ids


def _build(tokens: Sequence[str], special: Sequence[int], kind: str) -> Vocabulary:
    marked = np.array([token.startswith("##" if kind == WORDPIECE else WORD_START) for token in tokens])
    continuation = marked if kind == WORDPIECE else ~marked
    continuation[list(special)] = False
    continuation.setflags(write=False)
    digest = hashlib.sha256("\n".join(tokens).encode("utf-8"))
    digest.update(repr(tuple(special)).encode("ascii"))
    pad_id, unk_id, cls_id, sep_id, mask_id = special
    return Vocabulary(
        tuple(tokens), pad_id, unk_id, cls_id, sep_id, mask_id, continuation, digest.hexdigest(), kind
    )
