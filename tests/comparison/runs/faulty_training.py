"""compare.py with four more backends, whose ranks run this script: pretraining over a faulty
communicator, which must be found out.

FAULT in the environment of ranks: `alone` (gradients are not exchanged at all), `sum` (gradients are added up
and not divided by the number of ranks, as the factor is lost), `crash` (rank 1 fails in step 3) or `memory`
(the process may take no more than so many MiB from the time that it has joined: `memory 600`).
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from base.launchers import HVD
from comm.backends import open_communicator
from comm.base import DelegatingCommunicator
from compare import main
from comparison.backends import BACKENDS, MPIRUN, Backend
from training.entry import exit_code
from training.pretraining import pretrain

FAULTS = {"alone": "alone", "sum": "sum", "crash": "crash", "memory": "memory 2000"}


class Faulty(DelegatingCommunicator):
    def __init__(self, inner):
        super().__init__(inner)
        self.together, self.steps = inner.together, 0
        self.fault, _, size = os.environ["FAULT"].partition(" ")
        if self.fault == "memory":
            with open("/proc/self/statm", encoding="ascii") as file:
                now = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + int(size) * 2**20,) * 2)

    def scaled_average(self, arrays):
        self.steps += 1
        if self.fault == "crash" and self.rank == 1 and self.steps == 3:
            raise RuntimeError("this backend breaks down")
        factor = 1.0 if self.fault == "alone" else self._inner.scaled_average(arrays)
        return 1.0 if self.fault == "sum" else factor


def compare() -> int:
    script = Path(__file__).resolve()
    faulty = {key: Backend(f"faulty: {key}", script, MPIRUN, {"FAULT": each}) for key, each in FAULTS.items()}
    return main(sys.argv[1:], {**BACKENDS, **faulty})


def train() -> int:
    return pretrain("", HVD, lambda *words: Faulty(open_communicator(*words)))


if __name__ == "__main__":
    sys.exit(exit_code(train if "FAULT" in os.environ else compare))
