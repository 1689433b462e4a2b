"""Runs several processes at the same time: ``together.py LIMIT FILE``; prints how each ended.

FILE lists them in JSON: {"name", "argv", "env"}. All run to their end; at the limit the rest is killed. The
outputs go to NAME.out in the working directory. The answer, as JSON: {name: [exit code, seconds]}.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main() -> None:
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    limit, described = float(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    began = time.monotonic()
    running = {}
    for item in described:
        with open(f"{item['name']}.out", "wb") as output:
            running[item["name"]] = subprocess.Popen(
                item["argv"],
                env={**os.environ, **item["env"]},
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
    answer = {}
    while running and time.monotonic() - began < limit:
        for name, process in list(running.items()):
            if process.poll() is not None:
                answer[name] = [process.returncode, time.monotonic() - began]
                del running[name]
        time.sleep(0.02)
    for name, process in running.items():
        process.kill()
        process.wait()
        answer[name] = [None, limit]
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
