"""The best checkpoint of a run (--keep_best): that of the evaluation with the best figure, kept beside the
newest ones as long as no better one is.

best.json names it: step, stage, the figure and its value. It is written, whole or not at all, when the disk
has the checkpoint. What a kill in between leaves out follows from the metrics when the run goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any, Mapping, Sequence

from base.files import replacing
from training.checkpoint import BEST_FILE

if TYPE_CHECKING:
    from training.run import Run


class BestCheckpoint:
    """Decides, evaluation by evaluation, which is the best so far; every rank has it and decides the same.

    Args:
        run: its evaluations' main score decides, or where there is none the loss.
        before: on rank 0, lines of the run's metrics at whose steps it has checkpoints.
    """

    def __init__(self, run: Run, before: Sequence[Mapping[str, Any]]):
        self._run, score = run, run.inputs.about.main_score
        self._figure, self._sign = f"eval_{score or run.task.judged[0]}", 1 if score else -1
        self._path = os.path.join(run.config.checkpoint.ckpt_dir, BEST_FILE)
        self._best: Mapping[str, Any] = {}
        self.wanted = run.config.checkpoint.keep_best and run.eval_feed is not None
        if not self.wanted or run.communicator.rank:
            return
        for line in before:
            if line.get("stage") == run.start.stage and self._improves(line):
                self._best = line
        if self._best:
            self.write(self._best)
        else:  # of stage 1, or of steps that are taken once more
            with contextlib.suppress(FileNotFoundError):
                os.remove(self._path)

    def improves(self, metrics: Mapping[str, Any]) -> bool:
        """Whether an evaluation is the best so far; every rank calls it. Rank 0's metrics decide: it has the
        scores."""
        communicator = self._run.communicator
        return self.wanted and communicator.all_agree([communicator.rank > 0 or self._improves(metrics)])[0]

    def keep(self, metrics: Mapping[str, Any]) -> None:
        """Takes an evaluation as the best so far; its checkpoint has been begun to be saved."""
        self._best = metrics
        if self._run.communicator.rank == 0:
            self._run.saver.afterwards(lambda: self.write(metrics))

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Writes best.json. OSError where the disk does not take it."""
        entry = {"step": metrics["step"], "figure": self._figure, "value": metrics[self._figure]}
        with replacing(self._path) as file:
            file.write(json.dumps({**entry, **self._run.stage_entry}).encode() + b"\n")
        self._run.reporter.note(f"best so far: step {entry['step']}, {self._figure} {entry['value']:.4g}")

    def _improves(self, metrics: Mapping[str, Any]) -> bool:
        value, best = metrics.get(self._figure), self._best.get(self._figure)
        return value is not None and (best is None or self._sign * value > self._sign * best)
