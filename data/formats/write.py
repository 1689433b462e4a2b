"""One writer for files of pretraining instances, whatever their format."""

from __future__ import annotations

import os
from typing import Iterable

from base.errors import InputError
from base.files import replacing
from data.formats import hdf5, npz, record_files
from data.formats.records import PretrainingArrays, Spool

FORMATS = ("npz", "hdf5", "tfrecord", "ofrecord")


def write_instances(
    path: str, format: str, blocks: Iterable[PretrainingArrays], compress: bool | None = None
) -> int:
    """Write the instances to `path` in one of FORMATS; returns their number.

    All rows are padded to the widest of all blocks. `compress` stands for each format's own way: deflated
    arrays (npz), gzip-compressed datasets (hdf5), the whole file by gzip (tfrecord, ofrecord); None
    as the format's users do, that is npz and hdf5. OneFlow's own reader takes plain OFRecords only. The same
    instances give the same bytes. `path` appears when it is complete; meanwhile the instances lie in a
    nameless temporary file beside it. Memory: one block.

    Raises InputError for no instances, and for what the format cannot express (hdf5: weights, position 0);
    ValueError for an unknown format; OSError for a full disk.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format}; there are {', '.join(FORMATS)}")
    if compress is None:
        compress = format in ("npz", "hdf5")
    with Spool(os.path.dirname(path) or ".") as spool:
        for block in blocks:
            spool.append(block)
        if not spool.num_instances:
            raise InputError(f"{path}: there are no instances to write")
        if format == "hdf5":
            hdf5.check_expressible(path, spool)
        with replacing(path) as handle:
            if format == "npz":
                npz.write(handle, spool, compress)
            elif format == "hdf5":
                hdf5.write(handle.name, spool, compress)
            else:
                record_files.write(handle, spool, format, compress)
        return spool.num_instances
