"""The state after the last complete step, saved by a rank that is left when others are lost.

All ranks hold it, and nothing of it is changed before all have agreed on a step. So rank 0, or one of the
others where rank 0 is what is missing, saves it before it ends, as a checkpoint like any other, and no more
is lost than the step that had been begun. The thread that trains may wait in a library for ever; it is the
watchdog's thread that saves (`Communicator.before_end`).

Where the disk does not take it, it stays in the memory of this host (training/in_memory.py). Of a pipeline no
rank holds the whole state: its runs go on from their last checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from types import TracebackType
from typing import Any, Iterator

from base.claims import Claim, HeldError
from base.errors import InputError, NotFiniteError, TrainingError
from bert.model import network_parameters
from training.checkpoint import list_steps, save
from training.in_memory import keep_in_memory
from training.run import Run
from training.saving import check_finite
from training.start.lock import LOCK_FILE
from training.start.restoring import live_arrays

LOCK = "rescue.lock"  # of the rank that saves, where rank 0 is missing
POLL = 0.1  # seconds
UNCHANGED = 5.0  # seconds that a step takes for its update at most
NOTICED = 2.0  # seconds that the watchdog takes where a library notices a lost rank first
SAVING = 600.0  # seconds that a rank leaves to another to save


class Rescue:
    """The state of a loop, whole between `complete` and the next `begin`, which a step calls in turn.

    As a context manager around the loop: what ends it on rank 0 has the state saved, too, unless the numbers
    themselves are the reason, or the run is to be left at once.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._changing = threading.Lock()  # held from `begin` to `complete`
        self._saving = threading.Lock()
        self._begun = threading.Event()
        self._facts: dict[str, Any] | None = None  # of the state, once it is another than at the start
        self._step = 0
        self._said: str | None = None

    def begin(self) -> None:
        """The state is about to be changed."""
        self._changing.acquire()

    def complete(self, step: int) -> None:
        """It is that of `step` now. One that was skipped for more than its loss scale has changed nothing."""
        run = self._run
        if run.skips.in_a_row == 0 or run.scaler.searching:
            self._step, self._facts = step, {**run.state(), "rescued": True}
        self._changing.release()

    def save(self, leads: bool) -> str:
        """Saves it, once, from any thread. `leads`: as for comm.base.LastAct. Returns where, for people."""
        self._begun.set()
        with self._saving:
            if self._said is None:
                self._said = self._save(leads)
            return self._said

    def __enter__(self) -> Rescue:
        self._run.communicator.before_end(self.save)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and _is_accident(error):
            if self._run.communicator.rank == 0:
                said = self.save(leads=True)
                if said:
                    self._run.reporter.warn(said)
            elif self._begun.wait(NOTICED):  # by the watchdog
                self.save(leads=False)
        self._run.communicator.before_end(lambda leads: "")

    def _save(self, leads: bool) -> str:
        run, place = self._run, self._run.config.checkpoint.ckpt_dir
        # For good: no step that is taken from now on would be saved.
        if run.ranks.pipelined or not self._changing.acquire(timeout=UNCHANGED):
            return ""
        if self._facts is None or not (leads or os.path.exists(os.path.join(place, LOCK_FILE))):
            return ""
        run.saver.wait()
        with contextlib.nullcontext() if leads else _alone(place):
            if self._step in list_steps(place):
                return f"step {self._step} is saved"
            return self._write(place)

    def _write(self, place: str) -> str:
        """Writes the state into the folder, or where that cannot be had into memory."""
        run = self._run
        parameters = live_arrays(network_parameters(run.model.network))
        states = run.optimizer.state_views()
        try:
            check_finite(self._step, parameters)
            save(place, self._step, parameters, states, self._facts or {})
        except NotFiniteError as error:
            return str(error)
        except TrainingError as error:
            folder = keep_in_memory(place, self._step, parameters, states, self._facts or {})
            if folder is None:
                return str(error)
            return (
                f"step {self._step} is saved in this host's memory, {folder}, which the next --resume takes"
            )
        return f"step {self._step} is saved, --resume continues"


def _is_accident(error: Exception) -> bool:
    """Whether the state is sound for all that is known, and its owner would want it."""
    if isinstance(error, TrainingError):  # a disk, or numbers that are wrong
        return isinstance(error.__cause__, OSError)
    return not isinstance(error, InputError)


@contextlib.contextmanager
def _alone(place: str) -> Iterator[None]:
    """Holds back all ranks but one, of those that miss rank 0, until that one has saved, or has ended."""
    claim = Claim(os.path.join(place, LOCK), lambda other: None)
    until = time.monotonic() + SAVING
    while not _claimed(claim) and time.monotonic() < until:
        time.sleep(POLL)
    try:
        yield
    finally:
        claim.release()


def _claimed(claim: Claim) -> bool:
    try:
        return claim.attempt()
    except HeldError:
        return False
