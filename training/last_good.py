"""The last good checkpoint of a run: the newest one from which a step has been taken.

Parameters that one update has blown up are finite still, and so is a checkpoint of them; only the next
gradient shows it. So a checkpoint deletes no older one before a step has been taken from it, and is called
good no sooner. One from which no step could be taken is set aside when the run ends for that: --resume takes
the one before.
"""

from __future__ import annotations

from training.checkpoint import params_path


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
        """Takes note of a step whose gradients were finite. Returns the step of a checkpoint that is good
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
                f"not one step after {self.newest} had finite ones: --resume takes the checkpoint before it, "
                f"if there is one (--start_step {self._newest} takes it all the same)"
            )
        named = f"the last good checkpoint is {params_path(self._ckpt_dir, self._good)}"
        if self.unfit is not None:
            named += f", which --resume takes: no step after the newer {self.newest} had finite ones"
        return named
