"""Pretraining instances as arrays: the common form of all formats, and the checks that bring a file's blocks
into it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from base.errors import InputError
from data.options import MAX_POSITIONS

BLOCK_INSTANCES = 1024  # read and written at a time: bounds the memory, amortises the cost of a call
# The rows of a column from the first to before the second number; blocks of a file are read in its order.
ReadRows = Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class Gathered:
    """An array that is made where it is sliced, so that a file's worth of rows takes no memory."""

    shape: tuple[int, ...]
    make: ReadRows

    def __getitem__(self, part: slice) -> np.ndarray:
        return self.make(*part.indices(self.shape[0])[:2])


class PretrainingArrays(NamedTuple):
    """N instances, padded to L tokens and P predictions.

    As `data.formats.files` yields them, padding is 0 everywhere and real predictions come before padding. To
    be written, each may also be a `Gathered` one.
    """

    input_ids: np.ndarray  # (N, L) uint16 or int32
    segment_ids: np.ndarray  # (N, L) uint8
    masked_lm_positions: np.ndarray  # (N, P) uint16
    masked_lm_ids: np.ndarray  # (N, P) uint16 or int32
    masked_lm_weights: np.ndarray  # (N, P) float32, 0 for padding
    next_sentence_labels: np.ndarray  # (N,) uint8, 1 for a random next sentence
    valid_lengths: np.ndarray  # (N,) int32


def in_blocks(column: np.ndarray | Gathered) -> Iterator[np.ndarray]:
    """The rows of a column, BLOCK_INSTANCES at a time."""
    for first in range(0, column.shape[0], BLOCK_INSTANCES):
        yield column[first : first + BLOCK_INSTANCES]


MAX_EXPANSION = 500  # unpacked bytes for a stored one: real files stay below 200, deflate reaches 1032
EXPANSION_ALLOWANCE = 16 << 20  # bytes that any file may unpack to, however small it is


class RawBlock(NamedTuple):
    """Up to BLOCK_INSTANCES instances with a format's own names, widths and number types, not yet checked."""

    indices: np.ndarray  # (N,) int64, each instance's place in the file, from 0
    columns: Mapping[str, np.ndarray]  # (N, L), (N, P) or (N,); lengths as valid_lengths or as input_mask


class LostRows(Exception):
    """Rows of a column that cannot be read; others may still be."""


# How bad instances are reported: one line, which names the file and the first of them, and their number, one
# for a tail of unknown extent. It raises or counts.
Report = Callable[[str, int], None]


def check_shapes(path: str, shapes: Mapping[str, Sequence[int]]) -> tuple[int, int, int]:
    """(instances, width, predictions) of a file of columns.

    `shapes` has the columns' shapes by name. Raises InputError for columns that do not fit each other, for no
    instances and for rows wider than BERT's positions.
    """
    ids = shapes["input_ids"]
    if not ids or ids[0] < 1:
        raise InputError(f"{path} holds no instances: input_ids has shape {tuple(ids)}")
    count = ids[0]
    widths: dict[str, int] = {}
    for name, shape in shapes.items():
        leader = (
            "input_ids"
            if name in ("input_ids", "input_mask", "segment_ids")
            else ("masked_lm_positions" if name.startswith("masked_lm_") else None)
        )
        dimensions = 2 if leader else 1
        if len(shape) == dimensions and leader:
            widths.setdefault(leader, shape[1])
        if len(shape) != dimensions or shape[0] != count or (leader and shape[1] != widths[leader]):
            expected = f"({count}, {widths.get(leader, '...')})" if leader else f"({count},)"
            raise InputError(f"{path}: {name} has shape {tuple(shape)}, expected {expected}")
    for leader, width in widths.items():
        if not 1 <= width <= MAX_POSITIONS:
            raise InputError(f"{path}: {leader} has rows of {width}, expected 1 to {MAX_POSITIONS}")
    return count, widths["input_ids"], widths["masked_lm_positions"]


def check_type(path: str, name: str, dtype: np.dtype) -> None:
    """Raises InputError where a column does not hold plain numbers of a fitting kind."""
    kinds = "iuf" if name == "masked_lm_weights" else "biu" if name == "input_mask" else "iu"
    if dtype.kind not in kinds or dtype.itemsize > 8 or dtype.subdtype is not None:
        expected = "numbers" if "f" in kinds else "integers"
        raise InputError(f"{path}: {name} has type {dtype}, expected {expected} of at most 64 bits")


