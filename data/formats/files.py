"""One reader for files of pretraining instances, which identifies their format by content, and one writer."""

from __future__ import annotations

import os
import zlib
from contextlib import ExitStack
from typing import Any, Iterator, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from base.errors import InputError
from base.files import replacing
from data.formats import npz, record_files
from data.formats.records import BLOCK_INSTANCES, LostRows, PretrainingArrays, RawBlock, Report, checked
from data.options import MAX_POSITIONS

FORMATS = ("npz", "hdf5", "tfrecord", "ofrecord")
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
    if record_files.is_tfrecord_header(start):  # first: a length may begin with any other format's bytes
        return Kind("tfrecord", False)
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return Kind("npz", False)
    if start.startswith(_HDF5_SIGNATURE):
        return Kind("hdf5", False)
    if _is_ofrecord(path, packed=False):
        return Kind("ofrecord", False)
    inner = _unpacked_start(start)
    if inner is not None:
        if record_files.is_tfrecord_header(inner):
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
    with record_files.open_stream(path, packed) as stream:
        frame = next(record_files.frames(stream, checksums=False), None)
    if frame is None or frame.error:
        return False
    try:
        features = record_files.message_type(is_example=False).FromString(frame.data).feature
    except DecodeError:
        return False
    return any(name in features for name in record_files.FIELDS)


def _is_text(start: bytes) -> bool:
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3:  # a character cut at the end is fine
            return False
        text = start[: error.start].decode()
    return all(character.isprintable() or character in "\t\n\r\f" for character in text)


def _of_columns(format: str) -> Any:
    """The module of a format that has columns, None for one that has records."""
    if format == "hdf5":
        from data.formats import hdf5  # h5py takes 50 ms, which only such a file needs

        return hdf5
    return npz if format == "npz" else None


def peek(path: str) -> tuple[int, int]:
    """Tokens and masked positions of a row, padding included, from headers or the first record alone.

    Raises InputError for a file of no known format, or damaged there.
    """
    kind = identify(path)
    module = _of_columns(kind.format)
    if module is None:
        return record_files.peek(path, *kind)
    with ExitStack() as stack:
        _, (_, width, predictions) = module.open_columns(path, stack)
    return width, predictions


def _blocks(path: str, report: Report) -> Iterator[RawBlock]:
    kind = identify(path)
    module = _of_columns(kind.format)
    if module is None:
        yield from record_files.blocks(path, *kind, report)
        return
    with ExitStack() as stack:
        columns, (count, _, _) = module.open_columns(path, stack)
        for first in range(0, count, BLOCK_INSTANCES):
            stop = min(first + BLOCK_INSTANCES, count)
            try:
                block = {name: read(first, stop) for name, read in columns.items()}
            except LostRows as error:
                report(f"{path}: instances {first} to {stop - 1}: {error}", stop - first)
            else:
                yield RawBlock(np.arange(first, stop), block)


def check_limits(
    name: str, width: int, predictions: int, max_seq_length: int | None, max_predictions: int | None
) -> None:
    """Raises InputError if instances as wide as this break a limit that the user gave; None is no limit.

    `name` is the file (or store), `width` the tokens and `predictions` the masked positions it has room for
    in a row. Pairs and masks that are stored cannot be made shorter: to ignore the option would be wrong.
    """
    if max_seq_length is not None and max_seq_length > MAX_POSITIONS:
        raise InputError(f"--max_seq_length {max_seq_length}: BERT has {MAX_POSITIONS} positions")
    if max_seq_length is not None and width > max_seq_length:
        raise InputError(
            f"--max_seq_length {max_seq_length}: {name} holds sequences of up to {width} tokens, and what "
            "files hold is not cut; give that length or more, or make the files anew"
        )
    if max_predictions is not None and predictions > max_predictions:
        raise InputError(
            f"--max_predictions_per_seq {max_predictions}: {name} holds up to {predictions} predictions a "
            "sequence, and the masks of files stay as they are; leave the option out, or make the files anew"
        )


def read_instances(path: str, vocab_size: int, on_bad: Report | None = None) -> Iterator[PretrainingArrays]:
    """The file's instances in its order, checked, in blocks of 1 to BLOCK_INSTANCES.

    A block is as wide as the file's rows (TFRecord and OFRecord: as the block's widest record). Memory does
    not depend on the file's size. Instances count from 0 in messages.

    Raises InputError naming the file and the instance for whatever is wrong. With `on_bad`, an instance that
    is bad is left out instead, and `on_bad(message, number of instances)` called: in the order of the file,
    where the format tells how far the damage reaches. Damage to the file as a whole (a missing array, a
    compressed npz array) is an InputError all the same.
    """

    def report(message: str, count: int) -> None:
        if on_bad is None:
            raise InputError(message)
        on_bad(message, count)

    for block in _blocks(path, report):
        arrays = checked(path, block, vocab_size, report)
        if len(arrays.valid_lengths):
            yield arrays


def write_instances(path: str, format: str, rows: PretrainingArrays, compress: bool | None = None) -> int:
    """Write the instances to `path` in one of FORMATS; returns their number.

    `compress` stands for each format's own way: deflated arrays (npz), gzip-compressed datasets (hdf5), the
    whole file by gzip (tfrecord, ofrecord); None as the format's users do, that is npz and hdf5. OneFlow's
    own reader takes plain OFRecords only. The same instances give the same bytes. `path` appears when it is
    complete. Memory: one block.

    Raises InputError for what the format cannot express (hdf5: weights, position 0); OSError for a full disk.
    """
    if compress is None:
        compress = format in ("npz", "hdf5")
    module = _of_columns(format)
    if format == "hdf5":
        module.check_expressible(path, rows)
    with replacing(path) as handle:
        if module is None:
            record_files.write(handle, rows, format, compress)
        else:
            module.write(handle, rows, compress)
    return rows.valid_lengths.shape[0]
