"""Worker: onnxruntime on the graph that convert.py --to onnx writes, for bench/latency.py.

    python -m bench.peer_onnx latency FOLDER float32 SIZE ...

See bench/workers.py for what it reads and writes, bench/trainings.py for the folder.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Sequence

import numpy as np
import onnxruntime

from bench.trainings import ONNX, Arrays, serve_latency
from bench.workers import Steps, serve
from bert.weights.onnx_file import GRAPH


class Graph:
    """The encoder, as far as serve_latency needs a `Learner`."""

    def __init__(self, folder: str, threads: int):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        path = os.path.join(folder, ONNX, GRAPH)
        self._session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    def batches(self, stored: Sequence[Arrays], padded: int | None = None) -> Sequence[Any]:
        return [
            {
                "input_ids": batch["input_ids"].astype(np.int64),
                "attention_mask": np.ones_like(batch["input_ids"], np.int64),
                "token_type_ids": batch["segment_ids"].astype(np.int64),
            }
            for batch in stored
        ]

    def logits(self, batches: Sequence[Any]) -> list[np.ndarray]:
        return [self._session.run(["last_hidden_state"], batch)[0] for batch in batches]


def set_up(what: str, folder: str, dtype: str, *sizes: str) -> tuple[Steps, dict[str, Any]]:
    """Steps and facts, from the words of the command line."""
    assert (what, dtype) == ("latency", "float32")
    threads = int(os.environ["OMP_NUM_THREADS"])
    steps = serve_latency(folder, Graph(folder, threads), sizes)
    return steps, {"onnxruntime": onnxruntime.__version__, "threads": threads}


if __name__ == "__main__":
    serve(lambda: set_up(*sys.argv[1:]))
