"""The interface between training and a communication library.

Rules that hold for every implementation:

- Collectives. Every rank calls the same methods in the same order, with arrays of the same number, shapes and
  dtypes. A call that only some ranks make leaves them waiting.
- One thread. The methods of one communicator, and of its groups, are called from one thread.
- Arrays are dense `mxnet.nd.NDArray`s, all of one call on one device. They are changed in place. Where the
  arrays live is the caller's choice (on GPU machines `mx.gpu(communicator.local_rank)`).
- No names. An implementation that needs names for its library derives them from an array's position and
  shape, so that a training step finds the names of the step before it.

When a rank ends without `close` the others notice: a method that blocks raises `CommunicationError`, and
reading an array that `average` was working on raises `mxnet.base.MXNetError`. A rank that fails therefore
lets its exception end the interpreter, or calls `abort`; it does not call `close`, which may wait for the
others.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Protocol, Sequence

if TYPE_CHECKING:
    from mxnet.nd import NDArray

AVERAGE_DTYPES = ("float16", "float32", "float64")
BROADCAST_DTYPES = (*AVERAGE_DTYPES, "uint8", "int8", "int32", "int64")
MOST_TAG = 32767  # all that MPI promises


# Takes whether rank 0 is still there. Returns what it has done, as the end of a sentence for people; empty
# for nothing.
LastAct = Callable[[bool], str]


class CommunicationError(RuntimeError):
    """The exchange with the other ranks failed, most often because one of them has ended."""


class Pending(Protocol):
    """A message on its way."""

    def wait(self) -> None:
        """Returns when the message has arrived, or when what was sent may be changed. Calling it again does
        nothing. Raises CommunicationError."""

    def done(self) -> bool:
        """Whether `wait` would return at once. Raises CommunicationError."""


class Communicator(Protocol):
    """Exchange of arrays between the ranks of one run, or of a group of them."""

    @property
    def name(self) -> str:
        """Name of the library, for records: "horovod", "byteps", or "local" where there is none."""

    @property
    def rank(self) -> int:
        """This process, 0 <= rank < size."""

    @property
    def size(self) -> int:
        """Number of processes of the run."""

    @property
    def local_rank(self) -> int:
        """This process among those on its host, 0 <= local_rank < local_size: the index of its GPU."""

    @property
    def local_size(self) -> int:
        """Number of processes on this host."""

    @property
    def together(self) -> int:
        """Bytes up to which neighbouring arrays are better averaged as one contiguous array
        (comm/buckets.py); 0: each by itself."""

    def broadcast(self, arrays: Sequence[NDArray], root: int = 0) -> None:
        """Gives every rank the values that rank `root` has, bit for bit and whatever the others held before,
        NaN included. In place; returns when this rank's arrays hold them.

        dtypes: float16, float32, float64, uint8, int8, int32, int64. An empty sequence is allowed.
        Raises TypeError or ValueError for an array that cannot be sent, ValueError for a root out of range,
        CommunicationError.
        """

    def average(self, arrays: Sequence[NDArray]) -> None:
        """Replaces each array by its mean over all ranks: the sum divided by `size`, bit-identical on all
        ranks.

        Asynchronous, like an MXNet operator: the call returns after queueing, the exchange of an array starts
        when the operators queued before it have written it, and whoever reads it afterwards waits for the
        mean. The call may wait only for an array that it has never been given before. Queued right after
        `backward()` it overlaps the backward pass. Arrays that become ready together are sent in the order
        of the list: put first what is needed first.

        dtypes: float16, float32, float64. The sum is formed in the array's own dtype, in float16 from values
        already divided by `size`, so that it overflows only where the mean does. inf and NaN arrive at every
        rank. An empty sequence is allowed. Raises TypeError or ValueError, before anything is sent, for an
        array that cannot be averaged.
        """

    def scaled_average(self, arrays: Sequence[NDArray]) -> float:
        """As `average`, but leaves a factor times the means and returns the factor: `size`, so that the
        arrays hold the sums, or 1. The reader divides by it. It is the same on all ranks, and in all groups
        of one size for arrays of one dtype.

        For large arrays that the reader multiplies anyway: dividing them here is a pass over the memory. The
        factor is 1 for float16, which is divided before the sum, and in a wrapper that has an `average` of
        its own, such as one that compresses.
        """

    def all_agree(self, flags: Sequence[bool]) -> list[bool]:
        """The logical AND over all ranks of each flag, in one round trip for all of them. Blocks until every
        rank has called it. `flags` has the same length on all ranks. Raises CommunicationError."""

    def barrier(self) -> None:
        """Returns after every rank has called it. Raises CommunicationError."""

    def groups(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """Divides the ranks, each of which is in one group, and returns the communicator of this rank's own.
        Every rank calls it with the same groups. A group's communicator cannot be divided again.

        In a group `rank` is an index of its list, and `size` its length; `local_rank` and `local_size` stay
        those of the run. Collectives of different groups, and of the run, do not mix, whatever their arrays.
        `forget` and `close` of the run include the groups; a group's own do nothing.

        Raises ValueError where a rank is missing or twice, CommunicationError, and InputError for a library
        that has no groups.
        """

    def send(self, array: NDArray, to: int, tag: int) -> Pending:
        """Sends an array to rank `to`, whose `receive` names this rank and the same tag. It waits until the
        operators queued before have written the array, not until it is received; the array is not changed
        before the result's `wait` has returned.

        A rank does not wait for a send before it has posted the receives that the others wait for: a large
        message is on its way only when its receive is posted. Messages between two ranks with one tag arrive
        in their order. tag: 0 to 32767. Dense arrays of any dtype, also NumPy's, if contiguous.

        Raises ValueError for ranks and tags out of range and for this rank itself, TypeError, and InputError
        for a library that has no messages between two ranks.
        """

    def receive(self, array: NDArray, source: int, tag: int) -> Pending:
        """Receives into an array what rank `source` sends with this tag, of the same number of bytes. The
        array is neither read nor written before the result's `wait` has returned. Raises as `send`."""

    def forget(self) -> None:
        """Releases all arrays, and what a compression keeps for them (its error feedback begins anew), before
        another training begins, or after a gradient that is not taken. Every rank calls it. Raises
        CommunicationError."""

    def before_end(self, act: LastAct) -> None:
        """Sets the function that is called, in another thread, before this process ends because other ranks
        are lost. It replaces the one set before."""

    def give_up(self, why: str) -> None:
        """Ends the run as if a rank were lost, `before_end`'s act included, because something else that the
        run needs is lost. Called on rank 0 alone, from any thread."""

    def close(self) -> None:
        """Finishes what `average` has queued and leaves the run in order; every rank calls it at its normal
        end. Calling it again does nothing; no other method may follow, nor a second communicator in the same
        process."""


