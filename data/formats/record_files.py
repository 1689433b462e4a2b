"""Google's TFRecord and OneFlow's OFRecord files: one protobuf message an instance.

Both have the fields of Google's create_pretraining_data.py. Google pads every instance to max_seq_length and
max_predictions_per_seq; instances of different lengths in one file are read too.
"""

from __future__ import annotations

import gzip
from contextlib import ExitStack
from typing import IO, Any, Iterator, Sequence

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from google.protobuf.message import DecodeError

from base.errors import InputError
from data.formats.framing import Stream, framed, frames
from data.formats.records import (
    BLOCK_INSTANCES,
    Damage,
    FileFacts,
    PretrainingArrays,
    RawBlock,
    in_blocks,
)
from data.options import MAX_POSITIONS


def example_type(lists_as_bytes: bool = False) -> Any:
    """The message class tf.train.Example: its map is `message.features.feature`.

    With `lists_as_bytes` the lists of numbers are lists of bytes, for `Messages.decode_together`.
    """
    kinds = (("float_list", "float", 2), ("int64_list", "int64", 3))
    example = {"name": "Example", "field": [_field("features", 1, ".records.Features")]}
    return _message_class(kinds, lists_as_bytes, "Features", example)


def ofrecord_type(lists_as_bytes: bool = False) -> Any:
    """The message class oneflow.OFRecord: its map is `message.feature`; `lists_as_bytes` as above."""
    kinds = (
        ("float_list", "float", 2),
        ("double_list", "double", 3),
        ("int32_list", "int32", 4),
        ("int64_list", "int64", 5),
    )
    return _message_class(kinds, lists_as_bytes, "OFRecord")


def _message_class(
    kinds: tuple[tuple[str, str, int], ...],
    lists_as_bytes: bool,
    holder: str,
    outer: dict[str, Any] | None = None,
) -> Any:
    """The class of the message `holder`, a map from names to features, or of the message around it.

    A feature is one list of numbers of several kinds. The types are described here instead of being generated
    by protoc, in a pool of their own, so that they cannot clash with TensorFlow's in the same process. Field
    numbers: tensorflow/core/example/example.proto and feature.proto, oneflow/core/record/record.proto.
    """
    lists = (("bytes_list", "bytes", 1), *kinds)  # in both projects
    feature = {
        "name": "Feature",
        "field": [
            {**_field(name, number, f".records.List{number}"), "oneofIndex": 0} for name, _, number in lists
        ],
        "oneofDecl": [{"name": "kind"}],
    }
    entry = {
        "name": "FeatureEntry",
        "field": [_field("key", 1, "string"), _field("value", 2, ".records.Feature")],
        "options": {"mapEntry": True},
    }
    messages = [
        *(
            {
                "name": f"List{number}",
                "field": [_field("value", 1, "bytes" if lists_as_bytes else kind, True)],
            }
            for _, kind, number in lists
        ),
        feature,
        {
            "name": holder,
            "field": [_field("feature", 1, f".records.{holder}.FeatureEntry", True)],
            "nestedType": [entry],
        },
        *([outer] if outer else []),
    ]
    # proto3 packs repeated numbers when it writes, as both projects do; either form is read.
    file = {"name": "records.proto", "package": "records", "syntax": "proto3", "messageType": messages}
    pool = descriptor_pool.DescriptorPool()
    pool.Add(json_format.ParseDict(file, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"records.{messages[-1]['name']}"))


def _field(name: str, number: int, kind: str, repeated: bool = False) -> dict[str, Any]:
    """A field of a message; `kind` is a type of protobuf's or begins with a dot."""
    form = {"type": "TYPE_MESSAGE", "typeName": kind} if kind[0] == "." else {"type": f"TYPE_{kind.upper()}"}
    return {
        "name": name,
        "number": number,
        "label": f"LABEL_{'REPEATED' if repeated else 'OPTIONAL'}",
        **form,
    }


TOKEN_FIELDS = ("input_ids", "input_mask", "segment_ids")
PREDICTION_FIELDS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
FIELDS = (*TOKEN_FIELDS, *PREDICTION_FIELDS, "next_sentence_labels")
# Fields of which a record has as many numbers each, and the most of these
_GROUPS = ((TOKEN_FIELDS, MAX_POSITIONS), (PREDICTION_FIELDS, MAX_POSITIONS), (FIELDS[-1:], 1))
_BLOCK_BYTES = 16 << 20  # of records held at a time; 1024 of 512 tokens take below 8 MiB
_INTEGERS = ("int64_list", "int32_list")
_FLOATS = ("float_list", "double_list")
_MAX_VARINT = 4  # bytes: below 2**28, so the same number as int32 and as int64; larger is wrong here anyway


class _BadRecord(Exception):
    """Fault of one record."""


