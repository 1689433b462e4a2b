"""Two ranks that work together until the last one fails: `failing_worker.py DIRECTORY raise|abort`.

DIRECTORY/noticed holds what another rank's wait ended with.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import mxnet as mx

from comm.base import CommunicationError, abort
from comm.horovod import HorovodCommunicator


def main():
    directory, how = Path(sys.argv[1]), sys.argv[2]
    comm = HorovodCommunicator()
    array = mx.nd.ones((1000, 1000))
    for _ in range(3):
        comm.average([array])
        assert comm.all_agree([True]) == [True]
    if comm.rank == comm.size - 1:
        time.sleep(0.5)  # the others are waiting by then
        if how == "raise":
            raise RuntimeError("this rank has failed")
        if how == "abort":
            abort(7)
    try:
        comm.average([array])
        comm.all_agree([True])
    except CommunicationError as error:
        (directory / "noticed").write_text(str(error), encoding="utf-8")
        raise
    comm.close()


if __name__ == "__main__":
    main()
