"""`comm.base.Communicator` over byteps.mxnet 0.2.5.

Arrays are summed by servers (and, between the ranks of one worker, by NCCL or by our host runtime) and then
divided by the number of ranks, by this module or, of gradients, by the optimizer (`scaled_average`: a pass
over the memory less, which took MXNet's division a seventh of BERT-base's bfloat16 step); float16 is divided
first, so that it overflows only where the mean does.

Small arrays are packed into contiguous buckets (a training step's gradients lie in such already); an array
that fills a bucket by itself travels from where it lies. Buckets are queued in the order in which the
backward pass makes them ready, with priorities in the order in which the next forward pass needs them.

With two workers the result is the same bits in every run. With more, a server adds the workers' values in the
order of their arrival, so the last bits differ between runs, unless BYTEPS_REPRODUCIBLE makes it add in
theirs; all ranks of one run have the same bits.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

from base.errors import InputError
from comm.base import (
    AVERAGE_DTYPES,
    BROADCAST_DTYPES,
    CommunicationError,
    Pending,
    Unwatched,
    check_arrays,
    check_root,
)
from comm.bits import bits_of
from comm.buckets import BUCKET_BYTES, Bucket, make_buckets
from comm.byteps.environment import complete_environment, read_place, read_servers
from comm.byteps.library import BytePSLibrary
from comm.numbering import Servers, even_numbers, partition_bytes_of

if TYPE_CHECKING:
    from mxnet.nd import NDArray

BROADCAST_BUCKETS = 8  # on their way at the same time: bounds the memory that copies take


class BytePSCommunicator(Unwatched):
    """Joins the run that hosts/launch.py or bpslaunch has started; started without a launcher it is a
    run of one process.

    Args:
        bucket_bytes: size of the buckets that small arrays are packed into.
        compressor: BytePS's own settings for averages, such as {"compressor_type": "onebit"}.

    Raises:
        InputError: BytePS's variables are missing or contradict each other, BytePS is not installed for
            MXNet, or it is built for GPUs and this rank has none.
    """

    name = "byteps"

    def __init__(self, bucket_bytes: int = BUCKET_BYTES, compressor: Mapping[str, str] | None = None) -> None:
        environ = os.environ
        complete_environment(environ)
        place = read_place(environ)
        # A compressor's pieces must not be cut.
        servers = int(environ["DMLC_NUM_SERVER"]) if place.distributed and not compressor else 1
        environ.setdefault("BYTEPS_PARTITION_BYTES", str(partition_bytes_of(servers)))
        environ.setdefault("BYTEPS_THREADPOOL_SIZE", "1")  # without it BytePS has no threads for compressors
        self.rank, self.size = place.rank, place.size
        self.local_rank, self.local_size = place.local_rank, place.local_size
        self.together = bucket_bytes
        self._compressor = dict(compressor or {})
        self._mx: Any = importlib.import_module("mxnet")
        self._np: Any = importlib.import_module("numpy")
        self._library = BytePSLibrary()
        self._library.start(place.local_rank)
        self._channels = Channels(self._library, read_servers(environ, place))
        self._plans: dict[tuple[tuple[str, int], ...], list[Bucket]] = {}
        self._buffers: dict[str, NDArray] = {}
        self._open = True

    def broadcast(self, arrays: Sequence[NDArray], root: int = 0) -> None:
        check_root(root, self.size)
        check_arrays(arrays, BROADCAST_DTYPES)
        if self.size == 1:
            return
        buckets = list(enumerate(self._plan(arrays)))
        self._channels.declare(
            {f"{number}.{bucket.nbytes}.A": bucket.nbytes for number, bucket in buckets}, {}
        )
        for start in range(0, len(buckets), BROADCAST_BUCKETS):
            chosen = buckets[start : start + BROADCAST_BUCKETS]
            bits = bits_of([[arrays[index] for index in bucket.indices] for _, bucket in chosen])
            if self.rank != root:
                for each in bits:
                    each.clear()
            self._channels.add(
                [Sum(f"{number}.{bucket.nbytes}", each.sum) for (number, bucket), each in zip(chosen, bits)],
                {},
            )
            self._wait()
            for each in bits:
                each.write_back()
        self.barrier()  # the ranks have met: averages of such arrays begin with the same names

    def average(self, arrays: Sequence[NDArray]) -> None:
        check_arrays(arrays, AVERAGE_DTYPES)
        self._average(arrays, divide=True)

    def scaled_average(self, arrays: Sequence[NDArray]) -> float:
        check_arrays(arrays, AVERAGE_DTYPES)
        divide = any(array.dtype.__name__ == "float16" for array in arrays)
        self._average(arrays, divide)
        return 1.0 if divide else float(self.size)

    def _average(self, arrays: Sequence[NDArray], divide: bool) -> None:
        """`divide`: whether float32 and float64 are divided by the number of ranks; float16 always is."""
        if self.size == 1 or not arrays:
            return
        kind = "compressed." if self._compressor else ""
        sums = []
        buckets = self._plan(arrays)
        for number, bucket in enumerate(buckets):
            key = f"{kind}{number}.{bucket.nbytes}"
            payload = self._pack(key, [arrays[index] for index in bucket.indices])
            if bucket.dtype == "float16":
                payload /= self.size
            sums.append(Sum(key, payload, priority=-bucket.indices[0]))
        self._channels.add(sums, self._compressor)
        for bucket, item in zip(buckets, sums):
            if divide and bucket.dtype != "float16":
                payload = item.array
                payload /= self.size
            self._unpack(item.array, [arrays[index] for index in bucket.indices])

    def all_agree(self, flags: Sequence[bool]) -> list[bool]:
        if self.size == 1 or not flags:
            return [bool(flag) for flag in flags]
        self._wait()  # so that a rank that meets the others has received all its sums: see Channels
        # Each rank counts its objections; nobody objects where the sum is 0.
        votes = self._mx.nd.array([int(not flag) for flag in flags], ctx=self._mx.cpu(), dtype="int32")
        self._channels.add([Sum(f"all_agree.{len(flags)}", votes)], {}, meeting=True)
        self._wait()
        self._channels.new_era()
        return [objections == 0 for objections in votes.asnumpy().tolist()]

    def barrier(self) -> None:
        self.all_agree([True])

    def groups(self, groups: Sequence[Sequence[int]]) -> BytePSCommunicator:
        raise _lacking("groups of ranks")

    def send(self, array: NDArray, to: int, tag: int) -> Pending:
        raise _lacking("messages between two ranks")

    def receive(self, array: NDArray, source: int, tag: int) -> Pending:
        raise _lacking("messages between two ranks")

    def forget(self) -> None:
        self.barrier()  # and so every channel begins with name A again: see Channels
        self._plans.clear()
        self._buffers.clear()
        self._channels.forget()

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self.barrier()
        self._library.stop()

    def _plan(self, arrays: Sequence[NDArray]) -> list[Bucket]:
        sizes = tuple(
            (array.dtype.__name__, array.size * self._np.dtype(array.dtype).itemsize) for array in arrays
        )
        if sizes not in self._plans:
            self._plans[sizes] = make_buckets(sizes, self.together)
        return self._plans[sizes]

    def _pack(self, key: str, arrays: list[NDArray]) -> NDArray:
        if len(arrays) == 1:
            return arrays[0]
        flat = [array.reshape((-1,)) for array in arrays]
        key = f"{key}.{arrays[0].dtype.__name__}.{arrays[0].context}"
        if key not in self._buffers:
            size = sum(array.size for array in arrays)
            self._buffers[key] = self._mx.nd.empty((size,), ctx=arrays[0].context, dtype=arrays[0].dtype)
        return self._mx.nd.concat(*flat, dim=0, out=self._buffers[key])

    def _unpack(self, payload: NDArray, arrays: list[NDArray]) -> None:
        if len(arrays) == 1:
            return
        start = 0
        for array in arrays:
            flat = array.reshape((-1,))
            self._mx.nd.slice_axis(payload, axis=0, begin=start, end=start + array.size, out=flat)
            start += array.size

    def _wait(self) -> None:
        try:
            self._channels.wait()
        except self._mx.base.MXNetError as error:
            reason = str(error).strip().splitlines()[-1]
            raise CommunicationError(f"rank {self.rank} lost the other ranks: {reason}") from error


def _lacking(what: str) -> InputError:
    """The error of what BytePS does not have."""
    return InputError(f"BytePS has no {what}; start run_pretraining_hvd.py, which exchanges over Horovod")


class Sum(NamedTuple):
    """An array to sum in place, on the channel `key`. Highest priority first."""

    key: str
    array: NDArray
    priority: int = 0


class _Channel:
    """The history of one channel."""

    def __init__(self) -> None:
        self.turn = 1  # of the latest use; 0: name A, 1: name B
        self.era = -1
        self.array: NDArray | None = None


class Channels:
    """Sums over the ranks through BytePS's servers, without the servers' race. Every rank makes the same
    calls in the same order.

    A server keeps one buffer for each name. A worker's next push is copied into it before the pull of a
    slower worker has been answered with the sum of the time before; the slower worker then receives the
    faster one's bare gradient and no error shows it (docs/byteps.md shows how to recognise it). So no push
    may overtake a pull.

    A channel is a place for sums of a fixed number of bytes; it has two names, used in turn:

        rank 0 pushes name A for sum n, B for n + 1, and A again for n + 2. It does the last only when it has
        received sum n + 1, which needs every rank's push n + 1; and a rank pushes n + 1 only when it has
        received sum n. So all pulls of sum n have been answered before anything is pushed over it.

    The same end is reached, with a single name and half the memory and start-up time, where the program
    itself meets in between: `new_era` is called when every rank is known to have received all its sums, and
    the use of a channel thereafter begins with name A again. A training step that agrees after it has
    averaged never needs the second name, and it is declared only when needed.

    Names get numbers with which the servers have equal shares (comm.numbering).

    New names are made known to the servers while none of our sums is on its way. The server's handler inserts
    them into tables that its engine threads read without a lock.
    """

    def __init__(self, library: BytePSLibrary, servers: Servers | None = None) -> None:
        self._library, self._servers = library, servers
        self._channels: dict[str, _Channel] = {}
        self._declared: set[str] = set()  # have a number
        self._known: set[str] = set()  # to the servers, too
        self._numbers = 0  # given by BytePS so far
        self._loads = [0.0] * (servers.apart + servers.beside if servers else 0)  # bytes of each server
        self._era = 0
        self._pending: dict[str, NDArray] = {}

    def add(self, sums: Sequence[Sum], compressor: Mapping[str, str], meeting: bool = False) -> None:
        """Queues the sums.

        A key always comes with the same number of bytes. compressor: BytePS's settings for names that are
        new. meeting: the sum is itself how the ranks meet; it cannot rely on having met.
        """
        names = [self._next_name(item, meeting) for item in sums]
        release = None
        if not self._known.issuperset(names):
            self.wait()
            sizes = [item.array.size * item.array.dtype().itemsize for item in sums]
            self.declare(dict(zip(names, sizes)), compressor)
            # The first push_pull makes a name known; until the release nothing else travels.
            release = self._library.hold([item.array for item in sums])
            self._known.update(names)
        for name, item in zip(names, sums):
            self._library.push_pull(item.array, name, item.priority)
            self._pending[item.key] = item.array
        if release is not None:
            release()

    def declare(self, sizes: Mapping[str, int], compressor: Mapping[str, str]) -> None:
        """Gives names their numbers, as far as they have none. Those of one call have the most even shares.

        Args:
            sizes: name -> bytes.
            compressor: BytePS's settings for them.
        """
        new = [name for name in sizes if name not in self._declared]
        numbers = list(range(self._numbers, self._numbers + len(new)))
        if self._servers:
            numbers = even_numbers([sizes[name] for name in new], self._servers, self._numbers, self._loads)
        named = dict(zip(numbers, new))
        for number in range(self._numbers, max(named, default=-1) + 1):
            unused = number not in named
            self._library.declare(named.get(number, f"unused.{number}"), {} if unused else compressor)
            self._numbers = number + 1
        self._declared.update(new)

    def wait(self) -> None:
        """Returns when this rank has received all its sums."""
        for array in self._pending.values():
            array.wait_to_read()
        self._pending.clear()

    def new_era(self) -> None:
        """Begins every channel with name A again. Called when every rank has returned from `wait` and each
        knows it of all others."""
        self._era += 1

    def forget(self) -> None:
        """Lets go of the arrays; to be called after `wait`. The names stay known to the servers, and serve
        the next arrays of their sizes."""
        for channel in self._channels.values():
            channel.array = None

    def _next_name(self, item: Sum, meeting: bool) -> str:
        channel = self._channels.setdefault(item.key, _Channel())
        if channel.array is not item.array:
            if channel.array is not None:
                # MXNet's engine keeps the order of one array's uses, not of two's.
                channel.array.wait_to_read()
            # BytePS asks at once where the array lies. Where the engine is just giving it memory, both do so,
            # and what is computed goes to one place while BytePS reads another.
            item.array.wait_to_read()
            channel.array = item.array
        fresh = channel.era < self._era and not meeting
        channel.turn = 0 if fresh else 1 - channel.turn
        channel.era = self._era
        return f"{item.key}.{'AB'[channel.turn]}"
