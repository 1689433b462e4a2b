"""PyTorch's files (`torch.save`): pytorch_model.bin, NVIDIA's ckpt_*.pt; no pickle in them is executed.

Since PyTorch 1.6 such a file is a zip archive of uncompressed members (torch/serialization.py `_save`); where
one is compressed that is an error, so that no archive becomes larger than it is:

    NAME/data.pkl   a pickle, in which a storage, the elements behind one or several tensors, is a persistent
                    id: ("storage", its type, key, device, number of elements)
    NAME/data/KEY   the elements of a storage
    NAME/byteorder  "little" or "big"; older archives lack it and are little-endian

Before, and on request today, it is a row of pickles (`_legacy_save`): a magic number, the protocol (1001),
facts about the machine, the object (its persistent ids have a sixth element, None or a view of a storage:
key, offset, size), and the list of the storages' keys; then for each an int64 number of elements, and these.

A tensor in the pickle is a call of `torch._utils._rebuild_tensor_v2(storage, offset, size, stride, ...)`.
Calls that make tensors and dicts are understood, calls of what stands in INERT become values that nobody
looks at, and any other name in the pickle is an error: a file that names os.system is not read at all.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from typing import IO, Any, Callable, Iterator, NamedTuple

import numpy as np

from base.errors import InputError
from bert.weights.pickle_data import OPAQUE, DataUnpickler, Global
from bert.weights.tensors import (
    BFLOAT16,
    MAX_DIMENSIONS,
    MAX_NAME,
    Damaged,
    Source,
    Tensor,
    check_name,
    native,
    native_dtype,
    read_elements,
    reading,
    shown,
    stored_size,
)
from data.formats.npz import BoundedFile

PICKLE_MAGIC = b"\x80"  # as every pickle of protocol 2 and later begins
_LEGACY_NUMBER, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001

_TYPES = {"Float": "<f4", "Double": "<f8", "Half": "<f2", "Long": "<i8", "Int": "<i4", "Short": "<i2"}
_TYPES.update({"Char": "i1", "Byte": "u1", "Bool": "?"})
STORAGES = {
    f"{module}.{name}Storage": dtype
    for module in ("torch", "torch.cuda")
    for name, dtype in {**{key: np.dtype(each) for key, each in _TYPES.items()}, "BFloat16": BFLOAT16}.items()
}
TENSORS = {"torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"}
PARAMETERS = {"torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"}
DICTS = {"collections.OrderedDict", "collections.defaultdict", "builtins.dict", "__builtin__.dict"}
# Beside the state dict: NumPy's numbers, options, and the data loader that NVIDIA's unfinished runs save.
INERT = {
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    *("numpy.dtype", "numpy.ndarray", "_codecs.encode", "argparse.Namespace"),
    *(
        f"{module}.{name}"
        for module in ("builtins", "__builtin__")
        for name in ("set", "list", "int", "long", "float")
    ),
    *("torch.Size", "torch.device", "torch.strided", "torch.serialization._get_layout"),
    *(f"torch.{name}" for name in ("float32", "float64", "float16", "bfloat16", "int64", "int32", "bool")),
    *("torch.utils.data.dataloader.DataLoader", "torch.utils.data.dataloader._DatasetKind"),
    *(f"torch.utils.data.sampler.{order}Sampler" for order in ("Random", "Sequential", "Batch")),
    *("torch.utils.data._utils.collate.default_collate", "torch.utils.data.dataloader.default_collate"),
    *("torch.utils.data.dataloader._InfiniteConstantSampler", "__main__.pretraining_dataset"),
    *("__main__.WorkerInitObj",),
}
_KNOWN = {*STORAGES, *TENSORS, *PARAMETERS, *DICTS, *INERT}

_ZIP_MAGIC = b"PK\x03\x04"
_LOCAL_HEADER = 30  # bytes of an archive's member in front of its name
_ZIP_ERRORS = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, struct.error, zlib.error)
_CHUNK = 1 << 20
_MAX_DEPTH = 20  # of dicts in dicts
_MAX_VALUES = 100_000


class _Place(NamedTuple):
    """Bytes of a file."""

    offset: int
    size: int
    crc: int | None  # CRC-32; None where the file has none


class _Storage(NamedTuple):
    dtype: np.dtype
    key: str
    elements: int  # of the whole storage
    start: int  # the first element of this view of it


class _View(NamedTuple):
    """A tensor as the pickle describes it."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


