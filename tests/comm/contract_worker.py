"""The contract of comm.base.Communicator, checked by the ranks themselves: one launch, many checks.

    python tests/comm/contract_worker.py local|horovod|byteps OUTPUT_DIRECTORY [check ...]

Every rank writes OUTPUT_DIRECTORY/<rank>.jsonl with one object for each check: name, error (null when it
passed), and what the check returned. The reference is NumPy in float64 on values that each rank can
compute for all ranks. RANKS_DEVICE=gpu (bench/gpu.py) has them on GPUs, else they are on the CPU.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

import mxnet as mx
import numpy as np

from base.errors import InputError
from comm.bits import memory_of

SHAPES = [(1,), (7,), (3, 5), (2, 3, 4), (1027,), (129, 65), (100003,)]


def make_communicator(name, **byteps_settings):
    if name == "horovod":
        from comm.horovod import HorovodCommunicator

        made = HorovodCommunicator()
        # Without GPUs nothing is fused, for the same bits in every run.
        assert (os.environ["HOROVOD_FUSION_THRESHOLD"] == "0") == (mx.context.num_gpus() == 0)
        return made
    if name == "divided":
        from comm.horovod import HorovodCommunicator

        return slow_to_close(HorovodCommunicator(divisible=True))
    if name == "byteps":
        from comm.byteps.communicator import BytePSCommunicator

        return BytePSCommunicator(**byteps_settings)
    from comm.local import LocalCommunicator

    return LocalCommunicator()


def values(rank, index, dtype, round=0):
    """Contribution of rank `rank` as its array `index`."""
    generator = np.random.RandomState([rank, index, round])
    return generator.uniform(-3, 5, SHAPES[index % len(SHAPES)]).astype(dtype)


def mean(comm, index, dtype, round=0):
    return np.mean(
        [values(rank, index, dtype, round).astype(np.float64) for rank in range(comm.size)], axis=0
    )


def assert_mean(comm, array, index, dtype, round=0):
    # Every value is scaled and every partial sum rounded once: size roundings of numbers below 5 * size /
    # size.
    tolerance = 5 * comm.size * np.finfo(dtype).eps
    np.testing.assert_allclose(
        array.asnumpy().astype(np.float64), mean(comm, index, dtype, round), 0, tolerance
    )


def digest(arrays):
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(array.asnumpy().tobytes())
    return {"digest": sha.hexdigest()}


def averaged(comm, dtype):
    arrays = [mx.nd.array(values(comm.rank, index, dtype), dtype=dtype) for index in range(40)]
    comm.average(arrays)
    for index, array in enumerate(arrays):
        assert_mean(comm, array, index, dtype)
    return digest(arrays)


def check_average_float32(comm):
    return averaged(comm, "float32")


def check_average_float16(comm):
    return averaged(comm, "float16")


def check_float16_sum_beyond_its_range(comm):
    array = mx.nd.full((33,), 40000, dtype="float16")
    comm.average([array])
    np.testing.assert_allclose(array.asnumpy().astype(np.float64), 40000, rtol=2e-3)


def check_average_of_a_large_array(comm):
    """Longer than the pieces that libraries cut arrays into, and no multiple of them."""
    sources = [np.random.default_rng(rank).standard_normal(2_200_001, "float32") for rank in range(comm.size)]
    array = mx.nd.array(sources[comm.rank])
    comm.average([array])
    expected = np.mean(sources, axis=0, dtype=np.float64)
    np.testing.assert_allclose(array.asnumpy(), expected, rtol=0, atol=2e-6)
    return digest([array])


def check_scaled_average(comm):
    """Divided by its factor it is the mean, with ranks that are a power of two the bits of `average`."""
    for dtypes in (["float32"], ["float64"], ["float32", "float64"], ["float16"], ["float32", "float16"]):
        made = [dtypes[index % len(dtypes)] for index in range(10)]
        scaled, averaged = (
            [mx.nd.array(values(comm.rank, i, dtype), dtype=dtype) for i, dtype in enumerate(made)]
            for _ in range(2)
        )
        factor = comm.scaled_average(scaled)
        comm.average(averaged)
        assert factor == (1 if "float16" in dtypes or comm.name == "local" else comm.size), (dtypes, factor)
        for index, (one, other) in enumerate(zip(scaled, averaged)):
            divided = one / factor
            assert_mean(comm, divided, index, made[index])
            if comm.size in (1, 2, 4):
                np.testing.assert_array_equal(divided.asnumpy(), other.asnumpy())
    half = mx.nd.full((33,), 40000, dtype="float16")  # whose sum is beyond its range
    assert comm.scaled_average([half]) == 1
    np.testing.assert_allclose(half.asnumpy().astype(np.float64), 40000, rtol=2e-3)
    return digest(scaled)


def check_average_nothing(comm):
    comm.average([])
    assert comm.scaled_average([]) in (1, comm.size)
    comm.broadcast([])
    assert comm.all_agree([]) == []


def check_average_again_and_again(comm):
    arrays = [mx.nd.empty(SHAPES[index]) for index in range(len(SHAPES))]
    for round in range(8):
        for index, array in enumerate(arrays):
            array[:] = mx.nd.array(values(comm.rank, index, "float32", round))
        comm.average(arrays)
        for index, array in enumerate(arrays):
            assert_mean(comm, array, index, "float32", round)
    return digest(arrays)


def check_average_other_arrays_at_once(comm):
    """Fresh arrays of the same shapes, queued while the earlier ones may still be on their way."""
    rounds = []
    for round in range(15):
        arrays = [mx.nd.array(values(comm.rank, index, "float32", round)) for index in (0, 4, 6)]
        comm.average(arrays)
        rounds.append(arrays)
    for round, arrays in enumerate(rounds):
        for index, array in zip((0, 4, 6), arrays):
            assert_mean(comm, array, index, "float32", round)


def check_average_gives_the_same_bits_again(comm):
    """Whatever the timing, the ranks' values are added in the same order."""
    sizes = np.random.RandomState(5).randint(1, 20000, 20)
    mine = [np.random.RandomState([comm.rank, index]).randn(size) for index, size in enumerate(sizes)]
    delays = np.random.RandomState([comm.rank, 99])
    digests = set()
    for _ in range(12):
        arrays = [mx.nd.array(value, dtype="float32") for value in mine]
        time.sleep(delays.uniform(0, 0.005))
        comm.average(arrays)
        digests.add(digest(arrays)["digest"])
    assert len(digests) == 1, f"{len(digests)} different results"


