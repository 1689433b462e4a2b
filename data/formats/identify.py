"""Formats of files, identified by their content and never by their names."""

from __future__ import annotations

import os
import zlib
from typing import NamedTuple

from google.protobuf.message import DecodeError

from base.errors import InputError
from data.formats import framing, messages
from data.formats.record_files import FIELDS

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FIRST = 4096  # bytes looked at
_OTHERS = (
    (b"\x93NUMPY", "a single NumPy array; save the arrays together, by numpy.savez"),
    (b"BZh", "a bzip2 file; unpack it first, or give --raw if it holds text"),
    (b"\xfd7zXZ\x00", "an xz file; unpack it first, or give --raw if it holds text"),
    (b"\x28\xb5\x2f\xfd", "a zstd file; unpack it first, or give --raw if it holds text"),
    (b"\x80", "a pickle, which is never loaded"),
)


class Kind(NamedTuple):
    """A format, and whether the file is packed as a whole by gzip or zlib."""

    format: str  # "npz", "hdf5", "tfrecord" or "ofrecord"
    packed: bool


def identify(path: str) -> Kind:
    """The format of the file.

    Raises InputError for a file that cannot be read or is of no known format, saying what it looks like.
    """
    try:
        with open(path, "rb") as handle:
            start = handle.read(_FIRST)
            size = os.fstat(handle.fileno()).st_size
            signature_at = 512
            while not start.startswith(_HDF5_SIGNATURE) and signature_at < size:  # HDF5 after a user block
                handle.seek(signature_at)
                if handle.read(8) == _HDF5_SIGNATURE:
                    return Kind("hdf5", False)
                signature_at *= 2
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if not start:
        raise InputError(f"{path} is empty")
    if framing.is_tfrecord_header(start):  # first: a length may begin with any other format's bytes
        return Kind("tfrecord", False)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return Kind("npz", False)
    if start.startswith(_HDF5_SIGNATURE):
        return Kind("hdf5", False)
    if _is_ofrecord(path, packed=False):
        return Kind("ofrecord", False)
    inner = _unpacked_start(start)
    if inner is not None:
        if framing.is_tfrecord_header(inner):
            return Kind("tfrecord", True)
        if _is_ofrecord(path, packed=True):
            return Kind("ofrecord", True)
        raise InputError(
            f"{path} is compressed, and neither TFRecord nor OFRecord inside; unpack it first, or give --raw "
            "if it holds text"
        )
    for magic, name in _OTHERS:
        if start.startswith(magic):
            raise InputError(f"{path} is {name}")
    if _is_text(start):
        raise InputError(f"{path} looks like text; give --raw for text files")
    raise InputError(f"{path} is none of npz, HDF5, TFRecord and OFRecord, or damaged at its start")


def _unpacked_start(start: bytes) -> bytes | None:
    """The first unpacked bytes of what begins as gzip or zlib does, else None."""
    zlib_header = len(start) > 1 and start[0] & 15 == 8 and int.from_bytes(start[:2], "big") % 31 == 0
    if not zlib_header and not start.startswith(b"\x1f\x8b"):
        return None
    try:
        return zlib.decompressobj(wbits=47).decompress(start, _FIRST)
    except zlib.error:
        return b"" if start.startswith(b"\x1f\x8b") else None


def _is_ofrecord(path: str, packed: bool) -> bool:
    """True if there is a first record that parses and has at least one field of BERT's."""
    with framing.Stream(path, packed) as stream:
        frame = next(framing.ofrecord_frames(stream), None)
    if frame is None or frame.error:
        return False
    try:
        features = messages.ofrecord_type().FromString(frame.data).feature
    except DecodeError:
        return False
    return any(name in features for name in FIELDS)


def _is_text(start: bytes) -> bool:
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3:  # a character cut at the end is fine
            return False
        text = start[: error.start].decode()
    return all(character.isprintable() or character in "\t\n\r\f" for character in text)
