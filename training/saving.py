"""Saving in the background: a thread copies the state, then writes, syncs and renames while training goes on.

A checkpoint holds parameters and optimizer states, which a step changes in its last part alone, the update.
The copy is therefore made beside the forward and backward passes of the step that follows, and the update
waits for it (`Saver.sound`, which a step calls when its gradient is there). What is written is the copy, by a
thread of low priority: it computes checksums, for which training should not wait.

Of a pipeline rank 0 has a part of the state only. It receives the others' into the memory of the copy, while
the step goes on, and they send it from where it lies (training/pipeline/state.py): `Saver.sound` waits for
that too.

One checkpoint at a time: the next waits for the one before, and has its copy in the same memory, of
`copied_bytes`, which rank 0 holds from the first checkpoint on. Where that is not to be had, a checkpoint is
written from the arrays themselves while training waits, with a warning.

A failure, such as a full disk, or parameters that are not finite, is kept until the ranks agree on it at the
next step (`Saver.take`). This module does not import mxnet unless it copies arrays of its.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from base.errors import NotFiniteError, TrainingError
from base.memory import available_bytes
from bert.memory import MOMENT_BYTES
from bert.weights.tensors import to_numpy
from comm.base import Pending
from training.checkpoint import KEEP_ALL, PARAMS, STATES, Checkpoint, Kept, prune, save, set_aside

if TYPE_CHECKING:
    from training.report import Reporter

NICENESS = 10  # of the thread that writes: a tenth of the time that a thread which trains gets on a full core
Key = tuple[str, str]  # PARAMS or STATES, and the name of an array
_MASTER = 4  # bytes of the float32 copy of a float16 parameter


def copied_bytes(parameters: int, dtype: str, moments: str = "float32") -> int:
    """Memory that rank 0 needs for the copy of a model with so many parameters, in bytes: 12 each in float32
    and bfloat16 (whose parameters are float32), 14 in float16, the float32 masters included; 4 less with
    `moments` in bfloat16."""
    return parameters * (2 * MOMENT_BYTES[moments] + (2 + _MASTER if dtype == "float16" else 4))


class NotSavedError(TrainingError):
    """A failure of rank 0's, on the other ranks."""


