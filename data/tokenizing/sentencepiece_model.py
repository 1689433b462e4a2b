"""Reading a SentencePiece model that may be damaged or hostile.

SentencePiece checks most of a model itself and raises. Older releases (0.2.0, 0.2.1) trust one part of it:
the table of the text normalization is a double-array trie (darts-clone) that they walk without looking where
steps lead, so that a damaged table ends the process with a segmentation fault. `check_model` looks before.
"""

from __future__ import annotations

import os
from typing import Any, Iterator

import numpy as np

from base.errors import InputError

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
