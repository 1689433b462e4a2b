from __future__ import annotations

import gzip
import tarfile

import h5py
import numpy as np
import pytest

from base.errors import InputError
from data.formats.read import peek
from tests.data.formats.reading import refused, skipping
from tests.data.formats.samples import HDF5_TYPES, arrays, assert_same, columns, joined, ragged

COUNT = 6


def test_what_is_no_file_of_instances_is_named(tmp_path):
    array, tar = tmp_path / "array", tmp_path / "tar"
    with open(array, "wb") as handle:
        np.save(handle, np.zeros(3))
    with tarfile.open(tar, "w") as archive:
        archive.add(array)
    cases = {
        "text": (b"Some text.\nAnother line.\n" * 300, "looks like text; give --raw"),
        "unicode": (("na\u00efve \u4e2d\u6587\n" * 2000).encode(), "looks like text; give --raw"),
        "empty": (b"", "is empty"),
        "packed text": (gzip.compress(b"Some text.\n"), "compressed, and neither TFRecord nor OFRecord"),
        "cut gzip": (b"\x1f\x8b\x08", "compressed, and neither"),
        "pickle": (b"\x80\x04\x95\0\0\0", "a pickle, which is never loaded"),
        "bzip2": (b"BZh91AY&SY", "a bzip2 file"),
        "zip": (b"PK\x05\x06" + bytes(18), "lacks the arrays input_ids"),
        "zeros": (bytes(4096), "none of npz, HDF5, TFRecord and OFRecord"),
        "signature": (b"\x89HDF\r\n\x1a\n", "damaged"),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        refused(tmp_path / name, message)
        with pytest.raises(InputError, match=message):
            peek(str(tmp_path / name))
    refused(array, "a single NumPy array")
    refused(tar, "none of npz")
    refused(tmp_path / "missing", "cannot read .*No such file")
    refused(tmp_path, "cannot read .*directory")


def test_hdf5_after_a_user_block(tmp_path):
    path = tmp_path / "x"
    with h5py.File(path, "w", userblock_size=1024) as file:
        wide = columns(ragged(COUNT))
        for name, kind in HDF5_TYPES.items():
            file.create_dataset(name, data=wide[name], dtype=kind)
    content = bytearray(path.read_bytes())
    content[:20] = b"#!/bin/sh\necho hello"
    path.write_bytes(content)
    assert_same(joined(skipping(path)[0]), arrays(ragged(COUNT)))