def check_expansion(path: str, unpacked: int, stored: int) -> None:
    """Raises InputError where `stored` bytes claim to unpack to absurdly many."""
    if unpacked > EXPANSION_ALLOWANCE + MAX_EXPANSION * stored:
        raise InputError(
            f"{path}: its {stored} bytes unpack to {unpacked} or more, over {MAX_EXPANSION} times as many; "
            "no real instances do, so the file is rejected"
        )


def one_line(error: Exception) -> str:
    """Text of a library's error on one line, not too long."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def checked(path: str, block: RawBlock, vocab_size: int, report: Report) -> PretrainingArrays:
    """The good instances of `block`, in order, padding set to 0 and predictions moved before it.

    Each bad instance is reported with the first thing that is wrong with it.
    """
    columns = dict(block.columns)
    ids = columns["input_ids"]
    count, width = ids.shape
    good = np.ones(count, dtype=bool)

    def require(name: str, fits: np.ndarray, expected: str) -> None:
        rows = fits if fits.ndim == 1 else fits.all(axis=1)
        for row in np.flatnonzero(good & ~rows):
            report(f"{path}: instance {block.indices[row]}: {name} is out of range, expected {expected}", 1)
        np.logical_and(good, rows, out=good)

    places = np.arange(width)
    if "valid_lengths" in columns:
        lengths = columns["valid_lengths"]
        fits = (lengths >= 1) & (lengths <= width)
        require("valid_lengths", fits, f"1 to {width}, the width of input_ids")
        lengths = np.where(fits, lengths, 1).astype(np.int32)
    else:
        mask = columns["input_mask"]
        lengths = np.count_nonzero(mask, axis=1).astype(np.int32)
        require("input_mask", mask == (places < lengths[:, None]), "ones for the tokens, then only zeros")
        require("input_mask", lengths >= 1, "at least one token")
    valid = places < lengths[:, None]
    tokens = f"token ids from 0 to {vocab_size - 1}"
    require("input_ids", (ids >= 0) & (ids < vocab_size), tokens)
    segments = columns["segment_ids"]
    require("segment_ids", (segments == 0) | (segments == 1), "0 or 1")

    positions, masked_ids = columns["masked_lm_positions"], columns["masked_lm_ids"]
    if "masked_lm_weights" in columns:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is infinite, and rejected for it
            weights = columns["masked_lm_weights"].astype(np.float32)
        require("masked_lm_weights", np.isfinite(weights) & (weights >= 0), "finite numbers, 0 or above")
        weights = np.where(np.isfinite(weights), weights, 0)
    else:  # NVIDIA's rule: [CLS] at 0 is never masked, so the first position 0 ends the predictions
        weights = np.logical_and.accumulate(positions != 0, axis=1).astype(np.float32)
    real = weights > 0
    require("masked_lm_ids", (masked_ids >= 0) & (masked_ids < vocab_size), tokens)
    inside = (positions >= 0) & (positions < lengths[:, None])
    require("masked_lm_positions", inside | ~real, "positions below the instance's length")
    labels = columns["next_sentence_labels"]
    require("next_sentence_labels", (labels == 0) | (labels == 1), "0 or 1")

    id_type = np.uint16 if vocab_size <= 1 << 16 else np.int32
    kept = PretrainingArrays(
        np.where(valid, ids, 0)[good].astype(id_type),
        np.where(valid, segments, 0)[good].astype(np.uint8),
        np.where(real, positions, 0)[good].astype(np.uint16),
        np.where(real, masked_ids, 0)[good].astype(id_type),
        np.where(real, weights, 0)[good].astype(np.float32),
        labels[good].astype(np.uint8),
        lengths[good],
    )
    return _predictions_first(kept)


def _predictions_first(arrays: PretrainingArrays) -> PretrainingArrays:
    padding = arrays.masked_lm_weights == 0
    if not (padding[:, :-1] & ~padding[:, 1:]).any():
        return arrays
    order = np.argsort(padding, axis=1, kind="stable")
    return arrays._replace(
        masked_lm_positions=np.take_along_axis(arrays.masked_lm_positions, order, axis=1),
        masked_lm_ids=np.take_along_axis(arrays.masked_lm_ids, order, axis=1),
        masked_lm_weights=np.take_along_axis(arrays.masked_lm_weights, order, axis=1),
    )
