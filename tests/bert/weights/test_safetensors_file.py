"""safetensors: files of the library are read, our files are read by the library."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from base.errors import InputError
from bert.weights.bundle import write_bundle
from bert.weights.safetensors_file import read_index, read_sharded, write_safetensors
from bert.weights.tensors import Tensor
from tests.bert.weights.building import tensors_of

KERNEL = np.arange(6, dtype=np.float32).reshape(2, 3) / 4
DTYPES = ("?", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
ARRAYS = {
    **{"odd bytes": np.arange(3, dtype=np.int8), "kernel": KERNEL, "scalar": np.float64(2.5)},
    **{dtype: np.array([0, 1, 3]).astype(dtype) for dtype in DTYPES},
    **{"empty": np.zeros((0, 4), np.float32), "ä \n": KERNEL.T.copy()},
}


def error(path: Path, read: Any = read_index) -> str:
    with pytest.raises(InputError) as caught:
        read(str(path))
    message = str(caught.value)
    assert str(path.parent) in message and message.isprintable() and len(message) < 500
    return message


def same(found: dict[str, np.ndarray]) -> None:
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        expected = np.asarray(array)
        np.testing.assert_array_equal(found[name], expected, name)
        assert found[name].dtype == expected.dtype and found[name].shape == expected.shape


def test_reading_what_the_library_wrote(tmp_path):
    safetensors.numpy.save_file({k: np.asarray(v) for k, v in ARRAYS.items()}, tmp_path / "x", {"a": "b"})
    tensors = read_index(str(tmp_path / "x"))
    same({name: tensor.read() for name, tensor in tensors.items()})
    assert all(
        (each.shape, each.dtype) == (each.read().shape, each.read().dtype) for each in tensors.values()
    )


def test_the_library_reads_what_we_wrote(tmp_path):
    named = {**ARRAYS, "kernel": KERNEL.astype(">f4"), "ä \n": KERNEL.T}
    write_safetensors(str(tmp_path / "x"), tensors_of(named))
    same(safetensors.numpy.load_file(tmp_path / "x"))
    with safetensors.safe_open(str(tmp_path / "x"), "np") as file:
        assert file.metadata() == {"format": "pt"}
    write_safetensors(str(tmp_path / "again"), read_index(str(tmp_path / "x")))
    written = (tmp_path / "again").read_bytes()
    same(safetensors.numpy.load(written))
    header = json.loads(written[8 : 8 + struct.unpack("<Q", written[:8])[0]])
    del header["__metadata__"]
    for name, entry in header.items():  # aligned, for readers that map the file into memory
        assert entry["data_offsets"][0] % np.asarray(ARRAYS[name]).dtype.itemsize == 0


def test_bfloat16_is_widened_exactly(tmp_path):
    bits = np.arange(1 << 16, dtype=np.uint32)  # every bfloat16 there is
    data = bits.astype("<u2").tobytes()
    # By hand, because the library takes this type from PyTorch only, or in forms that differ by its release.
    header = json.dumps(
        {"b": {"dtype": "BF16", "shape": [256, 256], "data_offsets": [0, len(data)]}}
    ).encode()
    (tmp_path / "x").write_bytes(struct.pack("<Q", len(header)) + header + data)
    tensor = read_index(str(tmp_path / "x"))["b"]
    array = tensor.read()
    assert tensor.dtype == array.dtype == np.float32 and array.shape == tensor.shape == (256, 256)
    np.testing.assert_array_equal(array.view(np.uint32).ravel(), bits << 16)


@pytest.mark.parametrize("write", [write_safetensors, write_bundle])
def test_one_tensor_at_a_time(tmp_path, write):
    """Memory is a tensor's, and the file that readers look for appears after all have been read."""

    def read() -> np.ndarray:
        assert not (tmp_path / "x").exists() and not (tmp_path / "x.index").exists()
        return np.ones(1 << 20, np.float32)

    tensors = {str(index): Tensor((1 << 20,), np.dtype(np.float32), read) for index in range(8)}
    tracemalloc.start()
    try:
        write(str(tmp_path / "x"), tensors)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert max(path.stat().st_size for path in tmp_path.iterdir()) >= 8 << 22


@pytest.mark.parametrize("write", [write_safetensors, write_bundle])
def test_a_tensor_that_is_not_as_it_was_announced(tmp_path, write):
    """Nothing is left of its file."""
    with pytest.raises(ValueError, match="w is float32 .2, 3., announced as float32 .3,."):
        write(str(tmp_path / "x"), {"w": Tensor((3,), np.dtype(np.float32), lambda: KERNEL)})
    assert not list(tmp_path.iterdir())


