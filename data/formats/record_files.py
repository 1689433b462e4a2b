"""Google's TFRecord and OneFlow's OFRecord files: one protobuf message an instance.

Both have the fields of Google's create_pretraining_data.py. Google pads every instance to max_seq_length and
max_predictions_per_seq; instances of different lengths in one file are read too.
"""

from __future__ import annotations

import gzip
from typing import IO, Any, Callable, Iterator, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from base.errors import InputError
from data.formats import framing, messages, packed_lists
from data.formats.blocks import Damage, FileFacts, RawBlock
from data.formats.framing import Frame, Stream
from data.formats.records import BLOCK_INSTANCES
from data.formats.spool import Spool
from data.options import MAX_POSITIONS

TOKEN_FIELDS = ("input_ids", "input_mask", "segment_ids")
PREDICTION_FIELDS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
FIELDS = (*TOKEN_FIELDS, *PREDICTION_FIELDS, "next_sentence_labels")
_BLOCK_BYTES = 16 << 20  # of records held at a time; 1024 of 512 tokens take below 8 MiB
_INTEGERS = ("int64_list", "int32_list")
_FLOATS = ("float_list", "double_list")


class _Codec(NamedTuple):
    message_type: Callable[..., Any]  # data.formats.messages
    features: Callable[[Any], Any]  # message -> its map from names to features
    frames: Callable[[Stream], Iterator[Frame]]
    framed: Callable[[bytes], bytes]
    integers: str  # the kind of list that integers are written as


_CODECS = {
    "tfrecord": _Codec(
        messages.example_type,
        lambda message: message.features.feature,
        framing.tfrecord_frames,
        framing.tfrecord_framed,
        "int64_list",
    ),
    "ofrecord": _Codec(
        messages.ofrecord_type,
        lambda message: message.feature,
        framing.ofrecord_frames,
        framing.ofrecord_framed,
        "int32_list",
    ),
}


class _BadRecord(Exception):
    """Fault of one record."""


class _Rows:
    """Rows of a block as they are parsed."""

    def __init__(self, limit: int) -> None:
        self.indices: list[int] = []
        self._width = self._predictions = 1
        self._columns = {
            name: np.zeros((limit, MAX_POSITIONS), float if name == "masked_lm_weights" else np.int64)
            for name in FIELDS
        }

    def add(self, index: int, row: dict[str, np.ndarray]) -> None:
        place = len(self.indices)
        for name, values in row.items():
            self._columns[name][place, : len(values)] = values
        self._width = max(self._width, len(row["input_ids"]))
        self._predictions = max(self._predictions, len(row["masked_lm_ids"]))
        self.indices.append(index)

    def block(self) -> RawBlock:
        count = len(self.indices)
        columns = {name: self._columns[name][:count, : self._width] for name in TOKEN_FIELDS}
        columns.update({name: self._columns[name][:count, : self._predictions] for name in PREDICTION_FIELDS})
        columns["next_sentence_labels"] = self._columns["next_sentence_labels"][:count, 0]
        return RawBlock(np.array(self.indices, dtype=np.int64), columns)


def peek(path: str, format: str, packed: bool) -> FileFacts:
    """The facts from the first record. Raises InputError where that is damaged."""
    codec = _CODECS[format]
    with Stream(path, packed) as stream:
        frame = next(codec.frames(stream), None)
        if frame is None:
            raise InputError(f"{path} holds no instances")
        try:
            if frame.error:
                raise _BadRecord(frame.error)
            row = _parse(frame.data, codec, codec.message_type())
        except _BadRecord as error:
            raise InputError(f"{path}: instance 0: {error}") from error
    return FileFacts(format, None, len(row["input_ids"]), len(row["masked_lm_ids"]))


def blocks(path: str, format: str, packed: bool) -> Iterator[RawBlock | Damage]:
    """The records, BLOCK_INSTANCES at a time, and Damage for each that cannot be read.

    Raises InputError for a file without records.
    """
    decoder = _Decoder(_CODECS[format])
    records: list[bytes] = []
    size = index = 0
    with Stream(path, packed) as stream:
        for frame in _CODECS[format].frames(stream):
            if not frame.error:
                records.append(frame.data)
                size += len(frame.data)
            if frame.error or len(records) == BLOCK_INSTANCES or size > _BLOCK_BYTES:
                yield from decoder.decode(index, records)
                index += len(records)
                records, size = [], 0
            if frame.error:
                yield Damage(f"instance {index}: {frame.error}", 1)
                index += 1
    yield from decoder.decode(index, records)
    if not index + len(records):
        raise InputError(f"{path} holds no instances")


