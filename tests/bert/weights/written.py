"""Files that PyTorch 2.13.0 and TensorFlow 2.21.0 wrote, in written/, so that readers read more than ours.

They hold our own numbers. zip.pt, legacy.pt (`_use_new_zipfile_serialization=False`) and five.pt
(`pickle_protocol=5`, {"w": x}) are by `torch.save`; with x = torch.arange(6.).reshape(2, 3) / 4 and
y = torch.arange(24.).reshape(2, 3, 4), the first two hold

    {"model": {"w": Parameter(x), "tied": x, "turned": x.t(), "part": y[1:, ::2, 1:3],
               DTYPE: torch.tensor([0, 1, 3]).to(DTYPE) for nine dtypes, "scalar": 2.5,
               "empty": torch.zeros(0, 4)},
     "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}},
                   "param_groups": [{"lr": np.float64(.1), "params": [0]}]},
     "master params": [x], "files": [1, "a.hdf5"], "epoch": 0, "data_loader": None}

one, two (`sharded=True`, on two devices) and parts (with a variable "words" in two parts) are by
`tf.compat.v1.train.Saver` from the variables of VARIABLES; graph-1 is by
`tf.train.Checkpoint(pooler=MODULE).save("graph")`, where MODULE.kernel is VARIABLES' kernel.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Callable, Mapping

import numpy as np
import pytest

from base.errors import InputError

FOLDER = Path(__file__).with_suffix("")
VARIABLES = {
    "bert/pooler/dense/bias": np.arange(3, dtype=np.float32),
    "bert/pooler/dense/kernel": np.arange(6, dtype=np.float32).reshape(2, 3) / 4,
    "empty": np.zeros((0, 4), np.float32),
    "global_step": np.int64(7),
    "half": np.array([0, 1, 3], np.float32),  # stored as bfloat16
}


def write_out(name: str, folder: Path) -> Path:
    """Copies one of these files into a folder; returns its path."""
    return Path(shutil.copy(FOLDER / name, folder))


def error_of(read_index: Callable[[str], Mapping[str, Any]], path: str) -> str:
    """The line that a damaged file ends in, when it is opened or its numbers are read."""
    with pytest.raises(InputError) as caught:
        for each in read_index(path).values():
            each.read()
    message = str(caught.value)
    assert path in message and message.isprintable() and len(message) < 500
    return message
