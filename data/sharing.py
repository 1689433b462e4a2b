"""Micro-batches of a step, shared by the ranks of a run. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from base.errors import InputError


@dataclass(frozen=True)
class Share:
    """One rank's part of the micro-batches of a step: of the numbers 0 to `micro_batches` - 1 it takes rank,
    rank + world_size, and so on.

    A step has the same micro-batches for any number of ranks. If they cannot be divided evenly, the first
    ranks take one more. The gradient does not depend on it, since losses are divided by counts over all
    ranks (training.step).
    """

    rank: int
    world_size: int
    micro_batches: int

    @classmethod
    def of(cls, rank: int, world_size: int, accumulate: int = 1) -> Share:
        """The share of a rank where each rank has `accumulate` micro-batches."""
        return cls(rank, world_size, world_size * accumulate)

    @property
    def own(self) -> range:
        """Numbers of this rank's micro-batches."""
        return range(self.rank, self.micro_batches, self.world_size)

    @property
    def most(self) -> int:
        """Micro-batches of rank 0, which has the most; --accumulate where all ranks have as many."""
        return -(-self.micro_batches // self.world_size)

    @property
    def each(self) -> str:
        """Micro-batches of a rank in words: "2", or "1 or 2"."""
        least = self.micro_batches // self.world_size
        return str(least) if least == self.most else f"{least} or {self.most}"

    def check(self) -> Share:
        """Returns this share.

        Raises:
            InputError: there are more ranks than micro-batches; the message says which numbers are possible.
        """
        if self.world_size <= self.micro_batches:
            return self
        count = self.micro_batches
        even = [str(size) for size in range(1, count + 1) if count % size == 0]
        listed = ", ".join(even if len(even) < 12 else [*even[:10], "...", even[-1]])
        raise InputError(
            f"{self.world_size} processes: a step of this run has {count} "
            f"micro-batch{'es' if count > 1 else ''} (--accumulate), one for each process at least; start "
            f"1 to {count} processes, evenly loaded {listed}"
        )
