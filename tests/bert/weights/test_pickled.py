"""PyTorch's files: what torch wrote is read, and no function that a pickle names is called."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert.weights.pickled import read_index
from tests.bert.weights.written import error_of, write_out

X = np.arange(6, dtype=np.float32).reshape(2, 3) / 4
Y = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
NUMBERS = np.array([0, 1, 3])
DTYPES = ("float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool")
WHOLE = {
    **{"model.w": X, "model.tied": X, "model.turned": X.T, "model.part": Y[1:, ::2, 1:3]},
    **{f"model.{dtype}": NUMBERS.astype(dtype) for dtype in DTYPES},
    **{"model.bfloat16": NUMBERS.astype(np.float32), "model.scalar": np.float32(2.5)},
    **{"model.empty": np.zeros((0, 4), np.float32), "optimizer.state.0.exp_avg": np.ones(2, np.float32)},
    "master params.0": X,
}


@pytest.mark.parametrize("name, expected", [("zip.pt", WHOLE), ("legacy.pt", WHOLE), ("five.pt", {"w": X})])
def test_what_torch_wrote(tmp_path, name, expected):
    tensors = read_index(str(write_out(name, tmp_path)))
    assert set(tensors) == set(expected)
    for key, tensor in tensors.items():
        array = tensor.read()
        assert array.shape == tensor.shape == expected[key].shape, key
        assert array.dtype == tensor.dtype == expected[key].dtype, key
        np.testing.assert_array_equal(array, expected[key], key)
        assert array.flags.c_contiguous


class Storage:
    """Stands for a torch storage while Python's pickler writes a file in torch's form."""

    def __init__(
        self, content: np.ndarray, key: str = "0", kind: str = "FloatStorage", count: int | None = None
    ):
        self.key, self.content = key, content
        self.identity = ("storage", Name("torch", kind), key, "cpu", content.size if count is None else count)


class Name:
    """A function or class that the pickle names."""

    def __init__(self, module: str, name: str):
        self.module, self.name = module, name


class Call:
    """The call of a function by the pickle."""

    def __init__(self, module: str, name: str, *arguments: Any):
        self.function, self.arguments = Name(module, name), arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


class Pickler(pickle._Pickler):  # type: ignore[name-defined]
    """Python's pickler, which would look for a named function before it writes its name."""

    def persistent_id(self, value: Any) -> Any:
        return value.identity if isinstance(value, Storage) else None

    def save(self, value: Any, save_persistent_id: bool = True) -> Any:
        if isinstance(value, Name):
            return self.write(pickle.GLOBAL + f"{value.module}\n{value.name}\n".encode())
        if isinstance(value, Call):
            self.save(value.function)
            self.save(value.arguments)
            return self.write(pickle.REDUCE)
        return super().save(value, save_persistent_id)


def pickled(value: Any, protocol: int = 2) -> bytes:
    out = io.BytesIO()
    Pickler(out, protocol).dump(value)
    return out.getvalue()


def tensor(storage: Storage, offset: int = 0, shape: tuple = (2,), strides: tuple = (1,)) -> Call:
    function = ("torch._utils", "_rebuild_tensor_v2")
    return Call(*function, storage, offset, shape, strides, False, OrderedDict())


def archive(path: Path, content: bytes, *storages: Storage, **options: Any) -> str:
    with zipfile.ZipFile(path, "w", options.get("compression", zipfile.ZIP_STORED)) as file:
        file.writestr("archive/data.pkl", content)
        for name, text in options.get("members", {}).items():
            file.writestr(f"archive/{name}", text)
        for storage in storages:
            file.writestr(f"archive/data/{storage.key}", storage.content.tobytes())
    return str(path)


error = partial(error_of, read_index)


