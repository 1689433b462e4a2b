"""TensorFlow's checkpoints (tensor bundles, "V2"), read and written without TensorFlow.

A checkpoint PREFIX is PREFIX.index, a sorted table of keys and values, and PREFIX.data-00000-of-00001 or
several of these, which hold the elements of the tensors in a row. The table's first key, "", has a
BundleHeaderProto, every other one, the name of a tensor, a BundleEntryProto
(tensorflow/core/protobuf/tensor_bundle.proto):

    header: 1 number of shards, 2 byte order (1: big-endian), 3 version {1 producer}
    entry:  1 dtype, 2 shape {2 dimension {1 size}}, 3 shard, 4 offset, 5 size, 6 masked CRC-32C of the bytes,
            7 slices {1 extent {1 start, 2 length}} of a partitioned variable, whose parts have other keys

Names are those of the file. TensorFlow 1's Saver writes variables' names ("bert/pooler/dense/bias"),
TensorFlow 2's Checkpoint paths of objects ("model/layer/kernel/.ATTRIBUTES/VARIABLE_VALUE").

The layout of the table is LevelDB's (tensorflow/core/lib/io/format.cc, block_builder.cc, table_builder.cc):

    blocks in a row: the content, a byte for its compression (0: none), uint32 masked CRC-32C of both
    footer: handles of the metaindex block and of the index block, zeros up to 40 bytes, uint64 magic

    a handle is a varint offset and a varint size without the five bytes that follow the content
    a block's content: entries, then uint32 offset of each restart, uint32 number of restarts
    an entry: varints shared, unshared, length; the key's unshared bytes; the value
        (the key's first `shared` bytes are those of the key before; at a restart there are none)

The index block has one entry for each data block: a key that is not below its last one, and its handle.
TensorFlow writes the tables of checkpoints uncompressed (`BundleWriter::Finish` in tensor_bundle.cc).
"""

from __future__ import annotations

import os
import struct
from functools import partial
from typing import Iterator, Mapping, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from base.errors import InputError
from base.files import replacing
from bert.weights.tensors import (
    BFLOAT16,
    MAX_ARRAYS,
    MAX_NAME,
    Damaged,
    Tensor,
    bytes_of,
    check_name,
    read_small,
    reading,
    shown,
    stored_size,
    stored_tensor,
)
from data.formats.record_files import masked_crc
from data.protobuf import message_types

INDEX = ".index"
# tensorflow/core/framework/types.proto. Others, strings among them, are no weights and left out.
DTYPES: dict[int, np.dtype] = {
    **{1: np.dtype("<f4"), 2: np.dtype("<f8"), 3: np.dtype("<i4"), 4: np.dtype("u1"), 5: np.dtype("<i2")},
    **{6: np.dtype("i1"), 9: np.dtype("<i8"), 10: np.dtype("?"), 14: BFLOAT16, 17: np.dtype("<u2")},
    **{19: np.dtype("<f2"), 22: np.dtype("<u4"), 23: np.dtype("<u8")},
}
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_BIG_ENDIAN = 1
_MAX_INDEX = 4 << 20  # bytes; BERT-large with optimizer slots has 0.1 MiB
_MAX_ENTRY = 1 << 16
TABLE_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # bytes
_TRAILER = 5
_RESTART_INTERVAL = 16  # entries

_MESSAGES = {
    "Version": {"producer": (1, "int32")},
    # endianness, and an entry's dtype: enumerations, which are written as integers
    "Header": {"num_shards": (1, "int32"), "endianness": (2, "int32"), "version": (3, "Version")},
    "Dimension": {"size": (1, "int64")},
    "Shape": {"dim": (2, "repeated Dimension"), "unknown_rank": (3, "bool")},
    "Slice": {"extent": (1, "repeated bytes")},
    "Entry": {
        **{"dtype": (1, "int32"), "shape": (2, "Shape"), "shard_id": (3, "int32"), "offset": (4, "int64")},
        **{"size": (5, "int64"), "crc32c": (6, "fixed32"), "slices": (7, "repeated Slice")},
    },
}


