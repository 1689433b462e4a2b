"""Memory of a run by steps: a line through what each of its processes holds, in bytes a step.

A run is the real script on two ranks with a tiny model. Counted is what a process alone has written to
(Private_Dirty of /proc/PID/smaps_rollup). Steps before WARM_UP fill caches, pools and heaps. A process is
flat if the slope of its line and that one's standard error are below LIMIT together.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Sequence

import numpy as np

from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named
from tests.faults.jobs import ONE_THREAD, Job, last_step

LIMIT = 20.0  # bytes a step: 18 MB in 900,000
WARM_UP = 5000  # the plans of 50 epochs of a small text


@dataclass(frozen=True)
class Slope:
    """Growth of one process, in bytes a step, over `steps` steps. `error`: its standard error."""

    process: str
    bytes_a_step: float
    error: float
    steps: int

    @property
    def grows(self) -> bool:
        """Whether it is not flat for certain."""
        return self.bytes_a_step + self.error > LIMIT

    def __str__(self) -> str:
        return f"{self.process}: {self.bytes_a_step:.0f} ± {self.error:.0f} bytes a step over {self.steps:,}"


def slope(process: str, points: Sequence[tuple[int, int]]) -> Slope:
    """The line of least squares through (step, bytes), at least three of them."""
    steps, held = np.array(points).T
    (rise, _), covariance = np.polyfit(steps, held, 1, cov=True)
    return Slope(process, rise, covariance[0, 0] ** 0.5, steps[-1] - steps[0])


def of_a_run(setting: Setting, steps: int) -> list[Slope]:
    """Slopes of all processes of a run, over `steps` steps after WARM_UP and before its end."""
    directory, job = setting.folder("run"), Job(setting)
    end = WARM_UP + steps + steps // 100
    options = {
        "stages": None, "data_eval": None, "max_seq_length": 16, "num_steps": end, "lr": 0.001,
        "batch_size": 8, "num_buckets": None, "warmup_ratio": 0.1, "log_interval": 50, "progress": "none",
        "ckpt_interval": 10**6,
    }  # fmt: skip
    points: dict[str, list[tuple[int, int]]] = {}
    last = 0
    # glibc has up to 8 heaps a core, and a new thread, such as one that plans an epoch, may take any of them.
    # Each is filled once, whenever that is: 2.6 MB in all. With one heap it is before WARM_UP.
    env = {**ONE_THREAD, "MALLOC_ARENA_MAX": "1"}
    with job.start(job.words(directory, **options), env=env, timeout=3600 * 6) as run:
        while run.poll() is None:
            time.sleep(0.5)
            step = last_step(directory)
            if step >= max(WARM_UP, last + steps // 100):
                last = step
                found = [(f"rank {number}", pid) for number, pid in enumerate(run.find(job.script.name))]
                found += [(f"server {number}", pid) for number, pid in enumerate(run.find_role("server"))]
                held = [(f"{setting.launcher} {name}", private_bytes(pid)) for name, pid in found]
                if last_step(directory) < end:  # what the end saves and draws takes megabytes, once
                    for name, size in held:
                        points.setdefault(name, []).append((step, size))
        run.wait().check()
    return [slope(name, each) for name, each in points.items() if len(each) > 2]


def private_bytes(pid: int) -> int:
    """Memory that process `pid` alone has written to; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))


class _Mallinfo(ctypes.Structure):
    """glibc's struct mallinfo2; older ones have ints in it, and another name."""

    _fields_ = [
        *((f"unused{number}", ctypes.c_size_t) for number in range(4)),
        ("hblkhd", ctypes.c_size_t),  # in blocks of their own
        *((f"unused{number}", ctypes.c_size_t) for number in range(4, 6)),
        ("uordblks", ctypes.c_size_t),  # in heaps
        *((f"unused{number}", ctypes.c_size_t) for number in range(6, 8)),
    ]


def allocated_bytes() -> int:
    """Bytes that this process has taken by malloc and not given back, to the byte."""
    function = ctypes.CDLL(None).mallinfo2
    function.restype = _Mallinfo
    found: Any = function()
    return int(found.uordblks + found.hblkhd)


def growth_of(
    work: Callable[[], Any],
    times: int,
    settle: Callable[[], Any],
    held: Callable[[], int] = allocated_bytes,
) -> float:
    """Bytes that a call of `work` adds to what is `held`: the least mean of three series of `times` calls,
    since growth is in all of them, and what is made once in one. `settle` waits for what is queued."""
    found = []
    for _ in range(times):
        work()
    for _ in range(3):
        settle()
        before = held()
        for _ in range(times):
            work()
        settle()
        found.append((held() - before) / times)
    return min(found)


# --- The figure.


def leak(size: int) -> str:
    """Python that has each step keep so many bytes."""
    return f"""
import training.step
kept = []
call = training.step.TrainStep.__call__
def leaking(self, *given, **named):
    kept.append(bytearray(b"x" * {size}))
    return call(self, *given, **named)
training.step.TrainStep.__call__ = leaking
"""


def attempt(setting: Setting, parts: Parts) -> Tally:
    """A run, each of whose processes is one thing that is tried."""
    slopes = of_a_run(setting, int(parts["steps"]))
    assert slopes, "no process was measured"
    failures = [str(each) for each in slopes if each.grows]
    return Tally.of(*failures, tried=len(slopes), measured="; ".join(map(str, slopes)))


PROGRAM = Program(
    "memory",
    "memory of each process of a run over 20,000 steps",
    "flat: under 20 bytes a step",
    weight=2,
    seconds=400,
    cases=lambda setting: [named(steps=20_000)],
    attempt=attempt,
    damages={
        "a step leaves 2 KB": Damage(named(steps=2000), "bytes a step", leak(2000)),
        "a step leaves 100 bytes": Damage(named(steps=2000), "bytes a step", leak(40)),  # an object has 57
    },
)