FLOATS = Storage(np.arange(4, dtype=np.float32))


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    "module, name, arguments",
    [
        ("os", "system", ("touch {}",)),
        ("builtins", "eval", ("open({!r}, 'w')",)),
        ("builtins", "getattr", ("x", "y")),
        ("subprocess", "Popen", (["touch", "{}"],)),
        ("torch", "load", ("{}",)),
        ("torch._utils", "_rebuild_tensor_v3", ()),
        ("torch.nn.modules.linear", "Linear", (3, 2)),
    ],
)
def test_functions_are_named_not_called(tmp_path, protocol, module, name, arguments):
    """A list of what may stand there, and not of what may not."""
    touched = str(tmp_path / "touched")
    arguments = tuple(each.format(touched) if isinstance(each, str) else each for each in arguments)
    content = pickled({"w": tensor(FLOATS), "x": Call(module, name, *arguments)}, protocol)
    path = archive(tmp_path / "x.bin", content, FLOATS)
    assert f"its pickle names {module}.{name}, which no state dict needs" in error(path)
    assert not os.path.exists(touched)
    Path(path).write_bytes(content)  # in the older form
    assert f"its pickle names {module}.{name}, which no state dict needs" in error(path)


def test_what_stands_beside_a_state_dict(tmp_path):
    """NVIDIA's unfinished runs save their data loader, whose arrays are in the pickle."""
    loader = Call("torch.utils.data.dataloader", "DataLoader", Name("__main__", "pretraining_dataset"))
    number = Call("numpy._core.multiarray", "scalar", Call("numpy", "dtype", "f8"), "x" * 100_000)
    value = {"model": {"w": tensor(FLOATS)}, "data_loader": loader, "lr": number, "seen": {1, 2}, "b": b"abc"}
    assert list(read_index(archive(tmp_path / "x.pt", pickled(value, 4), FLOATS))) == ["model.w"]
    # Where a tensor is needed, such a value is none.
    parameter = Call("torch._utils", "_rebuild_parameter", number, False, OrderedDict())
    assert "a parameter without a tensor" in error(archive(tmp_path / "x.pt", pickled({"w": parameter})))


BAD_TENSORS = {
    "outside": tensor(FLOATS, 3),
    "strides": tensor(FLOATS, 0, (2, 2), (3, 1)),
    "negative offset": tensor(FLOATS, -1),
    "negative stride": tensor(FLOATS, 3, (2,), (-1,)),
    "negative shape": tensor(FLOATS, 0, (-1,)),
    "expanded to 4 EB": tensor(FLOATS, 0, (1 << 30, 1 << 30), (0, 0)),
    "expanded": tensor(FLOATS, 0, (4, 4), (0, 1)),
    "huge": tensor(FLOATS, 0, (1 << 61,), (0,)),
    "dimensions": tensor(FLOATS, 0, (1,) * 33, (1,) * 33),
    "no strides": tensor(FLOATS, 0, (2,), ()),
    "shape of floats": tensor(FLOATS, 0, (2.0,), (1,)),
    "shape of tensors": tensor(FLOATS, 0, (FLOATS,), (1,)),
    "another storage": tensor(Storage(FLOATS.content, "1")),
    "a storage elsewhere": tensor(Storage(FLOATS.content, "../../x")),
    "a larger storage": tensor(Storage(FLOATS.content, count=1 << 40)),
    "a smaller storage": tensor(Storage(FLOATS.content, count=2)),
    "a wider storage": tensor(Storage(FLOATS.content, kind="DoubleStorage")),
    "no storage": Call("torch._utils", "_rebuild_tensor_v2", None, 0, (2,), (1,)),
    "no arguments": Call("torch._utils", "_rebuild_tensor_v2"),
}


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_a_tensor_that_is_not_within_its_storage(tmp_path, name):
    path = archive(tmp_path / "x.bin", pickled({"w\n\x1b[31m": BAD_TENSORS[name]}), FLOATS)
    assert "is damaged or not a file of torch.save" in error(path)