def read_index(path: str) -> dict[str, Tensor]:
    """Tensors of a checkpoint by name, in the order of the names; elements are read later.

    Strings, such as TensorFlow 2's graph of objects, are left out. Checksums are verified when elements are
    read.

    Args:
        path: PREFIX or PREFIX.index.

    Raises:
        InputError: a file is missing, cannot be read or is damaged, or a variable is partitioned.
    """
    prefix = path[: -len(INDEX)] if path.endswith(INDEX) else path
    path = prefix + INDEX
    with reading(path, "the index of a TensorFlow checkpoint"):
        try:
            return _tensors(path, prefix, read_small(path, _MAX_INDEX))
        except (DecodeError, UnicodeDecodeError) as error:
            raise Damaged("an entry is no message of the format") from error


def _tensors(path: str, prefix: str, data: bytes) -> dict[str, Tensor]:
    types = message_types(_MESSAGES)
    entries = read_table(data)
    key, value = next(entries, (b"nothing", b""))
    if key:
        raise Damaged("it has no header")
    header = types["Header"].FromString(value)
    tensors: dict[str, Tensor] = {}
    for key, value in entries:
        entry = types["Entry"].FromString(value)
        if key.startswith(b"\0") or entry.slices:
            # The key of a part: a zero byte, the name, what it is a part of (TensorFlow's OrderedCode).
            name = key[key.startswith(b"\0") :].split(b"\0")[0].decode("utf-8")
            raise InputError(
                f"{path}: {shown(name)} is partitioned; save it with TensorFlow without a partitioner"
            )
        name = key.decode("utf-8")
        check_name(name, tensors)
        if entry.dtype not in DTYPES:
            continue
        dtype, shape = DTYPES[entry.dtype], [dimension.size for dimension in entry.shape.dim]
        if header.endianness == _BIG_ENDIAN:
            dtype = dtype.newbyteorder(">")
        if entry.size != stored_size(name, shape, dtype) or entry.offset < 0 or entry.shape.unknown_rank:
            raise Damaged(f"{shown(name)} has {entry.size} bytes for {dtype} {tuple(shape)}")
        if not 0 <= entry.shard_id < header.num_shards:
            raise Damaged(f"{shown(name)} is in shard {entry.shard_id} of {header.num_shards}")
        shard = f"{prefix}.data-{entry.shard_id:05d}-of-{header.num_shards:05d}"
        if entry.offset + entry.size > _size(shard):
            raise InputError(f"{shard} ends before {shown(name)}; copy the checkpoint once more")
        tensors[name] = stored_tensor(
            shard, entry.offset, shape, dtype, partial(_compare, shard, name, entry.crc32c)
        )
    return tensors


def _size(shard: str) -> int:
    try:
        return os.stat(shard).st_size
    except OSError as error:
        raise InputError(f"cannot read {shard}, a part of the checkpoint: {error.strerror}") from error


def _compare(shard: str, name: str, expected: int, stored: np.ndarray) -> None:
    """Compares a tensor's elements with the checksum in its entry. Raises InputError."""
    if masked_crc(stored.view(np.uint8).data) != expected:
        raise InputError(f"{shard}: wrong checksum of {shown(name)}; copy the checkpoint once more")