def check_average_in_place(comm):
    whole = mx.nd.zeros((6, 4)) + comm.rank
    alias = whole.reshape((24,))
    part = whole[2:5]
    comm.average([part])
    expected = np.full((6, 4), float(comm.rank))
    expected[2:5] = (comm.size - 1) / 2
    np.testing.assert_allclose(whole.asnumpy(), expected)
    np.testing.assert_allclose(alias.asnumpy(), expected.reshape(24))


def check_average_of_nan_and_inf(comm):
    array = mx.nd.ones((5,))
    if comm.rank == comm.size - 1:
        array[1] = float("nan")
        array[3] = float("inf")
    comm.average([array])
    np.testing.assert_array_equal(array.asnumpy(), [1, np.nan, 1, np.inf, 1])


def check_average_right_after_backward(comm):
    """The gradients are queued but not computed when `average` is called."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(65, in_units=33), mx.gluon.nn.Dense(17, in_units=65))
    net.initialize(mx.init.Constant(0.01))
    net.hybridize(static_alloc=True)
    inputs = [np.random.RandomState([rank, 9]).normal(size=(20, 33)) for rank in range(comm.size)]
    with mx.autograd.record():
        loss = net(mx.nd.array(inputs[comm.rank])).sum()
    loss.backward()
    gradients = [parameter.grad() for parameter in net.collect_params().values()]
    comm.average(gradients[::-1])
    # loss = sum over the batch and the 17 outputs of W2 (W1 x + b1) + b2, with all weights 0.01 and biases 0.
    hidden = [0.01 * x.sum(axis=1, keepdims=True) * np.ones((1, 65)) for x in inputs]
    expected = [
        np.mean([17 * 0.01 * np.ones((65, 1)) * x.sum(axis=0) for x in inputs], axis=0),
        np.full(65, 20 * 17 * 0.01),
        np.mean([np.ones((17, 1)) * h.sum(axis=0) for h in hidden], axis=0),
        np.full(17, 20.0),
    ]
    for gradient, reference in zip(gradients, expected):
        np.testing.assert_allclose(gradient.asnumpy(), reference, rtol=1e-4, atol=1e-4)
    return digest(gradients)


def check_average_does_not_wait(comm):
    matrix = mx.nd.ones((768, 768)) / 768
    product = mx.nd.full((768, 768), comm.rank)
    array = mx.nd.zeros((768, 768))
    comm.average([array])  # it may wait for an array that is new to it, as gradients are once
    comm.barrier()  # as a step does
    mx.nd.waitall()
    early = False
    for _ in range(20):  # others may keep the machine busy at any one time
        start = time.monotonic()
        for _ in range(20):
            product = mx.nd.dot(product, matrix)
        product.copyto(array)
        comm.average([array])
        returned = time.monotonic() - start
        np.testing.assert_allclose(array.asnumpy(), (comm.size - 1) / 2, rtol=1e-3)
        early |= returned < (time.monotonic() - start) / 2
        if comm.all_agree([early]) == [True]:
            break
    assert early


def check_broadcast(comm):
    for root in sorted({0, comm.size - 1}):
        arrays = []
        for index, dtype in enumerate(["float32", "float16", "float64", "int32", "uint8", "int64", "int8"]):
            data = (10 * values(root, index, "float64")).astype(dtype)
            if comm.rank != root:
                data = np.full_like(data, np.nan) if dtype.startswith("float") else np.zeros_like(data)
            arrays.append(mx.nd.array(data, dtype=dtype))
        comm.broadcast(arrays, root=root)
        for index, array in enumerate(arrays):
            expected = (10 * values(root, index, "float64")).astype(array.dtype)
            np.testing.assert_array_equal(array.asnumpy(), expected)


def check_broadcast_keeps_every_bit(comm):
    """Bit patterns that a floating-point sum would change, or two summands carry over."""
    patterns = [0, 1 << 31, 0x7FC12345, 0xFFC00001, 0x7F800000, 1, 0xFFFFFFFF, 0x80000001] * 5
    sent = np.array(patterns, "uint32").view("float32")
    array = mx.nd.zeros((len(sent),)) - 1
    if comm.rank == 0:  # as bytes: even a copy through floats may change them
        memory_of(array)[...] = sent.view("uint8")
    comm.broadcast([array])
    np.testing.assert_array_equal(memory_of(array), sent.view("uint8"))


def check_broadcast_of_shared_memory(comm):
    """Tied parameters come twice, and views overlap; large enough for buckets of their own."""
    for _ in range(2):
        whole = mx.nd.array(np.random.RandomState(comm.rank).normal(size=(3, 400_000)))
        views = [whole, whole[1], whole, whole.reshape((-1,)), whole[0:2], whole[2]]
        comm.broadcast(views)
        expected = np.random.RandomState(0).normal(size=(3, 400_000)).astype("float32")
        np.testing.assert_array_equal(whole.asnumpy(), expected)


def check_broadcast_many(comm):
    arrays = [mx.nd.array(values(comm.rank, index, "float32")) for index in range(100)]
    comm.broadcast(arrays)
    for index, array in enumerate(arrays):
        np.testing.assert_array_equal(array.asnumpy(), values(0, index, "float32"))


def check_all_agree(comm):
    # Flag j is False on the ranks whose bit is set in j, so that all combinations occur.
    flags = [not (j >> comm.rank) & 1 for j in range(2**comm.size)]
    assert comm.all_agree(flags) == [j == 0 for j in range(2**comm.size)]
    assert comm.all_agree([True]) == [True]
    assert comm.all_agree([False]) == [False]
    assert comm.all_agree([np.bool_(True), comm.rank == 0]) == [True, comm.size == 1]
    assert all(type(flag) is bool for flag in comm.all_agree([True, False]))
    for _ in range(30):
        assert comm.all_agree([True, False]) == [True, False]


def check_barrier(comm):
    times = []
    for late in range(comm.size):
        if comm.rank == late:
            time.sleep(0.5)  # far more than a busy machine keeps the others
        entered = time.monotonic()  # one clock for all processes of a host
        comm.barrier()
        times.append([entered, time.monotonic()])
    return {"times": times}


def check_forget(comm):
    """A second network's arrays, of the same sizes, follow; those of the first are let go."""
    for round in range(3):
        arrays = [mx.nd.array(values(comm.rank, index, "float32", round)) for index in range(6)]
        shared = mx.nd.zeros((3,), dtype="int64") + (comm.rank == 0)
        holders = [sys.getrefcount(array) for array in arrays]
        comm.average(arrays)
        comm.broadcast([shared])
        comm.all_agree([True])
        comm.forget()
        assert [sys.getrefcount(array) for array in arrays] == holders
        for index, array in enumerate(arrays):
            assert_mean(comm, array, index, "float32", round)
        assert shared.asnumpy().tolist() == [1, 1, 1]


