"""compare.py with backends that do not train: see quick_training.py."""

from __future__ import annotations

import sys
from pathlib import Path

from comparison.backends import MPIRUN, Backend
from comparison.main import main
from training.entry import exit_code

SCRIPT = Path(__file__).resolve().with_name("quick_training.py")
QUICK = {
    name: Backend(name, name, SCRIPT, MPIRUN, {"QUICK": fault})
    for name, fault in {"one": "", "two": "", "fails": "fail", "hangs": "hang"}.items()
}

if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:], QUICK)))
