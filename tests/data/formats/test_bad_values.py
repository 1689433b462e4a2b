from __future__ import annotations

import numpy as np
import pytest

from tests.data.formats.reading import refused, skipping
from tests.data.formats.samples import (
    VOCAB_SIZE,
    arrays,
    columns,
    joined,
    ragged,
    record,
    save_hdf5,
    save_npz,
)

COUNT = 6


def changed(name, index, value):
    """A column whose entry `index` is `value`, as every format can hold it."""
    column = columns(ragged(COUNT))[name].astype(np.float32 if "weights" in name else np.int64)
    column[index] = value
    return {name: column}


def save(path, format, **change):
    if format == "npz":
        with open(path, "wb") as handle:
            save_npz(handle, ragged(COUNT), **change)
    elif format == "hdf5":
        save_hdf5(path, ragged(COUNT), **change)
    else:
        wide = {**columns(ragged(COUNT)), **change}
        del wide["valid_lengths"]
        rows = [{name: np.atleast_1d(wide[name][n]).tolist() for name in wide} for n in range(COUNT)]
        path.write_bytes(b"".join(record(format, row) for row in rows))
    return str(path)


VALUES = [
    (changed("input_ids", (3, 1), VOCAB_SIZE), "instance 3: input_ids .* 0 to 29999"),
    (changed("input_ids", (0, 0), -1), "instance 0: input_ids"),
    (changed("input_ids", (3, 1), 2**62), "instance 3: input_ids"),
    (changed("masked_lm_ids", (2, 0), VOCAB_SIZE), "instance 2: masked_lm_ids"),
    (changed("segment_ids", (1, 1), 2), "instance 1: segment_ids .* 0 or 1"),
    (changed("masked_lm_positions", (4, 0), 24), "instance 4: masked_lm_positions .* below"),
    (changed("masked_lm_positions", (4, 0), -1), "instance 4: masked_lm_positions"),
    (changed("masked_lm_positions", (4, 0), 2**40), "instance 4: masked_lm_positions"),
    (changed("next_sentence_labels", 5, 2), "instance 5: next_sentence_labels"),
]
WEIGHTS = [
    (changed("masked_lm_weights", (5, 0), value), "instance 5: masked_lm_weights .* finite")
    for value in (np.nan, np.inf, -1)
]
LENGTHS = [
    (changed("valid_lengths", 1, value), "instance 1: valid_lengths .* 1 to 24") for value in (0, 25, 2**40)
]
MASKS = [
    (changed("input_mask", (1, 0), 0), "instance 1: input_mask .* ones"),
    (changed("input_mask", (1, 0), 2), "instance 1: input_mask"),
    (changed("input_mask", 1, 0), "instance 1: input_mask .* at least one"),
]


@pytest.mark.parametrize(
    "format, change, message",
    [("npz", *case) for case in VALUES + WEIGHTS + LENGTHS]
    + [("hdf5", *case) for case in VALUES + MASKS]
    + [(format, *case) for format in ("tfrecord", "ofrecord") for case in VALUES + WEIGHTS + MASKS],
)
def test_a_bad_value_is_named_and_that_instance_alone_is_skipped(tmp_path, format, change, message):
    path = save(tmp_path / "x", format, **change)
    refused(path, message)
    blocks, skipped = skipping(path)
    assert len(skipped) == 1 and skipped[0][1] == 1 and path in skipped[0][0]
    row = int(message.split()[1].rstrip(":"))
    expected = [instance for index, instance in enumerate(ragged(COUNT)) if index != row]
    found = joined(blocks)
    width = columns(expected)["input_ids"].shape[1]
    assert (found.valid_lengths == arrays(expected).valid_lengths).all()
    assert (found.input_ids[:, :width] == arrays(expected).input_ids).all()
