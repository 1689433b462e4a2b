"""Weights of a BERT in a file, whatever its format: names and shapes first, numbers when they are wanted.

Nothing that a file claims is believed: shapes are compared with bytes that are there before memory is taken,
numbers of tensors and lengths of names are limited, and names appear in messages without control characters.
"""

from __future__ import annotations

import math
import os
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from base.errors import InputError
from bert.configuration import BertConfig

MAX_ARRAYS = 10_000  # of a file that is read; BERT-large with Adam's moments and a copy has 2,000
MAX_NAME = 1024  # characters
MAX_DIMENSIONS = 32  # NumPy's limit
# bfloat16, the upper half of a float32: NumPy has no dtype for it, so it is marked by the name of a field.
BFLOAT16 = np.dtype([("bfloat16", "<u2")])

_SHOWN = 100  # characters of a name in a message
_BLOCK = 64  # rows that are transposed at a time: ten times as fast as all at once


class Tensor(NamedTuple):
    """An array in a file. `read` returns its elements, of this shape and dtype, anew at every call.

    bfloat16, for which NumPy has no dtype, is read as float32, which holds it exactly.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


@dataclass(frozen=True)
class Weights:
    """A BERT, perhaps without pooler or heads, under GluonNLP's structural names.

    Attributes:
        source: path, for messages.
        format: "gluonnlp", "huggingface", "tensorflow" or "pytorch".
        tensors: by structural name, in the order of `bert.weights.bare_params.expected_shapes`, in GluonNLP's
            layout (dense weights are (outputs, inputs)). A tied decoder's weight, the word embedding, is left
            out.
        config: sizes, and what the layers compute.
        vocabulary: its tokens in the order of the embedding's rows (there may be fewer: padding); None where
            there is none beside the weights.
        cased: whether upper case is kept; None where nothing says so.
        missing: parts that the file lacks: "pooler", "next-sentence head", "masked-LM head".
        ignored: names in the file that are no weights of a BERT, such as optimizer slots.
        notes: what was assumed, as sentences for people.
    """

    source: str
    format: str
    tensors: Mapping[str, Tensor]
    config: BertConfig
    vocabulary: Sequence[str] | None = None
    cased: bool | None = None
    missing: Sequence[str] = ()
    ignored: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def vocab_size(self) -> int:
        """Rows of the word embedding."""
        return self.tensors["word_embed.0.weight"].shape[0]


def transposed(tensor: Tensor) -> Tensor:
    """A matrix in a file, its axes exchanged when it is read."""

    def read() -> np.ndarray:
        array = tensor.read()
        found = np.empty(array.shape[::-1], array.dtype)
        for row in range(0, len(array), _BLOCK):
            found[:, row : row + _BLOCK] = array[row : row + _BLOCK].T
        return found

    return Tensor(tensor.shape[::-1], tensor.dtype, read)


class Damaged(Exception):
    """Reason why the content of a file cannot be read; `reading` makes one line of it."""


@contextmanager
def reading(path: str, kind: str) -> Iterator[None]:
    """Turns what goes wrong while a file is read into an InputError that names it.

    Args:
        path: the file.
        kind: with an article, such as "a safetensors file".
    """
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except Damaged as error:
        raise InputError(f"{path} is damaged or not {kind} ({error}); copy or save it once more") from error


def read_small(path: str, limit: int) -> bytes:
    """A file's content. Raises Damaged for more than `limit` bytes, and OSError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise Damaged(f"it has {size} bytes, the limit is {limit}")
        return file.read(size)


class Source:
    """Bytes of a file from where it stands to `end`: as much of a file as the library's unpickler uses.
    `left`: how many there still are."""

    def __init__(self, file: IO[bytes], end: int):
        self._file, self.left = file, end - file.tell()

    def skip(self, size: int) -> None:
        """Passes over `size` bytes. Raises Damaged where there are fewer."""
        self._count(size)
        self._file.seek(size, os.SEEK_CUR)

    def read(self, size: int) -> bytes:
        """The next `size` bytes. Raises Damaged where there are fewer."""
        self._count(size)
        data = self._file.read(size)
        if len(data) != size:
            raise Damaged("it ends too early")
        return data

    def unpack(self, layout: str) -> tuple[int, ...]:
        """The next numbers. Raises Damaged."""
        return struct.unpack(layout, self.read(struct.calcsize(layout)))

    def readline(self) -> bytes:
        """The next line, with its end. Raises Damaged."""
        data = self._file.readline(min(self.left, MAX_NAME))
        self.left -= len(data)
        if not data.endswith(b"\n"):
            raise Damaged("a name has no end")
        return data

    def _count(self, size: int) -> None:
        if not 0 <= size <= self.left:
            raise Damaged("it ends too early")
        self.left -= size


