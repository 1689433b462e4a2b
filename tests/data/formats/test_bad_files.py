"""Files that are damaged, hostile, or hold values that no instance can have."""

from __future__ import annotations

import gzip
import os
import struct
import zipfile
import zlib

import h5py
import numpy as np
import pytest

from base.errors import InputError
from data.formats.files import peek, write_instances
from tests.data.formats.reading import refused, skipping
from tests.data.formats.samples import (
    HDF5_TYPES,
    VOCAB_SIZE,
    arrays,
    assert_same,
    columns,
    field,
    joined,
    masked_crc,
    ofrecord_frame,
    padded,
    ragged,
    record,
    save_hdf5,
    save_npz,
    tfrecord_frame,
)

COUNT, WIDTH, PREDICTIONS = 6, 24, 4


def changed(name, index, value):
    """A column whose entry `index` is `value`, as every format can hold it."""
    column = columns(ragged(COUNT))[name].astype(np.float32 if "weights" in name else np.int64)
    column[index] = value
    return {name: column}


def save(path, format, **change):
    if format == "npz":
        with open(path, "wb") as handle:
            save_npz(handle, ragged(COUNT), **change)
    elif format == "hdf5":
        save_hdf5(path, ragged(COUNT), **change)
    else:
        wide = {**columns(ragged(COUNT)), **change}
        del wide["valid_lengths"]
        rows = [{name: np.atleast_1d(wide[name][n]).tolist() for name in wide} for n in range(COUNT)]
        path.write_bytes(b"".join(record(format, row) for row in rows))
    return str(path)


VALUES = [
    (changed("input_ids", (3, 1), VOCAB_SIZE), "instance 3: input_ids .* 0 to 29999"),
    (changed("input_ids", (0, 0), -1), "instance 0: input_ids"),
    (changed("input_ids", (3, 1), 2**62), "instance 3: input_ids"),
    (changed("masked_lm_ids", (2, 0), VOCAB_SIZE), "instance 2: masked_lm_ids"),
    (changed("segment_ids", (1, 1), 2), "instance 1: segment_ids .* 0 or 1"),
    (changed("masked_lm_positions", (4, 0), 24), "instance 4: masked_lm_positions .* below"),
    (changed("masked_lm_positions", (4, 0), -1), "instance 4: masked_lm_positions"),
    (changed("masked_lm_positions", (4, 0), 2**40), "instance 4: masked_lm_positions"),
    (changed("next_sentence_labels", 5, 2), "instance 5: next_sentence_labels"),
]
WEIGHTS = [
    (changed("masked_lm_weights", (5, 0), value), "instance 5: masked_lm_weights .* finite")
    for value in (np.nan, np.inf, -1)
]
LENGTHS = [
    (changed("valid_lengths", 1, value), "instance 1: valid_lengths .* 1 to 24") for value in (0, 25, 2**40)
]
MASKS = [
    (changed("input_mask", (1, 0), 0), "instance 1: input_mask .* ones"),
    (changed("input_mask", (1, 0), 2), "instance 1: input_mask"),
    (changed("input_mask", 1, 0), "instance 1: input_mask .* at least one"),
]


@pytest.mark.parametrize(
    "format, change, message",
    [("npz", *case) for case in VALUES + WEIGHTS + LENGTHS]
    + [("hdf5", *case) for case in VALUES + MASKS]
    + [(format, *case) for format in ("tfrecord", "ofrecord") for case in VALUES + WEIGHTS + MASKS],
)
def test_a_bad_value_is_named_and_that_instance_alone_is_skipped(tmp_path, format, change, message):
    path = save(tmp_path / "x", format, **change)
    refused(path, message)
    blocks, skipped = skipping(path)
    assert len(skipped) == 1 and skipped[0][1] == 1 and path in skipped[0][0]
    row = int(message.split()[1].rstrip(":"))
    expected = [instance for index, instance in enumerate(ragged(COUNT)) if index != row]
    found = joined(blocks)
    width = columns(expected)["input_ids"].shape[1]
    assert (found.valid_lengths == arrays(expected).valid_lengths).all()
    assert (found.input_ids[:, :width] == arrays(expected).input_ids).all()


@pytest.mark.parametrize(
    "format, name",
    [("npz", name) for name in columns(ragged(2)) if name != "input_mask"]
    + [("hdf5", name) for name in HDF5_TYPES],
)
def test_missing_arrays_wrong_types_and_shapes(tmp_path, format, name):
    path = tmp_path / "x"
    wide = columns(ragged(COUNT))[name]
    changes = [
        (None, f"lacks the (array|dataset) {name}"),
        (wide[:-1], "has shape"),
        (wide[None], "has shape"),
        (wide.astype("S4"), f"{name} has type"),
    ]
    if format == "npz":
        changes += [
            (wide[0, 0] if wide.ndim == 2 else wide[0], "has shape|no instances"),
            (wide.astype(np.complex64), f"{name} has type complex64"),
            (wide.astype("M8[s]"), f"{name} has type datetime64"),
            (np.array([("a", 1)] * COUNT, [("x", "U1"), ("y", int)]), f"{name} has type"),
        ]
    if name != "masked_lm_weights":
        changes.append((wide.astype(float), f"{name} has type float64"))
    for change, message in changes:
        save(path, format, **{name: change})
        refused(path, message)
        for read in (skipping, peek):
            with pytest.raises(InputError, match=message):
                read(str(path))