class Saver:
    """Writes checkpoints of one directory, one at a time, in a thread; rank 0's. On the other ranks it has
    nothing to do. All methods are called from the thread that trains.

    As a context manager it waits, at the end of the block, until the disk has what was begun; an interrupt
    from the keyboard does not wait.

    Args:
        ckpt_dir: the directory. keep: as for `training.checkpoint.save`.
        reporter: receives a note for each checkpoint that is complete.
        available: bytes of memory that are free, asked when a copy needs more.
    """

    def __init__(
        self,
        ckpt_dir: str,
        keep: Kept,
        reporter: Reporter,
        available: Callable[[], float] = available_bytes,
    ):
        self.seconds = 0.0  # that the newest checkpoint took, from the copy to the disk
        self._ckpt_dir = ckpt_dir
        self._keep = keep
        self._reporter = reporter
        self._available = available
        self._buffers: dict[Key, np.ndarray] = {}
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        self._messages: list[Pending] = []
        self._arrived = threading.Event()
        self._saved: Checkpoint | None = None
        self._failure: BaseException | None = None
        self._keep_now = keep
        self._afterwards: list[Callable[[], None]] = []

    def begin(
        self,
        step: int,
        parameters: Mapping[str, Any],
        states: Mapping[str, Any],
        facts: Mapping[str, Any],
        prunes: bool = True,
    ) -> None:
        """Begins to save the checkpoint of `step`; arguments as for `training.checkpoint.save`. `prunes`:
        whether older ones are deleted when it is complete.

        Waits for the checkpoint before. The arrays may be read, but not changed, until `sound` or `finish`
        has returned. After a failure nothing more is saved.
        """
        if not self.finish():
            _drain([*parameters.values(), *states.values()])
            return
        self._copied.clear()
        self._arrived.clear()
        self._keep_now = self._keep if prunes else KEEP_ALL
        arrays = {(PARAMS, name): array for name, array in parameters.items()}
        arrays.update({(STATES, name): array for name, array in states.items()})
        try:
            copies = self._room(arrays)
        except MemoryError as error:
            self._reporter.warn(f"{error}: training waits while the checkpoint of step {step} is written")
            self._write(step, arrays, facts, time.monotonic())
            _drain(arrays.values())
            self._report()
            return
        self._messages += [each.receive(copies[key]) for key, each in arrays.items() if _is_elsewhere(each)]
        if not self._messages:
            self._arrived.set()
        self._thread = threading.Thread(
            target=self._copy_and_write, args=(step, arrays, copies, facts), name=f"save-{step}"
        )
        self._thread.start()

    def room(self, name: str, state: Any) -> np.ndarray:
        """The copy's memory for a state like this one, for `begin` to find it filled; after `finish`.

        Raises:
            TrainingError: there is no memory for it.
        """
        key = (STATES, name)
        try:
            return self._room({key: state})[key]
        except MemoryError as error:
            raise TrainingError(
                f"rank 0 cannot save what all ranks have: {error}; give its host more memory, or leave out "
                "--shard_states"
            ) from None

    def sound(self) -> bool:
        """Waits until all arrays have been copied, or sent: from then on they may be changed.

        Returns:
            whether nothing has failed so far.
        """
        self._exchange()
        if self._thread is not None:
            self._copied.wait()
            if not self._thread.is_alive():
                return self.finish()
        return self._failure is None

    def lend(self, messages: Iterable[Pending]) -> None:
        """Takes note of arrays that are on their way to rank 0, which `sound` and `finish` wait for."""
        self._messages += messages

    def _exchange(self) -> None:
        """Waits for all messages. In the thread that trains: communicators are for one thread."""
        for message in self._messages:
            message.wait()
        self._messages.clear()
        self._arrived.set()

    def finish(self) -> bool:
        """Waits until the disk has what was begun. Returns whether nothing has failed so far."""
        self._exchange()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._report()
        try:
            while self._afterwards and self._failure is None:
                self._afterwards.pop(0)()
        except OSError as error:
            self._failure = TrainingError(f"{error.filename} cannot be written: {error.strerror or error}")
        return self._failure is None

    @property
    def finite(self) -> bool:
        """Whether all parameters that were to be saved were finite."""
        return not isinstance(self._failure, NotFiniteError)

    def wait(self) -> None:
        """Waits, in any thread, until what was begun has been written, or could not be."""
        if self._thread is not None:
            self._thread.join()

    def prune(self, step: int, spared: int | None) -> None:
        """Deletes checkpoints up to `step` but for the newest, and that of the step `spared`, when what is
        being written is complete."""
        self.afterwards(partial(prune, self._ckpt_dir, step, self._keep, spared))

    def afterwards(self, act: Callable[[], None]) -> None:
        """Calls `act` when what is being written is complete, if it can be; an OSError of it is a failure."""
        self._afterwards.append(act)
        if self._thread is None or not self._thread.is_alive():
            self.finish()

    def set_aside(self, step: int) -> None:
        """Has --resume pass over the checkpoint of `step`, if there is an older one."""
        try:
            if self.finish():
                set_aside(self._ckpt_dir, step)
        except OSError as error:
            reason = error.strerror or error
            self._reporter.warn(
                f"the checkpoint of step {step}, which --resume takes, is not set aside: {reason}"
            )

    def flags(self) -> list[bool]:
        """Whether `sound`, and whether `finite`, for `take` (training.step.Decision)."""
        return [self.sound(), self.finite]

    def take(self, agreed: Sequence[bool]) -> None:
        """Ends the run after a failure; every rank calls it. `agreed`: whether `sound` or `finish` have
        returned True on every rank, and whether `finite` is.

        Raises:
            NotFiniteError: parameters are not finite.
            TrainingError: another failure. On rank 0 what has happened, also where it is another exception.
        """
        if all(agreed):  # a failure since then is for the next step, as on the other ranks
            return
        if self._failure is not None:
            raise self._failure
        if not agreed[1]:
            raise NotFiniteError("a parameter is no longer finite, so rank 0 has not saved it")
        raise NotSavedError("rank 0 could not save its checkpoint")

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            return
        if not self.finish() and error is not self._failure:
            self._reporter.warn(str(self._failure))
        self._buffers.clear()

    def _room(self, arrays: Mapping[Key, Any]) -> dict[Key, np.ndarray]:
        """Buffers for copies of `arrays`, those of the checkpoint before where they fit.

        Raises:
            MemoryError: there is no memory for them.
        """
        missing = {key: array for key, array in arrays.items() if not _fits(self._buffers.get(key), array)}
        needed = sum(math.prod(each.shape) * np.dtype(each.dtype).itemsize for each in missing.values())
        free = self._available() if missing else 0
        if needed > free:
            raise MemoryError(f"a copy of the state needs {needed:,} bytes more, and {free:,.0f} are free")
        for key, array in missing.items():
            self._buffers[key] = np.empty(array.shape, array.dtype)
        return {key: self._buffers[key] for key in arrays}

    def _copy_and_write(
        self,
        step: int,
        arrays: Mapping[Key, Any],
        copies: Mapping[Key, np.ndarray],
        facts: Mapping[str, Any],
    ) -> None:
        begun = time.monotonic()
        try:
            for key, array in arrays.items():
                if not _is_elsewhere(array) and array is not copies[key]:
                    _copy(array, copies[key])
        except BaseException as error:
            self._failure = error
            return
        finally:
            self._copied.set()
        self._arrived.wait()
        with contextlib.suppress(AttributeError, OSError):  # Linux has a priority for each thread
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        self._write(step, copies, facts, begun)

    def _write(self, step: int, arrays: Mapping[Key, Any], facts: Mapping[str, Any], begun: float) -> None:
        try:
            parameters, states = (
                {name: array for (kind, name), array in arrays.items() if kind == of}
                for of in (PARAMS, STATES)
            )
            finite = Finite(step, parameters)
            self._saved = save(self._ckpt_dir, step, finite, states, facts, self._keep_now)
        except BaseException as error:
            self._failure = error
        self.seconds = time.monotonic() - begun

    def _report(self) -> None:
        if self._saved is not None:
            self._reporter.note(f"saved {self._saved.params_path}")
            self._saved = None


