"""Another vocabulary on pretrained weights (--init_vocab): rows of tokens that both have are kept, the others
are drawn anew. MXNet is not imported."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

import numpy as np

from base.errors import InputError
from bert.weights.names import DECODER, DECODER_BIAS, EMBEDDING
from bert.weights.tensors import Tensor, Weights

OF_TOKENS = (EMBEDDING, DECODER, DECODER_BIAS)  # parameters with a row for each token


def with_vocabulary(
    source: str, weights: Weights, tokens: Sequence[str] | None, rows: int
) -> tuple[Weights, Sequence[int]]:
    """The weights for other tokens.

    Args:
        source: the option and the weights, for messages.
        tokens: the vocabulary, in the order of the ids; None where it is not known.
        rows: of the word embedding, as many as there are tokens or more.

    Returns:
        The weights with so many rows, and the numbers of those that have to be drawn, which are zero until
        then. The notes say how many tokens are kept.

    Raises:
        InputError: one of the vocabularies is not known.
    """
    if tokens is None:
        raise InputError("--init_vocab: name this run's vocabulary with --vocab")
    if weights.vocabulary is None:
        raise InputError(
            f"{source}: --init_vocab needs the vocabulary of these weights; put their vocab.txt beside them"
        )
    there = {token: number for number, token in enumerate(weights.vocabulary)}
    places = np.full(rows, -1, np.int64)
    places[: len(tokens)] = [there.get(token, -1) for token in tokens]
    kept = np.flatnonzero(places >= 0)

    def moved(tensor: Tensor) -> Tensor:
        shape = (rows, *tensor.shape[1:])

        def read() -> np.ndarray:
            array = np.zeros(shape, tensor.dtype)
            array[kept] = tensor.read()[places[kept]]
            return array

        return Tensor(shape, tensor.dtype, read)

    note = (
        f"--init_vocab: {len(kept):,} of {len(tokens):,} tokens keep the rows that they have in "
        f"{weights.source}, {len(tokens) - len(kept):,} are drawn anew"
    )
    tensors = {name: moved(each) if name in OF_TOKENS else each for name, each in weights.tensors.items()}
    found = replace(weights, tensors=tensors, vocabulary=tuple(tokens), notes=(*weights.notes, note))
    return found, tuple(np.flatnonzero(places < 0).tolist())
