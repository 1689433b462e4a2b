from __future__ import annotations

import gzip
import os
import tarfile
import zlib

import h5py
import numpy as np
import pytest
from tensorboardX.record_writer import RecordWriter

from base.errors import InputError
from data.formats.files import FORMATS, identify, peek, read_instances, write_instances
from data.formats.records import Gathered
from tests.data.formats.reading import read, refused, skipping
from tests.data.formats.samples import (
    HDF5_TYPES,
    VOCAB_SIZE,
    arrays,
    assert_same,
    columns,
    entries,
    example,
    field,
    integer_list,
    joined,
    ofrecord,
    ofrecord_frame,
    padded,
    ragged,
    save_hdf5,
    save_npz,
    tfrecord_frame,
)


@pytest.mark.parametrize("compress", [True, False], ids=["compressed", "plain"])
@pytest.mark.parametrize("format", FORMATS)
def test_every_format_round_trips_and_is_the_same_bytes_each_time(tmp_path, format, compress):
    expected = arrays(ragged(2500, width=40))
    contents = []
    for name in ("first", "second.npz"):  # the name says nothing
        path = str(tmp_path / name)
        assert write_instances(path, format, expected, compress) == 2500
        blocks = list(read_instances(path, VOCAB_SIZE))
        assert max(len(block.valid_lengths) for block in blocks) <= 1024
        assert_same(joined(blocks), expected)
        assert (identify(path).format, peek(path)) == (format, (40, 4))
        with open(path, "rb") as handle:
            contents.append(handle.read())
    assert contents[0] == contents[1]
    assert sorted(os.listdir(tmp_path)) == ["first", "second.npz"]


def test_npz_of_other_number_types(tmp_path):
    instances, path = ragged(9), tmp_path / "x.npz"
    wide = columns(instances)
    save_npz(
        path,
        instances,
        input_ids=wide["input_ids"].astype(">u2"),
        segment_ids=wide["segment_ids"].astype("i1"),
        masked_lm_positions=wide["masked_lm_positions"].astype(np.uint64),
        masked_lm_weights=wide["masked_lm_weights"].astype(np.float16),
        valid_lengths=wide["valid_lengths"].astype(np.int64),
    )
    assert_same(read(path), arrays(instances))


@pytest.mark.parametrize(
    "save, packing",
    [(save_npz, True), (save_npz, False), (save_hdf5, "gzip"), (save_hdf5, "lzf"), (save_hdf5, None)],
)
def test_files_of_gluonnlp_and_nvidia(tmp_path, save, packing):
    instances, path = ragged(1500), tmp_path / "x.npz"  # numpy adds the ending
    save(path, instances, packing)
    assert_same(read(path), arrays(instances))
    assert peek(str(path)) == (24, 4)


def test_hdf5_predictions_end_at_the_first_position_0(tmp_path):
    """As NVIDIA's reader has it: what follows is padding, whatever it holds."""
    instances, path = ragged(3), tmp_path / "x"
    wide = columns(instances)
    positions, ids = wide["masked_lm_positions"], wide["masked_lm_ids"]
    positions[1] = [3, 0, 4, 1]
    ids[1] = [11, 12, 13, 14]
    positions[2] = 0
    save_hdf5(path, instances, masked_lm_positions=positions, masked_lm_ids=ids)
    found = read(path)
    assert found.masked_lm_positions[1].tolist() == [3, 0, 0, 0]
    assert found.masked_lm_ids[1].tolist() == [11, 0, 0, 0]
    assert found.masked_lm_weights[1].tolist() == [1, 0, 0, 0]
    assert not found.masked_lm_weights[2].any()


@pytest.mark.parametrize("name, value", [("masked_lm_weights", 0.5), ("masked_lm_positions", 0)])
def test_hdf5_refuses_what_it_cannot_express(tmp_path, name, value):
    whole = arrays(ragged(4))
    getattr(whole, name)[3, 0] = value
    with pytest.raises(InputError, match="x: instance 3 does not fit HDF5"):
        write_instances(str(tmp_path / "x"), "hdf5", whole)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("pad", [True, False], ids=["padded", "ragged"])
def test_tfrecord_by_tensorboardx_and_by_hand(tmp_path, pad):
    instances = ragged(1100)
    rows = [padded(row, 24, 4) for row in instances] if pad else instances
    writer = RecordWriter(str(tmp_path / "x"))
    for index, row in enumerate(rows):
        writer.write(example(row, packed=index % 3 > 0))
    writer.close()
    assert_same(read(tmp_path / "x"), arrays(instances))
    assert peek(str(tmp_path / "x")) == (24, 4)


