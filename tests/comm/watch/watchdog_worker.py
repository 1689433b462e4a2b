"""A rank that exchanges under the watchdog: `watchdog_worker.py BACKEND DIRECTORY TIMEOUT MODE`.

It writes its process id to DIRECTORY/pid.RANK when only joining the others is left to do, then waits for
DIRECTORY/go, and writes DIRECTORY/steps.RANK once it has exchanged. Rank 0 writes to DIRECTORY/places where
it has listened for signs of life. MODE:

    exchange    average and agree until DIRECTORY/stop exists, then close; says which threads are left
    compute     rank 1 sleeps for 1.3 times the timeout while the others wait for it, then all close
    quarrel     the ranks make different calls, so that all wait
    close       rank 1 waits for DIRECTORY/stop before it closes, the others close at once
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import mxnet as mx

from base.launchers import launched_rank
from comm.watch.watchdog import watched
from training.entry import exit_code


def communicator_class(backend):
    if backend == "horovod":
        import horovod.mxnet  # noqa: F401  which the class would import when it is made

        from comm.horovod import HorovodCommunicator

        return HorovodCommunicator
    from comm.byteps.communicator import BytePSCommunicator

    return BytePSCommunicator


def wait_for(path):
    while not path.exists():
        time.sleep(0.02)


def main():
    backend, directory, timeout, mode = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    rank = launched_rank(os.environ)
    make = communicator_class(backend)
    pid = directory / f"pid.{rank}"
    unfinished = directory / f"pid.{rank}.new"  # with_suffix would give all ranks the same name
    unfinished.write_text(str(os.getpid()), encoding="ascii")
    unfinished.rename(pid)
    wait_for(directory / "go")
    before = set(threading.enumerate())
    comm = watched(make, timeout)
    if rank == 0:
        (directory / "places").write_text(json.dumps(comm._heartbeat.address.places), encoding="ascii")
    signal.signal(signal.SIGTERM, lambda *_: None)  # as in training, where it means: after this step
    array = mx.nd.ones((1000,))
    for step in range(1_000_000):
        array[:] = comm.rank
        comm.average([array])
        (go_on,) = comm.all_agree([not (directory / "stop").exists()])
        assert array[0].asscalar() == (comm.size - 1) / 2
        if step == 2:
            (directory / f"steps.{rank}").touch()
        if step >= 2 and mode != "exchange" or not go_on:
            break
        time.sleep(0.02 if step >= 2 else 0)  # a run of 20 s need not keep the cores busy
    if mode == "compute" and rank == 1:
        time.sleep(1.3 * timeout)
    if mode == "compute":
        comm.barrier()
    if mode == "quarrel" and rank == 0:
        comm.broadcast([array])
    if mode == "quarrel":
        comm.barrier()
    if mode == "close" and rank == 1:
        wait_for(directory / "stop")
    comm.close()
    comm.close()  # does nothing
    left = [thread.name for thread in set(threading.enumerate()) - before]
    print(f"rank {rank} of {comm.size} closed, threads left: {left}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
