"""Messages between two ranks over MPI, beside Horovod, which has none.

mpi4py works on the MPI that Horovod has initialized, for several threads (MPI_THREAD_MULTIPLE), with a
communicator of its own, so that its messages never meet Horovod's. Sends and receives are asynchronous; what
moves large messages while this rank computes is Horovod's background thread, which calls MPI every
millisecond.

Waiting asks and sleeps: MPI's own wait would take a core from the ranks that compute on the same machine.
"""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from base.errors import InputError, not_loaded
from comm.base import CommunicationError, check_message
from comm.bits import memory_of

if TYPE_CHECKING:
    from mxnet.nd import NDArray

_EAGER = 50  # questions without a break: what comes at once is not slept for
_SHORTEST, _LONGEST = 2e-5, 5e-4  # seconds between two questions


class Messages:
    """The messages of this rank; made by every rank, after Horovod has begun and before it ends.

    Raises:
        InputError: mpi4py cannot be loaded, or MPI is not initialized for several threads.
    """

    def __init__(self) -> None:
        try:
            settings = importlib.import_module("mpi4py")
            settings.rc.initialize = settings.rc.finalize = False  # Horovod does both
            self._mpi: Any = importlib.import_module("mpi4py.MPI")
        except (ImportError, OSError, RuntimeError) as error:
            raise not_loaded("mpi4py", error) from error
        if not self._mpi.Is_initialized() or self._mpi.Query_thread() != self._mpi.THREAD_MULTIPLE:
            raise InputError(
                "--pipeline_stages needs MPI for several threads, and Horovod does not run over one; start "
                "with mpirun (horovodrun --gloo has no messages between two ranks)"
            )
        self._world = self._mpi.COMM_WORLD.Dup()
        self.rank: int = self._world.Get_rank()
        self.size: int = self._world.Get_size()

    def send(self, array: NDArray | np.ndarray, to: int, tag: int) -> Message:
        """See `comm.base.Communicator.send`."""
        check_message(to, tag, self.rank, self.size)
        if hasattr(array, "wait_to_read"):
            array.wait_to_read()
        sent = _bytes_of(array)
        request = self._world.Isend([sent, self._mpi.BYTE], to, tag)
        return Message(request, (array, sent), f"to rank {to}")

    def receive(self, array: NDArray | np.ndarray, source: int, tag: int) -> Message:
        """See `comm.base.Communicator.receive`."""
        check_message(source, tag, self.rank, self.size)
        on_device = _on_device(array)
        room = (
            np.empty(array.size * np.dtype(array.dtype).itemsize, np.uint8) if on_device else _bytes_of(array)
        )
        request = self._world.Irecv([room, self._mpi.BYTE], source, tag)
        then = (lambda: _fill(array, room)) if on_device else None
        return Message(request, (array, room), f"from rank {source}", then)

    def close(self) -> None:
        """Frees the communicator; every rank calls it, after its last message."""
        self._world.Free()


class Message:
    """A message on its way; see `comm.base.Pending`. `held`: what must not be freed until it is complete;
    `then`: called when it is."""

    def __init__(self, request: Any, held: Any, where: str, then: Callable[[], None] | None = None):
        self._request = request
        self._held = held
        self._where = where
        self._then = then

    def done(self) -> bool:
        if self._request is None:
            return True
        try:
            arrived = self._request.Test()
        except Exception as error:  # mpi4py's own, a RuntimeError, which is not imported here
            raise CommunicationError(f"a message {self._where} failed: {error}") from error
        if arrived:
            if self._then is not None:
                self._then()
            self._request = self._held = self._then = None
        return bool(arrived)

    def wait(self) -> None:
        pause, turn = _SHORTEST, 0
        while not self.done():
            turn += 1
            if turn > _EAGER:
                time.sleep(pause)
                pause = min(_LONGEST, 1.5 * pause)


def _on_device(array: Any) -> bool:
    return hasattr(array, "context") and array.context.device_type != "cpu"


def _bytes_of(array: Any) -> np.ndarray:
    """The memory of an array on the CPU, a copy of what is on a device. TypeError for what is not dense, or
    not contiguous."""
    if _on_device(array):
        return array.asnumpy().reshape(-1).view(np.uint8)
    if isinstance(array, np.ndarray):
        if not array.flags.c_contiguous:
            raise TypeError("an array that is exchanged must be contiguous")
        return array.reshape(-1).view(np.uint8)
    if getattr(array, "stype", None) != "default":
        raise TypeError(f"{type(array).__name__} is no dense array, and cannot be exchanged")
    return memory_of(array)


def _fill(array: Any, room: np.ndarray) -> None:
    array[:] = room.view(array.dtype).reshape(array.shape)
