"""The container's program on Amazon SageMaker: the training toolkit's `train`, and its signals.

    python3 hosts/sagemaker_train.py [PROGRAM OPTIONS...]      # the program: `train`, the toolkit's

SageMaker sends SIGTERM to a container that it is about to end (a spot interruption, a stopped job, max_run),
and SIGKILL 120 seconds later. It comes to process 1, which in the toolkit's images has no handler, so that
the kernel drops it. This program is process 1 instead: it hands the signal to the ranks in its container; one
rank with a signal makes all ranks of the job save and end. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Sequence

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from hosts.pod import signal_ranks

TOOLKIT = "train"
GRACE = 100.0  # seconds for the program to end after the ranks got the signal; SageMaker waits 120
STEP = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program to its end; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv) or [TOOLKIT]
    if shutil.which(words[0]) is None:
        print(
            f"sagemaker_train: there is no program {words[0]}; install sagemaker-training into the image",
            file=sys.stderr,
        )
        return 2
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    process = subprocess.Popen(words)
    deadline = None
    while process.poll() is None:
        if asked and deadline is None:
            deadline = time.monotonic() + GRACE
            say = partial(print, "sagemaker_train:", file=sys.stderr, flush=True)
            if not signal_ranks(say):  # there is nothing to save yet
                process.terminate()
        if deadline is not None and time.monotonic() > deadline:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STEP)
        _collect(process.pid)
    return 128 - process.returncode if process.returncode < 0 else process.returncode


def _collect(program: int) -> None:
    """Lets processes go that have lost their parents: process 1 is their parent then."""
    with contextlib.suppress(ChildProcessError):
        while True:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or ended.si_pid == program:
                return  # the program's own end is for its Popen
            os.waitpid(ended.si_pid, 0)


if __name__ == "__main__":
    sys.exit(main())