def lacks(kind, message, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        assert message in str(error), str(error)
    else:
        raise AssertionError(f"not refused: {message}")


def slow_to_close(comm):
    """A communicator that gives up its messages later on each rank: the first one does not end MPI under the
    others."""
    close = comm._messages.close

    def late():
        time.sleep(0.2 * comm.rank)
        close()

    comm._messages.close = late
    return comm


def divided(comm):
    """Whether the communicator has groups and messages; checked is what the others say."""
    array = mx.nd.zeros((3,))
    if comm.name == "byteps":
        lacks(InputError, "run_pretraining_hvd.py", comm.groups, [list(range(comm.size))])
        lacks(InputError, "run_pretraining_hvd.py", comm.send, array, 0, 0)
        lacks(InputError, "run_pretraining_hvd.py", comm.receive, array, 0, 0)
        return False
    lacks(ValueError, "do not divide", comm.groups, [[comm.size]])
    if comm.name == "horovod" and comm.size != 4:
        lacks(ValueError, "divisible", comm.groups, [list(range(comm.size))])
        lacks(ValueError, "divisible", comm.send, array, 0, 0)
        return False
    return True


def check_messages(comm):
    """Between all pairs at once, large ones beside an average of all; tags, not times, tell them apart."""
    if not divided(comm):
        return
    for other, tag in ((comm.rank, 0), (comm.size, 0), (-1, 0), (0 if comm.rank else comm.size, 40000)):
        lacks(ValueError, "", comm.send, mx.nd.zeros((3,)), other, tag)
        lacks(ValueError, "", comm.receive, mx.nd.zeros((3,)), other, tag)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    received, pending = [], []
    for other in others:
        for index, dtype in enumerate(["float32", "float16", "float64", "int32", "uint8", "float32"]):
            into = mx.nd.zeros(SHAPES[index], dtype=dtype) - 1
            pending.append(comm.receive(into, other, index))
            received.append((other, index, into))
    large = [mx.nd.zeros((1 << 20,)) for _ in others]
    pending += [comm.receive(into, other, 90) for other, into in zip(others, large)]
    averaged = mx.nd.array(values(comm.rank, 6, "float32"))
    comm.average([averaged])
    for other in others:
        pending.append(comm.send(mx.nd.ones((1 << 20,)) * (comm.rank + 1), other, 90))
        for index, dtype in reversed(
            list(enumerate(["float32", "float16", "float64", "int32", "uint8", "float32"]))
        ):
            sent = (10 * values(comm.rank, index, "float64", other)).astype(dtype)
            pending.append(comm.send(mx.nd.array(sent, dtype=dtype), other, index))
    for each in pending:
        each.wait()
        each.wait()
        assert each.done()
    for other, index, into in received:
        expected = (10 * values(other, index, "float64", comm.rank)).astype(into.dtype)
        np.testing.assert_array_equal(into.asnumpy(), expected)
    for other, into in zip(others, large):
        assert (into.asnumpy() == other + 1).all()
    assert_mean(comm, averaged, 6, "float32")
    if others:  # in their order, NumPy's arrays too
        rooms = [np.zeros(5) for _ in range(8)]
        pending = [comm.receive(room, comm.size - 1 - comm.rank, 7) for room in rooms]
        pending += [comm.send(np.full(5, number), comm.size - 1 - comm.rank, 7) for number in np.arange(8.0)]
        for each in pending:
            each.wait()
        np.testing.assert_array_equal(rooms, np.arange(8.0)[:, None] * np.ones(5))


def check_groups(comm):
    """Two groups exchange different numbers of arrays, under the same names, between exchanges of all."""
    if not divided(comm):
        return
    lists = [[0, 2], [3, 1]] if comm.size == 4 else [[0]]
    group = comm.groups(lists)
    mine = next(ranks for ranks in lists if comm.rank in ranks)
    assert (group.rank, group.size) == (mine.index(comm.rank), len(mine))
    assert (group.local_rank, group.local_size) == (comm.local_rank, comm.local_size)
    for round in range(10):
        arrays = [mx.nd.array(values(comm.rank, index, "float32", round)) for index in range(6)]
        of_all = mx.nd.array(values(comm.rank, 0, "float32", round))
        for _ in range(1 + mine[0]):
            group.average(arrays)
        comm.average([of_all])
        for index, array in enumerate(arrays):
            members = [values(rank, index, "float32", round).astype("float64") for rank in mine]
            np.testing.assert_allclose(array.asnumpy(), np.mean(members, axis=0), atol=1e-5)
        means = [array.asnumpy() for array in arrays]
        assert group.scaled_average(arrays) == (1 if comm.name == "local" else len(mine))
        for array, expected in zip(arrays, means):  # of equal values
            np.testing.assert_array_equal(array.asnumpy(), expected * len(mine))
        assert_mean(comm, of_all, 0, "float32", round)
    for root in range(len(mine)):
        sent = mx.nd.full((7,), comm.rank)
        group.broadcast([sent], root)
        assert (sent.asnumpy() == mine[root]).all()
    assert group.all_agree([comm.rank != 1, True]) == [1 not in mine, True]
    assert comm.all_agree([comm.rank != 1, True]) == [comm.size == 1, True]
    group.barrier()
    comm.forget()


def check_refusals(comm):
    good = mx.nd.full((3,), comm.rank)
    refused = [
        (TypeError, "arrays[1] has row_sparse", mx.nd.zeros((3, 2), stype="row_sparse")),
        (TypeError, "arrays[1] is int32", mx.nd.zeros((3,), dtype="int32")),
        (TypeError, "arrays[1] is a ndarray", np.zeros(3)),
    ]
    for kind, message, bad in refused:
        lacks(kind, message, comm.average, [good, bad])
        lacks(kind, message, comm.scaled_average, [good, bad])
    for root in (-1, comm.size):
        lacks(ValueError, f"root {root}", comm.broadcast, [good], root)
    # Nothing of the refused calls has been sent.
    comm.average([good])
    np.testing.assert_allclose(good.asnumpy(), (comm.size - 1) / 2)


def check_close(comm):
    """Last: what is queued still arrives, and closing again does nothing."""
    arrays = [mx.nd.array(values(comm.rank, index, "float32")) for index in range(30)]
    comm.average(arrays)
    comm.close()
    comm.close()
    for index, array in enumerate(arrays):
        assert_mean(comm, array, index, "float32")


CHECKS = {
    name[len("check_") :]: check for name, check in list(globals().items()) if name.startswith("check_")
}


def result_of(check, *arguments):
    """Result of a check, and its error: None where it has passed."""
    try:
        return {"error": None, **(check(*arguments) or {})}
    except Exception:
        return {"error": traceback.format_exc()}


def main():
    backend, directory, *names = sys.argv[1:]
    comm = make_communicator(backend)
    device = mx.gpu(comm.local_rank) if os.environ.get("RANKS_DEVICE") == "gpu" else mx.cpu()
    with device, open(Path(directory) / f"{comm.rank}.jsonl", "w", encoding="utf-8") as file:
        ranks = [comm.rank, comm.size, comm.local_rank, comm.local_size]
        for name in names or list(CHECKS):
            record = {"check": name, "ranks": ranks, **result_of(CHECKS[name], comm)}
            file.write(json.dumps(record) + "\n")
            file.flush()
        if names:
            comm.close()


if __name__ == "__main__":
    main()
