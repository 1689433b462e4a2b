"""The health check of a container: exit code 1 and a line where something in it hangs.

    python hosts/health.py

An ssh server that hosts/pod.py runs answers; no rank, server or scheduler has been stopped (state T);
shared memory is not full, where the next batch would end in a SIGBUS. A container that runs none of these is
healthy. Standard library only.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from base.processes import running
from hosts.batch.ssh import answers

SHARED_MEMORY = "/dev/shm"
LEAST = 1 << 20  # bytes of shared memory
SECONDS = 5.0  # for the ssh server
SERVES, PORT = ["-m", "hosts.pod", "hvd", "worker"], "--port"
MARKS = ("OMPI_COMM_WORLD_RANK", "DMLC_ROLE")  # of the processes of a run


def main() -> int:
    """Prints what hangs; returns the exit code."""
    found = problems(Path("/proc"))
    for line in found:
        print(line)
    return 1 if found else 0


def problems(proc: Path) -> list[str]:
    """Sentences about what hangs in this container, as its /proc shows it."""
    found = []
    for each in running(proc):
        if each.words[1:5] == SERVES:
            given = [after for before, after in zip(each.words, each.words[1:]) if before == PORT]
            port = int(given[-1]) if given and given[-1].isdecimal() else 2222
            why = answers("127.0.0.1", port, SECONDS)
            found += [f"the ssh server at port {port}: {why}"] if why else []
        if each.state in "Tt" and any(name in each.variables for name in MARKS):
            found.append(f"process {each.pid} has been stopped by a signal: {' '.join(each.words)[:200]}")
    if os.path.isdir(SHARED_MEMORY):
        memory = os.statvfs(SHARED_MEMORY)
        if memory.f_bavail * memory.f_frsize < LEAST:
            found.append(f"{SHARED_MEMORY} is full; start the container with more shared memory (--shm-size)")
    return found


if __name__ == "__main__":
    sys.exit(main())
