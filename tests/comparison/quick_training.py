"""Takes the options of a training script and leaves its metrics and a checkpoint at once, without training:
for tests of what is launched and when. QUICK in the environment: `fail`, `hang`, or nothing."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from training.checkpoint import save
from training.options import parse_options


def main() -> int:
    options = parse_options(None, "")
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    if os.environ.get("QUICK") == "fail":
        print("error: no such luck", file=sys.stderr)
        return 3
    if os.environ.get("QUICK") == "hang":
        time.sleep(600)
    if rank == 0:
        directory = Path(options.ckpt_dir)
        directory.mkdir(parents=True)
        rates = {"tokens_per_s": 640.0, "padded_tokens_per_s": 640.0, "sequences_per_s": 40.0}
        with open(directory / "metrics.jsonl", "w", encoding="utf-8") as file:
            for step in range(options.log_interval, options.num_steps + 1, options.log_interval):
                line = {"step": step, "time": time.time(), "mlm_loss": 9.0, "nsp_loss": 0.7, "step_s": 0.1}
                line.update(rates, skipped_steps=0, grad_norm=1.5, lr=0.01)
                file.write(json.dumps(line) + "\n")
        save(str(directory), options.num_steps, {"weight": np.ones(3, "float32")}, {}, {})
    return 0


if __name__ == "__main__":
    sys.exit(main())
