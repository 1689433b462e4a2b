"""The checkpoints of a loop: which steps are saved, which checkpoint is the last good one, and which is best.

The last good one is the newest one from which a step has been taken. Parameters that one update has blown up
are finite still, and so is a checkpoint of them; only the next loss or gradient shows it (training/guard.py).
So a checkpoint deletes no older one before a step has been taken from it, and is called good no sooner. One
from which no step could be taken is set aside when the run ends for that: --resume takes the one before.

The best one (--keep_best) is that of the evaluation with the best figure, kept beside the newest ones as long
as no better one is. best.json names it: step, stage, the figure and its value. It is written, whole or not at
all, when the disk has the checkpoint. What a kill in between leaves out follows from the metrics when the run
goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Mapping

from base.errors import NotFiniteError
from base.files import replacing
from training.checkpoint import BEST_FILE, list_steps, params_path
from training.optimizer.scaler import NOT_FINITE
from training.report import read_metrics
from training.run import Run


class Checkpoints:
    """Saves steps of a run and deletes older ones; every rank has it, and decides the same.

    `late`: whether a checkpoint waits for a step that is not skipped; `newest`: the step of the newest one,
    good or not yet known to be, 0 without.
    """

    def __init__(self, run: Run):
        self.late = False
        self.newest = 0 if run.start.source else run.start.step
        self._good = 0  # the step of the newest one from which a step has been taken
        self._skipped = ""  # why the last step was
        self._run = run
        place, score = run.config.checkpoint.ckpt_dir, run.inputs.about.main_score
        self._figure, self._sign = f"eval_{score or run.task.judged[0]}", 1 if score else -1
        self._best: Mapping[str, Any] = {}  # the line of the best evaluation so far
        self._keeps_best = run.config.checkpoint.keep_best and run.eval_feed is not None
        if self._keeps_best and run.communicator.rank == 0:
            steps = list_steps(place)
            for line in read_metrics(place):
                saved = line["step"] in steps and line.get("stage") == run.start.stage
                if saved and self._is_better(line):
                    self._best = line
            if self._best:
                self._write_best(self._best)
            else:  # of stage 1, or of steps that are taken once more
                with contextlib.suppress(FileNotFoundError):
                    os.remove(os.path.join(place, BEST_FILE))

    def stepped(self, step: int, skipped: str) -> None:
        """Takes note of a step, and why it was `skipped`; "" where it was not.

        Raises:
            NotFiniteError: too many were skipped in a row; a checkpoint that leads to nothing else is set
                aside.
        """
        run, self._skipped = self._run, skipped
        if self._is_off:
            run.reporter.warn(f"step {step} is skipped: {skipped}")
        try:
            run.skips.update(not skipped, step, self._sentence, skipped)
        except NotFiniteError:
            self._set_aside()
            raise
        if not skipped and self._good != self.newest:
            self._good = self.newest
            if run.communicator.rank == 0:
                run.saver.prune(self._good, run.start.begun)

    def save(self, step: int, planned: bool, ended: bool, interrupted: bool) -> None:
        """Saves a step, unless it was skipped: then the checkpoint is late, until one is not.

        A run's last step is saved in any case (`ended`). So is a step that a signal makes the last one of
        this process (`interrupted`), where it was skipped for its loss scale alone, as float16 has it now and
        then. Neither deletes others. `planned`: for more reason than that a checkpoint is late.

        Raises:
            NotFiniteError: the run's last steps, more than one, were finite and off; as for `stepped`.
        """
        run = self._run
        skipped = run.skips.in_a_row > 0
        if ended and self._is_off and run.skips.in_a_row > 1:
            self._set_aside()
            raise NotFiniteError(
                f"the last {run.skips.in_a_row} steps were skipped, step {step} because {self._skipped}; "
                f"{self._sentence}; lower --lr, or look at the data of these steps"
            )
        self.late = skipped and not (ended or (interrupted and run.scaler.searching))
        if not self.late:
            run.save(step, ended, prunes=ended and not skipped)
            self.newest = step
        elif planned:
            run.reporter.warn(
                f"step {step} was skipped, since {self._skipped}: no checkpoint is saved or deleted; "
                f"{self._sentence}"
            )

    def evaluated(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Keeps the checkpoint of an evaluation that is the best so far, and saves it where its step has not
        been; every rank calls it. Rank 0's metrics decide: it has the scores."""
        run = self._run
        leads = run.communicator.rank == 0
        if not self._keeps_best or not run.communicator.all_agree([not leads or self._is_better(metrics)])[0]:
            return
        if self.newest != step and run.skips.in_a_row == 0:
            self.save(step, planned=True, ended=False, interrupted=False)
        if 0 < self.newest == step:  # at 0 there is none, whose parameters are another run's
            self._best = metrics
            if leads:
                run.saver.afterwards(lambda: self._write_best(metrics))

    def _is_better(self, metrics: Mapping[str, Any]) -> bool:
        value, best = metrics.get(self._figure), self._best.get(self._figure)
        return value is not None and (best is None or self._sign * value > self._sign * best)

    def _write_best(self, metrics: Mapping[str, Any]) -> None:
        """Writes best.json. OSError where the disk does not take it."""
        run = self._run
        entry = {"step": metrics["step"], "figure": self._figure, "value": metrics[self._figure]}
        with replacing(os.path.join(run.config.checkpoint.ckpt_dir, BEST_FILE)) as file:
            file.write(json.dumps({**entry, **run.stage_entry}).encode() + b"\n")
        run.reporter.note(f"best so far: step {entry['step']}, {self._figure} {entry['value']:.4g}")

    @property
    def _is_off(self) -> bool:
        """Whether the last step was skipped though its gradients were finite (training.guard)."""
        return self._skipped not in ("", NOT_FINITE)

    def _set_aside(self) -> None:
        """Has --resume pass over a checkpoint after which each step was skipped."""
        if self._good != self.newest and self._run.communicator.rank == 0:
            self._run.saver.set_aside(self.newest)

    def _file(self, step: int) -> str:
        return params_path(self._run.config.checkpoint.ckpt_dir, step)

    @property
    def _sentence(self) -> str:
        """The checkpoint to go back to, for people."""
        if not self.newest:
            return "no checkpoint was saved yet"
        newest = self._file(self.newest)
        if not self._good:
            return (
                f"not one step was taken after {newest}: --resume takes the checkpoint before it, "
                f"if there is one (--start_step {self.newest} takes it all the same)"
            )
        named = f"the last good checkpoint is {self._file(self._good)}"
        if self._good != self.newest:
            named += f", which --resume takes: no step was taken after the newer {newest}"
        return named

    @property
    def remedy(self) -> str:
        """The end of a sentence: the checkpoint that --resume goes on from, where not the last step's."""
        if not self.late:
            return ""
        return f", from {self._file(self.newest) if self.newest else 'the beginning'}"