def test_npz_object_arrays_are_never_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "unpickled"),))

    path = str(tmp_path / "x.npz")
    save_npz(path, ragged(COUNT), input_ids=np.array([Bomb()] * COUNT, dtype=object))
    refused(path, "input_ids is an object array.*data.convert_npz")
    assert not (tmp_path / "unpickled").exists()
    np.load(path, allow_pickle=True)["input_ids"]
    assert (tmp_path / "unpickled").exists(), "the bomb is live"


def test_npz_fortran_order_and_wide_rows_are_refused(tmp_path):
    path = str(tmp_path / "x.npz")
    save_npz(path, ragged(COUNT), input_ids=np.asfortranarray(columns(ragged(COUNT))["input_ids"]))
    refused(path, "input_ids is in Fortran order")
    wide = np.zeros((COUNT, 513), np.int32)
    save_npz(path, ragged(COUNT), input_ids=wide, segment_ids=wide)
    refused(path, "input_ids has rows of 513, expected 1 to 512")


def rezip(path, changes, method=zipfile.ZIP_DEFLATED):
    """Replace members of an npz by other bytes, with right checksums."""
    with zipfile.ZipFile(path) as source:
        members = {name: source.read(name) for name in source.namelist()}
    with zipfile.ZipFile(path, "w", method) as target:
        for name, content in {**members, **changes}.items():
            target.writestr(name, content)


def npy(shape, content, dtype="<i4"):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


@pytest.mark.parametrize(
    "content, message",
    [
        (npy((1 << 44, 24), bytes(400)), "does not fit its"),
        (npy((COUNT, 24), bytes(400)), "does not fit its"),
        (npy((COUNT, 24), bytes(COUNT * 24 * 4 + 1)), "does not fit its"),
        (npy((-1, -24), bytes(96)), "does not fit|has shape"),
        (npy("open('/etc/passwd')", b""), "damaged"),
        (npy("((" * 3000, b""), "damaged"),
        (b"\x93NUMPY\x01\x00\xff\xff" + bytes(70000), "damaged"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "damaged"),
        (b"", "damaged"),
    ],
)
def test_npz_headers_that_lie(tmp_path, content, message):
    path = str(tmp_path / "x.npz")
    save_npz(path, ragged(COUNT))
    rezip(path, {"input_ids.npy": content})
    refused(path, f"input_ids.*({message})")


def test_npz_a_wrong_checksum_and_a_strange_compression(tmp_path):
    path = tmp_path / "x.npz"
    save_npz(path, ragged(COUNT), compressed=False)
    content = bytearray(path.read_bytes())
    place = content.index(columns(ragged(COUNT))["input_ids"].tobytes()[:40])
    content[place] ^= 1  # still a fine token id
    path.write_bytes(content)
    refused(path, "input_ids is damaged .*CRC")
    save_npz(path, ragged(COUNT))
    rezip(path, {}, zipfile.ZIP_BZIP2)
    refused(path, "neither stored nor deflated")


def test_npz_bombs(tmp_path):
    """60 MB of zeros in 60 KB; and a directory that claims to be huge."""
    path = tmp_path / "x.npz"
    zeros = np.zeros((15_000, 512), np.int32)
    np.savez_compressed(
        path,
        input_ids=zeros,
        **dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), zeros[:, :1]),
        segment_ids=zeros,
        next_sentence_labels=zeros[:, 0],
        valid_lengths=zeros[:, 0],
    )
    refused(path, "over 500 times")
    save_npz(path, ragged(COUNT))
    content = bytearray(path.read_bytes())
    end = content.rindex(b"PK\x05\x06")
    content[end + 12 : end + 16] = struct.pack("<I", 1 << 30)
    path.write_bytes(content)
    refused(path, "damaged")


def save_with(path, add):
    """A good file, but for `input_ids`, which `add(file)` makes."""
    save_hdf5(path, ragged(COUNT))
    with h5py.File(path, "a") as file:
        del file["input_ids"]
        add(file)


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
        save_with(path, add)
        if way != "soft":
            with h5py.File(path) as file:
                assert (file["input_ids"][:] == wide).all(), "the file does show the other one's numbers"
        refused(path, "input_ids (is a link|has its numbers in another file)")


def test_hdf5_absurd_chunks_filters_and_sizes(tmp_path):
    path = str(tmp_path / "x")

    def replace(**kind):
        save_with(path, lambda file: file.create_dataset("input_ids", dtype="i4", **kind))

    replace(shape=(COUNT, WIDTH), chunks=(1 << 20, WIDTH), maxshape=(None, WIDTH))
    refused(path, "chunks of 100663296 bytes")
    replace(shape=(COUNT, WIDTH), scaleoffset=0, chunks=True)
    refused(path, "compressed otherwise")
    replace(shape=(1 << 40, WIDTH), chunks=(1024, WIDTH), compression="gzip")
    refused(path, "has chunks of|damaged: chunks")
    save_with(path, lambda file: file.create_dataset("input_ids", (COUNT,), h5py.vlen_dtype(np.int32)))
    refused(path, "input_ids has type object")
    save_with(path, lambda file: file.create_group("input_ids"))
    refused(path, "input_ids is not a dataset")


