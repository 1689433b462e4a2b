"""Stored pretraining instances as arrays: what every file format is read into and written from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class PretrainingArrays(NamedTuple):
    """N instances, padded to L tokens and P predictions."""

    input_ids: np.ndarray  # (N, L) uint16 or int32
    segment_ids: np.ndarray  # (N, L) uint8
    masked_lm_positions: np.ndarray  # (N, P) uint16
    masked_lm_ids: np.ndarray  # (N, P) uint16 or int32
    masked_lm_weights: np.ndarray  # (N, P) float32, 0 for padding
    next_sentence_labels: np.ndarray  # (N,) uint8, 1 for a random next sentence
    valid_lengths: np.ndarray  # (N,) int32
