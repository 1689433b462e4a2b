"""The safetensors format, which Hugging Face uses: one file, or several with an index beside them.

A file is a uint64 (little-endian), the length of a header, then the header in JSON, then the elements of all
tensors without gaps:

    {"__metadata__": {"format": "pt"}, NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...}

The library checks headers (types, sizes, no gaps, no overlaps); its NumPy side cannot read bfloat16 and its
writer takes the whole model as bytes, so elements are read and written here, one tensor at a time. Of a model
in several files, model.safetensors.index.json says which tensor is where:

    {"metadata": {...}, "weight_map": {NAME: "model-00001-of-00002.safetensors", ...}}
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, Mapping

import numpy as np
from safetensors import SafetensorError, safe_open

from base.errors import InputError
from base.files import replacing
from bert.weights.tensors import (
    BFLOAT16,
    MAX_ARRAYS,
    Damaged,
    Tensor,
    bytes_of,
    check_name,
    read_small,
    reading,
    shown,
    stored_size,
    stored_tensor,
)

DTYPES: dict[str, np.dtype] = {
    **{"F64": np.dtype("<f8"), "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": BFLOAT16},
    **{"I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "I16": np.dtype("<i2"), "I8": np.dtype("i1")},
    **{"U64": np.dtype("<u8"), "U32": np.dtype("<u4"), "U16": np.dtype("<u2"), "U8": np.dtype("u1")},
    "BOOL": np.dtype("?"),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_METADATA = "__metadata__"
_LENGTH = 8  # bytes
_MAX_HEADER = 2 << 20  # BERT-large with optimizer states has 0.2 MiB
_MAX_INDEX = 1 << 20


def read_index(path: str) -> dict[str, Tensor]:
    """Tensors of a file by name, in the order of their bytes; elements are read later.

    Raises:
        InputError: the file cannot be read, is damaged, or holds a dtype that NumPy cannot.
    """
    with reading(path, "a safetensors file"):
        start, header = _header(path)
        tensors: dict[str, Tensor] = {}
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            check_name(name, tensors)
            if entry["dtype"] not in DTYPES:
                raise InputError(
                    f"{path}: {shown(name)} is stored as {shown(entry['dtype'])}, which is not read; "
                    "save it in float32, float16 or bfloat16"
                )
            dtype, shape = DTYPES[entry["dtype"]], entry["shape"]
            begin, end = entry["data_offsets"]
            if end - begin != stored_size(name, shape, dtype):
                raise Damaged(f"{shown(name)} has {end - begin} bytes for {dtype} {tuple(shape)}")
            tensors[name] = stored_tensor(path, start + begin, shape, dtype)
        return tensors


def _header(path: str) -> tuple[int, dict[str, Any]]:
    """The byte at which elements begin, and the header, which the library has checked."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        size = os.fstat(file.fileno()).st_size
        if size < _LENGTH or length > size - _LENGTH:
            raise Damaged("it ends too early")
        if length > _MAX_HEADER:
            raise Damaged(f"its header has {length} bytes, the limit is {_MAX_HEADER}")
        text = file.read(length)
    try:
        with safe_open(path, framework="np") as checked:
            if len(checked.keys()) > MAX_ARRAYS:
                raise Damaged(f"more than {MAX_ARRAYS} tensors")
        header = json.loads(text)
    except (SafetensorError, ValueError, RecursionError) as error:
        raise Damaged(shown(str(error))) from error
    header.pop(_METADATA, None)
    return _LENGTH + length, header


def read_sharded(path: str) -> dict[str, Tensor]:
    """Tensors by name of a model in several files, given its index (model.safetensors.index.json).

    Raises:
        InputError: the index or a file that it names cannot be read, is damaged, lacks a tensor or lies
            outside the folder of the index.
    """
    with reading(path, "an index of safetensors files"):
        text = read_small(path, _MAX_INDEX)
        try:
            # Integers in an index are sums of sizes; Python's take quadratic time.
            index = json.loads(text, parse_int=float)
        except (ValueError, RecursionError) as error:
            raise Damaged("it is not JSON") from error
        places = index.get("weight_map") if isinstance(index, dict) else None
        if not isinstance(places, dict) or not places:
            raise Damaged("it has no weight_map")
        shards: dict[str, dict[str, Tensor]] = {}
        tensors: dict[str, Tensor] = {}
        for name, file_name in places.items():
            check_name(name, tensors)
            is_name = isinstance(file_name, str) and file_name.isprintable()
            if not is_name or {"/", "\\"} & set(file_name) or file_name in ("", ".", ".."):
                raise InputError(
                    f"{path}: {shown(name)} is said to be in {shown(str(file_name))}, which is no file of "
                    "the same folder; put all files of the model into one folder"
                )
            if file_name not in shards:
                shards[file_name] = read_index(os.path.join(os.path.dirname(path), file_name))
            if name not in shards[file_name]:
                raise InputError(f"{path}: {shown(file_name)} lacks {shown(name)}; download it again")
            tensors[name] = shards[file_name][name]
        return tensors


def write_safetensors(path: str, tensors: Mapping[str, Tensor]) -> None:
    """Write a file that `safetensors` and `transformers` load, holding one tensor at a time. It appears whole
    or not at all.

    Raises:
        ValueError: a tensor's `read` returns another shape or dtype than it has.
        OSError: from the file.
    """
    # Wide elements first, so that all are aligned, as the library does.
    order = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}  # without it `transformers` does not load it
    end = 0
    for name in order:
        shape, dtype = list(tensors[name].shape), tensors[name].dtype.newbyteorder("<")
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % _LENGTH)
    with replacing(path) as file:
        file.write(len(text).to_bytes(_LENGTH, "little") + text)
        for name in order:
            file.write(bytes_of(tensors[name], name).data)
