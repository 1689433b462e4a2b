"""Pretraining instances in npz files, with GluonNLP's array names.

GluonNLP's create_pretraining_data.py stores rows of different lengths as pickled object arrays. Unpickling
runs whatever the file says, so these are refused here; `python -m data.convert_npz` turns them into padded
arrays without running anything. Padded two-dimensional arrays are read as they are.
"""

from __future__ import annotations

import zipfile
import zlib

import numpy as np

from data.errors import InputError
from data.files import replacing
from data.records import PretrainingArrays

TOKEN_ARRAYS = ("input_ids", "segment_ids")
PREDICTION_ARRAYS = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
ROW_ARRAYS = ("next_sentence_labels", "valid_lengths")


def read_npz(path: str, vocab_size: int) -> PretrainingArrays:
    """Read and check one npz file.

    Raises InputError naming the file and the array: not an npz file, a missing array, object arrays, a wrong
    type or shape, or a value out of range (token ids by `vocab_size`, positions by valid_lengths).
    """
    raw = _load(path)
    for name in TOKEN_ARRAYS + PREDICTION_ARRAYS + ROW_ARRAYS:
        kinds = "iuf" if name == "masked_lm_weights" else "iu"
        if raw[name].dtype.kind not in kinds:
            raise InputError(
                f"{path}: {name} has type {raw[name].dtype}, expected {'float' if 'f' in kinds else 'int'}"
            )
    _check_shapes(path, raw)
    _check_values(path, raw, vocab_size)
    id_type = np.uint16 if vocab_size <= 1 << 16 else np.int32
    return PretrainingArrays(
        raw["input_ids"].astype(id_type),
        raw["segment_ids"].astype(np.uint8),
        raw["masked_lm_positions"].astype(np.uint16),
        raw["masked_lm_ids"].astype(id_type),
        raw["masked_lm_weights"].astype(np.float32),
        raw["next_sentence_labels"].astype(np.uint8),
        raw["valid_lengths"].astype(np.int32),
    )


def write_npz(path: str, arrays: PretrainingArrays) -> None:
    """Write instances as a compressed npz file of padded arrays; `path` appears when it is complete."""
    columns = {
        name: column.astype(np.float32 if name == "masked_lm_weights" else np.int32)
        for name, column in zip(arrays._fields, arrays)
    }
    with replacing(path) as handle:
        np.savez_compressed(handle, **columns)


def _load(path: str) -> dict[str, np.ndarray]:
    raw: dict[str, np.ndarray] = {}
    name = "the archive"
    try:
        with open(path, "rb") as handle:
            if not zipfile.is_zipfile(handle):
                raise InputError(f"{path} is not an npz file")
        with np.load(path, allow_pickle=False) as archive:
            missing = [field for field in PretrainingArrays._fields if field not in archive.files]
            if missing:
                raise InputError(
                    f"{path} lacks the array{'s' if len(missing) > 1 else ''} {', '.join(missing)}"
                )
            for name in PretrainingArrays._fields:
                raw[name] = archive[name]
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        if "allow_pickle" in str(error):
            raise InputError(
                f"{path}: {name} is an object array, which would have to be unpickled; "
                "convert the file with python -m data.convert_npz"
            ) from error
        raise InputError(f"{path}: {name} is damaged") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, SyntaxError, MemoryError) as error:
        raise InputError(f"{path}: {name} is damaged") from error
    return raw


def _check_shapes(path: str, raw: dict[str, np.ndarray]) -> None:
    count = raw["valid_lengths"].shape[0] if raw["valid_lengths"].ndim else 0
    if not count:
        raise InputError(f"{path}: valid_lengths is empty")
    for names, dimensions in ((ROW_ARRAYS, 1), (TOKEN_ARRAYS, 2), (PREDICTION_ARRAYS, 2)):
        expected = raw[names[0]].shape
        for name in names:
            shape = raw[name].shape
            if len(shape) != dimensions or shape[0] != count or shape != expected or not raw[name].size:
                rows = f"({count}, ...)" if dimensions == 2 else f"({count},)"
                raise InputError(f"{path}: {name} has shape {shape}, expected {rows} as its companions have")
    if max(raw["input_ids"].shape[1], raw["masked_lm_ids"].shape[1]) > np.iinfo(np.uint16).max:
        raise InputError(
            f"{path}: input_ids has rows of {raw['input_ids'].shape[1]} tokens, far above BERT's 512"
        )


def _check_values(path: str, raw: dict[str, np.ndarray], vocab_size: int) -> None:
    def check(name: str, good: np.ndarray, expected: str) -> None:
        if not good.all():
            row = int(np.argwhere(~good)[0][0])
            raise InputError(f"{path}: {name} of instance {row} is out of range, expected {expected}")

    lengths, weights = raw["valid_lengths"], raw["masked_lm_weights"]
    check(
        "valid_lengths",
        (lengths >= 1) & (lengths <= raw["input_ids"].shape[1]),
        "1 to the width of input_ids",
    )
    ids = f"token ids from 0 to {vocab_size - 1}"
    check("input_ids", (raw["input_ids"] >= 0) & (raw["input_ids"] < vocab_size), ids)
    check("masked_lm_ids", (raw["masked_lm_ids"] >= 0) & (raw["masked_lm_ids"] < vocab_size), ids)
    check("segment_ids", (raw["segment_ids"] == 0) | (raw["segment_ids"] == 1), "0 or 1")
    check("masked_lm_weights", np.isfinite(weights) & (weights >= 0), "finite numbers, 0 or above")
    positions = raw["masked_lm_positions"]
    inside = (positions >= 0) & (
        (positions < lengths[:, None]) | ((weights == 0) & (positions <= np.iinfo(np.uint16).max))
    )
    check("masked_lm_positions", inside, "positions below valid_lengths")
    labels = raw["next_sentence_labels"]
    check("next_sentence_labels", (labels == 0) | (labels == 1), "0 or 1")
