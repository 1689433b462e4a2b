"""Members of zip archives that lie in a file as they are, uncompressed: where, and whether they are whole.

torch.save writes such archives. A compressed member is an error: nothing is unpacked, so no archive becomes
larger than it is.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from typing import IO, NamedTuple

import numpy as np

from base.errors import InputError
from bert.weights.stored import Damaged, reading, shown
from data.formats.npz import BoundedFile

MAGIC = b"PK\x03\x04"
_LOCAL_HEADER = 30
_ERRORS = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, struct.error, zlib.error)
_CHUNK = 1 << 20


class Place(NamedTuple):
    """Bytes of a file."""

    offset: int
    size: int
    crc: int | None  # CRC-32; None where the file has none


class Archive:
    """Members of the one folder of an archive that has `marker` in it."""

    def __init__(self, path: str, file: IO[bytes], size: int, marker: str):
        self._file, self._size = file, size
        try:
            # At most 1 MiB of directory; BERT-large with Adam's moments and a second copy has 0.12 MiB.
            with BoundedFile(path) as bounded, zipfile.ZipFile(bounded) as archive:
                members = archive.infolist()
        except _ERRORS as error:
            raise Damaged(f"its archive's directory cannot be read: {shown(str(error))}") from error
        self._members = {member.filename: member for member in members}
        found = [name for name in self._members if name.endswith(f"/{marker}") and name.count("/") == 1]
        if len(found) != 1 or len(self._members) != len(members):
            raise Damaged("an archive of something else")
        self._folder = found[0][: -len(marker)]

    def holds(self, name: str) -> bool:
        """Returns whether there is such a member of the archive's one folder."""
        return self._folder + name in self._members

    def place(self, name: str) -> Place:
        """Bytes of a member. Raises Damaged: it is missing, compressed, encrypted or not within the file."""
        member = self._members.get(self._folder + name)
        if member is None:
            raise Damaged(f"it lacks {shown(name)}")
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise Damaged(f"{shown(name)} is compressed, which torch.save does not do")
        if member.flag_bits & 1 or not 0 <= member.header_offset <= self._size - _LOCAL_HEADER:
            raise Damaged(f"{shown(name)} is encrypted or missing")
        self._file.seek(member.header_offset)
        header = self._file.read(_LOCAL_HEADER)
        name_length, extra_length = struct.unpack("<HH", header[26:30])
        offset = member.header_offset + _LOCAL_HEADER + name_length + extra_length
        if not header.startswith(MAGIC) or offset + member.file_size > self._size:
            raise Damaged(f"{shown(name)} is cut short")
        # torch.serialization.set_crc32_options(False) writes zeros.
        return Place(offset, member.file_size, member.CRC or None)


def checksum(file: IO[bytes], place: Place) -> int:
    """CRC-32 of the bytes at `place`, a block at a time. Raises Damaged where there are fewer."""
    file.seek(place.offset)
    crc, left = 0, place.size
    while left:
        data = file.read(min(left, _CHUNK))
        if not data:
            raise Damaged("it ends too early")
        crc, left = zlib.crc32(data, crc), left - len(data)
    return crc


class Checksums:
    """Comparison of members with their checksums, each once."""

    def __init__(self, path: str):
        self._path = path
        self._right: set[Place] = set()

    def __call__(self, name: str, place: Place, stored: np.ndarray) -> None:
        """Raises InputError unless the bytes are those that were written.

        Args:
            name: of the tensor, for the message.
            place: of the whole member.
            stored: what was read of it.
        """
        if place.crc is None or place in self._right:
            return
        if stored.nbytes == place.size:
            crc = zlib.crc32(stored.view(np.uint8).data)
        else:
            with reading(self._path, "an archive"), open(self._path, "rb") as file:
                crc = checksum(file, place)
        if crc != place.crc:
            raise InputError(f"{self._path}: wrong checksum of {shown(name)}; copy or save it once more")
        self._right.add(place)
