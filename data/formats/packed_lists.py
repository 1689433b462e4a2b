"""Many records decoded at once: protobuf's packed lists of numbers by NumPy instead of number by number.

A packed list is a length-delimited field, as bytes are. So with message types that call these lists bytes,
protobuf still parses the records, but hands the lists over whole; those of a field are then joined over all
records and decoded together (https://protobuf.dev/programming-guides/encoding#varints). Over twice as fast.

Only records in the form that every writer gives them are taken: anything else is left to the slow way, which
knows all of protobuf's forms and says what is wrong.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np
from google.protobuf.message import DecodeError

from data.options import MAX_POSITIONS

_MAX_VARINT = 4  # bytes: below 2**28, so the same number as int32 and as int64; larger is wrong here anyway


class Layout(NamedTuple):
    """Layout of the fields in a message whose lists are bytes."""

    message_type: Any
    features: Callable[[Any], Any]
    token_fields: Sequence[str]
    prediction_fields: Sequence[str]
    row_fields: Sequence[str]  # one number each


def decode(
    records: Sequence[bytes], layout: Layout, kinds: Mapping[str, str]
) -> dict[str, np.ndarray] | None:
    """The fields of all records as columns padded with 0, or None if any record is not of the usual form.

    `kinds` gives each field's kind of list. Integers come as int32, floats as they are.
    """
    lists: dict[str, list[bytes]] = {name: [] for name in kinds}
    columns = [(name, kind, lists[name].append) for name, kind in kinds.items()]
    parse, features_of = layout.message_type.FromString, layout.features
    try:
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
    decoded = {name: _decode_lists(lists[name], kind) for name, kind in kinds.items()}
    out = {}
    for group, limit in (
        (layout.token_fields, MAX_POSITIONS),
        (layout.prediction_fields, MAX_POSITIONS),
        (layout.row_fields, 1),
    ):
        first = decoded[group[0]]
        for name in group:
            column = decoded[name]
            if first is None or column is None or (column[1] != first[1]).any() or column[1].max() > limit:
                return None
            out[name] = _padded(*column)
    return out


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
