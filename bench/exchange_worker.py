"""One rank of bench/exchange.py.

    python bench/exchange_worker.py horovod|byteps SIZES ROUNDS OUTPUT [BUCKET_MB]

SIZES: "bert-base" for the gradients of BERT-base (110 M numbers), or COUNTxMEGABYTES. Rank 0 writes OUTPUT,
one JSON object: seconds to join, to broadcast and for the first average; then of every round (an `average`
and the `all_agree` that a training step has after it) and of a bare `all_agree`; peak memory in bytes.
"""

from __future__ import annotations

import json
import resource
import sys
import time

import mxnet as mx

from base.files import replacing


def bert_base_shapes():
    """The trainable arrays of BERT-base with both heads, in the order of the forward pass."""
    units, hidden, vocabulary = 768, 3072, 30522
    layer = [(units, units), (units,)] * 4 + [(units,)] * 2
    layer += [(hidden, units), (hidden,), (units, hidden), (units,)] + [(units,)] * 2
    heads = [
        (units, units),
        (units,),
        (2, units),
        (2,),
        (units, units),
        (units,),
        (units,),
        (units,),
        (vocabulary,),
    ]
    return [(vocabulary, units), (2, units), (512, units), (units,), (units,), *layer * 12, *heads]


def shapes_of(sizes):
    if sizes == "bert-base":
        return bert_base_shapes()
    count, megabytes = sizes.split("x")
    return [(int(float(megabytes) * 2**18),)] * int(count)


def make_communicator(backend, bucket_mb):
    if backend == "horovod":
        from comm.horovod import HorovodCommunicator

        return HorovodCommunicator()
    from comm.byteps.communicator import BUCKET_BYTES, BytePSCommunicator

    return BytePSCommunicator(bucket_bytes=int(float(bucket_mb) * 2**20) if bucket_mb else BUCKET_BYTES)


class Clock:
    """Seconds between its calls."""

    def __init__(self):
        self._last = time.monotonic()

    def __call__(self):
        now = time.monotonic()
        elapsed, self._last = now - self._last, now
        return elapsed


def main():
    backend, sizes, rounds, output, *bucket_mb = sys.argv[1:]
    arrays = [mx.nd.ones(shape) for shape in shapes_of(sizes)]
    mx.nd.waitall()
    clock = Clock()
    comm = make_communicator(backend, *(bucket_mb or [None]))
    result = {
        "backend": backend,
        "sizes": sizes,
        "ranks": comm.size,
        "bytes": 4 * sum(a.size for a in arrays),
    }
    comm.barrier()
    result["join_s"] = clock()
    comm.broadcast(arrays)
    result["broadcast_s"] = clock()
    comm.average(arrays)
    mx.nd.waitall()
    result["first_average_s"] = clock()
    result["round_s"] = []
    for _ in range(int(rounds)):
        comm.barrier()
        clock()
        comm.average(arrays)
        mx.nd.waitall()
        comm.all_agree([True, True])
        result["round_s"].append(clock())
    result["all_agree_s"] = []
    for _ in range(50):
        clock()
        comm.all_agree([True, True])
        result["all_agree_s"].append(clock())
    assert all((array[0] == 1).asnumpy().all() for array in arrays), "a mean of ones is not one"
    result["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if comm.rank == 0:
        with replacing(output) as file:
            file.write(json.dumps(result).encode())
    comm.close()


if __name__ == "__main__":
    main()
