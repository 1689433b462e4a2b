"""Each stage's share of a run: layers, parameters, work and memory. MXNet is not imported."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from base.quantities import digits, percent
from base.tables import Row, Table
from bert.configuration import BertConfig
from bert.flops import forward_flops, size_of
from bert.memory import MXNET, Batch, Ends, parameter_count
from training.pipeline.options import ONE_F_ONE_B, PipelineConfig
from training.pipeline.split import Costs, Split, choose_split

_MIB = 1 << 20


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
    pipeline: PipelineConfig, bert: BertConfig, vocab_size: int, batch: Batch, operators: str
) -> tuple[Split, Costs]:
    """The layers of each stage of a run, and the costs that they were balanced by.

    Args:
        batch: a micro-batch; the split depends on its length and its masked tokens, not on its rows.
        operators: FUSED, TILES or MXNET; the fused ones compute no more than the masked tokens and the
            first one above the attention of the top layer.
    """
    top_rows = batch.predictions + 1 if operators != MXNET and batch.predictions else None
    costs = counted_costs(bert, vocab_size, batch, top_rows)
    return choose_split(pipeline.split, costs, pipeline.stages, bert.layers), costs


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


def micro_batches_kept(pipeline: PipelineConfig, accumulate: int, stage: int) -> int:
    """Micro-batches whose activations a stage keeps at once, of `accumulate` in a step: under GPipe all
    (Huang et al., arXiv:1811.06965), under 1F1B one for each stage from this one on (Narayanan et al.,
    arXiv:2104.04473, section 2.2)."""
    if pipeline.schedule == ONE_F_ONE_B:
        return min(accumulate, pipeline.stages - stage)
    return accumulate if pipeline.stages > 1 else 1


def bubble(stages: int, micro_batches: int) -> float:
    """Share of a step's time in which an evenly split pipeline waits, under either schedule (the same
    section)."""
    return (stages - 1) / (micro_batches + stages - 1)


def ends_of(stage: int, stages: int) -> Ends:
    """The ends of the network that a stage holds."""
    return Ends(stage == 0, stage == stages - 1)


def shares_of_work(split: Split, costs: Costs) -> list[float]:
    """Of the whole model's, by stage."""
    work = [costs.of_stage(split, stage) for stage in range(split.stages)]
    return [each / sum(work) for each in work]


def slowest_share(split: Split, costs: Costs) -> float:
    """Time of an evenly split pipeline over this one's, as far as the operations go: the others wait for the
    stage with the most work."""
    return 1 / split.stages / max(shares_of_work(split, costs))


def stage_table(
    bert: BertConfig,
    vocab_size: int,
    split: Split,
    costs: Costs,
    memory: Sequence[int],
    micro_batches: int,
) -> Table:
    """The stages as a table. `memory`: bytes of a process of each stage; `micro_batches`: of a step."""
    shares = shares_of_work(split, costs)
    rows = []
    for stage, (begin, end) in enumerate(split.ranges):
        first, last = ends_of(stage, split.stages)
        layers = f"{begin} to {end - 1}" if end - begin > 1 else str(begin)
        layers = f"{'embeddings, ' if first else ''}{layers}{', heads' if last else ''}"
        cells = [
            str(stage),
            layers,
            str(end - begin),
            f"{digits(stage_parameters(bert, vocab_size, split, stage) / 1e6)} M",
            f"{100 * shares[stage]:.1f}%",
            f"{memory[stage] / _MIB:,.0f} MiB",
        ]
        rows.append(Row(cells))
    even = slowest_share(split, costs)
    enough = 4 * split.stages
    share = percent(bubble(split.stages, micro_batches))
    lost = f"{micro_batches} micro-batch{'es' if micro_batches > 1 else ''} a step: the bubble is {share}"
    if micro_batches < enough:
        lost += f" of the time; with --accumulate {enough} {percent(bubble(split.stages, enough))}"
    notes = [
        f"The stage with the most work takes {100 * (1 / even - 1):.1f}% more than the mean.",
        f"{lost}.",
    ]
    head = ("stage", "holds", "layers", "parameters", "work", "memory")
    return Table(f"--pipeline_split {split}", head, rows, names=2, notes=notes)
