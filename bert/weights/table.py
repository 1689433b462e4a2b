"""TensorFlow's sorted tables of keys and values, the form of a checkpoint's .index file.

The layout is LevelDB's (tensorflow/core/lib/io/format.cc, block_builder.cc, table_builder.cc):

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

import struct
from typing import Iterator, Sequence

from bert.weights.stored import MAX_ARRAYS, MAX_NAME, Damaged
from data.formats.framing import masked_crc

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48  # bytes
_TRAILER = 5
_RESTART_INTERVAL = 16  # entries


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values in the order of the keys.

    Raises Damaged: a length or checksum is wrong, a block is compressed, keys are not in order or too many.
    """
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise Damaged("it does not end as one")
    footer = data[-_FOOTER:]
    place = _handle(footer, 0)[1]  # of the metaindex, which is empty
    (offset, size), _ = _handle(footer, place)
    previous, last, count = 0, None, 0
    for blocks, (_, value) in enumerate(_entries(_block(data, offset, size))):
        (offset, size), _ = _handle(value, 0)
        if offset < previous or blocks > MAX_ARRAYS:
            raise Damaged("its blocks are not in order")
        previous = offset + size
        for key, content in _entries(_block(data, offset, size)):
            count += 1
            if (last is not None and key <= last) or count > 2 * MAX_ARRAYS:
                raise Damaged("its keys are not in order")
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
        shared, place = varint(block, place)
        unshared, place = varint(block, place)
        length, place = varint(block, place)
        if shared > len(key) or place + unshared + length > end or shared + unshared > 4 * MAX_NAME:
            raise Damaged("an entry is longer than its block")
        key = key[:shared] + block[place : place + unshared]
        place += unshared
        yield key, block[place : place + length]
        place += length


def _handle(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    offset, place = varint(data, place)
    size, place = varint(data, place)
    return (offset, size), place


def varint(data: bytes, place: int) -> tuple[int, int]:
    """The number that begins at `place`, and the place after it; raises Damaged."""
    number = 0
    for count, byte in enumerate(data[place : place + 10]):
        number |= (byte & 127) << 7 * count
        if byte < 128:
            return number, place + count + 1
    raise Damaged("a number has no end")


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
        bytes(out) + (metaindex_handle + index_handle).ljust(_FOOTER - 8, b"\0") + struct.pack("<Q", _MAGIC)
    )


def _built(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    out, restarts, previous = bytearray(), [0], b""
    for index, (key, value) in enumerate(entries):
        shared = 0
        if index % _RESTART_INTERVAL:
            while shared < min(len(key), len(previous)) and key[shared] == previous[shared]:
                shared += 1
        elif index:
            restarts.append(len(out))
        out += to_varint(shared) + to_varint(len(key) - shared) + to_varint(len(value)) + key[shared:] + value
        previous = key
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
