"""One rank of `python compare.py --comm_only`.

    python comparison/messages/rank.py hvd|byteps PLAN DIRECTORY

PLAN is a JSON file, see `comparison.messages.plan.worker_plan`.

Every rank writes DIRECTORY/rank-R.jsonl: a line when it has joined, one when it begins with a message, one
when it is done with it, and at the end the seconds of agreements. Results go into a file of each rank and not
through the library, which may be wrong.

A round: new values are written; the ranks meet; `average` is called and its result waited for, which is what
is timed; every element is compared; the ranks agree whether all were right and whether there is time for
another round. Every rank can work out what every other rank sends, so no rank needs the library under test to
learn what must arrive. The values change from round to round: a sum that is left from the round before, a
rank's own value, a missing or doubled rank, a piece in the wrong place all differ from the mean.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, Mapping, Sequence

import numpy as np

if __name__ == "__main__":  # a script's own folder comes first in its path; the project's root is meant
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from base.threads import set_threads  # noqa: E402
from training.entry import exit_code  # noqa: E402

if TYPE_CHECKING:
    from mxnet.context import Context
    from mxnet.nd import NDArray
    from numpy.typing import NDArray as Numbers

    from comm.base import Communicator

# Values repeat after so many elements. It is prime: pieces of a message, whose lengths are powers of two,
# would otherwise hold the same values, and might change places unnoticed.
PERIOD = 4093
_BITS = {"float32": 24, "float16": 11}  # of the significand: whole numbers up to 2**bits are exact


class KnownValues:
    """Values that `ranks` ranks send in a message.

    Every value is `ranks` times a whole number, drawn from (seed, rank, round). So that neither the sum nor
    the mean is rounded, |sum| stays within 2**24 in float32; in float16, which is divided before it is summed
    (comm.base), the mean stays within 2**11.

    Attributes:
        tolerance: the largest difference from the mean that is rounding. 0 where the number of ranks is a
            power of two; otherwise libraries multiply by a rounded 1/ranks, and the bound is that of
            ranks + 2 roundings of the largest value.
    """

    def __init__(self, dtype: str, ranks: int, seed: int):
        self._dtype = np.dtype(dtype)
        self._ranks, self._seed = ranks, seed
        exact = 2 ** _BITS[dtype]
        self._largest = exact // (ranks * ranks if dtype == "float32" else ranks)
        if not self._largest:
            raise ValueError(f"{ranks} ranks: more than values of {dtype} can tell apart")
        eps = float(np.finfo(self._dtype).eps)
        power_of_two = ranks & (ranks - 1) == 0
        self.tolerance = 0.0 if power_of_two else (ranks + 2) * eps * ranks * self._largest

    def sent(self, rank: int, turn: int) -> Numbers[Any]:
        """One period of what `rank` sends in round `turn`."""
        return (self._ranks * self._drawn(rank, turn)).astype(self._dtype)

    def mean(self, turn: int) -> Numbers[Any]:
        """One period of what every rank must then hold."""
        total = sum(self._drawn(rank, turn) for rank in range(self._ranks))
        return np.asarray(total).astype(self._dtype)

    def differing(self, received: Numbers[Any], expected: Numbers[Any]) -> Numbers[Any]:
        """Positions where `received` is not `expected`; NaN differs from everything."""
        if self.tolerance == 0:
            return np.flatnonzero(received != expected)
        difference = np.abs(received.astype(np.float64) - expected)
        return np.flatnonzero(~(difference <= self.tolerance))

    def _drawn(self, rank: int, turn: int) -> Numbers[Any]:
        generator = np.random.default_rng((self._seed, rank, turn))
        return generator.integers(-self._largest, self._largest, PERIOD, endpoint=True)


CHUNK = 256 * PERIOD  # elements that are written and compared at a time, 4 MB of float32
AGREEMENTS = 50  # timed after the last message


class Message:
    """The arrays of one message, with `elements` each, on this rank's device."""

    def __init__(self, context: Context, dtype: str, elements: Sequence[int], values: KnownValues):
        import mxnet as mx

        self._mx, self._values, self._context, self._dtype = mx, values, context, dtype
        self.arrays: list[NDArray] = [mx.nd.empty((each,), ctx=context, dtype=dtype) for each in elements]
        self._chunk = min(CHUNK, max(elements))
        self._repeated = self._chunk + PERIOD  # a chunk can be cut from it anywhere in the period

    def fill(self, rank: int, turn: int) -> None:
        """Writes what `rank` sends in this round; returns when it is there."""
        sent = np.resize(self._values.sent(rank, turn), self._repeated)
        repeated = self._mx.nd.array(sent, ctx=self._context, dtype=self._dtype)
        for array, start, stop, offset in self._pieces():
            repeated[offset : offset + stop - start].copyto(array[start:stop])
        self._mx.nd.waitall()

    def first_wrong(self, turn: int) -> str | None:
        """The first wrong element in words; None where all hold the mean."""
        expected = np.resize(self._values.mean(turn), self._repeated)
        position, wrong, text = 0, 0, None
        for array, start, stop, offset in self._pieces():
            received = array[start:stop].asnumpy()
            right = expected[offset : offset + stop - start]
            places = self._values.differing(received, right)
            if places.size and text is None:
                place = places[0]
                text = f"element {position + place} is {received[place]:.9g} instead of {right[place]:.9g}"
            wrong += places.size
            position += stop - start
        return f"{text} ({wrong:,} of {position:,} are wrong)" if text else None

    def _pieces(self) -> Iterator[tuple[NDArray, int, int, int]]:
        """(array, start, stop, where in the period `start` lies); elements of a message are counted through
        all its arrays, so that no two of them hold the same."""
        before = 0
        for array in self.arrays:
            for start in range(0, array.size, self._chunk):
                yield array, start, min(start + self._chunk, array.size), (before + start) % PERIOD
            before += array.size


