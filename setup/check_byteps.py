"""Checks BytePS with real processes: ``check_byteps.py WORKERS LOCAL_RANKS`` adds up a vector over all."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

PATIENCE = 120.0  # seconds for all processes to start, add up and end


def main() -> None:
    """Starts the processes of a run and waits; exits non-zero with a reason when one fails or none ends."""
    workers, local_ranks = int(sys.argv[1]), int(sys.argv[2])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Settings of the user's own runs are not for this one.
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_"))}
    env = {
        **outer,
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NODE_HOST": "127.0.0.1",
        "BYTEPS_LOCAL_SIZE": str(local_ranks),
    }
    started = {}
    try:
        if workers > 1:  # BytePS's single workers have neither a server nor a scheduler
            for role in ("scheduler", "server"):
                command = [sys.executable, "-c", "import byteps.server"]
                started[role] = subprocess.Popen(command, env={**env, "DMLC_ROLE": role})
        for rank in range(workers * local_ranks):
            place = {
                "DMLC_ROLE": "worker",
                "DMLC_WORKER_ID": str(rank // local_ranks),
                "BYTEPS_LOCAL_RANK": str(rank % local_ranks),
            }
            command = [sys.executable, __file__, "rank"]
            started[f"rank {rank}"] = subprocess.Popen(command, env={**env, **place})
        _wait(started)
    finally:
        for process in started.values():
            process.kill()
            process.wait()


def _wait(started: dict[str, subprocess.Popen[bytes]]) -> None:
    end = time.monotonic() + PATIENCE
    running = dict(started)
    while running:
        for name, process in list(running.items()):
            if process.poll() is None:
                continue
            if process.returncode != 0:
                sys.exit(f"BytePS's {name} ended with exit code {process.returncode}")
            del running[name]
        if time.monotonic() > end:
            sys.exit(f"still running after {PATIENCE:.0f} seconds: {', '.join(running)}")
        time.sleep(0.05)


def rank_main() -> None:
    """One rank: compares the sum of a vector over all ranks with what it must be."""
    import byteps.mxnet.ops as bps
    import mxnet as mx

    bps.init()
    # Declared here and not with bps.byteps_declare_tensor, which checks a return value that does not exist.
    declare = bps.MXNET_LIB_CTYPES.byteps_mxnet_declare_tensor
    declare.restype = None
    declare(bps.c_str("check"), 0, None, None)
    size = bps.size()
    vector = mx.nd.arange(100003) * (bps.rank() + 1)
    bps.byteps_push_pull(vector, name="check", is_average=False)
    expected = mx.nd.arange(100003) * (size * (size + 1) // 2)
    if not (vector == expected).asnumpy().all():
        sys.exit(f"the sum over {size} ranks is wrong")
    bps.shutdown()


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank_main()
    else:
        main()
