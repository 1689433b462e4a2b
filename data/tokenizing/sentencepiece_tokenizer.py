"""SentencePiece models: their vocabulary and their tokenizer."""

from __future__ import annotations

import hashlib
import os
import threading
from itertools import chain
from typing import Any, Iterator, Sequence

import numpy as np
from tokenizers.pre_tokenizers import BertPreTokenizer

from base.errors import InputError
from data.text.sentences import UNKNOWN
from data.tokenizing.vocab import Vocabulary, vocabulary_from_pieces
from data.tokenizing.wordpiece import WordTable, bert_normalizer, without_surrogates

MAX_MODEL_BYTES = 256 << 20  # the model of mT5's 250,000 pieces has 4 MiB

# Fields of sentencepiece_model.proto: ModelProto's two NormalizerSpecs, and their table
_NORMALIZERS = (3, 5)
_CHARSMAP = 2


def load_processor(path: str) -> Any:
    """The sentencepiece.SentencePieceProcessor of the model at `path`; InputError for what is no model."""
    sentencepiece = _package()
    if not os.path.isfile(path):
        raise InputError(f"--sentencepiece: no such file: {path}")
    try:
        with open(path, "rb") as handle:
            content = handle.read(MAX_MODEL_BYTES + 1)
    except OSError as error:
        raise InputError(f"--sentencepiece: cannot read {path}: {error.strerror}") from error
    check_model(content, path)
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(content)
        for index in range(processor.get_piece_size()):
            processor.id_to_piece(index)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise InputError(f"--sentencepiece: {path} is not a SentencePiece model") from error
    return processor


def sentencepiece_release() -> str:
    """The release of the sentencepiece package, such as "0.2.0"; InputError where there is none."""
    return str(_package().__version__)


def _package() -> Any:
    try:
        import sentencepiece  # only --sentencepiece needs it
    except ImportError as error:
        raise InputError(
            "--sentencepiece needs the sentencepiece package: pip install sentencepiece"
        ) from error
    return sentencepiece


def check_model(content: bytes, path: str) -> None:
    """Rejects a model whose normalization tables lead outside themselves.

    SentencePiece checks most of a model itself and raises. Older releases (0.2.0, 0.2.1) trust one part of
    it: the table of the text normalization is a double-array trie (darts-clone) that they walk without
    looking where steps lead, so that a damaged table ends the process with a segmentation fault.
    Raises InputError naming `path`, also for what is no model at all.
    """
    try:
        if not content or len(content) > MAX_MODEL_BYTES:
            raise _Malformed
        for field, value in _fields(content):
            if field in _NORMALIZERS:
                for part, table in _fields(value):
                    if part == _CHARSMAP and table:
                        _check_table(table)
    except _Malformed as error:
        raise InputError(f"--sentencepiece: {path} is not a SentencePiece model") from error


class _Malformed(Exception):
    pass


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a protobuf message that have bytes: number and content."""
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        kind = key & 7
        if kind == 0:
            _, position = _varint(message, position)
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        elif kind == 2:
            length, position = _varint(message, position)
            if length > end - position:
                raise _Malformed
            yield key >> 3, message[position : position + length]
            position += length
        else:
            raise _Malformed
    if position > end:
        raise _Malformed


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """The number at `position`, and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            break
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    raise _Malformed