def write_bundle(prefix: str, tensors: Mapping[str, Tensor]) -> None:
    """Write PREFIX.data-00000-of-00001 and then PREFIX.index, holding one tensor at a time.

    Each appears whole or not at all; the index, without which there is no checkpoint, is the last.

    Args:
        prefix: such as "bert_model.ckpt"; its directory exists.

    Raises:
        ValueError: a tensor's `read` returns another shape or dtype than it has.
        OSError: from the files.
    """
    types = message_types(_MESSAGES)
    entries = [
        (b"", types["Header"](num_shards=1, version={"producer": 1}).SerializeToString(deterministic=True))
    ]
    offset = 0
    with replacing(f"{prefix}.data-00000-of-00001") as file:
        for key, name in sorted((name.encode("utf-8"), name) for name in tensors):
            content = bytes_of(tensors[name], name).data
            dtype, crc = _NUMBERS[tensors[name].dtype.newbyteorder("<")], masked_crc(content)
            entry = types["Entry"](dtype=dtype, offset=offset, size=len(content), crc32c=crc)
            entry.shape.SetInParent()  # a scalar's shape has no dimensions, but is there
            for size in tensors[name].shape:
                entry.shape.dim.add(size=size)
            entries.append((key, entry.SerializeToString(deterministic=True)))
            file.write(content)
            offset += len(content)
    with replacing(prefix + INDEX) as file:
        file.write(write_table(entries))


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values in the order of the keys.

    Raises Damaged: a length or checksum is wrong, a block is compressed, keys are not in order or too many, a
    value is too long.
    """
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != TABLE_MAGIC:
        raise Damaged("it does not end as one")
    # The footer's first handle is that of the metaindex, which is empty.
    (_, _, offset, size), _ = varints(data[-_FOOTER:], 0, 4)
    previous, last, count = 0, None, 0
    for blocks, (_, value) in enumerate(_entries(_block(data, offset, size))):
        (offset, size), _ = varints(value, 0, 2)
        if offset < previous or blocks > MAX_ARRAYS:
            raise Damaged("its blocks are not in order")
        previous = offset + size
        for key, content in _entries(_block(data, offset, size)):
            count += 1
            if (last is not None and key <= last) or count > 2 * MAX_ARRAYS:
                raise Damaged("its keys are not in order")
            if len(content) > _MAX_ENTRY:
                raise Damaged(f"an entry has {len(content)} bytes")
            yield key, content
            last = key


def _block(data: bytes, offset: int, size: int) -> bytes:
    end = offset + size
    if end + _TRAILER > len(data) - _FOOTER:
        raise Damaged("it ends too early")
    if masked_crc(data[offset : end + 1]) != int.from_bytes(data[end + 1 : end + _TRAILER], "little"):
        raise Damaged(f"wrong checksum of the block at byte {offset}")
    if data[end]:
        raise Damaged("it is compressed, which TensorFlow's checkpoints are not")
    return data[offset:end]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise Damaged("a block is shorter than its list of restarts")
    key, place = b"", 0
    while place < end:
        (shared, unshared, length), place = varints(block, place, 3)
        if shared > len(key) or place + unshared + length > end or shared + unshared > 4 * MAX_NAME:
            raise Damaged("an entry is longer than its block")
        key = key[:shared] + block[place : place + unshared]
        place += unshared
        yield key, block[place : place + length]
        place += length


def varints(data: bytes, place: int, count: int) -> tuple[list[int], int]:
    """`count` numbers, the first of which begins at `place`, and the place after them; raises Damaged."""
    numbers = [0] * count
    for index in range(count):
        for digit, byte in enumerate(data[place : place + 10]):
            numbers[index] |= (byte & 127) << 7 * digit
            if byte < 128:
                break
        else:
            raise Damaged("a number has no end")
        place += digit + 1
    return numbers, place


def to_varint(number: int) -> bytes:
    """A number that is not negative, seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def write_table(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A table of one data block; `entries` in the order of their keys, which differ."""
    out = bytearray()

    def add(block: bytes) -> bytes:
        handle = to_varint(len(out)) + to_varint(len(block))
        out.extend(block + b"\0" + struct.pack("<I", masked_crc(block + b"\0")))
        return handle

    data_handle = add(_built(entries))
    metaindex_handle = add(_built(()))
    # A short key that is not below the last one, as TensorFlow's: up to the first byte that can be raised.
    last = entries[-1][0]
    place = next((place for place, byte in enumerate(last) if byte < 255), None)
    successor = last if place is None else last[:place] + bytes([last[place] + 1])
    index_handle = add(_built([(successor, data_handle)]))
    return (
        bytes(out)
        + (metaindex_handle + index_handle).ljust(_FOOTER - 8, b"\0")
        + struct.pack("<Q", TABLE_MAGIC)
    )


def _built(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    out, restarts, previous = bytearray(), [0], b""
    for index, (key, value) in enumerate(entries):
        shared = 0
        if index % _RESTART_INTERVAL:
            shared = len(os.path.commonprefix([key, previous]))
        elif index:
            restarts.append(len(out))
        out += to_varint(shared) + to_varint(len(key) - shared) + to_varint(len(value)) + key[shared:] + value
        previous = key
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
