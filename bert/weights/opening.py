"""The one door to weights of any format, recognised by content.

MXNet is not imported.
"""

from __future__ import annotations

import os
import struct

from base.errors import InputError
from bert.configuration import BertConfig
from bert.weights.assembly import Beside, Named, assemble, by_structural_name
from bert.weights.params_file import LIST_MAGIC, ArrayInfo, read_array, read_index
from bert.weights.spellings import gluonnlp
from bert.weights.tensors import Tensor, Weights


def open_weights(path: str, flag: str, config: BertConfig | None = None) -> Weights:
    """The BERT in a file or folder, its numbers not yet read.

    Args:
        flag: the option that names the path, for messages.
        config: gives the attention heads and the form of GELU where no file says them; sizes are those of
            the weights.

    Raises:
        InputError: nothing there, an unknown format, a damaged file, or no whole encoder of a BERT.
    """
    source = f"{flag} {path}"
    if not os.path.exists(path):
        raise InputError(f"{source} does not exist; name a checkpoint, or weights that another program saved")
    return assemble(source, "gluonnlp", _params(source, path), Beside(), config)


def _params(source: str, path: str) -> Named:
    try:
        with open(path, "rb") as file:
            head = file.read(8)
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror})") from error
    if head != struct.pack("<Q", LIST_MAGIC):
        raise InputError(f"{source} is of no known format")
    try:
        index = read_index(path)
    except InputError as error:
        raise InputError(f"{source.partition(' ')[0]}: {error}") from error
    tensors = {name: _tensor(path, info) for name, info in index.items()}
    return by_structural_name(source, tensors, gluonnlp)


def _tensor(path: str, info: ArrayInfo) -> Tensor:
    return Tensor(tuple(info.shape), info.dtype, lambda: read_array(path, info))
