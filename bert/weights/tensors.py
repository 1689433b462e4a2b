"""Weights of a BERT in a file, whatever its format: names and shapes first, numbers when they are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np

from bert.configuration import BertConfig


class Tensor(NamedTuple):
    """An array in a file. `read` returns its elements, of this shape and dtype, anew at every call.

    bfloat16, for which NumPy has no dtype, is read as float32, which holds it exactly.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[], np.ndarray]


_BLOCK = 64  # rows that are transposed at a time: ten times as fast as all at once


def transposed(tensor: Tensor) -> Tensor:
    """A matrix in a file, its axes exchanged when it is read."""

    def read() -> np.ndarray:
        array = tensor.read()
        found = np.empty(array.shape[::-1], array.dtype)
        for row in range(0, len(array), _BLOCK):
            found[:, row : row + _BLOCK] = array[row : row + _BLOCK].T
        return found

    return Tensor(tensor.shape[::-1], tensor.dtype, read)


@dataclass(frozen=True)
class Weights:
    """A BERT, perhaps without pooler or heads, under GluonNLP's structural names.

    Attributes:
        source: path, for messages.
        format: "gluonnlp", "huggingface", "tensorflow" or "pytorch".
        tensors: by structural name, in the order of `bert.weights.bare_params.expected_shapes`, in GluonNLP's
            layout (dense weights are (outputs, inputs)). A tied decoder's weight, the word embedding, is left
            out.
        config: sizes, and what the layers compute.
        vocabulary: its tokens in the order of the embedding's rows (there may be fewer: padding); None where
            there is none beside the weights.
        cased: whether upper case is kept; None where nothing says so.
        missing: parts that the file lacks: "pooler", "next-sentence head", "masked-LM head".
        ignored: names in the file that are no weights of a BERT, such as optimizer slots.
        notes: what was assumed, as sentences for people.
    """

    source: str
    format: str
    tensors: Mapping[str, Tensor]
    config: BertConfig
    vocabulary: Sequence[str] | None = None
    cased: bool | None = None
    missing: Sequence[str] = ()
    ignored: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def vocab_size(self) -> int:
        """Rows of the word embedding."""
        return self.tensors["word_embed.0.weight"].shape[0]