BAD_PICKLES = {
    "nothing": b"",
    "no end": b"\x80\x02}",
    "an empty stack": b"\x80\x02.",
    "an empty memo": b"\x80\x02h\0.",
    "no mark": b"\x80\x02t.",
    "protocol": b"\x80\x06N.",
    "a long string": b"\x80\x02X\xff\xff\xff\xffabc.",
    "a longer one": b"\x80\x04\x8d" + b"\xff" * 8 + b"abc.",
    "a string of negative length": b"\x80\x02T\xff\xff\xff\xffabc.",
    "no UTF-8": b"\x80\x02U\x01\xff.",
    "text": b"\x80\x02I1\n.",
    "INST": b"\x80\x02(ios\nsystem\n.",
    "an extension": b"\x80\x02\x82\x01.",
    "a long integer": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "a number": b"\x80\x02K\x05.",
    "a name without end": b"\x80\x02c" + b"a" * 5000,
    "a call of a number": b"\x80\x02K\x01)R.",
    "a call without a tuple": b"\x80\x02ccollections\nOrderedDict\nK\x01R.",
    "a call of a storage": b"\x80\x02ctorch\nFloatStorage\n)R.",
    "a persistent id": b"\x80\x02K\x01Q.",
    "a key without value": b"\x80\x02}(K\x01u.",
    "items of a number": b"\x80\x02K\x01(K\x01K\x01u.",
    "appended to a dict": b"\x80\x02}K\x01a.",
    "attributes of a number": b"\x80\x02K\x01}b.",
    "a name from numbers": b"\x80\x04K\x01K\x02\x93.",
    # what takes exponential time or the whole stack in a careless reader
    "a dict in itself": b"\x80\x02}q\0X\x01\0\0\0ah\0s.",
    "tuples in tuples, twice each": b"\x80\x02}X\x01\0\0\0aN" + b"2\x86" * 60 + b"s.",
    "the same, flatter": b"\x80\x02}X\x01\0\0\0aN" + b"2\x86" * 19 + b"s.",
    "such a tuple as a key": b"\x80\x02}N" + b"2\x86" * 60 + b"Ns.",
    "deep lists": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "deep tuples": b"\x80\x02}X\x01\0\0\0a" + b")" + b"\x85" * 100_000 + b"s.",
    "keys with the same hash": b"\x80\x02}("
    + b"".join(
        b"\x8a\x10" + (key * ((1 << 61) - 1)).to_bytes(16, "little") + b"N" for key in range(1, 80_000)
    )
    + b"u.",
    # whose hashes are all 0 in Python 3.9
    "keys that are no numbers": b"\x80\x02}(" + b"G\x7f\xf8\0\0\0\0\0\0N" * 80_000 + b"u.",
    "a long list for many dicts": b"\x80\x02ccollections\nOrderedDict\nq\0X\1\0\0\0aK\1\x86q\1]("
    + b"h\1" * 80_000
    + b"eq\2"
    + b"h\0h\2\x85R0" * 30_000
    + b".",
    "many operations": b"\x80\x02" + b"]" * 2_000_000 + b".",
    "many marks": b"\x80\x02" + b"(" * 240_000 + b".",
    # what takes the library's own unpickler gigabytes
    "a place of the memo": b"\x80\x02}r\xff\xff\xff\xff" * 3,
    "an array of bytes": b"\x80\x05\x96" + struct.pack("<Q", 1 << 36) + b"abc.",
    "a frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 36) + b"N.",
    "items of a list": b"\x80\x02]K\0K\0s.",
    "sets of tuples in tuples": b"\x80\x04}\x8f(N" + b"2\x86" * 60 + b"\x90\x85" + b"Ns.",
}


@pytest.mark.parametrize("name", BAD_PICKLES)
def test_bad_pickles(tmp_path, name):
    assert "is damaged or not a file of torch.save" in error(archive(tmp_path / "x.bin", BAD_PICKLES[name]))


def test_a_dict_of_python_2(tmp_path):
    """There an OrderedDict is made from a list of pairs."""
    state = Call("collections", "OrderedDict", [["w", tensor(FLOATS)], ["x", tensor(FLOATS, 2)]])
    tensors = read_index(archive(tmp_path / "x.bin", pickled({"model": state}), FLOATS))
    assert [(name, each.read().tolist()) for name, each in tensors.items()] == [
        ("model.w", [0, 1]),
        ("model.x", [2, 3]),
    ]