def _check_table(table: bytes) -> None:
    """Check a precompiled_charsmap: size of the trie in bytes, the trie's uint32 units, NUL-ended strings."""
    if len(table) < 8:
        raise _Malformed
    size = int.from_bytes(table[:4], "little")
    strings = table[4 + size :]
    if size < 4 or size % 4 or not strings or strings[-1]:
        raise _Malformed
    units = np.frombuffer(table, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
    # From unit i a step on byte c leads to i ^ offset ^ c, if that unit's label is c. Units with the top bit
    # are values, which no step can enter; the walk starts at unit 0 whatever it holds.
    inner = np.flatnonzero(units < 1 << 31)
    inner = np.union1d(inner, [0])
    offset = (units[inner] >> 10) << ((units[inner] & 512) >> 6)
    child = inner ^ offset
    if int((child | 255).max()) >= len(units):
        raise _Malformed
    leaf = child[(units[inner] & 256) != 0]
    if leaf.size and int((units[leaf] & 0x7FFFFFFF).max()) >= len(strings):
        raise _Malformed


class SentencePieceTokenizer:
    """SentencePiece over each basic token, as GluonNLP's BERTSPTokenizer.

    `nbest` 0 or 1 takes the best segmentation. Above 1 it samples from the `nbest` best, below 0 from all,
    with inverse temperature `alpha`. What is sampled depends on `seed`, the `stream` of the call and its
    lines only. A basic token that has data.text.sentences.UNKNOWN becomes the unknown piece, as in WordPiece.
    """

    def __init__(
        self,
        path: str,
        vocab: Vocabulary,
        cased: bool = False,
        nbest: int = 0,
        alpha: float = 1.0,
        seed: int = 0,
    ) -> None:
        self._processor = load_processor(path)
        self._normalizer = bert_normalizer(cased)
        self._pre_tokenizer = BertPreTokenizer()
        self._nbest, self._alpha, self._seed = nbest, alpha, seed
        self._unk_id = vocab.unk_id
        self._table = WordTable(self._best)

    def encode(self, lines: Sequence[str], stream: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """All ids of the lines, and where each line ends in them (see Tokenizer)."""
        return self._sampled(lines, stream) if samples(self._nbest) else self._table.encode(lines)

    def _pieces(self, text: str) -> list[str]:
        """The basic tokens of a word or a line."""
        normal = self._normalizer.normalize_str(without_surrogates(text))
        return [piece for piece, _ in self._pre_tokenizer.pre_tokenize_str(normal)]

    def _best(self, words: Sequence[str]) -> list[list[int]]:
        pieces = [self._pieces(word) for word in words]
        distinct = [piece for piece in dict.fromkeys(chain.from_iterable(pieces)) if UNKNOWN not in piece]
        ids = dict(zip(distinct, self._processor.encode(distinct, num_threads=1)))
        unknown = [self._unk_id]
        return [[index for piece in group for index in ids.get(piece, unknown)] for group in pieces]

    def _sampled(self, lines: Sequence[str], stream: int) -> tuple[np.ndarray, np.ndarray]:
        """Sample in a new thread: SentencePiece seeds a thread's generator when the thread first uses it."""
        import sentencepiece

        pieces = [self._pieces(line) for line in lines]
        ids: list[int] = []
        ends: list[int] = []

        def sample() -> None:
            encode, nbest, alpha = self._processor.encode, self._nbest, self._alpha
            for group in pieces:
                for piece in group:
                    if UNKNOWN in piece:
                        ids.append(self._unk_id)
                    else:
                        ids.extend(encode(piece, enable_sampling=True, nbest_size=nbest, alpha=alpha))
                ends.append(len(ids))

        digest = hashlib.sha256(f"{self._seed} {stream}".encode("ascii")).digest()
        sentencepiece.set_random_generator_seed(int.from_bytes(digest[:4], "little"))
        thread = threading.Thread(target=sample)
        thread.start()
        thread.join()
        if len(ends) != len(lines):
            raise RuntimeError("SentencePiece failed while sampling; its own message is above")
        return np.array(ids, dtype=np.int32), np.array(ends, dtype=np.int64)


def samples(nbest: int) -> bool:
    """True if SentencePiece samples segmentations with this --sp_nbest."""
    return nbest not in (0, 1)


def load_sentencepiece(path: str) -> Vocabulary:
    """The vocabulary of the SentencePiece model at `path`.

    Raises InputError for a file that is no model, or a model without BERT's special pieces.
    """
    processor = load_processor(path)
    pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
    return vocabulary_from_pieces(pieces, processor.unk_id(), processor.pad_id(), path)