def file(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(*shape: int, dtype: str = "F32", begin: int = 0, end: int = 4) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


ENTRIES = [entry(2), entry(1, end=8), entry(1, begin=4, end=8), entry(-1), entry(1 << 62, 4), entry(1 << 64)]
ENTRIES += [entry(0, 1 << 62, end=0), entry(*[1] * 33), entry(*[1] * 500_000), entry(1, dtype="F99")]
DAMAGED = [
    *(b"", b"[]", b"{" * 100_000, b'{"a":' + b"[" * 1_000_000, b'{"a":[' + b"[]," * 600_000 + b"[]]}"),
    *(b" " * 3_000_000, b'{"a":' + b"9" * 1_000_000 + b"}", b'{"\xff":{}}'),
    *({"a": each} for each in ENTRIES),
    *({"a": entry(1), "b": entry(1)}, {"a" * 2000: entry(1)}, {"__metadata__": {"a": 1}}),
    {str(index): entry(0, end=0) for index in range(10_001)},
]


@pytest.mark.parametrize("header", DAMAGED, ids=range(22))
def test_damaged_headers(tmp_path, header):
    assert "is damaged or not a safetensors file" in error(file(tmp_path / "x", header, b"1234"))


@pytest.mark.parametrize("length", [1 << 60, (1 << 64) - 1])
def test_a_header_of_another_length(tmp_path, length):
    assert "is damaged or not a safetensors file" in error(file(tmp_path / "x", b"{}", b"1234", length))


def test_a_dtype_that_numpy_lacks(tmp_path):
    path = file(tmp_path / "x", {"a\x1b[31m": entry(4, dtype="F8_E4M3")}, b"1234")
    assert "'a\\x1b[31m' is stored as F8_E4M3" in error(path)


def test_a_file_that_is_cut_while_it_is_read(tmp_path):
    write_safetensors(str(tmp_path / "x"), tensors_of({"w": KERNEL}))
    tensor = read_index(str(tmp_path / "x"))["w"]
    (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-1])
    with pytest.raises(InputError, match="became shorter"):
        tensor.read()
    (tmp_path / "x").unlink()
    with pytest.raises(InputError, match="cannot read"):
        tensor.read()
    assert "cannot read" in error(tmp_path / "x") and "cannot read" in error(tmp_path)


def sharded(folder: Path, places: Any) -> Path:
    text = places if isinstance(places, bytes) else json.dumps({"weight_map": places}).encode()
    (folder / "model.safetensors.index.json").write_bytes(text)
    return folder / "model.safetensors.index.json"


def test_a_model_in_several_files(tmp_path):
    parts = [{"a": KERNEL, "c": KERNEL + 1}, {"b": KERNEL + 2, "another": KERNEL}]
    for index, part in enumerate(parts):
        safetensors.numpy.save_file(part, tmp_path / f"model-{index}.safetensors")
    places = {"a": "model-0.safetensors", "b": "model-1.safetensors", "c": "model-0.safetensors"}
    tensors = read_sharded(str(sharded(tmp_path, places)))
    assert list(tensors) == ["a", "b", "c"]
    np.testing.assert_array_equal(tensors["b"].read(), KERNEL + 2)
    message = error(sharded(tmp_path, {**places, "d": "model-1.safetensors"}), read_sharded)
    assert "model-1.safetensors lacks d" in message
    assert "cannot read" in error(sharded(tmp_path, {"a": "model-2.safetensors"}), read_sharded)
    (tmp_path / "model-1.safetensors").write_bytes(b"no such file")
    assert "model-1.safetensors is damaged" in error(sharded(tmp_path, places), read_sharded)


@pytest.mark.parametrize(
    "name",
    ["../x.safetensors", "/x", "sub/x", "..", ".", "", "x\0", "..\\x", "x\n", "\udc80", 5, None, ["x"]],
)
def test_files_outside_the_folder(tmp_path, name):
    write_safetensors(str(tmp_path / "x.safetensors"), tensors_of({"a": KERNEL}))
    (tmp_path / "inside").mkdir()
    path = sharded(tmp_path / "inside", {"a": name})
    assert "which is no file of the same folder" in error(path, read_sharded)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"[]", b'{"weight_map":{}}', b'{"weight_map":' + b"9" * 900_000 + b"}", b"\xff"),
        *(b"[" * 900_000, b" " * 2_000_000, b'{"weight_map":["a"]}'),
    ],
    ids=range(9),
)
def test_damaged_indexes(tmp_path, text):
    assert "is damaged or not an index" in error(sharded(tmp_path, text), read_sharded)
