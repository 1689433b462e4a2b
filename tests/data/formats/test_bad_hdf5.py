from __future__ import annotations

import os

import h5py
import numpy as np
import pytest

from base.errors import InputError
from data.formats.read import peek
from data.formats.write import write_instances
from tests.data.formats.reading import refused, skipping
from tests.data.formats.samples import HDF5_TYPES, arrays, assert_same, columns, joined, ragged, save_hdf5

COUNT, WIDTH = 6, 24


@pytest.mark.parametrize("name", sorted(HDF5_TYPES))
def test_hdf5_missing_datasets_wrong_types_and_shapes(tmp_path, name):
    path = str(tmp_path / "x")
    wide = columns(ragged(COUNT))[name]
    for change, message in (
        (None, f"lacks the dataset {name}"),
        (wide[:-1], "has shape"),
        (wide[None], "has shape"),
        (wide.astype(np.float64), f"{name} has type float64"),
        (wide.astype("S4"), f"{name} has type"),
    ):
        save_hdf5(path, ragged(COUNT), **{name: change})
        refused(path, message)
        with pytest.raises(InputError, match=message):
            peek(path)


def test_hdf5_opens_no_other_file(tmp_path):
    """External links, external storage and virtual datasets can show any file that the user may read."""
    other = str(tmp_path / "other")
    save_hdf5(other, ragged(COUNT), compression=None)
    wide = columns(ragged(COUNT))["input_ids"]
    raw = tmp_path / "raw"
    raw.write_bytes(wide.tobytes())
    stored = [(str(raw), 0, wide.nbytes)]
    layout = h5py.VirtualLayout(wide.shape, "i4")
    layout[:] = h5py.VirtualSource(other, "input_ids", wide.shape)
    ways = {
        "link": lambda file: file.__setitem__("input_ids", h5py.ExternalLink(other, "/input_ids")),
        "soft": lambda file: file.__setitem__("input_ids", h5py.SoftLink("/elsewhere")),
        "storage": lambda file: file.create_dataset("input_ids", wide.shape, "i4", external=stored),
        "virtual": lambda file: file.create_virtual_dataset("input_ids", layout),
    }
    for way, add in ways.items():
        path = str(tmp_path / way)
        save_hdf5(path, ragged(COUNT))
        with h5py.File(path, "a") as file:
            del file["input_ids"]
            add(file)
        if way != "soft":
            with h5py.File(path) as file:
                assert (file["input_ids"][:] == wide).all(), "the file does show the other one's numbers"
        refused(path, "input_ids (is a link|has its numbers in another file)")


def test_hdf5_absurd_chunks_filters_and_sizes(tmp_path):
    path = str(tmp_path / "x")

    def replace(**kind):
        save_hdf5(path, ragged(COUNT))
        with h5py.File(path, "a") as file:
            del file["input_ids"]
            file.create_dataset("input_ids", dtype="i4", **kind)

    replace(shape=(COUNT, WIDTH), chunks=(1 << 20, WIDTH), maxshape=(None, WIDTH))
    refused(path, "chunks of 100663296 bytes")
    replace(shape=(COUNT, WIDTH), scaleoffset=0, chunks=True)
    refused(path, "compressed otherwise")
    replace(shape=(1 << 40, WIDTH), chunks=(1024, WIDTH), compression="gzip")
    refused(path, "has chunks of|damaged: chunks")
    save_hdf5(path, ragged(COUNT))
    with h5py.File(path, "a") as file:
        del file["input_ids"]
        rows = file.create_dataset("input_ids", (COUNT,), h5py.vlen_dtype(np.int32))
        rows[0] = [1, 2]
    refused(path, "input_ids has type object")
    with h5py.File(path, "a") as file:
        del file["input_ids"]
        file.create_group("input_ids")
    refused(path, "input_ids is not a dataset")


def test_hdf5_numbers_narrower_than_their_bytes_are_refused(tmp_path):
    path = str(tmp_path / "x")
    save_hdf5(path, ragged(COUNT))
    with h5py.File(path, "a") as file:
        del file["input_ids"]
        narrow = h5py.h5t.STD_I32LE.copy()
        narrow.set_precision(20)
        numbers = h5py.h5d.create(file.id, b"input_ids", narrow, h5py.h5s.create_simple((COUNT, WIDTH)))
        numbers.write(h5py.h5s.ALL, h5py.h5s.ALL, columns(ragged(COUNT))["input_ids"])
    refused(path, "input_ids has an unusual type of numbers")


def test_hdf5_claimed_rows_without_any_bytes_behind_them(tmp_path):
    """Datasets never written to read as zeros, and take no room: a terabyte in 10 KB."""
    path = str(tmp_path / "x")
    rows = 1 << 30
    for packed, message in ((False, "is not complete"), (True, "is not complete|has chunks of")):
        with h5py.File(path, "w") as file:
            for name, kind in HDF5_TYPES.items():
                shape = (rows,) if name == "next_sentence_labels" else (rows, 128)
                more = {"chunks": (rows >> 12, *shape[1:]), "compression": "gzip"} if packed else {}
                file.create_dataset(name, shape, kind, **more)
        assert os.path.getsize(path) < 100_000
        refused(path, f"input_ids ({message})")


def test_hdf5_one_damaged_chunk_costs_its_rows(tmp_path):
    path = tmp_path / "x"
    write_instances(str(path), "hdf5", arrays(ragged(3000)))
    with h5py.File(path) as file:
        info = file["input_ids"].id.get_chunk_info(1)
        assert info.chunk_offset == (1024, 0)
    content = bytearray(path.read_bytes())
    content[info.byte_offset + 20 : info.byte_offset + 40] = bytes(20)
    path.write_bytes(content)
    refused(path, "instances 1024 to 2047: input_ids cannot be read")
    blocks, skipped = skipping(path)
    assert [number for _, number in skipped] == [1024]
    expected = [row for index, row in enumerate(ragged(3000)) if not 1024 <= index < 2048]
    assert_same(joined(blocks), arrays(expected))