def peek(path: str, format: str, packed: bool) -> FileFacts:
    """The facts from the first record. Raises InputError where that is damaged."""
    messages = Messages(format)
    with Stream(path, packed) as stream:
        frame = next(frames(stream, messages.is_example), None)
        if frame is None:
            raise InputError(f"{path} holds no instances")
        try:
            if frame.error:
                raise _BadRecord(frame.error)
            row = messages.parse(frame.data)
        except _BadRecord as error:
            raise InputError(f"{path}: instance 0: {error}") from error
    return FileFacts(format, None, len(row["input_ids"]), len(row["masked_lm_ids"]))


def blocks(path: str, format: str, packed: bool) -> Iterator[RawBlock | Damage]:
    """The records, BLOCK_INSTANCES at a time, and Damage for each that cannot be read.

    Raises InputError for a file without records.
    """
    messages = Messages(format)
    records: list[bytes] = []
    size = index = 0
    with Stream(path, packed) as stream:
        for frame in frames(stream, messages.is_example):
            if not frame.error:
                records.append(frame.data)
                size += len(frame.data)
            if frame.error or len(records) == BLOCK_INSTANCES or size > _BLOCK_BYTES:
                yield from messages.blocks(index, records)
                index += len(records)
                records, size = [], 0
            if frame.error:
                yield Damage(f"instance {index}: {frame.error}", 1)
                index += 1
    yield from messages.blocks(index, records)
    if not index + len(records):
        raise InputError(f"{path} holds no instances")


def write(handle: IO[bytes], rows: PretrainingArrays, format: str, compress: bool) -> None:
    """Writes the instances padded, as the formats' readers expect; gzip if `compress`."""
    messages = Messages(format)
    places = np.arange(rows.input_ids.shape[1])
    with ExitStack() as stack:
        out: Any = handle
        if compress:  # without name and time: the same bytes
            out = stack.enter_context(gzip.GzipFile("", "wb", fileobj=handle, mtime=0))
        for block in zip(*map(in_blocks, rows)):
            arrays = PretrainingArrays(*block)
            columns = {
                "input_ids": arrays.input_ids.tolist(),
                "input_mask": (places < arrays.valid_lengths[:, None]).astype(int).tolist(),
                "segment_ids": arrays.segment_ids.tolist(),
                "masked_lm_positions": arrays.masked_lm_positions.tolist(),
                "masked_lm_ids": arrays.masked_lm_ids.tolist(),
                "masked_lm_weights": arrays.masked_lm_weights.tolist(),
                "next_sentence_labels": arrays.next_sentence_labels[:, None].tolist(),
            }
            records = []
            for row in zip(*columns.values()):
                message = messages.type()
                features = messages.features(message)
                for name, values in zip(columns, row):
                    kind = "float_list" if name == "masked_lm_weights" else messages.integers
                    getattr(features[name], kind).value.extend(values)
                records.append(framed(message.SerializeToString(deterministic=True), messages.is_example))
            out.write(b"".join(records))


