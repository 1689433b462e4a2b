"""The set-up's trial of Horovod and mpi4py, on two ranks."""

from __future__ import annotations

from tests.processes import ROOT, run_ranks

# Rank 1 still uses MPI for its messages while rank 0 has all of its own.
SLOW = """
import sys
import time

from setup import check_horovod

exchange = check_horovod._exchange_messages

def slow_exchange():
    exchange()
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() == 1:
        for _ in range(20):
            time.sleep(0.1)
            assert not MPI.Is_finalized(), "the other rank's end has taken MPI away"
            MPI.COMM_WORLD.Iprobe()

check_horovod._exchange_messages = slow_exchange
sys.argv[1:] = ["mpi"]
check_horovod.main()
"""


def test_no_rank_leaves_while_the_other_exchanges_messages():
    """Horovod ends MPI on all ranks with the first that leaves, under the hands of one that still uses it."""
    run_ranks(SLOW, 2, env={"PYTHONPATH": str(ROOT)}).check()
