from __future__ import annotations

import os
import struct
import zipfile

import numpy as np
import pytest

from base.errors import InputError
from data.formats.read import peek
from tests.data.formats.reading import refused, skipping
from tests.data.formats.samples import columns, ragged, save_npz

COUNT = 6


@pytest.mark.parametrize("name", sorted(set(columns(ragged(2))) - {"input_mask"}))
def test_npz_missing_arrays_wrong_types_and_shapes(tmp_path, name):
    path = str(tmp_path / "x.npz")
    wide = columns(ragged(COUNT))[name]
    for change, message in (
        (None, f"lacks the array {name}"),
        (wide[:-1], "has shape"),
        (wide[None], "has shape"),
        (wide[0, 0] if wide.ndim == 2 else wide[0], "has shape|no instances"),
        (wide.astype(np.complex64), f"{name} has type complex64"),
        (wide.astype("S"), f"{name} has type"),
        (wide.astype("M8[s]"), f"{name} has type datetime64"),
        (np.array([("a", 1)] * COUNT, [("x", "U1"), ("y", int)]), f"{name} has type"),
    ):
        save_npz(path, ragged(COUNT), **{name: change})
        refused(path, message)
        with pytest.raises(InputError, match=message):
            skipping(path)
        with pytest.raises(InputError, match=message):
            peek(path)
    if name != "masked_lm_weights":
        save_npz(path, ragged(COUNT), **{name: wide.astype(float)})
        refused(path, f"{name} has type float64")


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
