"""Ranks of `python compare.py --comm_only`, spoiled where SPOIL is in the environment.

"wrong": the mean of arrays of 64 KB has one element too large on rank 1, which also ends badly after the last
message. "crash": rank 1 ends when it is to average such an array.
"""

from __future__ import annotations

import os
import runpy

from comm import backends
from comm.base import DelegatingCommunicator
from comparison.backends import ROOT

ELEMENTS = 64 * 1024 // 4


class Spoiled(DelegatingCommunicator):
    def average(self, arrays):
        if self.rank == 1 and arrays[0].size == ELEMENTS and os.environ["SPOIL"] == "crash":
            raise RuntimeError("the network is gone")
        super().average(arrays)
        if self.rank == 1 and arrays[0].size == ELEMENTS and os.environ["SPOIL"] == "wrong":
            arrays[0][1000:1001] += 1

    def close(self):
        super().close()
        if self.rank == 1 and os.environ["SPOIL"] == "wrong":
            raise RuntimeError("no good end")


if __name__ == "__main__":
    if "SPOIL" in os.environ:
        opened = backends.open_communicator
        backends.open_communicator = lambda *words: Spoiled(opened(*words))
    runpy.run_path(str(ROOT / "comparison" / "messages" / "rank.py"), run_name="__main__")