class Unwatched:
    """Empty members of a `Communicator` that has no other ranks, or does not watch them."""

    together = 0

    def before_end(self, act: LastAct) -> None:
        pass

    def give_up(self, why: str) -> None:
        pass


class DelegatingCommunicator:
    """Base of wrappers that change some members of a `Communicator`: all others are `inner`'s."""

    together = 0  # compression works on each array by itself

    def __init__(self, inner: Communicator) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def average(self, arrays: Sequence[NDArray]) -> None:
        self._inner.average(arrays)

    def scaled_average(self, arrays: Sequence[NDArray]) -> float:
        # Not the inner one's, so that an `average` of the subclass holds here too.
        self.average(arrays)
        return 1.0

    def close(self) -> None:
        self._inner.close()


def abort(exit_code: int) -> NoReturn:
    """Ends this process at once, without an interpreter shutdown that could wait for threads or for other
    ranks.

    The launcher sees the exit code and ends the other ranks: mpirun exits with this code, horovodrun with 1.
    For a rank that has failed (or knows that another one has) and has said so; flushes the standard streams.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # closed, or the reader is gone
            continue
    os._exit(exit_code)


def check_arrays(arrays: Sequence[NDArray], dtypes: Sequence[str]) -> None:
    """Raises TypeError for an element that is not a dense NDArray of one of `dtypes`, ValueError for an empty
    one and for arrays on different devices. The message gives the position in `arrays`."""
    for index, array in enumerate(arrays):
        storage = getattr(array, "stype", None)
        if storage is None:
            raise TypeError(f"arrays[{index}] is a {type(array).__name__}, not an mxnet.nd.NDArray")
        if storage != "default":
            raise TypeError(
                f"arrays[{index}] has {storage} storage; only dense arrays can be exchanged: "
                "create the parameter with grad_stype='default', or convert with tostype('default')"
            )
        dtype = getattr(array.dtype, "__name__", str(array.dtype))
        if dtype not in dtypes:
            raise TypeError(f"arrays[{index}] is {dtype}; possible are {', '.join(dtypes)}")
        if array.size == 0:
            raise ValueError(f"arrays[{index}] of shape {array.shape} has no elements")
        if array.context != arrays[0].context:
            raise ValueError(f"arrays[{index}] is on {array.context}, arrays[0] on {arrays[0].context}")


def check_root(root: int, size: int) -> None:
    """Raises ValueError unless 0 <= root < size."""
    if not 0 <= root < size:
        raise ValueError(f"root {root} is not a rank; ranks are 0 to {size - 1}")


def check_groups(groups: Sequence[Sequence[int]], size: int) -> None:
    """Raises ValueError unless each of `size` ranks is in one group."""
    found = sorted(rank for group in groups for rank in group)
    if found != list(range(size)) or not all(groups):
        raise ValueError(
            f"groups {[list(group) for group in groups]} do not divide the ranks 0 to {size - 1}"
        )


def check_message(other: int, tag: int, rank: int, size: int) -> None:
    """Raises ValueError for a message that rank `rank` of `size` cannot exchange with rank `other`."""
    if not 0 <= other < size or other == rank:
        raise ValueError(f"rank {rank} of {size} exchanges no messages with rank {other}")
    if not 0 <= tag <= MOST_TAG:
        raise ValueError(f"tag {tag} is not in 0 to {MOST_TAG}")
