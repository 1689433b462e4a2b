"""The checkpoints of a loop: which steps are saved, and which checkpoint is the last good one.

That is the newest one from which a step has been taken. Parameters that one update has blown up are finite
still, and so is a checkpoint of them; only the next loss or gradient shows it (training/guard.py). So a
checkpoint deletes no older one before a step has been taken from it, and is called good no sooner. One from
which no step could be taken is set aside when the run ends for that: --resume takes the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from base.errors import NotFiniteError
from training.checkpoint import params_path
from training.optimizer.scaler import NOT_FINITE

if TYPE_CHECKING:
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
