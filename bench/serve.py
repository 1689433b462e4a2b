"""The worker's side of bench/step.py: one contestant that takes a step on request.

Lines on standard input are "step", "step NAME" or "end", answers are JSON objects, one a line, on what was
standard output; whatever libraries print goes to standard error. Standard library only.

    worker                                  parent
    {"ready": FACTS} or {"unsupported": WHY}
                                            step, or step NAME where a worker has several
    {"seconds": S, "loss": L}
                                            end
    {"peak_bytes": N}
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Callable, Mapping, Optional, Union

ReadLoss = Callable[[], Optional[float]]
TakeStep = Callable[[], ReadLoss]
Steps = Union[TakeStep, Mapping[str, TakeStep]]


class Unsupported(Exception):
    """This contestant cannot do this work here; the message says why."""


def no_loss() -> None:
    """The ReadLoss of a step that has none."""


def serve(set_up: Callable[[], tuple[Steps, dict[str, Any]]]) -> None:
    """Answers the parent until it says "end" or goes away.

    Args:
        set_up: returns the step, or several by name, and the facts about the contestant. A step returns when
            all of its work is done; what it returns gives the loss, and is called outside the timing.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")

    try:
        steps, facts = set_up()
    except Unsupported as reason:
        answer({"unsupported": str(reason)})
        return
    answer({"ready": facts})
    for line in sys.stdin:
        if line.strip() == "end":
            answer({"peak_bytes": peak_bytes()})
            return
        take_step = steps if callable(steps) else steps[line.split()[1]]
        begun = time.perf_counter()
        read_loss = take_step()
        seconds = time.perf_counter() - begun
        answer({"seconds": seconds, "loss": read_loss()})


def peak_bytes() -> int:
    """The most memory that this process has held so far (VmHWM)."""
    with open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def best_gflops(multiply: Callable[[], None], gflop: float, seconds: float = 1.5) -> float:
    """The highest rate of several runs of `multiply`, which takes `gflop` 10^9 operations."""
    multiply()
    best, end = 0.0, time.perf_counter() + seconds
    while not best or time.perf_counter() < end:
        begun = time.perf_counter()
        multiply()
        best = max(best, gflop / (time.perf_counter() - begun))
    return best