# A file's object, its storages' places, and whether they are big-endian.
_Content = tuple[Any, Callable[[_Storage], _Place], bool]


def read_index(path: str) -> dict[str, Tensor]:
    """Tensors by name, in the order of the file; elements are read later.

    Names are the keys of dicts in dicts (and places in lists), joined by ".": "model.bert.pooler.dense.bias".
    What is no tensor is left out. Where the file has checksums they are verified when elements are read.

    Raises:
        InputError: the file cannot be read or is damaged, its pickle names a function that is none of those
            that state dicts need, or a tensor does not lie within its storage.
    """
    with reading(path, "a file of torch.save"), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start = file.read(len(_ZIP_MAGIC))
        file.seek(0)
        if start == _ZIP_MAGIC:
            value, place, big_endian = _read_archive(path, file, size)
        elif start.startswith(PICKLE_MAGIC):
            value, place, big_endian = _read_legacy(path, file, size)
        else:
            raise Damaged("it does not begin as one")
        right: set[_Place] = set()  # of which the checksum has been compared
        tensors: dict[str, Tensor] = {}
        for name, view in _views(value):
            check_name(name, tensors)
            dtype = view.storage.dtype.newbyteorder(">" if big_endian else "<")
            tensors[name] = _tensor(path, name, view, place(view.storage), dtype, right)
        return tensors


class _Unpickler(DataUnpickler):
    """The unpickler of a pickle in a file of torch.save, which makes a `_View` of each tensor. `storages`: to
    which it adds those that the pickle refers to."""

    def __init__(self, path: str, source: Source, storages: dict[str, _Storage]):
        super().__init__(source)
        self._path, self._storages = path, storages

    def find_class(self, module: str, name: str) -> Global:
        found = Global(f"{module}.{name}")
        if found.name not in _KNOWN:
            raise InputError(
                f"{self._path}: its pickle names {shown(found.name)}, which no state dict needs (nothing of "
                "it was executed); if you trust the file, load it with torch and save model.state_dict() "
                "alone"
            )
        return found

    def persistent_load(self, identity: Any) -> _Storage:
        storage = _storage(identity)
        self._storages[storage.key] = storage
        return storage

    def call(self, function: Global, arguments: tuple) -> Any:
        if function.name in TENSORS:
            return _view(arguments)
        if function.name in PARAMETERS:  # data, requires_grad, ...
            if not arguments or not isinstance(arguments[0], _View):
                raise Damaged("a parameter without a tensor")
            return arguments[0]
        if function.name in DICTS:
            return _dict(arguments)
        if function.name in INERT:
            return OPAQUE
        raise Damaged(f"its pickle calls {function.name}")


def _dict(arguments: tuple) -> dict:
    """An OrderedDict, to which Python 2 gives a list of pairs, or a defaultdict, which has its factory."""
    pairs = arguments[0] if arguments and isinstance(arguments[0], list) else []
    if not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise Damaged("a dict is made of something else than names and values")
    found = dict(pairs)
    if pairs:
        pairs.clear()  # made for this call; a pickle could give a long list to thousands of calls
    return found


def _storage(identity: Any) -> _Storage:
    if type(identity) is not tuple or len(identity) not in (5, 6) or identity[0] != "storage":
        raise Damaged("its pickle refers to something that is no storage")
    _, kind, key, _, count = identity[:5]
    if not isinstance(kind, Global) or kind.name not in STORAGES:
        raise Damaged("a storage of no type")
    start = 0
    view = identity[5] if len(identity) == 6 else None
    if view is not None:  # its key, first element and number of elements
        if type(view) is not tuple or len(view) != 3:
            raise Damaged("a view of a storage without a place")
        start = view[1]
    if not isinstance(key, str) or not _natural((count, start)) or start > count:
        raise Damaged("a storage without a key or a size")
    return _Storage(STORAGES[kind.name], key, count, start)


