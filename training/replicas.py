"""Comparison of what must be the same on all replicas: parameters and optimizer states.

The ranks update their copies by the same gradients, so the copies have the same bits for ever, unless memory,
a processor or a program errs; then nothing but a comparison shows it, and rank 0's copy is the one that is
saved. Each array is summed as whole numbers of 64 bits, at the speed of memory, and what a rank sends is a
digest of these sums: one that differs in a single bit has another.
"""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from typing import Any, Mapping, Sequence

import mxnet as mx
import numpy as np

from base.errors import TrainingError
from bert.model import each_once, network_parameters
from comm.base import Communicator
from comm.bits import memory_of
from training.exchange import broadcast_json, gathered
from training.optimizer.optimizer import Optimizer
from training.optimizer.shards import ShardedOptimizer
from training.pipeline.ranks import Ranks
from training.start.restoring import live_arrays

BYTES = 4  # of a rank's digest
SHOWN = 3  # arrays and ranks in a message


def check_replicas(step: int, network: Any, optimizer: Optimizer, ranks: Ranks) -> None:
    """Compares parameters and optimizer states of all ranks that hold the same ones, those of a stage of a
    pipeline; every rank calls it.

    Raises:
        TrainingError: on every rank, with ranks, hosts and arrays, where they differ.
    """
    world = ranks.world
    if len(ranks.replicas) == 1:
        return
    arrays = live_arrays(each_once(network_parameters(network)))
    if not isinstance(optimizer, ShardedOptimizer):  # else each state is on one rank
        arrays.update(optimizer.state_arrays())
    sums = {name: _sum(array) for name, array in arrays.items()}
    encoded = ",".join(map(str, sums.values())).encode()
    digests = gathered(int.from_bytes(hashlib.sha256(encoded).digest()[:BYTES], "little"), world)
    for holders in zip(*ranks.replicas):
        usual, odd = majority({rank: digests[rank] for rank in holders})
        if odd:
            said = _difference(sums, usual, odd, world)
            world.before_end(lambda has_first: "")  # nobody saves this where others are seen to leave first
            world.barrier()
            raise TrainingError(
                f"step {step}: {said}, and not saved; memory or a processor "
                "may be faulty: --resume from the checkpoint before, without that host"
            )


def majority(digests: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """The ranks with the digest that more than half of them have, and the others. Where there is none such,
    the digest of the lowest rank counts."""
    most, number = Counter(digests.values()).most_common(1)[0]
    if 2 * number <= len(digests):
        most = digests[min(digests)]
    usual = sorted(rank for rank, digest in digests.items() if digest == most)
    return usual, sorted(set(digests) - set(usual))


def _difference(
    sums: Mapping[str, int], usual: Sequence[int], odd: Sequence[int], world: Communicator
) -> str:
    """A clause on ranks that differ, and in what. Every rank calls it."""
    expected = broadcast_json(sums, world, usual[0])
    own = {
        "host": platform.node(),
        "arrays": [name for name, found in sums.items() if expected.get(name) != found],
    }
    reports = {rank: broadcast_json(own, world, rank) for rank in (usual[0], *odd[:SHOWN])}
    names = list(dict.fromkeys(name for rank in odd[:SHOWN] for name in reports[rank]["arrays"]))
    which = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    different = ", ".join(f"rank {rank} ({reports[rank]['host']})" for rank in odd[:SHOWN])
    different += f" and {len(odd) - SHOWN} more ranks" if len(odd) > SHOWN else ""
    if len(usual) > len(odd):
        others = f"the other {len(usual)} ranks'"
    else:
        others = f"rank {usual[0]}'s ({reports[usual[0]]['host']}); no majority says whose are right"
    return f"parameters or optimizer states ({which}) of {different} are not {others}"


def _sum(array: mx.nd.NDArray) -> int:
    """The sum of an array's memory in whole numbers, modulo 2^64, once it has been written."""
    on_cpu = array.context.device_type == "cpu"
    data = memory_of(array) if on_cpu else array.asnumpy().reshape(-1).view(np.uint8)
    whole = data.size // 8 * 8
    rest = int.from_bytes(data[whole:].tobytes(), "little")
    return (int(np.add.reduce(data[:whole].view(np.uint64))) + rest) % 2**64
