"""compare.py with four more backends, whose ranks run this script: run_pretraining_hvd.py over a faulty
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

import run_pretraining_hvd
import training.pretraining
from base.threads import set_threads
from compare import main
from comparison.backends import BACKENDS, MPIRUN, Backend
from training.entry import exit_code
from training.profiling.profiler import separate_operators

FAULTS = {"alone": "alone", "sum": "sum", "crash": "crash", "memory": "memory 2000"}


def compare() -> int:
    script = Path(__file__).resolve()
    faulty = {
        key: Backend(key, f"faulty: {key}", script, MPIRUN, {"FAULT": each}) for key, each in FAULTS.items()
    }
    return main(sys.argv[1:], {**BACKENDS, **faulty})


def train() -> int:
    set_threads()
    if "--profile" in sys.argv:
        separate_operators()
    # They refuse to be called once mxnet is imported.
    training.pretraining.set_threads = training.pretraining.separate_operators = lambda: None
    from comm.horovod import HorovodCommunicator

    fault, _, size = os.environ["FAULT"].partition(" ")
    join, scaled_average = HorovodCommunicator.__init__, HorovodCommunicator.scaled_average
    steps = 0

    def joined(self, *args, **kwargs):
        join(self, *args, **kwargs)
        if fault == "memory":
            with open("/proc/self/statm", encoding="ascii") as file:
                now = int(file.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + int(size) * 2**20,) * 2)

    def averaged(self, arrays):
        nonlocal steps
        steps += 1
        if fault == "crash" and self.rank == 1 and steps == 3:
            raise RuntimeError("this backend breaks down")
        factor = 1.0 if fault == "alone" else scaled_average(self, arrays)
        return 1.0 if fault == "sum" else factor

    HorovodCommunicator.__init__, HorovodCommunicator.scaled_average = joined, averaged
    return run_pretraining_hvd.main()


if __name__ == "__main__":
    sys.exit(exit_code(train if "FAULT" in os.environ else compare))
