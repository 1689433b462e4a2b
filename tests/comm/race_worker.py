"""Sums of known values through BytePS's servers while one rank is stopped again and again.

    python tests/comm/race_worker.py name|channels|communicator ROUNDS

name: every sum of a tensor under one name, as BytePS's own trainer has it. channels: through
comm.byteps_channels, which takes two names in turn. communicator: as a training step does, `average` and then
`all_agree`, which makes one name enough. Prints "wrong: N of M" and, for the first few, what came instead.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import mxnet as mx
import numpy as np

from comm.byteps import BytePSCommunicator
from comm.byteps_channels import Sum

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


def main():
    kind, rounds = sys.argv[1], int(sys.argv[2])
    comm = BytePSCommunicator()
    arrays = [mx.nd.zeros((size,)) for size in SIZES]
    names = [f"race.{index}" for index in range(len(SIZES))]
    wrong, examples = 0, []
    if kind == "name":
        for name in names:
            comm._library.declare(name, {})
    comm.barrier()
    with slowed(comm.rank) if comm.rank == comm.size - 1 else contextlib.nullcontext():
        for step in range(rounds):
            for index, array in enumerate(arrays):
                array[:] = contribution(comm.rank, index, step)
            if kind == "name":
                for name, array in zip(names, arrays):
                    comm._library.push_pull(array, name, 0)
            elif kind == "channels":
                comm._channels.add(
                    [Sum(f"{len(names)}.{index}", array) for index, array in enumerate(arrays)], {}
                )
            else:
                comm.average(arrays)
                mx.nd.waitall()
                comm.all_agree([True])
            for index, array in enumerate(arrays):
                expected = sum(contribution(rank, index, step) for rank in range(comm.size))
                if kind == "communicator":
                    expected /= comm.size
                found = array.asnumpy()
                if not (found == np.float32(expected)).all():
                    wrong += 1
                    bad = found[found != np.float32(expected)]
                    if len(examples) < 5:
                        examples.append(
                            f"step {step}, {array.size} numbers: {bad[0]:g} in place of {expected:g}"
                        )
    print(f"wrong: {wrong} of {rounds * len(arrays)}", *examples, sep="\n", flush=True)
    if wrong:
        os._exit(3)  # the ranks no longer agree on anything: no orderly end
    comm.close()


if __name__ == "__main__":
    main()