class Messages:
    """The messages of a format, and their decoding: all at once where they are of the usual form, else one by
    one."""

    def __init__(self, format: str) -> None:
        self.is_example = format == "tfrecord"
        make = example_type if self.is_example else ofrecord_type
        self.type, self._type_of_lists = make(), make(lists_as_bytes=True)
        self.integers = "int64_list" if self.is_example else "int32_list"  # the kind that is written

    def features(self, message: Any) -> Any:
        """The message's map from names to features."""
        return message.features.feature if self.is_example else message.feature

    def blocks(self, first: int, records: list[bytes]) -> Iterator[RawBlock | Damage]:
        """Blocks and damage in the records' order; `first` is the first record's place in the file."""
        if not records:
            return
        indices, columns = list(range(first, first + len(records))), self.decode_together(records)
        if columns is None:
            rows, good = [], []
            for index, record in zip(indices, records):
                try:
                    rows.append(self.parse(record))
                    good.append(index)
                except _BadRecord as error:
                    yield Damage(f"instance {index}: {error}", 1)
            if not rows:
                return
            indices, columns = good, {}
            for name in FIELDS:
                lists = [row[name] for row in rows]
                columns[name] = _padded(np.concatenate(lists), np.array([len(each) for each in lists]))
        columns["next_sentence_labels"] = columns["next_sentence_labels"][:, 0]
        yield RawBlock(np.array(indices, dtype=np.int64), columns)

    def parse(self, record: bytes) -> dict[str, np.ndarray]:
        """The fields of one record as arrays; raises _BadRecord."""
        try:
            features = self.features(self.type.FromString(record))
        except DecodeError:
            raise _BadRecord("it is not a message of the format") from None
        row = {}
        for name in FIELDS:
            if name not in features:
                raise _BadRecord(f"it lacks the field {name}")
            row[name] = _numbers(name, features[name])
        for names, limit in _GROUPS:
            first = len(row[names[0]])
            for name in names:
                if len(row[name]) != first:
                    raise _BadRecord(f"{name} has {len(row[name])} values, but {names[0]} {first}")
            if not 1 <= first <= limit:
                expected = f"1 to {limit}" if limit > 1 else "1"
                raise _BadRecord(f"{names[0]} has {first} values, expected {expected}")
        return row

    def decode_together(self, records: Sequence[bytes]) -> dict[str, np.ndarray] | None:
        """The fields of all records as columns padded with 0, or None if any record is not of the usual form.

        A packed list is a length-delimited field, as bytes are. So with message types that call these lists
        bytes, protobuf still parses the records, but hands the lists over whole; those of a field are then
        joined over all records and decoded together, over twice as fast as number by number
        (https://protobuf.dev/programming-guides/encoding#varints). Anything but the form that every writer
        gives them is left to the slow way, which knows all of protobuf's forms and says what is wrong.

        Kinds of lists are those of the first record. Integers come as int32, floats as they are.
        """
        lists: dict[str, list[bytes]] = {name: [] for name in FIELDS}
        try:
            first = self.features(self.type.FromString(records[0]))
            kinds = {name: str(first[name].WhichOneof("kind")) for name in FIELDS if name in first}
            if len(kinds) < len(FIELDS) or not all(_fits(name, kind) for name, kind in kinds.items()):
                return None
            columns = [(name, kind, lists[name].append) for name, kind in kinds.items()]
            parse, features_of = self._type_of_lists.FromString, self.features
            for record in records:
                features = features_of(parse(record))
                for name, kind, append in columns:
                    if name not in features:
                        return None
                    numbers = getattr(features[name], kind)
                    pieces = numbers.value
                    if len(pieces) != 1:
                        return None
                    piece = pieces[0]
                    # Anything beside the one packed list, as unpacked numbers are, makes the message longer.
                    if numbers.ByteSize() != 1 + _varint_size(len(piece)) + len(piece):
                        return None
                    append(piece)
        except DecodeError:
            return None
        out = {}
        for group, limit in _GROUPS:
            leader: np.ndarray | None = None  # numbers of each record's list
            for name in group:
                decoded = _decode_lists(lists[name], kinds[name])
                if decoded is None or decoded[1].max() > limit:
                    return None
                leader = decoded[1] if leader is None else leader
                if (decoded[1] != leader).any():
                    return None
                out[name] = _padded(*decoded)
        return out


def _fits(name: str, kind: str | None) -> bool:
    return kind in _INTEGERS or (kind in _FLOATS and name == "masked_lm_weights")


def _numbers(name: str, feature: Any) -> np.ndarray:
    kind = feature.WhichOneof("kind")
    if _fits(name, kind):
        values = getattr(feature, kind).value
        return np.fromiter(values, float if kind in _FLOATS else np.int64, len(values))
    held = "nothing" if kind is None else kind.replace("_list", " numbers").replace("bytes numbers", "bytes")
    raise _BadRecord(f"{name} holds {held}, expected {'numbers' if name.endswith('weights') else 'integers'}")


def _varint_size(value: int) -> int:
    return 1 if value < 128 else max(1, -(-value.bit_length() // 7))


def _decode_lists(pieces: list[bytes], kind: str) -> tuple[np.ndarray, np.ndarray] | None:
    """All numbers in a row, and how many each piece holds; None for empty pieces and unusual numbers."""
    sizes = np.fromiter(map(len, pieces), np.int64, len(pieces))
    if not sizes.all():
        return None
    joined = b"".join(pieces)
    if kind in ("float_list", "double_list"):
        dtype = np.dtype("<f4" if kind == "float_list" else "<f8")
        if (sizes % dtype.itemsize).any():
            return None
        return np.frombuffer(joined, dtype), sizes // dtype.itemsize
    content = np.frombuffer(joined, np.uint8)
    last = content < 128  # the last byte of a number
    offsets = np.cumsum(sizes) - sizes
    if not last[offsets + sizes - 1].all():
        return None
    if last.all():
        return content.astype(np.int32), sizes
    ends = np.flatnonzero(last)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    longest = int(lengths.max())
    if longest > _MAX_VARINT:
        return None
    numbers = (content[starts] & 127).astype(np.int32)
    for place in range(1, longest):
        longer = np.flatnonzero(lengths > place)
        numbers[longer] |= (content[starts[longer] + place] & 127).astype(np.int32) << 7 * place
    return numbers, np.add.reduceat(last, offsets, dtype=np.int64)


def _padded(numbers: np.ndarray, counts: np.ndarray) -> np.ndarray:
    width = int(counts.max())
    if (counts == width).all():
        return numbers.reshape(len(counts), width)
    out = np.zeros((len(counts), width), numbers.dtype)
    out[np.arange(width) < counts[:, None]] = numbers
    return out
