"""Figure 5, of files: hostile instances, weights, text, configurations, host files and others, and
environment variables, read in processes whose memory is limited (tests/data/formats/fuzz_worker.py,
tests/bert/weights/fuzz_worker.py, tests/faults/hostile.py)."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from typing import Iterator

from tests.faults.figure import ONCE, Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import named, parsed, python
from tests.processes import run_command

OF_INSTANCES = ("npz", "tfrecord", "ofrecord", "random")
OF_WEIGHTS = ("safetensors", "bundle", "pickled", "params")
OF_OTHERS = (
    *("text", "vocabulary", "configuration", "options", "hosts", "manifest", "results", "questions", "table"),
    "environment",
)
COUNT = 150  # of instances' files; rounds of weights', which have several files
BY_COMMANDS = ("configuration", "options", "hosts", "results", "vocabulary", "text")
FEW = 10  # through commands, which have to be started
LINES = "errors have several lines"
PICKLED = "pickles are executed"
WORKERS = {
    **dict.fromkeys(OF_INSTANCES, "tests.data.formats.fuzz_worker"),
    **dict.fromkeys(OF_WEIGHTS, "tests.bert.weights.fuzz_worker"),
    **dict.fromkeys(OF_OTHERS, "tests.faults.hostile"),
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
        for kind in BY_COMMANDS:
            yield named(kind=kind, seed=draw.randrange(10**6), by="commands")


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
        through = [FEW, folder, "commands"] if "by" in parts else [COUNT, folder]
        words = python(*start, WORKERS[kind], kind, parts["seed"], *first, *through)
        env = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        result = run_command(words, timeout=300, env=env)
        if result.returncode:  # a worker ends at the first
            return Tally.of(result.describe(1500))
        tried = sum(json.loads(result.stdout.splitlines()[-1]).values())
        return Tally(tried, tried)

    yield attempt


PROGRAM = Program(
    "5a",
    "hostile instances, weights, text, checkpoints, configurations, host files, variables",
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
    note="options: 10; strangers' messages: 5b",
)