def test_hdf5_numbers_narrower_than_their_bytes_are_refused(tmp_path):
    def add(file):
        narrow = h5py.h5t.STD_I32LE.copy()
        narrow.set_precision(20)
        numbers = h5py.h5d.create(file.id, b"input_ids", narrow, h5py.h5s.create_simple((COUNT, WIDTH)))
        numbers.write(h5py.h5s.ALL, h5py.h5s.ALL, columns(ragged(COUNT))["input_ids"])

    path = str(tmp_path / "x")
    save_with(path, add)
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


@pytest.mark.parametrize("kind", ["tfrecord", "ofrecord"])
def test_damaged_records(tmp_path, kind):
    """Instance 1100 of 1200."""
    rows, path = ragged(1200), tmp_path / "x"
    frames = [record(kind, row) for row in rows]
    sound, start = b"".join(frames), len(b"".join(frames[:1100]))

    def check(content, message, kept=rows[:1100]):
        path.write_bytes(content)
        refused(path, f"instance 1100: {message}")
        blocks, skipped = skipping(path)
        assert_same(joined(blocks), arrays(kept))
        assert [number for _, number in skipped] == [1]

    check(sound[: start + 5], "the file ends inside its length")
    check(sound[: start + 50], "the file ends inside it")
    if kind == "ofrecord":
        for size in (-5, 1 << 40):
            check(sound[:start] + struct.pack("<q", size) + sound[start:], f"its length {size} cannot be")
        check(sound[:start] + ofrecord_frame(b"\x0a\xff\xff") + sound[start:], "it is not a message", rows)
        return
    for size in (1 << 21, (1 << 64) - 1):
        header = struct.pack("<Q", size)
        check(sound[:start] + header + masked_crc(header) + bytes(99), f"its length {size} cannot be")
    length, data = bytearray(sound), bytearray(sound)
    length[start] ^= 4
    check(length, "its length has a wrong checksum")
    data[start + 30] ^= 4
    check(data, "its checksum is wrong", rows[:1100] + rows[1101:])
    packed = gzip.compress(sound)
    path.write_bytes(packed[: len(packed) // 2])
    refused(path, r"instance \d+: the (compressed data are damaged|file ends)")
    assert 0 < len(joined(skipping(path)[0]).valid_lengths) < 1200
    torn = bytearray(packed)
    torn[len(packed) // 2] ^= 255
    path.write_bytes(torn)
    refused(path, r"instance \d+: ")


@pytest.mark.parametrize("kind", ["tfrecord", "ofrecord"])
def test_records_with_wrong_fields(tmp_path, kind):
    good, path = padded(ragged(1)[0], WIDTH, PREDICTIONS), tmp_path / "x"
    without = {name: values for name, values in good.items() if name != "segment_ids"}
    for row, message in (
        (without, "it lacks the field segment_ids"),
        ({**good, "segment_ids": good["segment_ids"][:-1]}, "segment_ids has 23 values, but input_ids 24"),
        ({**good, "masked_lm_ids": [1]}, "masked_lm_ids has 1 values, but masked_lm_positions 4"),
        ({**good, "next_sentence_labels": [0, 1]}, "next_sentence_labels has 2 values"),
        ({**good, "next_sentence_labels": []}, "next_sentence_labels has 0 values"),
        ({**good, "input_ids": [0.5] * WIDTH}, "input_ids holds float numbers, expected integers"),
        ({name: values * 30 for name, values in good.items()}, "input_ids has 720 values, expected 1 to 512"),
        ({name: [] for name in good}, "input_ids has 0 values"),
    ):
        path.write_bytes(b"".join(record(kind, each) for each in (good, row, good)))
        refused(path, f"instance 1: {message}")
        blocks, skipped = skipping(path)
        assert len(skipped) == 1
        assert_same(joined(blocks), arrays([ragged(1)[0]] * 2))
    raw = field(1, field(1, b"input_ids") + field(2, field(1, field(1, b"text"))))
    path.write_bytes(tfrecord_frame(field(1, raw)) if kind == "tfrecord" else ofrecord_frame(raw))
    refused(path, "instance 0: (input_ids holds bytes|it lacks the field)")
    path.write_bytes(record(kind, {**good, "something": [1, 2], "else": [0.5]}))
    assert_same(joined(skipping(path)[0]), arrays([ragged(1)[0]]))


def test_gzip_bomb_of_sound_records(tmp_path):
    """The same record over and over: 45 MB of sound TFRecords in 45 KB are stopped, not believed."""
    filled = record("tfrecord", {**ragged(1)[0], "filler": [0] * 1_000_000})
    packer = zlib.compressobj(9, wbits=31)
    path = tmp_path / "x"
    path.write_bytes(b"".join(packer.compress(filled) for _ in range(45)) + packer.flush())
    refused(path, "over 500 times")
