"""Coordinates of the ranks of a run whose layers lie on several ranks: the stage and the replica of each.

A run of `stages` stages and R replicas has stages x R ranks. The ranks are put in an order, and consecutive
groups of `stages` of them are one replica, in the order of its stages:

- intra_first: node-major, as the launchers number ranks: rank r = node G + gpu, with G ranks on a host. A
  replica lies on as few hosts as possible: activations stay inside a host, gradients are averaged between.
- inter_first: gpu-major, k = gpu N + node, with N hosts. Neighbouring stages lie on different hosts; with as
  many hosts as stages the ranks that average their gradients are those of one host.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Sequence

from base.errors import InputError

INTRA_FIRST, INTER_FIRST = PLACEMENTS = ("intra_first", "inter_first")
SHOWN = 3  # links in a warning


@dataclass(frozen=True)
class Coordinates:
    """A rank: replica `data_rank` of `data_size`, stage `stage` of `stages`."""

    data_rank: int
    data_size: int
    stage: int
    stages: int

    @property
    def first(self) -> bool:
        """Whether it holds the embeddings and reads the batches' tokens."""
        return self.stage == 0

    @property
    def last(self) -> bool:
        """Whether it holds the heads and the losses."""
        return self.stage == self.stages - 1


class Host(NamedTuple):
    """A host and the number of its ranks."""

    name: str
    slots: int


def check_size(size: int, stages: int) -> None:
    """Raises InputError unless `size` ranks are whole replicas of `stages` stages."""
    if size % stages:
        fewer, more = size // stages * stages, (size // stages + 1) * stages
        would = f"{fewer} or {more}" if fewer else str(more)
        processes = "1 process is" if size == 1 else f"{size} processes are"
        other = f", or give a number of stages that divides {size}" if size > 1 else ""
        raise InputError(
            f"--pipeline_stages {stages}: {processes} not a multiple of {stages}; start {would}{other}"
        )


def replica_groups(slots_per_host: Sequence[int], stages: int, placement: str) -> tuple[tuple[int, ...], ...]:
    """The global ranks of each replica, in the order of its stages. Where hosts have unequal slots,
    inter_first passes over the hosts that have no slot left.

    Args:
        slots_per_host: ranks of each host, which number them one host after the other.

    Raises:
        InputError: the ranks are not whole replicas.
    """
    size = sum(slots_per_host)
    check_size(size, stages)
    ranks = list(range(size))
    if placement == INTER_FIRST:
        places = [(gpu, node) for node, slots in enumerate(slots_per_host) for gpu in range(slots)]
        ranks.sort(key=places.__getitem__)
    return tuple(tuple(ranks[begin : begin + stages]) for begin in range(0, size, stages))


def coordinates_of(rank: int, slots_per_host: Sequence[int], stages: int, placement: str) -> Coordinates:
    """The coordinates of a global rank. For the arguments and errors see `replica_groups`."""
    replicas = replica_groups(slots_per_host, stages, placement)
    (data_rank,) = (number for number, replica in enumerate(replicas) if rank in replica)
    return Coordinates(data_rank, len(replicas), replicas[data_rank].index(rank), stages)


def hosts_of_ranks(ranks: Sequence[tuple[str, int]]) -> list[Host]:
    """The hosts of a run in the order of its ranks.

    Args:
        ranks: of each rank in order the name of its host and its rank among those of that host.

    Raises:
        InputError: the ranks are not numbered one host after the other. A name alone does not tell hosts
            apart (containers may share one), nor do local ranks.
    """
    hosts: list[Host] = []
    for rank, (name, local_rank) in enumerate(ranks):
        if local_rank == 0:
            hosts.append(Host(name, 1))
        elif hosts and hosts[-1] == (name, local_rank):
            hosts[-1] = Host(name, local_rank + 1)
        else:
            raise InputError(
                f"--pipeline_stages needs ranks that are numbered one host after the other, and rank {rank} "
                f"is number {local_rank} on {name}, behind one on {ranks[rank - 1][0] if rank else name}; "
                "start them with mpirun's --map-by slot, its default"
            )
    return hosts


def placement_warnings(hosts: Sequence[Host], stages: int, placement: str) -> list[str]:
    """Sentences about links that are slower than others which do the same work, and that all wait for:
    between neighbouring stages of some replicas but not of all, and averages of some stages but not of all.

    They are empty where all hosts have equally many slots and whole replicas fit (intra_first), or where
    there is one rank of each host in a group (inter_first).
    """
    slots = [host.slots for host in hosts]
    replicas = replica_groups(slots, stages, placement)
    node_of = [node for node, host in enumerate(hosts) for _ in range(host.slots)]
    found = []
    reason = f"{slots[0]} ranks a host, {stages} stages"
    if len(set(slots)) > 1:
        reason = f"hosts of {', '.join(map(str, slots[:-1]))} and {slots[-1]} ranks"

    links = [
        [
            (stage, replica)
            for replica, ranks in enumerate(replicas)
            if _apart(ranks[stage : stage + 2], node_of)
        ]
        for stage in range(stages - 1)
    ]
    slow = [each for among in links if 0 < len(among) < len(replicas) for each in among]
    if slow:
        names = []
        for stage, replica in slow:
            pair = replicas[replica][stage : stage + 2]
            ends = " to ".join(f"rank {rank} on {hosts[node_of[rank]].name}" for rank in pair)
            names.append(f"replica {replica}, stage {stage} to {stage + 1} ({ends})")
        found.append(
            f"--placement {placement} with {reason}: activations travel between hosts in {_some(names)}, and "
            "inside a host in the other replicas, which wait for them at every step"
        )
    wide = [stage for stage, ranks in enumerate(zip(*replicas)) if _apart(ranks, node_of)]
    if 0 < len(wide) < stages:
        names = [f"stage {stage}" for stage in wide]
        found.append(
            f"--placement {placement} with {reason}: gradients of {_some(names)} are averaged between hosts, "
            "those of the others inside one"
        )
    return found


def _apart(ranks: Sequence[int], node_of: Sequence[int]) -> bool:
    return len({node_of[rank] for rank in ranks}) > 1


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
