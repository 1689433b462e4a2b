"""A rank whose memory is measured and limited.

    python -m bench.measured_rank FOLDER LIMIT COMMAND...

Runs the command with at most LIMIT bytes of address space (`ulimit -v`; 0: no limit), watches its memory and
writes FOLDER/RANK.json: resident and address_space, both the greatest in bytes, and code, its exit code,
which is this process's too. Linux; standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from base.launchers import launched_rank
from base.memory import ADDRESS_SPACE, RESIDENT, peak_of
from base.processes import end_with_parent

POLL = 0.02  # seconds
_FIELDS = {"resident": RESIDENT, "address_space": ADDRESS_SPACE}


def main() -> int:
    folder, limit, command = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    parent = os.getpid()

    def prepare() -> None:
        end_with_parent(parent)
        if limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    child = subprocess.Popen(command, preexec_fn=prepare)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda each, frame: child.send_signal(each))
    peak = dict.fromkeys(_FIELDS, 0)
    while True:
        for name, field in _FIELDS.items():
            peak[name] = max(peak[name], peak_of(child.pid, field))
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(POLL)
            break
    rank = launched_rank(os.environ)
    (folder / f"{rank}.json").write_text(json.dumps({**peak, "code": code}), encoding="utf-8")
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