def measure(comm: Communicator, message: Message, seconds: float, least: int, most: int) -> dict[str, Any]:
    """Rounds until `seconds` have passed, at least `least` and at most `most`, after a first one that is kept
    apart: in it the libraries make the names known. `first_at`: Unix time when its average had arrived."""
    times: list[float] = []
    turn, end, first_at = 0, 0.0, 0.0
    while True:
        message.fill(comm.rank, turn)
        comm.barrier()
        begin = time.perf_counter()
        comm.average(message.arrays)
        for array in message.arrays:
            array.wait_to_read()
        times.append(time.perf_counter() - begin)
        first_at = first_at or time.time()
        wrong = message.first_wrong(turn)
        end = end or time.monotonic() + seconds
        done = turn >= most or (turn >= least and time.monotonic() >= end)
        right, go_on = comm.all_agree([wrong is None, not done])
        if not right:
            return {"wrong": wrong and f"rank {comm.rank}, round {turn}: {wrong}"}
        if not go_on:
            return {"first_s": times[0], "first_at": first_at, "rounds_s": times[1:]}
        turn += 1


def run(backend: str, plan_path: str, directory: str) -> int:
    """Sends the plan's messages over HVD or BYTEPS of `base.launchers`."""
    with open(plan_path, encoding="utf-8") as file:
        plan: Mapping[str, Any] = json.load(file)
    set_threads()  # before mxnet is imported
    begin = time.perf_counter()
    import mxnet as mx

    from comm.backends import open_communicator
    from comm.options import CommunicationConfig

    imported = time.perf_counter()
    comm = open_communicator(backend, CommunicationConfig(timeout=plan["timeout_s"]))
    joined = time.perf_counter()
    context = mx.gpu(comm.local_rank) if mx.context.num_gpus() else mx.cpu()
    facts = {
        "rank": comm.rank,
        "ranks": comm.size,
        "device": str(context),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }
    with open(os.path.join(directory, f"rank-{comm.rank}.jsonl"), "w", encoding="utf-8") as output:

        def note(**values: Any) -> None:
            output.write(json.dumps(values) + "\n")
            output.flush()

        note(joined=facts, import_s=imported - begin, join_s=joined - imported)
        if comm.size != plan["ranks"]:
            raise RuntimeError(f"{comm.size} ranks have joined, {plan['ranks']} were to be started")
        for number, each in enumerate(plan["messages"]):
            note(begins=each["name"])
            values = KnownValues(plan["dtype"], comm.size, plan["seed"] + number)
            message = Message(context, plan["dtype"], each["elements"], values)
            result = measure(comm, message, plan["seconds"], plan["least_rounds"], plan["most_rounds"])
            note(message=each["name"], **result)
            del message
        agreements = []  # as a training step has one after its exchange
        for _ in range(AGREEMENTS):
            start = time.perf_counter()
            comm.all_agree([True, True])
            agreements.append(time.perf_counter() - start)
        note(agreements_s=agreements)
    comm.close()
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(partial(run, *sys.argv[1:])))
