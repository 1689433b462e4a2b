"""The one door to weights of any format, recognised by content. MXNet is not imported.

A folder is looked through for safetensors, pytorch_model.bin, a TensorFlow checkpoint, a .params file and a
.pt file, in this order. What lies beside the weights completes them (bert.weights.beside).
"""

from __future__ import annotations

import glob
import os
import re
import struct
from dataclasses import replace
from typing import Callable, Mapping

from base.errors import InputError
from base.json_files import open_regular
from bert.configuration import RELU, BertConfig
from bert.weights import bundle, params_file, pickled, safetensors_file
from bert.weights.assembly import assemble
from bert.weights.beside import look_beside
from bert.weights.spellings import Spelling, gluonnlp, huggingface, is_object_path, object_paths, tensorflow
from bert.weights.tensors import Tensor, Weights

GLUONNLP, HUGGINGFACE, TENSORFLOW, PYTORCH = "gluonnlp", "huggingface", "tensorflow", "pytorch"

_Reader = tuple[str, Callable[[str], Mapping[str, Tensor]]]  # of a format: its name in `Weights`, and files
_PARAMS: _Reader = (GLUONNLP, params_file.read_index)
_SAFETENSORS: _Reader = (HUGGINGFACE, safetensors_file.read_index)
_SHARDED: _Reader = (HUGGINGFACE, safetensors_file.read_sharded)
_BUNDLE: _Reader = (TENSORFLOW, bundle.read_index)
_PICKLED: _Reader = (PYTORCH, pickled.read_index)
_IN_A_FOLDER = (
    ("model.safetensors.index.json", _SHARDED),
    ("model.safetensors", _SAFETENSORS),
    ("*.safetensors", _SAFETENSORS),
    ("pytorch_model.bin", _PICKLED),
    ("*.index", _BUNDLE),
    ("*.params", _PARAMS),
    ("*.pt", _PICKLED),
    ("*.bin", _PICKLED),
)
_BY_EXTENSION = {
    **{".safetensors": _SAFETENSORS, ".params": _PARAMS, ".index": _BUNDLE},
    **{".bin": _PICKLED, ".pt": _PICKLED, ".pth": _PICKLED},
}
_DATA = re.compile(r"(.+)\.data-\d{5}-of-\d{5}")
_TABLE_MAGIC = struct.pack("<Q", bundle.TABLE_MAGIC)
_OTHERS = {
    b"\x89HDF": "an HDF5 file (of Keras)",
    b"\x1f\x8b": "compressed; unpack it",
    b"ustar": "an archive; unpack it",
}


def open_weights(path: str, flag: str, config: BertConfig | None = None) -> Weights:
    """The BERT in a file or folder, its numbers not yet read.

    Args:
        path: a .params file, safetensors, a TensorFlow checkpoint (PREFIX or one of its files), a file of
            torch.save, or a folder that holds one of them.
        flag: the option that names the path, for messages.
        config: gives the attention heads, activation, epsilon and whether the decoder is tied where no file
            says them; sizes are those of the weights, and GELU of a TensorFlow checkpoint without a
            configuration is tanh.

    Raises:
        InputError: nothing there, an unknown format, a damaged file, no whole encoder of a BERT, or a
            configuration or vocabulary beside it that does not fit.
    """
    path, (kind, read) = _recognise(path, flag)
    try:
        tensors = read(path)
    except InputError as error:
        raise InputError(f"{flag}: {error}") from error
    source = f"{flag} {path}"
    spelling: Spelling = gluonnlp if kind == GLUONNLP else huggingface
    if kind == TENSORFLOW:
        spelling = object_paths(tensors) if any(map(is_object_path, tensors)) else tensorflow
    if kind == PYTORCH and os.path.basename(path) == "pytorch_model.bin":
        kind = HUGGINGFACE
    # "gelu" is tanh in Google's code and NVIDIA's for TensorFlow, and the error function everywhere else.
    gelu = "tanh" if kind == TENSORFLOW else "erf"
    beside = look_beside(os.path.dirname(path) or ".", flag, gelu)
    if beside.config is None:
        says = config is not None and (kind != TENSORFLOW or config.activation == RELU)
        beside = replace(beside, activation=config.activation if config and says else gelu)
    return assemble(source, kind, tensors, spelling, beside, config)


def _recognise(path: str, flag: str) -> tuple[str, _Reader]:
    """The file (of a TensorFlow checkpoint its prefix) and its format."""
    source = f"{flag} {path}"
    if os.path.isdir(path):
        return _in_folder(path, source)
    if os.path.isfile(f"{path}.index"):
        return path, _BUNDLE
    data = _DATA.fullmatch(path)
    if data and os.path.isfile(f"{data[1]}.index"):
        return data[1], _BUNDLE
    if not os.path.exists(path):
        raise InputError(f"{source} does not exist; name a checkpoint, or weights that another program saved")
    reader = _by_content(path, source)
    return (path[: -len(".index")] if reader is _BUNDLE else path), reader


def _in_folder(folder: str, source: str) -> tuple[str, _Reader]:
    for pattern, reader in _IN_A_FOLDER:
        found = sorted(filter(os.path.isfile, glob.glob(os.path.join(glob.escape(folder), pattern))))
        if reader is _BUNDLE:
            found = _latest([each[: -len(".index")] for each in found], folder)
        if len(found) > 1:
            names = " and ".join(os.path.basename(each) for each in found[:2])
            raise InputError(f"{source} holds {names}; name one of them")
        if found:
            return found[0], reader
    raise InputError(
        f"{source} holds no weights; name a folder with model.safetensors, pytorch_model.bin, a TensorFlow "
        "checkpoint or a .params file"
    )


def _latest(prefixes: list[str], folder: str) -> list[str]:
    """Of several TensorFlow checkpoints the one that the file `checkpoint` beside them names."""
    if len(prefixes) > 1:
        try:
            with open(os.path.join(folder, "checkpoint"), encoding="utf-8", errors="replace") as file:
                match = re.search(r'^model_checkpoint_path: "(.+)"$', file.read(1 << 20), re.MULTILINE)
        except OSError:
            match = None
        named = os.path.basename(match[1]) if match else ""
        return [prefix for prefix in prefixes if os.path.basename(prefix) == named] or prefixes
    return prefixes


def _by_content(path: str, source: str) -> _Reader:
    """The format of a file by its first and last bytes; of a damaged one by its name."""
    with open_regular(path, source) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 8, 0))
        tail = file.read(8)
        file.seek(0)
        head = file.read(300)
    if head[:8] == struct.pack("<Q", params_file.LIST_MAGIC):
        return _PARAMS
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size:
        return _SAFETENSORS
    if head.startswith((b"PK\3\4", pickled.PICKLE_MAGIC)):
        return _PICKLED
    if tail == _TABLE_MAGIC and path.endswith(".index"):
        return _BUNDLE
    if head.startswith(b"{") and path.endswith(".safetensors.index.json"):
        return _SHARDED
    reader = _BY_EXTENSION.get(os.path.splitext(path)[1])
    if reader is None:
        others = (words for magic, words in _OTHERS.items() if magic in (head[: len(magic)], head[257:262]))
        what = next(others, "JSON" if head.lstrip()[:1] == b"{" else "something else")
        raise InputError(f"{source} is {what}, and no weights in a known format")
    return reader
