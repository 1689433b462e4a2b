"""compare.py with backends that do not train (see quick_training.py), with a text that is made in a moment in
place of Python's docstrings, and with files of pictures that are empty: test_comparison_report.py draws."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from compare import main
from comparison import report
from comparison.backends import MPIRUN, Backend
from data import embedded
from data.embedded import finished, save_report, write_corpus
from training.entry import exit_code

SCRIPT = Path(__file__).resolve().with_name("quick_training.py")
QUICK = {
    name: Backend(name, name, SCRIPT, MPIRUN, {"QUICK": fault})
    for name, fault in {"one": "", "two": "", "fails": "fail", "hangs": "hang"}.items()
}


def build(output: str) -> dict[str, Any]:
    """In place of `data.embedded.build`: the same files."""
    settings = {"version": 1}
    rng = random.Random(0)
    documents = [
        [" ".join(rng.choices(("one", "two", "three", "four", "five", "six"), k=9)) for _ in range(8)]
        for _ in range(40)
    ]
    figures = finished(output, settings) or write_corpus(output, documents[4:], documents[:4], 300)
    return save_report(output, {"settings": settings, **figures})


if __name__ == "__main__":
    embedded.build = build  # type: ignore[assignment]
    report.save = lambda figure, path, mark: path.write_bytes(b"")
    report.as_svg = lambda figure, name: ""
    sys.exit(exit_code(lambda: main(sys.argv[1:], QUICK)))
