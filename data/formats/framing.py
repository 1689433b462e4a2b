"""Records of bytes in a file: TFRecord's and OFRecord's framing, packed by gzip or zlib or not.

TFRecord (tensorflow/core/lib/io/record_writer.cc): uint64 length, masked CRC-32C of these 8 bytes, the data,
masked CRC-32C of the data; little-endian. OFRecord (OneFlow): int64 length, the data; no checksums.
"""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import contextmanager
from typing import IO, Any, Iterator, NamedTuple

import crc32c

from base.errors import InputError
from data.formats.records import check_expansion

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


def masked_crc(data: bytes) -> int:
    """TFRecord's checksum: CRC-32C rotated right by 15 bits plus a constant, modulo 2**32."""
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
