"""Promises of the compressions, checked by the ranks themselves; see contract_worker.py.

    python tests/comm/compression_worker.py OUTPUT_DIRECTORY CASES

CASES, as JSON: {case: {"options": {"compression": "topk", "compression_k": 0.1, "error_feedback": true},
"checks": [check, ...]}}, with options as on the command line. A check's name may also be one of
contract_worker.py. One launch takes all cases, one after the other, each with a communicator of its own.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from contract_worker import CHECKS as CONTRACT
from contract_worker import digest, result_of

from base.errors import InputError
from comm.compression import HalfCommunicator, byteps_settings, with_compression
from comm.options import CommunicationConfig
from tests.comm import compressors

# Together 3 pieces of BytePS's, the last one short and its size no multiple of 32.
SHAPES = [(1000, 700), (17,), (300001,), (512, 256)]
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
# For checks of many steps: two pieces, and a short one.
TWO_PIECES = [(1000, 500), (40001,)]
ONE_PIECE = [(300, 400), (40001,)]


def make_communicators(configs):
    """One for each case. Only the last one's `close` leaves the run."""
    import comm.byteps.communicator
    from comm.byteps.library import BytePSLibrary

    class Shared(BytePSLibrary):
        """A process joins its run once, and the name of a sum has the settings with which it was declared:
        every communicator gets names of its own."""

        joined = 0

        def start(self, local_rank):
            self._prefix = f"case {Shared.joined}."
            if not Shared.joined:
                super().start(local_rank)
            Shared.joined += 1

        def declare(self, name, compressor):
            super().declare(self._prefix + name, compressor)

        def push_pull(self, array, name, priority):
            super().push_pull(array, self._prefix + name, priority)

    comm.byteps.communicator.BytePSLibrary = Shared
    return [comm.byteps.communicator.BytePSCommunicator(**byteps_settings(config)) for config in configs]


@functools.lru_cache(maxsize=8)
def gradient(rank, round, size=SIZE):
    """The rank's contribution, flat. Its values have different scales and a mean that is not 0."""
    normal = np.random.default_rng([rank, round]).standard_normal(size, np.float32)
    result = normal * np.abs(normal) + np.float32(0.3)
    result.flags.writeable = False
    return result


def mean(comm, round, size=SIZE):
    return np.mean([gradient(rank, round, size).astype(np.float64) for rank in range(comm.size)], axis=0)


class Exchange:
    """Averages flat gradients the way a training step does: the same arrays every time, then an agreement."""

    def __init__(self, comm, shapes=SHAPES, dtype="float32"):
        self._comm = comm
        self.arrays = [mx.nd.empty(shape, dtype=dtype) for shape in shapes]

    def __call__(self, flat):
        start = 0
        for array in self.arrays:
            array[:] = mx.nd.array(flat[start : start + array.size].reshape(array.shape), dtype=array.dtype)
            start += array.size
        self._comm.average(self.arrays)
        self._comm.all_agree([True])
        return np.concatenate([array.asnumpy().reshape(-1) for array in self.arrays])


def check_half(comm, config):
    """float16's precision, range and least numbers."""
    exchange = Exchange(comm)
    for round in range(2):
        result = exchange(gradient(comm.rank, round))
        # A cast, a division by size and size - 1 additions, each rounded to 11 bits of numbers up to the
        # largest of the summands.
        largest = max(np.abs(gradient(rank, round)).max() for rank in range(comm.size))
        tolerance = (comm.size + 1) * 2.0**-11 * largest
        np.testing.assert_allclose(result, mean(comm, round), 0, tolerance)
        error = np.sqrt(np.mean((result - mean(comm, round)) ** 2) / np.mean(mean(comm, round) ** 2))
        assert 1e-5 < error < 1e-3, error  # above: nothing was compressed
    special = np.ones(SIZE, np.float32)
    special[:4] = [1e-9, 70000, 60000, -70000]
    result = exchange(special)
    assert result[0] == 0 and result[1] == np.inf and result[3] == -np.inf
    np.testing.assert_allclose(result[2], 60000, rtol=2e-3)
    np.testing.assert_allclose(result[4:], 1, rtol=2e-3)
    doubles = Exchange(comm, dtype="float64")
    np.testing.assert_allclose(doubles(gradient(comm.rank, 5)), mean(comm, 5), 0, tolerance)
    return digest([*exchange.arrays, *doubles.arrays])


