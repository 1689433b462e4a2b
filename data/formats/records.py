"""Stored pretraining instances as arrays: what every file format is read into and written from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

BLOCK_INSTANCES = 1024  # read and written at a time: bounds the memory, amortises the cost of a call


class PretrainingArrays(NamedTuple):
    """N instances, padded to L tokens and P predictions.

    As `data.formats.read` yields them, padding is 0 everywhere and real predictions come before padding.
    """

    input_ids: np.ndarray  # (N, L) uint16 or int32
    segment_ids: np.ndarray  # (N, L) uint8
    masked_lm_positions: np.ndarray  # (N, P) uint16
    masked_lm_ids: np.ndarray  # (N, P) uint16 or int32
    masked_lm_weights: np.ndarray  # (N, P) float32, 0 for padding
    next_sentence_labels: np.ndarray  # (N,) uint8, 1 for a random next sentence
    valid_lengths: np.ndarray  # (N,) int32


def id_dtype(vocab_size: int) -> type:
    """The narrowest type of `PretrainingArrays`' token ids that holds 0 to vocab_size - 1."""
    return np.uint16 if vocab_size <= 1 << 16 else np.int32
