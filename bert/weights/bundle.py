"""TensorFlow's checkpoints (tensor bundles, "V2"), read and written without TensorFlow.

A checkpoint PREFIX is PREFIX.index, a table (bert.weights.table), and PREFIX.data-00000-of-00001 or several
of these, which hold the elements of the tensors in a row. The table's first key, "", has a BundleHeaderProto,
every other one, the name of a tensor, a BundleEntryProto (tensorflow/core/protobuf/tensor_bundle.proto):

    header: 1 number of shards, 2 byte order (1: big-endian), 3 version {1 producer}
    entry:  1 dtype, 2 shape {2 dimension {1 size}}, 3 shard, 4 offset, 5 size, 6 masked CRC-32C of the bytes,
            7 slices {1 extent {1 start, 2 length}} of a partitioned variable, whose parts have other keys

Names are those of the file. TensorFlow 1's Saver writes variables' names ("bert/pooler/dense/bias"),
TensorFlow 2's Checkpoint paths of objects ("model/layer/kernel/.ATTRIBUTES/VARIABLE_VALUE").
"""

from __future__ import annotations

import os
from typing import Any, Mapping

import crc32c
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from base.errors import InputError
from base.files import replacing
from bert.weights.stored import (
    BFLOAT16,
    Damaged,
    as_tensor,
    check_name,
    check_tensors,
    little_endian,
    read_small,
    reading,
    shown,
    stored_size,
    stored_tensor,
)
from bert.weights.table import read_table, write_table
from bert.weights.tensors import Tensor

KIND = "the index of a TensorFlow checkpoint"
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

_Field = descriptor_pb2.FieldDescriptorProto


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
    with reading(path, KIND):
        try:
            return _tensors(path, prefix, read_small(path, _MAX_INDEX))
        except (DecodeError, UnicodeDecodeError) as error:
            raise Damaged("an entry is no message of the format") from error


def _tensors(path: str, prefix: str, data: bytes) -> dict[str, Tensor]:
    header_type, entry_type = _message_types()
    header = None
    sizes: dict[int, int] = {}  # of shards
    tensors: dict[str, Tensor] = {}
    for key, value in read_table(data):
        if len(value) > _MAX_ENTRY:
            raise Damaged(f"an entry has {len(value)} bytes")
        if header is None:
            if key:
                raise Damaged("it has no header")
            header = header_type.FromString(value)
            continue
        entry = entry_type.FromString(value)
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
        if entry.shard_id not in sizes:
            sizes[entry.shard_id] = _size(shard)
        if entry.offset + entry.size > sizes[entry.shard_id]:
            raise InputError(f"{shard} ends before {shown(name)}; copy the checkpoint once more")
        tensors[name] = stored_tensor(shard, entry.offset, shape, dtype, _Checksum(shard, name, entry.crc32c))
    if header is None:
        raise Damaged("it has no header")
    return tensors


def _size(shard: str) -> int:
    try:
        return os.stat(shard).st_size
    except OSError as error:
        raise InputError(f"cannot read {shard}, a part of the checkpoint: {error.strerror}") from error


class _Checksum:
    """Comparison of a tensor's elements with the checksum in its entry."""

    def __init__(self, shard: str, name: str, expected: int):
        self._shard, self._name, self._expected = shard, name, expected

    def __call__(self, stored: np.ndarray) -> None:
        if _masked_crc(stored) != self._expected:
            raise InputError(
                f"{self._shard}: wrong checksum of {shown(self._name)}; copy the checkpoint once more"
            )


def _masked_crc(array: np.ndarray) -> int:
    # tensorflow/core/lib/hash/crc32c.h, as data.formats.framing.masked_crc, without a copy of the bytes.
    crc = crc32c.crc32c(array.reshape(-1).view(np.uint8).data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_bundle(prefix: str, tensors: Mapping[str, Any]) -> None:
    """Write PREFIX.data-00000-of-00001 and then PREFIX.index, holding one tensor at a time.

    Each appears whole or not at all; the index, without which there is no checkpoint, is the last.

    Args:
        prefix: such as "bert_model.ckpt"; its directory exists.
        tensors: Tensors, NumPy or MXNet arrays by name.

    Raises:
        ValueError: an empty name, a dtype that TensorFlow does not have, or a tensor whose `read` returns
            another shape.
        OSError: from the files.
    """
    given = {name.encode("utf-8"): as_tensor(source) for name, source in tensors.items()}
    check_tensors({key.decode("utf-8"): tensor for key, tensor in given.items()}, _NUMBERS, "a checkpoint")
    if b"" in given:
        raise ValueError("a tensor of a checkpoint needs a name")
    header_type, entry_type = _message_types()
    entries = [
        (b"", header_type(num_shards=1, version={"producer": 1}).SerializeToString(deterministic=True))
    ]
    offset = 0
    with replacing(f"{prefix}.data-00000-of-00001") as file:
        for key, tensor in sorted(given.items()):
            array = little_endian(tensor, key.decode("utf-8"))
            entry = entry_type(dtype=_NUMBERS[array.dtype], offset=offset, size=array.nbytes)
            entry.shape.SetInParent()  # a scalar's shape has no dimensions, but is there
            for size in array.shape:
                entry.shape.dim.add(size=size)
            entry.crc32c = _masked_crc(array)
            entries.append((key, entry.SerializeToString(deterministic=True)))
            file.write(array.reshape(-1).view(np.uint8).data)
            offset += array.nbytes
    with replacing(prefix + INDEX) as file:
        file.write(write_table(entries))


def _message_types() -> tuple[Any, Any]:
    """The classes BundleHeaderProto and BundleEntryProto, in a pool of their own.

    Described here instead of being generated by protoc, as in data.formats.record_files.
    """
    package = "tensor_bundle"
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")

    def add(message: str, name: str, number: int, kind: Any, repeated: bool = False) -> None:
        found = next((each for each in file.message_type if each.name == message), None)
        field = (found or file.message_type.add(name=message)).field.add(name=name, number=number)
        field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        field.type = _Field.TYPE_MESSAGE if isinstance(kind, str) else kind
        if isinstance(kind, str):
            field.type_name = f".{package}.{kind}"

    add("Version", "producer", 1, _Field.TYPE_INT32)
    add("Header", "num_shards", 1, _Field.TYPE_INT32)
    add("Header", "endianness", 2, _Field.TYPE_INT32)  # an enumeration, which is written as an integer
    add("Header", "version", 3, "Version")
    add("Dimension", "size", 1, _Field.TYPE_INT64)
    add("Shape", "dim", 2, "Dimension", repeated=True)
    add("Shape", "unknown_rank", 3, _Field.TYPE_BOOL)
    add("Slice", "extent", 1, _Field.TYPE_BYTES, repeated=True)
    add("Entry", "dtype", 1, _Field.TYPE_INT32)  # an enumeration
    add("Entry", "shape", 2, "Shape")
    add("Entry", "shard_id", 3, _Field.TYPE_INT32)
    add("Entry", "offset", 4, _Field.TYPE_INT64)
    add("Entry", "size", 5, _Field.TYPE_INT64)
    add("Entry", "crc32c", 6, _Field.TYPE_FIXED32)
    add("Entry", "slices", 7, "Slice", repeated=True)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    header, entry = (pool.FindMessageTypeByName(f"{package}.{name}") for name in ("Header", "Entry"))
    return message_factory.GetMessageClass(header), message_factory.GetMessageClass(entry)