def check_two_passes(comm, config):
    """Of onebit up to rounding, of topk exactly."""
    exchange, share = Exchange(comm), config.compression_k
    compress = compressors.onebit if share is None else lambda x: compressors.topk(x, share)
    for round in range(2):
        result = exchange(gradient(comm.rank, round))
        expected = compressors.two_passes([gradient(rank, round) for rank in range(comm.size)], compress)
        np.testing.assert_allclose(result, expected, 1e-5 if share is None else 0)
        assert share is None or 0.9 * share < np.count_nonzero(result) / SIZE <= share
    return digest(exchange.arrays)


def check_randomk(comm, config):
    """The positions are those of the seed, and what arrives there is the exact mean."""
    exchange = Exchange(comm)
    starts = range(0, SIZE, compressors.PIECE)
    selections = [compressors.RandomK(config.compression_k, 2654435769) for _ in starts]
    seen = set()
    for round in range(2):
        result = exchange(gradient(comm.rank, round))
        expected = np.zeros(SIZE)
        for start, select in zip(starts, selections):
            chosen = start + select(min(compressors.PIECE, SIZE - start))
            expected[chosen] = mean(comm, round)[chosen]
            seen.update(chosen.tolist())
        np.testing.assert_allclose(result, expected, 1e-6, 1e-6)
    assert len(seen) > 1.9 * config.compression_k * SIZE  # other positions in every round
    return digest(exchange.arrays)


def check_dithering(comm, config):
    """The error of one average is below a level of the worker's and one of the server's; the mean of many
    averages comes closer to the true mean as independent errors without a bias do."""
    size, rounds, levels = 131072, 30, config.compression_k
    exchange = Exchange(comm, [(size,)])
    own, true = gradient(comm.rank, 0, size), mean(comm, 0, size)
    greatest = [np.abs(gradient(rank, 0, size)).max() for rank in range(comm.size)]
    bound = 2.001 * sum(greatest) / levels / comm.size
    errors = np.zeros(size)
    single = 0.0
    for _ in range(rounds):
        error = exchange(own) - true
        assert np.abs(error).max() < bound
        errors += error
        single += np.mean(error**2)
    errors /= rounds
    ratio = np.sqrt(np.mean(errors**2) / (single / rounds))
    assert 0.9 < ratio * np.sqrt(rounds) < 1.1, ratio
    deviation = np.sqrt(single / rounds / rounds / size)
    assert abs(np.mean(errors)) < 5 * deviation
    assert abs(np.mean(errors * np.sign(true))) < 5 * deviation  # neither away from 0 nor towards it
    return digest(exchange.arrays)


def check_nothing_is_lost(comm, config):
    """With error feedback the averages of 14 steps, and of enough steps without a gradient after them, add up
    to the sum of the mean gradients; without it they do not. One step is not finite and has no effect."""
    # Pieces matter to what is kept of each; local ranks do not.
    shapes = TWO_PIECES if config.error_feedback and comm.local_size == 1 else ONE_PIECE
    size = sum(int(np.prod(shape)) for shape in shapes)
    exchange = Exchange(comm, shapes)
    total, true = np.zeros(size), np.zeros(size)
    halfway = None
    for round in range(14):
        own = gradient(comm.rank, round, size).copy()
        if round == 7:
            own[12345 + comm.rank] = [np.nan, np.inf][comm.rank % 2]
            assert not np.isfinite(exchange(own)).any()
            continue
        total += exchange(own)
        true += mean(comm, round, size)
        if round == 6:
            halfway = np.abs(total - true).mean()
    at_the_end = np.abs(total - true).mean()
    # topk sends a tenth of a piece in each step; randomk leaves a value out 45 times with a chance of 2e-8.
    for _ in range(45 if config.compression == "randomk" else 15):
        total += exchange(np.zeros(size, np.float32))
    lost = np.abs(total - true)
    record = {"halfway": halfway, "at_the_end": at_the_end, "lost": lost.max(), "mean": lost.mean()}
    if config.error_feedback:
        assert at_the_end < 1.3 * halfway, record  # what is kept does not accumulate
        assert lost.max() < 1e-4, record
    else:
        assert lost.mean() > 0.3 * np.abs(true).mean(), record
    return digest(exchange.arrays)


