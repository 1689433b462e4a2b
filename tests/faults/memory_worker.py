"""Sums through BytePS's server: prints as JSON the bytes that one leaves behind in this worker and in the
server.

    python tests/faults/memory_worker.py SUMS
"""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import mxnet as mx

from comm.byteps.communicator import BytePSCommunicator
from tests.faults.memory import growth_of, private_bytes
from tests.processes import environ_of


def server() -> int:
    """Process id of this run's server."""
    wanted = {"DMLC_ROLE=server", f"DMLC_PS_ROOT_PORT={os.environ['DMLC_PS_ROOT_PORT']}"}
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    (found,) = (
        pid
        for pid in pids
        if wanted <= set(environ_of(pid)) and b"supervise.py" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return found


def main() -> None:
    comm = BytePSCommunicator()
    pid = server()

    def settle() -> None:
        comm.barrier()
        mx.nd.waitall()
        gc.collect()

    def agree() -> None:
        comm.all_agree([True])

    times = int(sys.argv[1])
    found = {
        "worker": growth_of(agree, times, settle),
        "server": growth_of(agree, times, settle, lambda: private_bytes(pid)),
    }
    print(json.dumps(found), flush=True)
    comm.close()


if __name__ == "__main__":
    main()
