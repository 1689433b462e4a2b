"""Builds for tests: in a process that can be killed, with work that crashes or waits where it is told to.

python -c 'from tests.data.store.building import main; main()' DIRECTORY UNITS WORKERS SECONDS
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from dataclasses import dataclass

import numpy as np

from base.errors import InputError
from base.progress import SILENT
from data.store.build import BuildPlan, build_columns
from data.store.columns import Column

CODE = "import sys; from tests.data.store.building import main; sys.exit(main())"
COLUMNS = [
    Column("ids", "<u2"),
    Column("ends", "<i8", ends_of="ids"),
    Column("groups", "<i8", ends_of="ends", drop_repeated=True),
    Column("weights", "<f4"),
]
SHARD_BYTES = 1 << 16


@dataclass(frozen=True)
class NumberUnit:
    """Unit number `number`; `size` is what it claims to have."""

    number: int
    size: int

    @property
    def name(self):
        return f"unit {self.number}"


@dataclass(frozen=True)
class Numbers:
    """Work whose result is a function of the unit's number. `fault` happens at unit `at`."""

    fault: str = ""
    at: int = -1
    seconds: float = 0.0

    def __call__(self, unit, number, writers):
        ids, ends, groups, weights = numbers(unit.number)
        writers["ids"].append(ids[:100])
        writers["ids"].append(ids[100:])
        writers["ends"].append(ends)
        time.sleep(self.seconds)
        if unit.number == self.at:
            self._fail()
        writers["groups"].append(groups)
        writers["weights"].append(weights)
        return {
            "counts": {"ids": len(ids), "ones": 1},
            "messages": [f"message {unit.number}"] if unit.number % 3 == 0 else [],
        }

    def _fail(self):
        if self.fault == "input":
            raise InputError("unit 4, record 7: not good")
        if self.fault == "segfault":
            ctypes.string_at(0)
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "kill":
            os.kill(os.getpid(), 9)
        if self.fault == "memory":
            np.ones(1 << 33, dtype=np.uint8)
        if self.fault == "defect":
            raise KeyError("a defect")
        if self.fault == "print":
            os.write(1, b"a library prints this" * 1000)


def numbers(number):
    """The content of unit `number`: ids, ends and groups from its own start, weights."""
    generator = np.random.default_rng(number)
    ids = generator.integers(0, 60_000, generator.integers(200, 4000))
    ends = np.unique(generator.integers(1, len(ids), 40))
    groups = np.sort(generator.integers(0, len(ends) + 1, 6))  # with repetitions, 0 and the last one too
    return ids, ends, groups, generator.random(50, dtype=np.float32)


def expected(num_units):
    """The columns by plain concatenation."""
    ids, ends, groups, weights = [], [0], [0], []
    for number in range(num_units):
        part = numbers(number)
        groups += [len(ends) - 1 + int(end) for end in part[2]]
        ends += [len(ids) + int(end) for end in part[1]]
        ids += part[0].tolist()
        weights += part[3].tolist()
    distinct = [end for index, end in enumerate(groups) if index == 0 or end != groups[index - 1]]
    return {"ids": ids, "ends": ends, "groups": distinct, "weights": weights}


def build(directory, num_units, num_workers, work=None, size=100_000, **options):
    """`size` 100,000 makes ten units too large to be worked on in the process itself."""
    identity = {"units": num_units, "key": options.pop("key", "")}
    progress = options.pop("progress", SILENT)
    units = [NumberUnit(number, size) for number in range(num_units)]
    options["shard_bytes"] = SHARD_BYTES
    plan = BuildPlan(COLUMNS, lambda: units, work or Numbers(), identity, {"format": "numbers"}, **options)
    build_columns(str(directory), plan, num_workers, progress)


def main():
    """The command above."""
    directory, num_units, num_workers, seconds = sys.argv[1:]
    try:
        build(directory, int(num_units), int(num_workers), Numbers(seconds=float(seconds)))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
