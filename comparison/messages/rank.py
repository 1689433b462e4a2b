"""What a rank of `python compare.py --comm_only` does; comparison/messages/worker.py starts it.

Every rank writes DIRECTORY/rank-R.jsonl: a line when it has joined, one when it begins with a message, one
when it is done with it. Results go into a file of each rank and not through the library, which may be wrong.

A round: new values are written; the ranks meet; `average` is called and its result waited for, which is what
is timed; every element is compared; the ranks agree whether all were right and whether there is time for
another round.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial

from base.threads import set_threads
from comparison.messages.values import PERIOD, KnownValues, stretch
from training.entry import exit_code

CHUNK = 256 * PERIOD  # elements that are written and compared at a time, 4 MB of float32


def make_communicator(library):
    if library == "horovod":
        from comm.horovod import HorovodCommunicator

        return HorovodCommunicator()
    from comm.byteps.communicator import BytePSCommunicator

    return BytePSCommunicator()


class Message:
    """The arrays of one message: `tensors` of them with `elements` each, on this rank's device."""

    def __init__(self, mx, context, dtype, tensors, elements, values):
        self._mx, self._values, self._context, self._dtype = mx, values, context, dtype
        self.arrays = [mx.nd.empty((elements,), ctx=context, dtype=dtype) for _ in range(tensors)]
        self._chunk = min(CHUNK, elements)

    def fill(self, rank, turn):
        """Writes what `rank` sends in this round; returns when it is there."""
        chunk = stretch(self._values.sent(rank, turn), self._chunk)
        chunk = self._mx.nd.array(chunk, ctx=self._context, dtype=self._dtype)
        for array, start, stop, offset in self._pieces():
            chunk[offset : offset + stop - start].copyto(array[start:stop])
        self._mx.nd.waitall()

    def first_wrong(self, turn):
        """What is wrong with the first wrong element, None where all hold the mean."""
        expected = stretch(self._values.mean(turn), self._chunk)
        position, wrong, text = 0, 0, None
        for array, start, stop, offset in self._pieces():
            found = array[start:stop].asnumpy()
            right = expected[offset : offset + stop - start]
            places = self._values.differing(found, right)
            if places.size and text is None:
                place = places[0]
                text = f"element {position + place} is {found[place]:.9g} instead of {right[place]:.9g}"
            wrong += places.size
            position += stop - start
        return f"{text} ({wrong:,} of {position:,} are wrong)" if text else None

    def _pieces(self):
        """(array, start, stop, where in the period `start` lies); elements of a message are counted through
        all its arrays, so that no two of them hold the same."""
        before = 0
        for array in self.arrays:
            for start in range(0, array.size, self._chunk):
                yield array, start, min(start + self._chunk, array.size), (before + start) % PERIOD
            before += array.size


def measure(comm, message, seconds, least, most):
    """Rounds until `seconds` have passed, at least `least` and at most `most`, after a first one that is kept
    apart: in it the libraries make the names known."""
    times, turn, end = [], 0, None
    while True:
        message.fill(comm.rank, turn)
        comm.barrier()
        begin = time.perf_counter()
        comm.average(message.arrays)
        for array in message.arrays:
            array.wait_to_read()
        times.append(time.perf_counter() - begin)
        wrong = message.first_wrong(turn)
        end = end or time.monotonic() + seconds
        done = turn >= most or (turn >= least and time.monotonic() >= end)
        right, go_on = comm.all_agree([wrong is None, not done])
        if not right:
            return {"wrong": wrong and f"rank {comm.rank}, round {turn}: {wrong}", "elsewhere": not wrong}
        if not go_on:
            return {"first_s": times[0], "rounds_s": times[1:]}
        turn += 1


def run(library, plan_path, directory, make=make_communicator):
    """`make`: library -> communicator."""
    with open(plan_path, encoding="utf-8") as file:
        plan = json.load(file)
    set_threads()  # before mxnet is imported
    begin = time.perf_counter()
    import mxnet as mx

    from comm.watch.watchdog import watched

    imported = time.perf_counter()
    comm = watched(partial(make, library), plan["timeout_s"])
    joined = time.perf_counter()
    context = mx.gpu(comm.local_rank) if mx.context.num_gpus() else mx.cpu()
    facts = {"rank": comm.rank, "ranks": comm.size, "device": str(context)}
    facts["omp_num_threads"] = os.environ.get("OMP_NUM_THREADS")
    with open(os.path.join(directory, f"rank-{comm.rank}.jsonl"), "w", encoding="utf-8") as output:

        def note(**values):
            output.write(json.dumps(values) + "\n")
            output.flush()

        note(joined=facts, import_s=imported - begin, join_s=joined - imported)
        if comm.size != plan["ranks"]:
            raise RuntimeError(f"{comm.size} ranks have joined, {plan['ranks']} were to be started")
        for number, each in enumerate(plan["messages"]):
            note(begins=each["name"])
            values = KnownValues(plan["dtype"], comm.size, plan["seed"] + number)
            message = Message(mx, context, plan["dtype"], each["tensors"], each["elements"], values)
            found = measure(comm, message, plan["seconds"], plan["least_rounds"], plan["most_rounds"])
            note(message=each["name"], **found)
            del message
    comm.close()
    return 0


def main(words, make=make_communicator):
    """Returns the exit code. `words`: of the command line, without the script."""
    library, plan_path, directory = words
    return exit_code(partial(run, library, plan_path, directory, make))
