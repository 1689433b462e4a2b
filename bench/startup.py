"""Time that commands take to begin: `hparams.py` until it has answered, and a run until it has taken a step.

    python -m bench.startup [--repeats 7] [--ranks 2] [--json startup.json]
    python -m bench.startup --quick

A repeat runs, in turns: `hparams.py` for 256 GPUs; `import mxnet` in a new Python, below which no start of
a run goes; and run_pretraining_hvd.py as `make pretrain` launches it, with its model and text, from the
launch of mpirun to the metrics of step 1. A run before the first repeat has tokenized the text. The goals are
0.15 s for hparams.py and 3 s to the first step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable, Mapping, Sequence

from base import machine
from base.command_line import positive_int
from base.processes import run_in_session
from base.tables import Row, Table, terminal
from bench.harness import Measurement, default_text, end_at, finish, spread, take_rounds
from bench.workers import ROOT
from training.entry import exit_code

TIME_LIMIT = 120.0  # seconds for one launch
HPARAMS, FLOOR, FIRST_STEP = "hparams.py", "import mxnet", "first step"
GOALS = {HPARAMS: 0.15, FIRST_STEP: 3.0}
# As in the Makefile, stage 1 alone.
TRAINING = (
    *("--model", "bert_2_128_2", "--dropout", "0", "--max_seq_length", "32", "--batch_size", "1024"),
    *("--use_avg_len", "--num_steps", "1", "--lr", "0.014", "--warmup_ratio", "0", "--log_interval", "1"),
)


def seconds_of(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> float:
    """Seconds until a command has ended; SystemExit with its last lines if it fails."""
    begun = time.perf_counter()
    code, text = run_in_session(words, environ, TIME_LIMIT)
    if code:
        raise SystemExit(f"{' '.join(words)}\nfailed ({code}):\n{text[-2000:]}")
    return time.perf_counter() - begun


def first_step_after(script: Sequence[str], ranks: int) -> float:
    """Seconds from a launch to the metrics of its first step, by the clock that these have."""
    # As `make pretrain`, without the caller's settings of threads.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    if os.geteuid() == 0:
        environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    words = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none"]
    words += ["-mca", "mpi_yield_when_idle", "1", sys.executable, str(ROOT / "run_pretraining_hvd.py")]
    with tempfile.TemporaryDirectory() as folder:
        begun = time.time()
        seconds_of([*words, *script, "--ckpt_dir", folder], environ)
        first, *_ = (Path(folder) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        return float(json.loads(first)["time"]) - begun


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = Measurement("startup", __doc__, "1 repeat")
    parser.option("--repeats", 7, 1, type=positive_int, metavar="N")
    parser.option("--ranks", 2, None, "of the run", type=positive_int, metavar="N")
    options = parser.settle(parser.parse_args(arguments))
    end_at(signal.SIGINT, signal.SIGTERM)  # with what it has started
    others = machine.Others()
    plan = [sys.executable, str(ROOT / "hparams.py"), "--num_gpus", "256", "--tokens_per_gpu", "8192"]
    with tempfile.TemporaryDirectory() as folder:
        paths, vocab = default_text(folder)
        script = [*TRAINING, "--raw", "--data", ",".join(paths), "--vocab", vocab]
        script += ["--cache_dir", os.path.join(folder, "tokens")]
        measured: dict[str, Callable[[], float]] = {
            HPARAMS: lambda: seconds_of(plan),
            FLOOR: lambda: seconds_of([sys.executable, "-c", "import mxnet"]),
            FIRST_STEP: lambda: first_step_after(script, options.ranks),
        }
        measured[FIRST_STEP]()
        repeats = take_rounds(list(measured), options.repeats, lambda name, _: measured[name]())
    rows = []
    for name in repeats[0]:
        goal = f"{GOALS[name]:g}" if name in GOALS else ""
        rows.append(Row([name, spread([each[name] for each in repeats]).shown(3), goal]))
    shown = Table(f"first step of {options.ranks} ranks", ("", "seconds (quartiles)", "goal"), rows)
    here, load = machine.describe(ROOT), others.shares()
    print(f"{machine.line(here)}\n\n{terminal(shown)}\n")
    print(f"other programs took {load['others']:.1%} of the machine, its host {load['stolen']:.1%}")
    finish(options, {"machine": {**here, **load}, "ranks": options.ranks, "seconds": repeats})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
