"""The layers of each stage of a pipeline: as --pipeline_split gives them, or so that the work is even.

The first stage also has the embeddings (word, segment, position, their norm), the last one the heads and, as
the decoder's weight, the word embedding again: it is one parameter that lies on both. Standard library only.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple, Sequence

from base.errors import InputError


@dataclass(frozen=True)
class Split:
    """The half-open range [begin, end) of the transformer layers of each stage, in order and without gaps."""

    ranges: tuple[tuple[int, int], ...]

    @property
    def stages(self) -> int:
        return len(self.ranges)

    @property
    def counts(self) -> tuple[int, ...]:
        """Layers of each stage."""
        return tuple(end - begin for begin, end in self.ranges)

    def __str__(self) -> str:
        """As --pipeline_split has it."""
        return ",".join(map(str, self.counts))


class Costs(NamedTuple):
    """Work of a micro-batch by its part of the network: the embeddings, a layer, the top layer, the heads. In
    operations of a forward pass (bert.flops) or in any other unit."""

    embeddings: float
    layer: float
    top: float
    heads: float

    def of_stage(self, split: Split, stage: int) -> float:
        """The work of a stage."""
        layers = split.counts[stage]
        found = layers * self.layer + (self.embeddings if stage == 0 else 0)
        return found + (self.heads + self.top - self.layer if stage == split.stages - 1 else 0)


def make_split(counts: Sequence[int]) -> Split:
    """The split with so many layers in each stage."""
    ends = [sum(counts[: stage + 1]) for stage in range(len(counts))]
    return Split(tuple(zip([0, *ends], ends)))


def check_stages(stages: int, layers: int) -> None:
    """Raises InputError where there are more stages than layers."""
    if stages > layers:
        raise InputError(
            f"--pipeline_stages {stages}: the model has {layers} layer{'s' if layers > 1 else ''}, and each "
            f"stage holds one at least; give at most {layers}"
        )


def given_split(counts: Sequence[int], stages: int, layers: int) -> Split:
    """The split that --pipeline_split gives.

    Raises:
        InputError: it has not one number for each stage, or not the model's layers in all.
    """
    text = ",".join(map(str, counts))
    if len(counts) != stages:
        raise InputError(
            f"--pipeline_split {text}: {len(counts)} numbers for {stages} stages; give each stage's layers"
        )
    if sum(counts) != layers:
        raise InputError(
            f"--pipeline_split {text}: {sum(counts)} layers in all, and the model has {layers}; the balanced "
            "split is used without this option"
        )
    return make_split(counts)


def balanced_split(costs: Costs, stages: int, layers: int) -> Split:
    """The split whose most loaded stage has the least work, and, among those, of the least sum of squares.

    Each stage begins with one layer, and the others go one by one to the stage that has the least work then.
    As every further layer costs the same, no other split is better (the sum of convex functions of the
    numbers of layers). Of equals the later stage takes it: under 1F1B an earlier one keeps the activations
    of more micro-batches.
    """
    counts = [1] * stages
    split = make_split(counts)
    queue = [(costs.of_stage(split, stage), -stage) for stage in range(stages)]
    heapq.heapify(queue)
    for _ in range(layers - stages):
        work, stage = queue[0]
        counts[-stage] += 1
        heapq.heapreplace(queue, (work + costs.layer, stage))
    return make_split(counts)
