"""TensorFlow's checkpoints: what TensorFlow wrote is read, and written again byte for byte."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from base.errors import InputError
from bert.weights.bundle import read_index, read_table, to_varint, varints, write_bundle, write_table
from data.formats.record_files import masked_crc
from tests.bert.weights.building import tensors_of
from tests.bert.weights.written import FOLDER, VARIABLES, error_of, write_out

DATA = ".data-00000-of-00001"
KERNEL = VARIABLES["bert/pooler/dense/kernel"]


def written(folder: Path, prefix: str) -> str:
    for path in FOLDER.glob(f"{prefix}.*"):
        write_out(path.name, folder)
    return str(folder / prefix)


error = partial(error_of, read_index)


@pytest.mark.parametrize("prefix", ["one", "two"])
@pytest.mark.parametrize("ending", ["", ".index"])
def test_what_tensorflow_1_wrote(tmp_path, prefix, ending):
    """In one data file and in two."""
    tensors = read_index(written(tmp_path, prefix) + ending)
    assert list(tensors) == list(VARIABLES)
    for name, tensor in tensors.items():
        array, expected = tensor.read(), np.asarray(VARIABLES[name])
        assert array.shape == tensor.shape == expected.shape and array.dtype == tensor.dtype == expected.dtype
        np.testing.assert_array_equal(array, expected)


def test_what_tensorflow_2_wrote(tmp_path):
    """Its graph of objects is a string, and left out."""
    tensors = read_index(written(tmp_path, "graph-1"))
    end = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert list(tensors) == [f"pooler/kernel{end}", f"save_counter{end}"]
    np.testing.assert_array_equal(tensors[f"pooler/kernel{end}"].read(), KERNEL)
    assert tensors[f"save_counter{end}"].read() == 1


def test_partitioned_variables_are_an_error(tmp_path):
    assert "words is partitioned" in error(written(tmp_path, "parts"))


def test_the_table_is_tensorflows_byte_for_byte(tmp_path):
    data = Path(written(tmp_path, "graph-1") + ".index").read_bytes()
    assert write_table(list(read_table(data))) == data


def test_a_checkpoint_is_tensorflows_byte_for_byte(tmp_path):
    """All but bfloat16, which is written as float32."""
    tensors = read_index(written(tmp_path, "one"))
    bits = (VARIABLES["half"].view(np.uint32) >> 16).astype(np.uint16)
    write_bundle(str(tmp_path / "ours"), {**tensors, **tensors_of({"half": bits})})
    ours, theirs = tmp_path / "ours.index", tmp_path / "one.index"
    assert (tmp_path / f"ours{DATA}").read_bytes() == (tmp_path / f"one{DATA}").read_bytes()
    entries = dict(read_table(ours.read_bytes()))
    expected = dict(read_table(theirs.read_bytes()))
    assert entries.pop(b"half") == expected.pop(b"half").replace(b"\x08\x0e", b"\x08\x11")  # uint16
    assert entries == expected
    assert len(ours.read_bytes()) == len(theirs.read_bytes())


def test_round_trip(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {f"layer_{index}/kernel": rng.normal(size=(index % 5, 3)) for index in range(100)}
    for dtype in ("?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"):
        arrays[f"of {dtype}"] = np.array([0, 1, 3]).astype(dtype)
    arrays.update(
        {"scalar": np.float32(2.5), "big-endian": KERNEL.astype(">f4"), "turned": KERNEL.T, "ä": KERNEL}
    )
    write_bundle(str(tmp_path / "x"), tensors_of(arrays))
    tensors = read_index(str(tmp_path / "x"))
    assert list(tensors) == sorted(arrays, key=str.encode)
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors[name].read(), array)
        assert tensors[name].dtype == np.asarray(array).dtype.newbyteorder("=")


def test_damaged_and_missing_files(tmp_path):
    prefix = written(tmp_path, "two")
    shard = Path(f"{prefix}.data-00001-of-00002")
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + b"\1")
    assert f"{shard}: wrong checksum of " in error(prefix)
    shard.write_bytes(content[:-1])
    assert f"{shard} ends before " in error(prefix)
    shard.unlink()
    assert f"cannot read {shard}, a part of the checkpoint" in error(prefix)
    Path(f"{prefix}.index").write_bytes(b"")
    assert "it does not end as one" in error(prefix)
    Path(f"{prefix}.index").unlink()
    assert "cannot read" in error(prefix)


def block(entries: bytes) -> bytes:
    return entries + struct.pack("<II", 0, 1)


def table(*blocks: bytes, compression: int = 0, repeated: int = 1) -> bytes:
    """A table whose blocks may be anything."""
    out = bytearray()

    def add(content: bytes, kind: int = 0) -> bytes:
        handle = to_varint(len(out)) + to_varint(len(content))
        content += bytes([kind])
        out.extend(content + struct.pack("<I", masked_crc(content)))
        return handle

    handles = [add(each, compression) for each in blocks] * repeated
    entries = b"".join(entry(b"%09d" % index, handle) for index, handle in enumerate(handles))
    footer = add(block(b"")) + add(block(entries))
    return bytes(out) + footer.ljust(40, b"\0") + bytes.fromhex("57fb808b247547db")


def entry(key: bytes, value: bytes, shared: int = 0, claimed: int | None = None) -> bytes:
    sizes = (shared, len(key), len(value) if claimed is None else claimed)
    return b"".join(map(to_varint, sizes)) + key + value


HEADER = entry(b"", b"\x08\x01")
SCALAR = b"\x08\x01\x12\x00\x28\x04"  # float32, a shape without dimensions, 4 bytes
LARGE = to_varint(1 << 62)
MANY = [entry(b"%05d" % index, b"", 3000) for index in range(90_000)]
DAMAGED = {
    "compressed": table(block(HEADER), compression=1),
    "no header": table(block(entry(b"a", SCALAR))),
    "nothing": table(),
    "an endless number": table(block(b"\xff" * 20)),
    "a long entry": table(block(entry(b"a", b"", claimed=1 << 60))),
    "a key that shares too much": table(block(HEADER + entry(b"a", SCALAR, shared=5))),
    "keys out of order": table(block(HEADER + entry(b"b", SCALAR) + entry(b"a", SCALAR))),
    "many restarts": table(b"\xff" * 8),
    "many restarts, many times": table(b"\0" * 3_000_000 + struct.pack("<I", 700_000), repeated=9_000),
    "blocks without end": table(*[struct.pack("<I", 0)] * 12_000),
    "long keys": table(block(HEADER + entry(b"k" * 4000, b"") + b"".join(MANY))),
    "a name that is not UTF-8": table(block(HEADER + entry(b"\xff", SCALAR))),
    "an entry that is no message": table(block(HEADER + entry(b"a", b"\xff"))),
    "a huge size": table(block(HEADER + entry(b"a", b"\x08\x01\x12\x00\x28" + LARGE))),
    "a huge shape": table(block(HEADER + entry(b"a", b"\x08\x01\x12\x0b\x12\x09\x08" + LARGE))),
    "2^31 shards": table(block(entry(b"", b"\x08\xff\xff\xff\xff\x07") + entry(b"a", SCALAR + b"\x18\x05"))),
    "a shard too many": table(block(HEADER + entry(b"a", SCALAR + b"\x18\x05"))),
    "a negative offset": table(block(HEADER + entry(b"a", SCALAR + b"\x20" + b"\xff" * 9 + b"\x01"))),
    "an offset behind the end": table(block(HEADER + entry(b"a\n\x1b[31m", SCALAR + b"\x20\x64"))),
    "unknown rank": table(block(HEADER + entry(b"a", b"\x08\x01\x12\x02\x18\x01\x28\x04"))),
    "many dimensions": table(block(HEADER + entry(b"a", b"\x08\x01\x12\xfe\xff\x03" + b"\x12\x00" * 32767))),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_bad_tables(tmp_path, name):
    (tmp_path / "x.index").write_bytes(DAMAGED[name])
    (tmp_path / f"x{DATA}").write_bytes(b"1234")
    error(str(tmp_path / "x"))


def test_the_tables_of_these_tests(tmp_path):
    number = np.float32(1.5).tobytes()
    crc = b"\x35" + struct.pack("<I", masked_crc(number))
    (tmp_path / "x.index").write_bytes(table(block(HEADER), block(entry(b"a", SCALAR + crc))))
    (tmp_path / f"x{DATA}").write_bytes(number)
    assert read_index(str(tmp_path / "x"))["a"].read() == 1.5
    # A big-endian machine's: field 2 of the header.
    big = entry(b"", b"\x08\x01\x10\x01")
    (tmp_path / "x.index").write_bytes(table(block(big + entry(b"a", SCALAR + crc))))
    with pytest.raises(InputError, match="wrong checksum"):
        (tmp_path / f"x{DATA}").write_bytes(number[::-1])
        read_index(str(tmp_path / "x"))["a"].read()
    crc = b"\x35" + struct.pack("<I", masked_crc(number[::-1]))
    (tmp_path / "x.index").write_bytes(table(block(big + entry(b"a", SCALAR + crc))))
    array = read_index(str(tmp_path / "x"))["a"].read()
    assert array == 1.5 and array.dtype.isnative


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, (1 << 63) - 1])
def test_varints(number):
    assert varints(b"x" + to_varint(number) * 2, 1, 2) == ([number] * 2, 1 + 2 * len(to_varint(number)))