def test_packed_tfrecords(tmp_path):
    instances = ragged(60)
    content = b"".join(tfrecord_frame(example(row)) for row in instances)
    half = content.index(tfrecord_frame(example(instances[30])))
    (tmp_path / "gzip").write_bytes(gzip.compress(content))
    (tmp_path / "zlib").write_bytes(zlib.compress(content))
    (tmp_path / "members").write_bytes(gzip.compress(content[:half]) + gzip.compress(content[half:]))
    for path in tmp_path.iterdir():
        assert_same(read(path), arrays(instances))
        assert identify(str(path)).format == "tfrecord"


def test_a_length_that_looks_like_another_format_is_still_a_tfrecord(tmp_path):
    """0x789c begins zlib, 0x1f8b gzip, "PK\\3\\4" zip: the length's checksum decides."""
    row = padded(ragged(1)[0], 24, 4)
    for magic in (b"\x78\x9c", b"\x1f\x8b"):
        size = int.from_bytes(magic, "little")
        filler = {**row, "filler": [1] * (size - len(example(row)) - 30)}
        while len(example(filler)) < size:
            filler["filler"].append(1)
        assert len(example(filler)) == size
        (tmp_path / "x").write_bytes(tfrecord_frame(example(filler)))
        assert_same(read(tmp_path / "x"), arrays(ragged(1)))


@pytest.mark.parametrize("kinds", [(4, 2), (5, 2), (5, 3)], ids=["int32", "int64", "int64 and double"])
def test_ofrecord_by_hand(tmp_path, kinds):
    instances = ragged(1100)
    rows = enumerate(padded(row, 24, 4) for row in instances)
    content = [ofrecord_frame(ofrecord(row, index % 3 > 0, *kinds)) for index, row in rows]
    (tmp_path / "part-00000").write_bytes(b"".join(content))
    assert_same(read(tmp_path / "part-00000"), arrays(instances))
    assert peek(str(tmp_path / "part-00000")) == (24, 4)


def test_a_list_in_several_pieces_is_one_list(tmp_path):
    """Protobuf allows a packed list to be split; a later key replaces an earlier one."""
    row = ragged(1)[0]
    ids = row["input_ids"]
    pieces = {name: values for name, values in row.items() if name != "input_ids"}
    split = integer_list(ids[:7]) + integer_list(ids[7:9], packed=False) + integer_list(ids[9:])
    entry = field(1, field(1, b"input_ids") + field(2, field(3, split)))
    old = field(1, field(1, b"input_ids") + field(2, field(3, integer_list([1, 2, 3]))))
    (tmp_path / "x").write_bytes(tfrecord_frame(field(1, old + entries(pieces, 3) + entry)))
    assert_same(read(tmp_path / "x"), arrays([row]))


def test_weights_are_kept_and_padding_moves_behind_the_predictions(tmp_path):
    row = ragged(1, predictions=4)[0]
    row["masked_lm_weights"] = [0.25, 0.0, 3.0, 0.0]
    row["masked_lm_positions"][3] = 9999  # padding may hold anything
    save_npz(tmp_path / "npz", [row])
    (tmp_path / "tfrecord").write_bytes(tfrecord_frame(example(row)))
    for path in tmp_path.iterdir():
        found = read(path)
        assert found.masked_lm_weights.tolist() == [[0.25, 3, 0, 0]]
        positions, ids = row["masked_lm_positions"], row["masked_lm_ids"]
        assert found.masked_lm_positions.tolist() == [[positions[0], positions[2], 0, 0]]
        assert found.masked_lm_ids.tolist() == [[ids[0], ids[2], 0, 0]]


def test_nothing_is_written_when_the_instances_fail(tmp_path):
    def failing(first, stop):
        raise OSError(28, "No space left on device")

    rows = arrays(ragged(5))
    for format in FORMATS:
        with pytest.raises(OSError, match="No space"):
            failed = rows._replace(masked_lm_weights=Gathered(rows.masked_lm_weights.shape, failing))
            write_instances(str(tmp_path / "x"), format, failed)
    assert not os.listdir(tmp_path)


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
        wide = columns(ragged(6))
        for name, kind in HDF5_TYPES.items():
            file.create_dataset(name, data=wide[name], dtype=kind)
    content = bytearray(path.read_bytes())
    content[:20] = b"#!/bin/sh\necho hello"
    path.write_bytes(content)
    assert_same(joined(skipping(path)[0]), arrays(ragged(6)))
