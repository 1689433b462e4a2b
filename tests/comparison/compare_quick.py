"""compare.py with backends that do not train (see quick_training.py), with the docstrings of one package in
place of the whole library's, and with files of pictures that are empty: runs/test_report.py draws."""

from __future__ import annotations

import email
import sys
from functools import partial
from pathlib import Path

from compare import main
from comparison import report
from comparison.backends import MPIRUN, Backend
from data import embedded
from training.entry import exit_code

SCRIPT = Path(__file__).resolve().with_name("quick_training.py")
QUICK = {
    name: Backend(name, SCRIPT, MPIRUN, {"QUICK": fault})
    for name, fault in {"one": "", "two": "", "fails": "fail", "hangs": "hang"}.items()
}

if __name__ == "__main__":
    embedded.MIN_BYTES = 0
    library = str(Path(email.__file__).parent)
    embedded.build = partial(embedded.build, vocab_size=1000, library=library)  # type: ignore[assignment]
    report.save = lambda figure, path, mark: path.write_bytes(b"")
    report.as_svg = lambda figure, name: ""
    sys.exit(exit_code(lambda: main(sys.argv[1:], QUICK)))
