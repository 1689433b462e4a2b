"""`comm.base.Communicator` over byteps.mxnet 0.2.5.

Arrays are summed by servers (and, between the ranks of one worker, by NCCL or by our host runtime) and then
divided by the number of ranks; float16 is divided first, so that it overflows only where the mean does.

Small arrays are packed into contiguous buckets, an array that fills a bucket by itself travels from where it
lies. Buckets are queued in the order in which the backward pass makes them ready, with priorities in the
order in which the next forward pass needs them.

With two workers the result is the same bits in every run. With more, a server adds the workers' values in the
order of their arrival, so the last bits differ between runs; all ranks of one run have the same bits.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Mapping, MutableMapping, Sequence

from comm.base import AVERAGE_DTYPES, BROADCAST_DTYPES, CommunicationError, check_arrays, check_root
from comm.bits import bits_of
from comm.buckets import Bucket, make_buckets
from comm.byteps.channels import Channels, Sum
from comm.byteps.environment import complete_environment, read_place
from comm.byteps.library import BytePSLibrary

if TYPE_CHECKING:
    from mxnet.nd import NDArray

BUCKET_BYTES = 1 << 20
# Tensors are cut into pieces of this size, which the stages of BytePS's pipeline work on at the same time.
PARTITION_BYTES = 4 << 20
BROADCAST_BUCKETS = 8  # on their way at the same time: bounds the memory that copies take


class BytePSCommunicator:
    """Joins the run that hosts/launch_byteps.py or bpslaunch has started; started without a launcher it is a
    run of one process.

    Args:
        bucket_bytes: size of the buckets that small arrays are packed into.
        compressor: BytePS's own settings for averages, such as {"compressor_type": "onebit"}.

    Raises:
        InputError: BytePS's variables are missing or contradict each other, or BytePS is not installed for
            MXNet.
    """

    def __init__(
        self,
        bucket_bytes: int = BUCKET_BYTES,
        compressor: Mapping[str, str] | None = None,
        environ: MutableMapping[str, str] = os.environ,
    ) -> None:
        complete_environment(environ)
        place = read_place(environ)
        environ.setdefault("BYTEPS_PARTITION_BYTES", str(PARTITION_BYTES))
        environ.setdefault("BYTEPS_THREADPOOL_SIZE", "1")  # without it BytePS has no threads for compressors
        self.rank, self.size = place.rank, place.size
        self.local_rank, self.local_size = place.local_rank, place.local_size
        self._bucket_bytes = bucket_bytes
        self._compressor = dict(compressor or {})
        self._mx: Any = importlib.import_module("mxnet")
        self._np: Any = importlib.import_module("numpy")
        self._library = BytePSLibrary()
        self._library.start()
        self._channels = Channels(self._library)
        self._plans: dict[tuple[tuple[str, int], ...], list[Bucket]] = {}
        self._buffers: dict[str, NDArray] = {}
        self._open = True

    def broadcast(self, arrays: Sequence[NDArray], root: int = 0) -> None:
        check_root(root, self.size)
        check_arrays(arrays, BROADCAST_DTYPES)
        if self.size == 1:
            return
        buckets = self._plan(arrays)
        for start in range(0, len(buckets), BROADCAST_BUCKETS):
            chosen = list(enumerate(buckets))[start : start + BROADCAST_BUCKETS]
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
            if bucket.dtype != "float16":
                payload = item.array
                payload /= self.size
            self._unpack(item.array, [arrays[index] for index in bucket.indices])

    def all_agree(self, flags: Sequence[bool]) -> list[bool]:
        if self.size == 1 or not flags:
            return [bool(flag) for flag in flags]
        self._wait()  # so that whoever meets has received all its sums: see comm.byteps.channels
        # Each rank counts its objections; nobody objects where the sum is 0.
        votes = self._mx.nd.array([int(not flag) for flag in flags], ctx=self._mx.cpu(), dtype="int32")
        self._channels.add([Sum(f"all_agree.{len(flags)}", votes)], {}, meeting=True)
        self._wait()
        self._channels.new_era()
        return [objections == 0 for objections in votes.asnumpy().tolist()]

    def barrier(self) -> None:
        self.all_agree([True])

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
            self._plans[sizes] = make_buckets(sizes, self._bucket_bytes)
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
