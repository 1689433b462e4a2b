"""Figure 5, of files: hostile instances and weights, read in processes whose memory is limited
(tests/data/formats/fuzz_worker.py, tests/bert/weights/fuzz_worker.py)."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from typing import Iterator

from tests.processes import run_command
from tests.reliability.figure import ONCE, Attempt, Damage, Program, Setting, Tally
from tests.reliability.jobs import named, parsed, python

OF_INSTANCES = ("npz", "tfrecord", "ofrecord", "random")
OF_WEIGHTS = ("safetensors", "bundle", "pickled", "params")
COUNT = 150  # of instances' files; rounds of weights', which have several files
LINES = "errors have several lines"
PICKLED = "pickles are executed"
WORKERS = {
    **dict.fromkeys(OF_INSTANCES, "tests.data.formats.fuzz_worker"),
    **dict.fromkeys(OF_WEIGHTS, "tests.bert.weights.fuzz_worker"),
}
PATCHES = {
    LINES: """
import base.errors
base.errors.InputError.__str__ = lambda self: "a line\\nanother one"
""",
    PICKLED: """
import pickle
from bert.weights import pickled
pickled.read_index = lambda path: pickle.loads(open(path, "rb").read())
""",
}
DAMAGED = """
import runpy, sys
{patch}
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


def cases(setting: Setting) -> Iterator[str]:
    """Endless: each format, with other files in each turn."""
    draw = random.Random(setting.seed)
    while True:
        for kind in WORKERS:
            yield named(kind=kind, seed=draw.randrange(10**6))


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: many files of a format."""

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        kind, folder = parts["kind"], setting.work / "files"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        first = [0] if kind in OF_INSTANCES else []
        start = ["-c", DAMAGED.format(patch=PATCHES[setting.damage])] if setting.damage else ["-m"]
        words = python(*start, WORKERS[kind], kind, parts["seed"], *first, COUNT, folder)
        env = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        result = run_command(words, timeout=300, env=env)
        if result.returncode:  # a worker ends at the first
            return Tally.of(result.describe(1500))
        tried = sum(json.loads(result.stdout.splitlines()[-1]).values())
        return Tally(tried, tried)

    yield attempt


PROGRAM = Program(
    "5a",
    "hostile files of instances and weights",
    "5,000: no hang, no traceback, no byte executed",
    weight=0.4,
    seconds=8,
    backends=(ONCE,),
    cases=cases,
    opened=opened,
    damages={
        LINES: Damage(named(kind="npz", seed=1), "AssertionError"),
        PICKLED: Damage(named(kind="pickled", seed=1), "Error"),
    },
    note="text, configurations, host files and options: `make test` and 10",
)