def _view(arguments: tuple) -> _View:
    if len(arguments) < 4 or not isinstance(arguments[0], _Storage):
        raise Damaged("a tensor without a storage")
    storage, offset, shape, strides = arguments[:4]
    fits = type(shape) is tuple and type(strides) is tuple and len(shape) == len(strides) <= MAX_DIMENSIONS
    if not fits or not _natural((offset, *shape, *strides)):
        raise Damaged("a tensor without a shape")
    return _View(storage, offset, shape, strides)


def _natural(numbers: tuple) -> bool:
    return all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)


def _views(value: Any) -> Iterator[tuple[str, _View]]:
    """Tensors in dicts and lists in one another, and their names."""
    left = [_MAX_VALUES]  # a pickle of a few bytes can hold a list that holds another twice, and so on

    def inside(found: Any, name: str, depth: int) -> Iterator[tuple[str, _View]]:
        if isinstance(found, _View):
            yield name, found
            return
        left[0] -= len(found)
        if left[0] < 0 or depth > _MAX_DEPTH:
            raise Damaged("its dicts hold too much in one another")
        for key, each in found.items() if isinstance(found, dict) else enumerate(found):
            if isinstance(each, (dict, list)) or type(each) in (tuple, _View):
                longer = f"{name}.{key}" if name else str(key)
                if len(longer) > MAX_NAME:
                    raise Damaged(f"a tensor's name has {len(longer)} characters")
                yield from inside(each, longer, depth + 1)

    if not isinstance(value, dict):
        raise Damaged("it holds no dict of tensors")
    return inside(value, "", 0)


