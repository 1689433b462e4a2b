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


class LastGood:
    """Keeps account of checkpoints and steps, in their order; the same on every rank.

    Args:
        ckpt_dir: of the run.
        step: of the checkpoint that the run goes on from; 0 for none.
    """

    def __init__(self, ckpt_dir: str, step: int):
        self._ckpt_dir = ckpt_dir
        self._newest: int | None = step or None
        self._good: int | None = None

    @property
    def newest(self) -> str | None:
        """The file of the newest checkpoint, good or not yet known to be; None without one."""
        return params_path(self._ckpt_dir, self._newest) if self._newest else None

    @property
    def unfit(self) -> int | None:
        """The step of the newest checkpoint, if no step has been taken from it."""
        return None if self._newest == self._good else self._newest

    def saved(self, step: int) -> None:
        """Takes note of a checkpoint."""
        self._newest = step

    def stepped(self) -> int | None:
        """Takes note of a step that was not skipped. Returns the step of a checkpoint that is good
        from now on, before which others may be deleted; None where there is no such news."""
        if self._good == self._newest:
            return None
        self._good = self._newest
        return self._good

    @property
    def sentence(self) -> str:
        """The checkpoint to go back to, for people."""
        if self._newest is None:
            return "no checkpoint was saved yet"
        if self._good is None:
            return (
                f"not one step was taken after {self.newest}: --resume takes the checkpoint before it, "
                f"if there is one (--start_step {self._newest} takes it all the same)"
            )
        named = f"the last good checkpoint is {params_path(self._ckpt_dir, self._good)}"
        if self.unfit is not None:
            named += f", which --resume takes: no step was taken after the newer {self.newest}"
        return named


class Checkpoints:
    """Saves steps of a run and deletes older ones; every rank has it, and decides the same.

    `late`: whether a checkpoint waits for a step that is not skipped; `newest`: the step of the newest one, 0
    without.
    """

    def __init__(self, run: Run):
        self.late = False
        self._skipped = ""  # why the last step was
        self.newest = 0 if run.start.source else run.start.step
        self._run = run
        self._good = LastGood(run.config.checkpoint.ckpt_dir, self.newest)

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
            run.skips.update(not skipped, step, self._good.sentence, skipped)
        except NotFiniteError:
            self._set_aside()
            raise
        good = None if skipped else self._good.stepped()
        if good is not None and run.communicator.rank == 0:
            run.saver.prune(good, run.start.begun)

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
                f"{self._good.sentence}; lower --lr, or look at the data of these steps"
            )
        self.late = skipped and not (ended or (interrupted and run.scaler.searching))
        if not self.late:
            run.save(step, ended, prunes=ended and not skipped)
            self._good.saved(step)
            self.newest = step
        elif planned:
            run.reporter.warn(
                f"step {step} was skipped, since {self._skipped}: no checkpoint is saved or deleted; "
                f"{self._good.sentence}"
            )

    @property
    def _is_off(self) -> bool:
        """Whether the last step was skipped though its gradients were finite (training.guard)."""
        return self._skipped not in ("", NOT_FINITE)

    def _set_aside(self) -> None:
        """Has --resume pass over a checkpoint after which each step was skipped."""
        if self._good.unfit is not None and self._run.communicator.rank == 0:
            self._run.saver.set_aside(self._good.unfit)

    @property
    def remedy(self) -> str:
        """The end of a sentence: the checkpoint that --resume goes on from, where not the last step's."""
        return f", from {self._good.newest or 'the beginning'}" if self.late else ""
