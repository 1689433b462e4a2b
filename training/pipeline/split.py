"""The layers of each stage of a pipeline: as --pipeline_split gives them, or so that the work is even.

The first stage also has the embeddings (word, segment, position, their norm), the last one the heads and, as
the decoder's weight, the word embedding again: it is one parameter that lies on both. MXNet is not imported.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import NamedTuple, Sequence

from base.errors import InputError
from bert.configuration import BertConfig
from bert.flops import forward_flops, size_of
from bert.memory import MXNET, Batch, Ends, parameter_count


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

    def layers(self, stage: int) -> range:
        """The layers of a stage, by their numbers in the whole model."""
        return range(*self.ranges[stage])

    def __str__(self) -> str:
        """As --pipeline_split has it."""
        return ",".join(map(str, self.counts))


class Costs(NamedTuple):
    """Work of a micro-batch by its place in the network: the embeddings, a layer, the top layer, the heads.
    In operations of a forward pass (bert.flops) or in any other unit."""

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
    check_stages(stages, layers)
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

    Raises:
        InputError: more stages than layers.
    """
    check_stages(stages, layers)
    counts = [1] * stages
    split = make_split(counts)
    queue = [(costs.of_stage(split, stage), -stage) for stage in range(stages)]
    heapq.heapify(queue)
    for _ in range(layers - stages):
        work, stage = queue[0]
        counts[-stage] += 1
        heapq.heapreplace(queue, (work + costs.layer, stage))
    return make_split(counts)


def counted_costs(config: BertConfig, vocab_size: int, batch: Batch, top_rows: int | None = None) -> Costs:
    """Operations of a forward pass over a micro-batch; the backward pass has twice as many everywhere.

    Looking up embeddings is no multiplication: it counts nothing. `top_rows`: see bert.flops.forward_flops.
    """
    size = size_of(config, vocab_size)
    shape = (batch.rows, batch.length, batch.predictions)
    one = forward_flops(size._replace(layers=1), *shape)
    top = forward_flops(size._replace(layers=1), *shape, top_rows)
    return Costs(0, one.encoder + one.attention, top.encoder + top.attention, one.heads + one.decoder)


def run_split(
    given: Sequence[int] | None, stages: int, bert: BertConfig, vocab_size: int, batch: Batch, operators: str
) -> tuple[Split, Costs]:
    """The layers of each stage of a run, as `given` or balanced, and the costs that they are balanced by.

    Args:
        batch: a micro-batch; the split depends on its length and its masked tokens, not on its rows.
        operators: FUSED, TILES or MXNET; the fused ones compute no more than the masked tokens and the
            first one above the attention of the top layer.

    Raises:
        InputError: as `given_split`.
    """
    top_rows = batch.predictions + 1 if operators != MXNET and batch.predictions else None
    costs = counted_costs(bert, vocab_size, batch, top_rows)
    if given is None:
        return balanced_split(costs, stages, bert.layers), costs
    return given_split(given, stages, bert.layers), costs


def stage_parameters(config: BertConfig, vocab_size: int, split: Split, stage: int) -> int:
    """Numbers that a stage holds: its layers, the embeddings on the first one, the heads on the last. A
    word embedding that is the decoder's weight counts on both; with one stage once."""
    one, two = (parameter_count(replace(config, layers=layers), vocab_size) for layers in (1, 2))
    units, word = config.units, vocab_size * config.units
    embeddings = word + (config.token_types + config.positions + 2) * units  # and their norm
    heads = one - (two - one) - embeddings
    first, last = ends_of(stage, split.stages)
    ends = (embeddings if first else 0) + (heads + word * (config.tied and not first) if last else 0)
    return split.counts[stage] * (two - one) + ends


def ends_of(stage: int, stages: int) -> Ends:
    """The ends of the network that a stage holds."""
    return Ends(stage == 0, stage == stages - 1)


def parts_of_work(split: Split, costs: Costs) -> list[float]:
    """Of the whole model's, by stage."""
    work = [costs.of_stage(split, stage) for stage in range(split.stages)]
    return [each / sum(work) for each in work]


def evenness(split: Split, costs: Costs) -> float:
    """Time of an evenly split pipeline over this one's, as far as the operations go: the others wait for the
    stage with the most work."""
    return 1 / split.stages / max(parts_of_work(split, costs))
