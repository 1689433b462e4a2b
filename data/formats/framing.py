"""Records of bytes in a file: TFRecord's and OFRecord's framing, packed by gzip or zlib or not.

TFRecord (tensorflow/core/lib/io/record_writer.cc): uint64 length, masked CRC-32C of these 8 bytes, the data,
masked CRC-32C of the data; little-endian. OFRecord (OneFlow): int64 length, the data; no checksums.
"""

from __future__ import annotations

import struct
import zlib
from typing import IO, Iterator, NamedTuple

import crc32c

from base.errors import InputError
from data.formats.records import check_expansion

MAX_RECORD = 1 << 20  # bytes; 512 tokens of int64 with everything else take below 8 KiB
_BUFFER = 1 << 18


class Frame(NamedTuple):
    """One record, or why it, or everything from it on, cannot be read."""

    data: bytes
    error: str = ""


class Stream:
    """The bytes of a file, unpacked if it begins as gzip or zlib do (several gzip members in a row too).

    Memory: two buffers. `read` raises InputError where the file cannot be read or its unpacked size becomes
    absurd, and zlib.error where the packed bytes are damaged.
    """

    def __init__(self, path: str, packed: bool) -> None:
        self.path = path
        self._packed = packed
        self._handle: IO[bytes] | None = None
        self._decompressor = zlib.decompressobj(wbits=47)  # 32 + 15: gzip or zlib, by their header
        self._pending = b""  # packed bytes that wait for room
        self._buffer = bytearray()
        self._start = 0  # where the unread bytes of the buffer begin
        self._packed_size = self._unpacked_size = 0

    def __enter__(self) -> Stream:
        try:
            self._handle = open(self.path, "rb", buffering=0)
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror or error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._handle:
            self._handle.close()

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end."""
        while len(self._buffer) - self._start < size:
            more = self._more()
            if not more:
                break
            del self._buffer[: self._start]
            self._start = 0
            self._buffer += more
        content = bytes(self._buffer[self._start : self._start + size])
        self._start += len(content)
        return content

    def _more(self) -> bytes:
        if not self._packed:
            return self._stored()
        while True:
            if not self._pending:
                self._pending = self._stored()
                self._packed_size += len(self._pending)
                if not self._pending:
                    if not self._decompressor.eof and self._packed_size:
                        raise zlib.error("it ends in the middle")
                    return b""
            if self._decompressor.eof:  # another gzip member follows
                self._decompressor = zlib.decompressobj(wbits=47)
            unpacked = self._decompressor.decompress(self._pending, _BUFFER)
            eof = self._decompressor.eof
            self._pending = self._decompressor.unused_data if eof else self._decompressor.unconsumed_tail
            self._unpacked_size += len(unpacked)
            check_expansion(self.path, self._unpacked_size, self._packed_size)
            if unpacked:
                return unpacked

    def _stored(self) -> bytes:
        assert self._handle is not None, "Stream is used inside a with statement"
        try:
            return self._handle.read(_BUFFER)
        except OSError as error:
            raise InputError(f"cannot read {self.path}: {error.strerror or error}") from error


def masked_crc(data: bytes) -> int:
    """TFRecord's checksum: CRC-32C rotated right by 15 bits plus a constant, modulo 2**32."""
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def is_tfrecord_header(start: bytes) -> bool:
    """True if the first 12 bytes are a record's length with its checksum."""
    return len(start) >= 12 and masked_crc(start[:8]) == struct.unpack_from("<I", start, 8)[0]


def frames(stream: Stream, checksums: bool) -> Iterator[Frame]:
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