def check_float16_is_refused(comm, config):
    """Kept values would be in units of another loss scale."""
    array = mx.nd.full((SIZE,), comm.rank, dtype="float16")
    with pytest.raises(InputError, match="--error_feedback"):
        comm.average([array])
    assert (array.asnumpy() == comm.rank).all()


def check_not_finite(comm, config):
    """A NaN or inf of one rank reaches all ranks, and the next average is as if it had not been there."""
    exchange = Exchange(comm)
    for value in (np.nan, np.inf, -np.inf):
        own = gradient(comm.rank, 0).copy()
        if comm.rank == comm.size - 1:
            own[700003] = value
        assert not np.isfinite(exchange(own)).any()
        assert np.isfinite(exchange(gradient(comm.rank, 1))).all()


def check_zeros(comm, config):
    assert not Exchange(comm)(np.zeros(SIZE, np.float32)).any()


def check_nothing_is_kept_after_forgetting(comm, config):
    """Another stage does not begin with what was left of the gradients of the one before."""
    exchange = Exchange(comm)
    exchange(gradient(comm.rank, 0))
    comm.forget()
    assert not exchange(np.zeros(SIZE, np.float32)).any()
    exchange(gradient(comm.rank, 0))
    assert exchange(np.zeros(SIZE, np.float32)).any(), "without forgetting it comes later"
    comm.forget()


def check_sums_arrive_as_they_are(comm, config):
    """The counts and losses of a log interval are no gradients."""
    for dtype in ("float32", "float64"):
        sums = mx.nd.array([1e6 + comm.rank, 1 / 3, 1e-12, 70001], dtype=dtype)
        comm.average([sums])
        expected = np.array([1e6 + (comm.size - 1) / 2, 1 / 3, 1e-12, 70001])
        np.testing.assert_allclose(sums.asnumpy(), expected, 4 * np.finfo(dtype).eps)


def check_broadcast_of_much(comm, config):
    own = gradient(comm.rank, 0).copy()
    own[5] = np.nan
    array = mx.nd.array(own)
    comm.broadcast([array])
    expected = gradient(0, 0).copy()
    expected[5] = np.nan
    np.testing.assert_array_equal(array.asnumpy(), expected)


def check_traffic(comm, config):
    """Bytes of a round through the loopback interface, on which all ranks and servers are."""
    exchange = Exchange(comm)
    for round in range(2):
        exchange(gradient(comm.rank, round))
    comm.barrier()
    before = _loopback_bytes()
    comm.barrier()  # nobody sends before all have read
    for round in range(5):
        exchange(gradient(comm.rank, round))
    comm.barrier()
    after = _loopback_bytes()
    comm.barrier()
    return {"bytes": (after - before) / 5, "full": 4 * SIZE}


def _loopback_bytes():
    for line in Path("/proc/net/dev").read_text(encoding="ascii").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == "lo":
            return int(counters.split()[0])
    raise AssertionError("no loopback interface")


CHECKS = {
    name[len("check_") :]: check for name, check in list(globals().items()) if name.startswith("check_")
}


def run_case(name, checks, config, inner, write):
    comm = with_compression(inner, config)
    for check in checks:
        write({"case": name, "begins": check})
        if check in CHECKS:
            result = result_of(CHECKS[check], comm, config)
        else:
            # The contract's arrays are small: compressed all the same.
            everything = HalfCommunicator(inner, 0) if config.compression == "fp16" else comm
            result = result_of(CONTRACT[check], everything)
        write({"case": name, "check": check, **result})


def main():
    directory, text = sys.argv[1:]
    cases = json.loads(text)
    configs = [CommunicationConfig(**case["options"]) for case in cases.values()]
    communicators = make_communicators(configs)
    with open(Path(directory) / f"{communicators[0].rank}.jsonl", "w", encoding="utf-8") as file:

        def write(record):
            file.write(json.dumps(record) + "\n")
            file.flush()

        for (name, case), mine, inner in zip(cases.items(), configs, communicators):
            run_case(name, case["checks"], mine, inner, write)
    communicators[-1].close()


if __name__ == "__main__":
    main()
