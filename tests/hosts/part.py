"""A rank for the tests of the launcher: writes down its place, then acts by its arguments.

    part.py DIRECTORY ACTION [ACTION of rank 1 ...]         the last action is also that of further ranks

Writes its variables to DIRECTORY/rank.N.json first, and its process id to DIRECTORY/rank.N.pid when it is
ready.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    rank = int(os.environ["BYTEPS_GLOBAL_RANK"])
    directory, actions = Path(sys.argv[1]), sys.argv[2:]
    action = actions[min(rank, len(actions) - 1)]
    facts = {"argv": sys.argv, "cwd": os.getcwd(), "environ": dict(os.environ), "session": os.getsid(0)}
    (directory / f"rank.{rank}.json").write_text(json.dumps(facts), encoding="utf-8")

    def ready() -> None:
        (directory / f"rank.{rank}.tmp").write_text(str(os.getpid()), encoding="ascii")
        (directory / f"rank.{rank}.tmp").rename(directory / f"rank.{rank}.pid")

    if action.startswith("exit"):
        ready()
        os._exit(int(action[len("exit") :]))
    elif action.startswith("chatter"):
        while not (directory / "rank.0.pid").exists():
            time.sleep(0.02)
        os.write(1, b"".join(b"line %d\n" % number for number in range(50_000)))
        os._exit(int(action[len("chatter") :]))
    elif action == "sleep":
        ready()
        time.sleep(600)
    elif action == "obey":  # as training does: a step, a checkpoint, the end
        received = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda number, _: received.append(number))
        ready()
        while not received:
            time.sleep(0.02)
        time.sleep(0.2 * rank)
        (directory / f"rank.{rank}.saved").write_text(signal.Signals(received[0]).name, encoding="ascii")
        sys.exit(130 if received[0] == signal.SIGINT else 143)
    elif action == "stubborn":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda *_: (directory / f"rank.{rank}.heard").touch())
        ready()
        time.sleep(600)
    elif action == "daemon":  # a process of its own session that would outlive this one
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (directory / "daemon.pid").write_text(str(child.pid), encoding="ascii")
        ready()
        time.sleep(0.2)
    elif action == "talk":
        for number in range(200):
            for text in (f"line {number} ", f"of rank {rank} ", "." * 2000, "\n"):
                os.write(1 + number % 2, text.encode())
        os.write(1, b"10%\r20%\r")
        time.sleep(0.1)
        os.write(1, b"done\nunfinished")
    else:
        raise ValueError(action)


main()
