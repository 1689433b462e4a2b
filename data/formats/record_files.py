"""Google's TFRecord and OneFlow's OFRecord files, packed by gzip or zlib or not: one protobuf message an
instance.

Both have the fields of Google's create_pretraining_data.py. Google pads every instance to max_seq_length and
max_predictions_per_seq; instances of different lengths in one file are read too.

TFRecord (tensorflow/core/lib/io/record_writer.cc): uint64 length, masked CRC-32C of these 8 bytes, the data,
masked CRC-32C of the data; little-endian. OFRecord (OneFlow): int64 length, the data; no checksums.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from contextlib import ExitStack, contextmanager
from typing import IO, Any, Iterator, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from base.errors import InputError
from data.formats.records import (
    BLOCK_INSTANCES,
    PretrainingArrays,
    RawBlock,
    Report,
    check_expansion,
    in_blocks,
)
from data.options import MAX_POSITIONS
from data.protobuf import message_types

MAX_RECORD = 1 << 20  # bytes; 512 tokens of int64 with everything else take below 8 KiB
_BUFFER = 1 << 18


class Frame(NamedTuple):
    """One record, or why it, or everything from it on, cannot be read."""

    data: bytes
    error: str = ""


@contextmanager
def open_stream(path: str, packed: bool) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked if it is packed by gzip or zlib (several gzip members in a row too).

    Memory: two buffers. Reading raises InputError where the file cannot be read or its unpacked size becomes
    absurd, and zlib.error where the packed bytes are damaged.
    """
    try:
        with open(path, "rb", buffering=0) as handle:
            unpacked = _Unpacked(path, handle) if packed else handle
            yield io.BufferedReader(unpacked, _BUFFER)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error


class _Unpacked(io.RawIOBase):
    """Unpacks a file, for `open_stream` to buffer."""

    def __init__(self, path: str, handle: io.FileIO) -> None:
        self._path, self._handle = path, handle
        self._decompressor = zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, by their header
        self._pending = b""  # packed bytes that wait for room
        self._packed_size = self._unpacked_size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills a part of the buffer at least; 0 at the end."""
        while True:
            if not self._pending:
                self._pending = self._handle.read(_BUFFER)
                self._packed_size += len(self._pending)
                if not self._pending:
                    if not self._decompressor.eof and self._packed_size:
                        raise zlib.error("it ends in the middle")
                    return 0
            if self._decompressor.eof:  # another gzip member follows
                self._decompressor = zlib.decompressobj(wbits=47)
            unpacked = self._decompressor.decompress(self._pending, len(buffer))
            eof = self._decompressor.eof
            self._pending = self._decompressor.unused_data if eof else self._decompressor.unconsumed_tail
            self._unpacked_size += len(unpacked)
            check_expansion(self._path, self._unpacked_size, self._packed_size)
            if unpacked:
                buffer[: len(unpacked)] = unpacked
                return len(unpacked)


def masked_crc(data: bytes | memoryview) -> int:
    """TFRecord's checksum: CRC-32C rotated right by 15 bits plus a constant, modulo 2**32."""
    import crc32c  # 20 ms, which other formats do not need

    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def is_tfrecord_header(start: bytes) -> bool:
    """True if the first 12 bytes are a record's length with its checksum."""
    return len(start) >= 12 and masked_crc(start[:8]) == struct.unpack_from("<I", start, 8)[0]


def frames(stream: IO[bytes], checksums: bool) -> Iterator[Frame]:
    """The records of a TFRecord file, which has checksums, or of an OFRecord file.

    After a damaged or implausible length, or a cut record, there are no more: the error is the last Frame. A
    wrong checksum of the data is an error of that record alone.
    """
    more = 4 if checksums else 0  # bytes of a checksum, after the length and after the data
    try:
        while header := stream.read(8 + more):
            length = int.from_bytes(header[:8], "little", signed=not checksums)
            fault = ""
            if len(header) < 8 + more:
                fault = "the file ends inside its length"
            elif checksums and not is_tfrecord_header(header):
                fault = "its length has a wrong checksum, so that and all that follows is lost"
            elif not (0 if checksums else 1) <= length <= MAX_RECORD:
                fault = f"its length {length} cannot be, so that and all that follows is lost"
            else:
                data = stream.read(length + more)
                if len(data) < length + more:
                    fault = "the file ends inside it"
            if fault:
                yield Frame(b"", fault)
                return
            record, checksum = data[:length], data[length:]
            good = not checksums or masked_crc(record) == int.from_bytes(checksum, "little")
            yield Frame(record) if good else Frame(b"", "its checksum is wrong")
    except zlib.error as error:
        yield Frame(b"", f"the compressed data are damaged from here on ({error})")


def framed(data: bytes, checksums: bool) -> bytes:
    """`data` as a record of a TFRecord file, which has checksums, or of an OFRecord file."""
    header = struct.pack("<Q", len(data))
    if not checksums:
        return header + data
    return header + struct.pack("<I", masked_crc(header)) + data + struct.pack("<I", masked_crc(data))


def message_type(is_example: bool) -> Any:
    """The message class tf.train.Example, with a map `message.features.feature`, or oneflow.OFRecord, with
    `message.feature`: from names to features, each one list of numbers of some kind.

    Field numbers: tensorflow/core/example/example.proto and feature.proto, oneflow/core/record/record.proto.
    """
    kinds = ("bytes", "float", *(("int64",) if is_example else ("double", "int32", "int64")))
    holder = "Features" if is_example else "OFRecord"
    types = message_types(
        {
            **{f"{kind}_list": {"value": (1, f"repeated {kind}")} for kind in kinds},
            "Feature": {
                f"{kind}_list": (number, f"oneof {kind}_list") for number, kind in enumerate(kinds, 1)
            },
            holder: {"feature": (1, "map Feature")},
            "Example": {"features": (1, holder)},
        }
    )
    return types["Example" if is_example else holder]


