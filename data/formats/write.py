"""One writer for files of pretraining instances, whatever their format."""

from __future__ import annotations

from base.errors import InputError
from base.files import replacing
from data.formats import hdf5, npz, record_files
from data.formats.records import PretrainingArrays

FORMATS = ("npz", "hdf5", "tfrecord", "ofrecord")


def write_instances(path: str, format: str, rows: PretrainingArrays, compress: bool | None = None) -> int:
    """Write the instances to `path` in one of FORMATS; returns their number.

    `compress` stands for each format's own way: deflated arrays (npz), gzip-compressed datasets (hdf5), the
    whole file by gzip (tfrecord, ofrecord); None as the format's users do, that is npz and hdf5. OneFlow's
    own reader takes plain OFRecords only. The same instances give the same bytes. `path` appears when it is
    complete. Memory: one block.

    Raises InputError for no instances, and for what the format cannot express (hdf5: weights, position 0);
    ValueError for an unknown format; OSError for a full disk.
    """
    if format not in FORMATS:
        raise ValueError(f"unknown format {format}; there are {', '.join(FORMATS)}")
    if compress is None:
        compress = format in ("npz", "hdf5")
    count = rows.valid_lengths.shape[0]
    if not count:
        raise InputError(f"{path}: there are no instances to write")
    if format == "hdf5":
        hdf5.check_expressible(path, rows)
    with replacing(path) as handle:
        if format == "npz":
            npz.write(handle, rows, compress)
        elif format == "hdf5":
            hdf5.write(handle.name, rows, compress)
        else:
            record_files.write(handle, rows, format, compress)
    return count
