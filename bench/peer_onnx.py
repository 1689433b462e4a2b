"""Worker: onnxruntime on the graph that convert.py --to onnx writes, for bench/latency.py.

    python -m bench.peer_onnx latency FOLDER float32 SIZE ...

See bench/workers.py for what it reads and writes, bench/trainings.py for the folder.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping, Sequence

import numpy as np
import onnxruntime

from bench.trainings import ONNX, Arrays, latency_step
from bench.workers import Steps, serve
from bert.weights.onnx_file import GRAPH


def inputs(stored: Sequence[Arrays]) -> list[dict[str, np.ndarray]]:
    """The graph's inputs of batches; no sequence has padding."""
    found = []
    for batch in stored:
        ids, segments = (batch[name].astype(np.int64) for name in ("input_ids", "segment_ids"))
        found.append({"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": segments})
    return found


def set_up(what: str, folder: str, dtype: str, *sizes: str) -> tuple[Steps, dict[str, Any]]:
    """Steps and facts, from the words of the command line."""
    assert (what, dtype) == ("latency", "float32")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads = int(os.environ["OMP_NUM_THREADS"])
    path = os.path.join(folder, ONNX, GRAPH)
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    def answer(batches: Sequence[Mapping[str, np.ndarray]]) -> None:
        for batch in batches:
            session.run(["last_hidden_state"], batch)

    steps = {size: latency_step(folder, size, inputs, answer) for size in sizes}
    return steps, {"onnxruntime": onnxruntime.__version__, "threads": threads}


if __name__ == "__main__":
    serve(lambda: set_up(*sys.argv[1:]))