TOKEN_FIELDS = ("input_ids", "input_mask", "segment_ids")
PREDICTION_FIELDS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
FIELDS = (*TOKEN_FIELDS, *PREDICTION_FIELDS, "next_sentence_labels")
# Fields of which a record has as many numbers each, and the most of these
_GROUPS = ((TOKEN_FIELDS, MAX_POSITIONS), (PREDICTION_FIELDS, MAX_POSITIONS), (FIELDS[-1:], 1))
_BLOCK_BYTES = 16 << 20  # of records held at a time; 1024 of 512 tokens take below 8 MiB
_INTEGERS = ("int64_list", "int32_list")
_FLOATS = ("float_list", "double_list")


class _BadRecord(Exception):
    """Fault of one record."""


def peek(path: str, format: str, packed: bool) -> tuple[int, int]:
    """Tokens and masked positions of the first record. Raises InputError where that is damaged."""
    messages = Messages(format)
    with open_stream(path, packed) as stream:
        try:
            row = messages.parse(next(frames(stream, messages.is_example)))
        except _BadRecord as error:
            raise InputError(f"{path}: instance 0: {error}") from error
    return len(row["input_ids"]), len(row["masked_lm_ids"])


def blocks(path: str, format: str, packed: bool, report: Report) -> Iterator[RawBlock]:
    """The records, BLOCK_INSTANCES at a time; each that cannot be read is reported."""
    messages = Messages(format)
    rows: dict[int, dict[str, np.ndarray]] = {}  # by their places in the file
    size = 0
    with open_stream(path, packed) as stream:
        for index, frame in enumerate(frames(stream, messages.is_example)):
            size += len(frame.data)
            fault = ""
            try:
                rows[index] = messages.parse(frame)
            except _BadRecord as error:
                fault = f"{path}: instance {index}: {error}"
            if rows and (frame.error or len(rows) == BLOCK_INSTANCES or size > _BLOCK_BYTES):
                yield _block(rows)
                rows, size = {}, 0
            if fault:
                report(fault, 1)
    if rows:
        yield _block(rows)


def _block(rows: dict[int, dict[str, np.ndarray]]) -> RawBlock:
    """The columns of records, which may have different lengths, padded with 0."""
    columns = {}
    for name in FIELDS:
        lists = [row[name] for row in rows.values()]
        numbers, counts = np.concatenate(lists), np.array([len(each) for each in lists])
        inside = np.arange(counts.max()) < counts[:, None]
        columns[name] = np.zeros(inside.shape, numbers.dtype)
        columns[name][inside] = numbers
    columns["next_sentence_labels"] = columns["next_sentence_labels"][:, 0]
    return RawBlock(np.array(list(rows), dtype=np.int64), columns)


def write(handle: IO[bytes], rows: PretrainingArrays, format: str, compress: bool) -> None:
    """Writes the instances padded, as the formats' readers expect; gzip if `compress`."""
    messages = Messages(format)
    places = np.arange(rows.input_ids.shape[1])
    with ExitStack() as stack:
        out: Any = handle
        if compress:  # without name and time: the same bytes
            out = stack.enter_context(gzip.GzipFile("", "wb", fileobj=handle, mtime=0))
        for block in zip(*map(in_blocks, rows)):
            columns = PretrainingArrays(*block)._asdict()
            columns["input_mask"] = (places < columns["valid_lengths"][:, None]).astype(int)
            columns["next_sentence_labels"] = columns["next_sentence_labels"][:, None]
            records = []
            for row in zip(*(columns[name].tolist() for name in FIELDS)):
                message = messages.type()
                features = messages.features(message)
                for name, values in zip(FIELDS, row):
                    kind = "float_list" if name == "masked_lm_weights" else messages.integers
                    getattr(features[name], kind).value.extend(values)
                records.append(framed(message.SerializeToString(deterministic=True), messages.is_example))
            out.write(b"".join(records))


class Messages:
    """The messages of a format, and their decoding."""

    def __init__(self, format: str) -> None:
        self.is_example = format == "tfrecord"
        self.type = message_type(self.is_example)
        self.integers = "int64_list" if self.is_example else "int32_list"  # the kind that is written

    def features(self, message: Any) -> Any:
        """The message's map from names to features."""
        return message.features.feature if self.is_example else message.feature

    def parse(self, frame: Frame) -> dict[str, np.ndarray]:
        """The fields of one record as arrays; raises _BadRecord."""
        if frame.error:
            raise _BadRecord(frame.error)
        try:
            features = self.features(self.type.FromString(frame.data))
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


def _numbers(name: str, feature: Any) -> np.ndarray:
    kind = feature.WhichOneof("kind")
    if kind in _INTEGERS or (kind in _FLOATS and name == "masked_lm_weights"):
        values = getattr(feature, kind).value
        return np.array(values, float if kind in _FLOATS else np.int64)
    held = "nothing" if kind is None else kind.replace("_list", " numbers").replace("bytes numbers", "bytes")
    raise _BadRecord(f"{name} holds {held}, expected {'numbers' if name.endswith('weights') else 'integers'}")
