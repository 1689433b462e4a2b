"""compare.py with four more backends, which are faulty: see faulty_training.py."""

from __future__ import annotations

import sys
from pathlib import Path

from comparison.backends import BACKENDS, MPIRUN, Backend
from comparison.main import main
from training.entry import exit_code

SCRIPT = Path(__file__).resolve().with_name("faulty_training.py")
FAULTS = {"alone": "alone", "sum": "sum", "crash": "crash", "memory": "memory 2000"}
FAULTY = {
    name: Backend(name, f"faulty: {name}", SCRIPT, MPIRUN, {"FAULT": fault}) for name, fault in FAULTS.items()
}

if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:], {**BACKENDS, **FAULTY})))