def shown(name: str) -> str:
    """A tensor's or file's name for a message: control characters escaped, long ones cut."""
    return name if name.isprintable() and len(name) <= _SHOWN else ascii(name[:_SHOWN])


def to_numpy(array: Any) -> np.ndarray:
    """A NumPy array from a Tensor (read now), an MXNet array (copied from its device) or what NumPy takes."""
    if isinstance(array, Tensor):
        return array.read()
    return array.asnumpy() if hasattr(array, "asnumpy") else np.asarray(array)


def bytes_of(tensor: Tensor, name: str) -> np.ndarray:
    """Elements to write, read now: as bytes, little-endian, of the shape and dtype that were announced.

    Raises:
        ValueError: `read` returns another shape or dtype than the tensor has.
    """
    array = tensor.read()
    if array.shape != tensor.shape or array.dtype != tensor.dtype:
        raise ValueError(f"{name} is {array.dtype} {array.shape}, announced as {tensor.dtype} {tensor.shape}")
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C").reshape(-1).view(np.uint8)


def check_name(name: str, known: Mapping[str, Any]) -> None:
    """Raises Damaged for a name that is too long, or one too many, or there already."""
    if len(name) > MAX_NAME:
        raise Damaged(f"a tensor's name has {len(name)} characters")
    if name in known:
        raise Damaged(f"{shown(name)} appears twice")
    if len(known) >= MAX_ARRAYS:
        raise Damaged(f"more than {MAX_ARRAYS} tensors")


def stored_size(name: str, shape: Sequence[int], dtype: np.dtype) -> int:
    """Bytes of a tensor; raises Damaged for a shape that no NumPy array can have."""
    if len(shape) > MAX_DIMENSIONS:
        raise Damaged(f"{shown(name)} has {len(shape)} dimensions")
    if min(shape, default=0) < 0 or math.prod(max(size, 1) for size in shape) * dtype.itemsize >= 1 << 62:
        raise Damaged(f"{shown(name)} has the shape {tuple(shape)}")
    return math.prod(shape) * dtype.itemsize


def stored_tensor(
    path: str,
    offset: int,
    shape: Sequence[int],
    dtype: np.dtype,
    check: Callable[[np.ndarray], None] | None = None,
) -> Tensor:
    """A tensor whose elements lie in a row in a file; the caller has compared them with the file's size.

    Args:
        path: the file.
        offset: the byte at which the elements begin.
        shape: the tensor's.
        dtype: of the file, in its byte order; BFLOAT16 is read as float32.
        check: raises InputError where the stored elements are not those that were written.
    """
    shape, count = tuple(shape), math.prod(shape)

    def read() -> np.ndarray:
        stored = read_elements(path, offset, count, dtype)
        if check is not None:
            check(stored)
        return native(stored).reshape(shape)

    return Tensor(shape, native_dtype(dtype), read)


def read_elements(path: str, offset: int, count: int, dtype: np.dtype) -> np.ndarray:
    """`count` elements from byte `offset` on, as they are stored.

    Raises:
        InputError: the file cannot be read, or has become shorter.
    """
    try:
        with open(path, "rb") as file:
            stored = np.fromfile(file, dtype, count, offset=offset)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if stored.size != count:
        raise InputError(f"{path} became shorter while it was read; is something still writing it?")
    return stored


def native_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in memory of elements that are stored as `dtype`."""
    return np.dtype(np.float32) if dtype.names else dtype.newbyteorder("=")


def native(stored: np.ndarray) -> np.ndarray:
    """Stored elements in this machine's byte order, bfloat16 as float32."""
    if stored.dtype.names:
        return np.left_shift(stored["bfloat16"], 16, dtype=np.uint32).view(np.float32)
    if stored.dtype.kind == "b":  # a byte that is neither 0 nor 1 is no valid element of a NumPy array
        return stored.view(np.uint8) != 0
    return stored.astype(stored.dtype.newbyteorder("="), copy=False)