class _Decoder:
    """Records to blocks: all at once if they are of the usual form, else one by one."""

    def __init__(self, codec: _Codec) -> None:
        self._codec = codec
        self._message_type = codec.message_type()
        self._layout = packed_lists.Layout(
            codec.message_type(lists_as_bytes=True),
            codec.features,
            TOKEN_FIELDS,
            PREDICTION_FIELDS,
            ("next_sentence_labels",),
        )

    def decode(self, first: int, records: list[bytes]) -> Iterator[RawBlock | Damage]:
        """Blocks and damage in the records' order; `first` is the first record's place in the file."""
        if not records:
            return
        columns = self._decode_together(records)
        if columns is None:
            yield from self._decode_singly(first, records)
        else:
            columns["next_sentence_labels"] = columns["next_sentence_labels"][:, 0]
            yield RawBlock(np.arange(first, first + len(records)), columns)

    def _decode_together(self, records: list[bytes]) -> dict[str, np.ndarray] | None:
        try:
            features = self._codec.features(self._message_type.FromString(records[0]))
        except DecodeError:
            return None
        kinds = {name: features[name].WhichOneof("kind") for name in FIELDS if name in features}
        if len(kinds) < len(FIELDS) or not all(_fits(name, kind) for name, kind in kinds.items()):
            return None
        return packed_lists.decode(records, self._layout, kinds)

    def _decode_singly(self, first: int, records: list[bytes]) -> Iterator[RawBlock | Damage]:
        rows = _Rows(len(records))
        for index, record in enumerate(records, first):
            try:
                rows.add(index, _parse(record, self._codec, self._message_type))
            except _BadRecord as error:
                yield Damage(f"instance {index}: {error}", 1)
        if rows.indices:
            yield rows.block()


def write(handle: IO[bytes], spool: Spool, format: str, compress: bool) -> None:
    """Write the instances padded to the widest, as the formats' readers expect; gzip if `compress`."""
    if compress:
        with gzip.GzipFile("", "wb", fileobj=handle, mtime=0) as packed:  # no name, no time: the same bytes
            _write_records(packed, spool, _CODECS[format])
    else:
        _write_records(handle, spool, _CODECS[format])


def _write_records(handle: Any, spool: Spool, codec: _Codec) -> None:
    message_type = codec.message_type()
    places = np.arange(spool.width)
    for arrays in spool.blocks():
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
            message = message_type()
            features = codec.features(message)
            for name, values in zip(columns, row):
                kind = "float_list" if name == "masked_lm_weights" else codec.integers
                getattr(features[name], kind).value.extend(values)
            records.append(codec.framed(message.SerializeToString(deterministic=True)))
        handle.write(b"".join(records))


def _parse(record: bytes, codec: _Codec, message_type: Any) -> dict[str, np.ndarray]:
    """The fields of one record as arrays; raises _BadRecord."""
    try:
        features = codec.features(message_type.FromString(record))
    except DecodeError:
        raise _BadRecord("it is not a message of the format") from None
    row = {}
    for name in FIELDS:
        if name not in features:
            raise _BadRecord(f"it lacks the field {name}")
        row[name] = _numbers(name, features[name])
    for names, limit in ((TOKEN_FIELDS, MAX_POSITIONS), (PREDICTION_FIELDS, MAX_POSITIONS)):
        first = len(row[names[0]])
        for name in names:
            if len(row[name]) != first:
                raise _BadRecord(f"{name} has {len(row[name])} values, but {names[0]} {first}")
        if not 1 <= first <= limit:
            raise _BadRecord(f"{names[0]} has {first} values, expected 1 to {limit}")
    if len(row["next_sentence_labels"]) != 1:
        raise _BadRecord(f"next_sentence_labels has {len(row['next_sentence_labels'])} values, expected 1")
    return row


def _fits(name: str, kind: str | None) -> bool:
    return kind in _INTEGERS or (kind in _FLOATS and name == "masked_lm_weights")


def _numbers(name: str, feature: Any) -> np.ndarray:
    kind = feature.WhichOneof("kind")
    if _fits(name, kind):
        values = getattr(feature, kind).value
        return np.fromiter(values, float if kind in _FLOATS else np.int64, len(values))
    held = "nothing" if kind is None else kind.replace("_list", " numbers").replace("bytes numbers", "bytes")
    raise _BadRecord(f"{name} holds {held}, expected {'numbers' if name.endswith('weights') else 'integers'}")
