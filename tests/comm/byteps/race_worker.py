"""Sums of known values through BytePS's servers while one rank is stopped again and again.

    python tests/comm/byteps/race_worker.py [--seed SEED] ROUNDS KIND [KIND ...]

Kinds, one after the other: name: every sum of a tensor under one name, as BytePS's own trainer has it.
channels: through `Channels` of comm.byteps.communicator, which takes two names in turn. communicator: as a
training step does, `average` and then `all_agree`, which makes one name enough. Prints "KIND: no wrong sum of
N" for each; a rank that has got a wrong one says at once what came instead, and ends the run. SEED is that of
the moments at which the rank is stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys

import mxnet as mx
import numpy as np

from comm.byteps.communicator import BytePSCommunicator, Sum

SIZES = [1, 10, 1000, 1000, 20_000, 20_000, 200_000, 1_000_000]
# Stops its parent for up to 20 ms, about thirty times a second, as a busy machine might.
BRAKE = """
import os, random, signal, sys, time
parent, draw, done = os.getppid(), random.Random(int(sys.argv[1])), []
signal.signal(signal.SIGTERM, lambda number, frame: done.append(number))
while not done and os.getppid() == parent:
    time.sleep(draw.uniform(0, 0.03))
    os.kill(parent, signal.SIGSTOP)
    time.sleep(draw.uniform(0, 0.02))
    os.kill(parent, signal.SIGCONT)
"""


@contextlib.contextmanager
def slowed(seed):
    """Slows this process down at random."""
    brake = subprocess.Popen([sys.executable, "-c", BRAKE, str(seed)])
    try:
        yield
    finally:
        brake.terminate()  # it lets us go on before it ends
        brake.wait()


def contribution(rank, tensor, step):
    """Whole numbers, exact in float32, different for every rank, tensor and step."""
    return float(1 + rank + 8 * tensor + 64 * (step % 4096))


def sum_up(comm, kind, arrays):
    """Queues the sums, or means, of a step."""
    names = [f"race.{index}" for index in range(len(arrays))]
    if kind == "name":
        for name, array in zip(names, arrays):
            comm._library.push_pull(array, name, 0)
    elif kind == "channels":
        comm._channels.add([Sum(name, array) for name, array in zip(names, arrays)], {})
    else:
        comm.average(arrays)
        mx.nd.waitall()
        comm.all_agree([True])


def run(comm, kind, rounds, seed):
    arrays = [mx.nd.zeros((size,)) for size in SIZES]
    if kind == "name":
        for index in range(len(arrays)):
            comm._library.declare(f"race.{index}", {})
    comm.barrier()
    with slowed(seed + comm.rank) if comm.rank == comm.size - 1 else contextlib.nullcontext():
        for step in range(rounds):
            for index, array in enumerate(arrays):
                array[:] = contribution(comm.rank, index, step)
            sum_up(comm, kind, arrays)
            for index, array in enumerate(arrays):
                expected = sum(contribution(rank, index, step) for rank in range(comm.size))
                if kind == "communicator":
                    expected /= comm.size
                found = array.asnumpy()
                bad = found[found != np.float32(expected)]
                if bad.size:
                    print(f"{kind}: step {step}, {array.size} numbers: {bad[0]:g} in place of {expected:g}")
                    sys.stdout.flush()
                    os._exit(3)  # the ranks no longer agree on anything: no orderly end
    print(f"{kind}: no wrong sum of {rounds * len(arrays)}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("rounds", type=int)
    parser.add_argument("kinds", nargs="+", choices=("name", "channels", "communicator"))
    options = parser.parse_args()
    comm = BytePSCommunicator()
    for kind in options.kinds:
        run(comm, kind, options.rounds, options.seed)
    comm.close()


if __name__ == "__main__":
    main()