def test_archives_of_another_kind(tmp_path):
    content = pickled({"w": tensor(FLOATS)})
    path = archive(tmp_path / "x.bin", b"\0" * 10_000_000, compression=zipfile.ZIP_DEFLATED)
    assert "data.pkl is compressed" in error(path)
    path = archive(tmp_path / "x.bin", content)
    assert "it lacks data/0" in error(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("../../data.pkl", content)
    assert "an archive of something else" in error(path)
    with zipfile.ZipFile(path, "w") as file:
        for index in range(30_000):
            file.writestr(str(index), "")
    assert "directory cannot be read" in error(path)
    Path(path).write_bytes(b"PK\x03\x04")
    assert "directory cannot be read" in error(path)
    Path(path).write_bytes(b"")
    assert "does not begin as one" in error(path)
    assert "cannot read" in error(str(tmp_path)) and "cannot read" in error(str(tmp_path / "absent"))


def test_byte_order(tmp_path):
    swapped = Storage(FLOATS.content.astype(">f4"))
    path = archive(
        tmp_path / "x.bin", pickled({"w": tensor(swapped, 2)}), swapped, members={"byteorder": "big"}
    )
    array = read_index(path)["w"].read()
    assert array.dtype == np.dtype("=f4") and array.tolist() == [2, 3]


@pytest.mark.parametrize("shape", [(4,), (2,)])
def test_damage_to_the_elements_is_noticed(tmp_path, shape):
    """Also where the tensor is a part of the storage and the damage outside of it."""
    path = archive(tmp_path / "x.bin", pickled({"w": tensor(FLOATS, 0, shape)}), FLOATS)
    content = Path(path).read_bytes()
    place = content.index(FLOATS.content.tobytes()) + 14
    Path(path).write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    assert "wrong checksum of w" in error(path)


def legacy(path: Path, value: Any, storages: list[Storage], **options: Any) -> str:
    number, protocol = options.get("number", 0x1950A86A20F9469CFC6C), options.get("protocol", 1001)
    facts = {"protocol_version": 1001, "little_endian": options.get("little_endian", True)}
    content = b"".join(map(pickled, (number, protocol, facts, value, [each.key for each in storages])))
    for each in storages:
        content += struct.pack("<q", options.get("count", each.content.size)) + each.content.tobytes()
    path.write_bytes(content)
    return str(path)


def test_the_older_form(tmp_path):
    view = Storage(FLOATS.content)
    view.identity += (("0", 2, 2),)  # torch before 0.4: a storage that begins at the third element
    path = legacy(tmp_path / "x.bin", {"w": tensor(FLOATS), "view": tensor(view)}, [FLOATS])
    found = read_index(path)
    assert found["w"].read().tolist() == [0, 1] and found["view"].read().tolist() == [2, 3]
    swapped = Storage(FLOATS.content.astype(">f4"))
    path = legacy(tmp_path / "x.bin", {"w": tensor(swapped)}, [swapped], little_endian=False)
    assert read_index(path)["w"].read().tolist() == [0, 1]
    value = {"w": tensor(FLOATS)}
    assert "of another protocol" in error(legacy(tmp_path / "x.bin", value, [FLOATS], protocol=1))
    assert "not written by torch.save" in error(legacy(tmp_path / "x.bin", value, [FLOATS], number=1))
    assert "it lacks storage 0" in error(legacy(tmp_path / "x.bin", value, []))
    assert "ends too early" in error(legacy(tmp_path / "x.bin", value, [FLOATS], count=1 << 60))
    assert "not within its storage" in error(legacy(tmp_path / "x.bin", value, [FLOATS], count=3))
    assert "belongs to no tensor" in error(
        legacy(tmp_path / "x.bin", value, [FLOATS, Storage(FLOATS.content, "1")])
    )
