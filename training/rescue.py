"""The state after the last complete step, saved by a rank that is left when others are lost.

All ranks hold it, and nothing of it is changed before all have agreed on a step. So rank 0, or one of the
others where rank 0 is what is missing, saves it before it ends, as a checkpoint like any other, and no more
is lost than the step that had been begun. The thread that trains may wait in a library for ever; it is the
watchdog's thread that saves (`Communicator.before_end`).

Where the disk does not take it, it stays in the memory of this host. In a pipeline one rank of each stage
saves that stage's part, and the next --resume joins them (training/left_behind.py).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from types import TracebackType
from typing import Any, Iterator, Mapping

import mxnet as mx
import numpy as np

from base.claims import Claim, HeldError
from base.errors import InputError, NotFiniteError, TrainingError
from bert.model import live_arrays, network_parameters
from comm.base import CommunicationError
from comm.bits import memory_of
from training.checkpoint import list_steps, save
from training.left_behind import ORDER, folder_of_part, keep_in_memory
from training.optimizer.shards import ShardedOptimizer
from training.run import Run
from training.saving import Finite, NotSavedError
from training.start.lock import LOCK_FILE

LOCK = "rescue{}.lock"  # of the rank that saves; of that for a stage of a pipeline
POLL = 0.1  # seconds
READABLE = 5.0  # seconds for the last update to be done
UNCHANGED = 5.0  # seconds that a step takes for its update at most
NOTICED = 5.0  # seconds for the watchdog, on a busy machine, too
SAVING = 600.0  # seconds that a rank leaves to another to save
YIELDING = 5.0  # the same of rank 0, which is to save where no other is


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
        self._there = list_steps(run.config.checkpoint.ckpt_dir)  # also of steps that are taken once more
        self._step = 0
        self._said: str | None = None

    def begin(self) -> None:
        """The state is about to be changed."""
        self._changing.acquire()

    def complete(self, step: int, ended: bool) -> None:
        """It is that of `step` now. One that was skipped for more than its loss scale has changed nothing.
        `ended`: as for `Run.state`."""
        run = self._run
        if run.skips.in_a_row == 0 or run.scaler.searching:
            self._step, self._facts = step, {**run.state(ended), "rescued": True}
        self._changing.release()

    def save(self, has_first: bool) -> str:
        """Saves it, once, from any thread. Returns where, for people. `has_first`: as for
        comm.base.LastAct."""
        self._begun.set()
        with self._saving:
            if self._said is None:
                self._said = self._save(has_first)
            return self._said

    def __enter__(self) -> Rescue:
        self._run.communicator.before_end(self.save)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        acts = self._run.communicator.rank == 0 or self._run.ranks.pipelined
        # Where a library has noticed a lost rank, the watchdog is about to.
        lost = isinstance(error, CommunicationError) or type(error).__name__ == "MXNetError"
        acts = acts or (lost and self._begun.wait(NOTICED))
        # The state is sound for all that is known, and its owner would want it.
        accident = isinstance(error, Exception) and not isinstance(error, InputError)
        if isinstance(error, TrainingError):  # a disk, or numbers that are wrong
            accident = isinstance(error.__cause__, OSError)
        if accident and acts:
            said = self.save(has_first=True)
            if said:
                self._run.reporter.warn(said)
        self._run.communicator.before_end(lambda has_first: "")
        if isinstance(error, NotSavedError):  # rank 0 may take long to keep the state; its end is this one's
            time.sleep(SAVING)

    def _save(self, has_first: bool) -> str:
        run, place, ranks = self._run, self._run.config.checkpoint.ckpt_dir, self._run.ranks
        if has_first and ranks.world.rank and not ranks.pipelined:  # rank 0 does it
            return ""
        if isinstance(run.optimizer, ShardedOptimizer):
            run.saver.wait()  # for a checkpoint that was begun: it needs the others no more
            said = f"step {self._step} is not saved: other ranks have some of its states (--shard_states)"
            return said if self._facts else ""
        # For good: no step that is taken from now on would be saved.
        if not self._changing.acquire(timeout=UNCHANGED) or self._facts is None:
            return ""
        if ranks.world.rank and not os.path.exists(os.path.join(place, LOCK_FILE)):  # another disk
            return ""
        if ranks.pipelined:
            stage, stages = ranks.coordinates.stage, ranks.coordinates.stages
            with _alone(os.path.join(place, LOCK.format(f"-{stage + 1}"))):
                return self._write(folder_of_part(place, stage, stages))
        run.saver.wait()
        # Also if rank 0 saves: each side of a network that is cut takes the other for lost, and a disk may be
        # of both.
        with _alone(os.path.join(place, LOCK.format("")), YIELDING if has_first else SAVING):
            return self._write(place)

    def _write(self, place: str) -> str:
        """Writes the state, or this stage's part, into a folder, or where that cannot be had into memory."""
        if self._step in list_steps(place) and self._step not in self._there:  # another rank has been here
            return f"step {self._step} is saved"
        run = self._run
        parameters: Mapping[str, Any] = live_arrays(network_parameters(run.model.network))
        states = run.optimizer.state_views()
        # For MXNet the next forward pass, which may wait for ever for a sum, writes to the weights that it
        # reads (those of operators that run as one). The fused update writes the states with the weights, and
        # nothing else does.
        written = states if run.optimizer.native else {**parameters, **states}
        waiting = threading.Thread(target=_wait_for, args=(written,), daemon=True)
        waiting.start()
        waiting.join(READABLE)
        if waiting.is_alive():
            return f"step {self._step} is not saved: MXNet is stuck in an exchange"
        parameters, states, facts = _in_place(parameters), _in_place(states), dict(self._facts or {})
        if run.ranks.pipelined:
            facts[ORDER] = list(run.model.network.bert._collect_params_with_prefix())
        try:
            save(place, self._step, Finite(self._step, parameters), states, facts)
        except NotFiniteError as error:
            return str(error)
        except TrainingError as error:
            if run.ranks.pipelined:
                return str(error)
            folder = keep_in_memory(place, self._step, parameters, states, facts)
            if folder is None:
                return str(error)
            return (
                f"step {self._step} is saved in this host's memory, {folder}, which the next --resume takes"
            )
        return f"step {self._step} is saved, --resume continues"


def _wait_for(arrays: Mapping[str, Any]) -> None:
    for array in arrays.values():
        if not isinstance(array, np.ndarray):
            getattr(array, "raw", array).wait_to_read()


def _in_place(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays on the CPU as they lie in memory, which are read without MXNet; they have been waited for."""
    return {
        name: memory_of(each, waits=False).view(each.dtype).reshape(each.shape)
        if getattr(each, "context", None) == mx.cpu()
        else each
        for name, each in arrays.items()
    }


@contextlib.contextmanager
def _alone(path: str, patience: float = SAVING) -> Iterator[None]:
    """Holds back all ranks but one until that one has saved, or has ended; so many seconds long at most."""
    claim = Claim(path, lambda other: None)
    until = time.monotonic() + patience
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
    except OSError:  # the disk takes nothing, and saving says so
        return True