def _tensor(path: str, name: str, view: _View, place: _Place, dtype: np.dtype, right: set[_Place]) -> Tensor:
    """A tensor that may share its storage with others, and may lie in it in any order."""
    storage, offset, shape, strides = view
    size, count = stored_size(name, shape, dtype), math.prod(shape)
    first = storage.start + offset
    # Elements from the first to the last one. An expanded tensor, which has an element in several places,
    # could claim any amount of memory.
    span = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides)) if count else 0
    whole = storage.elements
    if whole * dtype.itemsize != place.size or first + span > whole or count > whole:
        raise Damaged(f"{shown(name)}, {size} bytes, is not within its storage of {place.size} bytes")
    dense = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))

    def read() -> np.ndarray:
        stored = read_elements(path, place.offset + first * dtype.itemsize, span, dtype)
        _compare(path, name, place, stored, right)
        elements = native(stored)
        if count == 0 or all(length == 1 or a == b for length, a, b in zip(shape, strides, dense)):
            return elements.reshape(shape)
        steps = [stride * elements.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(elements, shape, steps).copy(order="C")

    return Tensor(shape, native_dtype(dtype), read)


def _read_archive(path: str, file: IO[bytes], size: int) -> _Content:
    members = _members(path)

    def place(name: str) -> _Place:
        return _place_of(members.get(name), name, file, size)

    big_endian = False
    if "byteorder" in members:
        order = place("byteorder")
        file.seek(order.offset)
        big_endian = file.read(min(order.size, 3)) == b"big"
    pickle = place("data.pkl")
    if pickle.crc is not None and _checksum(file, pickle) != pickle.crc:
        raise Damaged("wrong checksum of data.pkl")
    file.seek(pickle.offset)
    value = _Unpickler(path, Source(file, pickle.offset + pickle.size), {}).value()
    return value, lambda storage: place(f"data/{storage.key}"), big_endian


def _read_legacy(path: str, file: IO[bytes], size: int) -> _Content:
    storages: dict[str, _Storage] = {}

    def following() -> Any:
        return _Unpickler(path, Source(file, size), storages).value()

    if following() != _LEGACY_NUMBER:
        raise Damaged("a pickle, but not written by torch.save")
    protocol, facts, value, keys = (following() for _ in range(4))
    if protocol != _LEGACY_PROTOCOL or not isinstance(facts, dict):
        raise Damaged("of another protocol than 1001")
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise Damaged("no list of storages")
    places: dict[str, _Place] = {}
    for key in keys:
        count = file.read(8)
        if key not in storages or len(count) < 8:
            raise Damaged(f"storage {shown(key)} belongs to no tensor or is missing")
        width = storages[key].dtype.itemsize
        places[key] = _Place(file.tell(), int.from_bytes(count, "little") * width, None)
        if places[key].size > size - file.tell():
            raise Damaged("it ends too early")
        file.seek(places[key].size, os.SEEK_CUR)

    def place(storage: _Storage) -> _Place:
        if storage.key not in places:
            raise Damaged(f"it lacks storage {shown(storage.key)}")
        return places[storage.key]

    return value, place, facts.get("little_endian") is False


def _members(path: str) -> dict[str, zipfile.ZipInfo]:
    """Members of the one folder of an archive, in which data.pkl is, by their names in it."""
    try:
        # At most 1 MiB of directory; BERT-large with Adam's moments and a second copy has 0.12 MiB.
        with BoundedFile(path) as bounded, zipfile.ZipFile(bounded) as archive:
            members = archive.infolist()
    except _ZIP_ERRORS as error:
        raise Damaged(f"its archive's directory cannot be read: {shown(str(error))}") from error
    named = {member.filename: member for member in members}
    found = [name for name in named if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(found) != 1 or len(named) != len(members):
        raise Damaged("an archive of something else")
    folder = found[0][: -len("data.pkl")]
    return {name[len(folder) :]: member for name, member in named.items() if name.startswith(folder)}


def _place_of(member: zipfile.ZipInfo | None, name: str, file: IO[bytes], size: int) -> _Place:
    """Bytes of a member. Raises Damaged: it is missing, compressed, encrypted or not within the file."""
    if member is None:
        raise Damaged(f"it lacks {shown(name)}")
    if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
        raise Damaged(f"{shown(name)} is compressed, which torch.save does not do")
    if member.flag_bits & 1 or not 0 <= member.header_offset <= size - _LOCAL_HEADER:
        raise Damaged(f"{shown(name)} is encrypted or missing")
    file.seek(member.header_offset)
    header = file.read(_LOCAL_HEADER)
    name_length, extra_length = struct.unpack("<HH", header[26:30])
    offset = member.header_offset + _LOCAL_HEADER + name_length + extra_length
    if not header.startswith(_ZIP_MAGIC) or offset + member.file_size > size:
        raise Damaged(f"{shown(name)} is cut short")
    # torch.serialization.set_crc32_options(False) writes zeros.
    return _Place(offset, member.file_size, member.CRC or None)


def _checksum(file: IO[bytes], place: _Place) -> int:
    """CRC-32 of the bytes at `place`, a block at a time. Raises Damaged where there are fewer."""
    file.seek(place.offset)
    crc, left = 0, place.size
    while left:
        data = file.read(min(left, _CHUNK))
        if not data:
            raise Damaged("it ends too early")
        crc, left = zlib.crc32(data, crc), left - len(data)
    return crc


def _compare(path: str, name: str, place: _Place, stored: np.ndarray, right: set[_Place]) -> None:
    """Compares a member with its checksum, once. Raises InputError unless it is what was written.

    Args:
        name: of the tensor, for the message.
        place: of the whole member.
        stored: what was read of it.
        right: members that have been compared.
    """
    if place.crc is None or place in right:
        return
    if stored.nbytes == place.size:
        crc = zlib.crc32(stored.view(np.uint8).data)
    else:
        with reading(path, "an archive"), open(path, "rb") as file:
            crc = _checksum(file, place)
    if crc != place.crc:
        raise InputError(f"{path}: wrong checksum of {shown(name)}; copy or save it once more")
    right.add(place)