def _copy(source: Any, target: np.ndarray) -> None:
    """Copies an MXNet array, from whatever device, a moment in bfloat16 (training.optimizer.states) or a
    NumPy array; other threads run meanwhile."""
    if hasattr(source, "raw"):
        source, target = source.raw, target.view(np.uint8)
    if not hasattr(source, "handle"):
        np.copyto(target, source, casting="no")
        return
    from mxnet.base import _LIB, check_call  # `asnumpy` would take new memory

    pointer, size = target.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(target.size)
    check_call(_LIB.MXNDArraySyncCopyToCPU(source.handle, pointer, size))


class Finite(Mapping[str, np.ndarray]):
    """Parameters, each looked at when it is read, which is while it is written: those of other ranks come
    once. Reading one that is not finite raises NotFiniteError."""

    def __init__(self, step: int, parameters: Mapping[str, Any]) -> None:
        self._step = step
        self._parameters = parameters

    def __getitem__(self, name: str) -> np.ndarray:
        array = to_numpy(self._parameters[name])
        if not np.isfinite(array).all():
            raise NotFiniteError(
                f"a parameter is no longer finite at step {self._step}, so it is not saved; lower --lr and "
                "--resume from the checkpoint before"
            )
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


def _is_elsewhere(array: Any) -> bool:
    """Whether an array is another rank's, which sends it (training.pipeline.state)."""
    return hasattr(array, "receive")


def _drain(arrays: Iterable[Any]) -> None:
    """Receives what other ranks send and nobody wants any more; they wait for that."""
    for array in arrays:
        if _is_elsewhere(array) and not array.taken:
            array.asnumpy()


def _fits(buffer: np.ndarray | None, array: Any) -> bool:
    return buffer is not None and buffer.shape == array.shape and buffer.dtype == np.dtype(array.dtype)
