"""A rank that averages vectors over all ranks through BytePS and writes down what it got.

average_worker.py DIRECTORY
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import mxnet as mx
import numpy as np

from comm.byteps.communicator import BytePSCommunicator

SIZES, ROUNDS = (1, 1000, 300_000), 4


def values(rank: int, turn: int, size: int) -> np.ndarray:
    """Contribution of a rank: whole numbers, so that their sums are exact in any order."""
    return np.random.RandomState([rank, turn, size]).randint(-1000, 1000, size).astype("float32")


def main() -> None:
    communicator = BytePSCommunicator()
    rank, size = communicator.rank, communicator.size
    wrong = 0
    for turn in range(ROUNDS):
        arrays = [mx.nd.array(values(rank, turn, count)) for count in SIZES]
        communicator.average(arrays)
        for count, array in zip(SIZES, arrays):
            mean = sum(values(other, turn, count) for other in range(size)) / np.float32(size)
            wrong += not np.array_equal(array.asnumpy(), mean)
    communicator.close()
    facts = {"rank": rank, "size": size, "wrong": wrong, "host": socket.gethostname()}
    facts["address"] = os.environ.get("DMLC_NODE_HOST")
    (Path(sys.argv[1]) / f"rank.{rank}.json").write_text(json.dumps(facts), encoding="ascii")


main()
