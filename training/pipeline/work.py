"""Parameters and work of each stage, by which a run is split. MXNet is not imported."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from bert.configuration import BertConfig
from bert.flops import forward_flops, size_of
from bert.memory import MXNET, Batch, Ends, parameter_count
from training.pipeline.split import Costs, Split, balanced_split, given_split


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
