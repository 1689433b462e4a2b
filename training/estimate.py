"""The memory of a run, estimated from its settings and compared with what is there, before MXNet is imported
and before anything is allocated: --estimate prints it.

docs/training.md compares it with measured runs. It is of training; an evaluation needs less with the same
batch size.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Mapping, NamedTuple, Sequence

from base import machine
from base.errors import InputError
from base.launchers import BYTEPS, LOCAL, announced_sizes, launched_rank, local_size, number_in
from base.memory import Available, available_memory, check_addresses
from base.quantities import digits, percent
from base.tables import Row, Table, terminal
from bert.configuration import OPERATORS_LIBRARY, BertConfig
from bert.flops import forward_flops, size_of
from bert.memory import (
    FLOAT32,
    FUSED,
    MOMENT_BYTES,
    MXNET,
    TILES,
    Batch,
    Ends,
    activation_bytes,
    gradient_bytes_in_flight,
    matrix_count,
    packed_bytes,
    parameter_count,
)
from lamb_paper import default_max_predictions
from training.pipeline.schedule import bubble, micro_batches_kept
from training.pipeline.split import Costs, Split, balanced_split, given_split
from training.run_inputs import Part
from training.saving import copied_bytes

PROCESS = 272 << 20  # bytes of a process that has imported everything and trains nothing (measured)
FUSION = 64 << 20  # bytes of Horovod's buffer, at most
# Addresses that a process which trains maps and does not use, at least: libraries and stacks, and malloc's
# arenas. Measured with one thread, from the peak of runs' addresses and their estimates: 720 and 700 MiB.
MAPPED, ARENAS = 680 << 20, 600 << 20
TRANSPORT = 200 << 20  # bytes of addresses that BytePS maps beside what it uses (measured: 250 MiB)
FAR = 1.5  # times what is there: a run that needs more does not start
LEAST = 0.9  # of the estimate, which every measured run has needed
_MIB = 1 << 20


@dataclass(frozen=True)
class Estimate:
    """Memory of a run's largest stage.

    Attributes:
        parts: bytes of a process by their use.
        copied: bytes of the state's copy, which rank 0 takes while it saves if they are there
            (training/saving.py).
        processes: on this host.
        available: memory of the host; None where the numbers lie on GPUs, whose memory is not looked at.
        what: the model and the batch.
        of_host: bytes of all processes on this host, without the copy.
        stages: those of a pipeline, for people.
    """

    parts: Mapping[str, int]
    copied: int
    processes: int
    available: Available | None
    what: str
    of_host: int
    stages: Table | None = None

    @property
    def of_process(self) -> int:
        """Bytes of a process."""
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        """Whether the host has as much."""
        return self.available is None or self.of_host <= self.available.bytes

    def lines(self) -> list[str]:
        """The estimate for people."""
        rows = [*self.parts.items(), ("a process", self.of_process)]
        if self.processes > 1 and self.available is not None:
            rows.append((f"{self.processes} processes on this host", self.of_host))
        if self.copied:
            rows.append(("copy of the state while rank 0 saves", self.copied))
        if self.available is not None:
            rows.append((f"memory {self.available.source}", self.available.bytes))
        width = max(len(name) for name, _ in rows)
        figures = [f"{name:<{width}}  {size / _MIB:>14,.0f} MiB" for name, size in rows]
        stages = [] if self.stages is None else [terminal(self.stages), ""]
        verdict = "compare it with a GPU's memory; the estimate was checked against measurements on CPUs only"
        if self.available is not None:
            share = (self.of_host + self.copied) / max(1, self.available.bytes)
            verdict = f"it {'fits' if self.fits else 'does not fit'}: {100 * share:,.0f}% of what is there"
            if self.fits and share > 1:
                verdict = "it fits, but for the copy: training will wait while a checkpoint is written"
        return [*stages, f"estimated memory of {self.what}", *figures, verdict]


def check_memory(
    parts: Sequence[Part], backend: str, show: bool, environ: Mapping[str, str] = os.environ
) -> int | None:
    """Compares what a run needs with what is there; with `show` prints it, on rank 0.

    Args:
        parts: the run's stages, or the run.
        backend: of base.launchers.

    Returns:
        None: go on. With `show` the exit code: 0, or 2 where it does not fit.

    Raises:
        InputError: it needs `FAR` times what is there, or more addresses than a process may have; the latter
            with `show`, too.
    """
    found = max((estimate(part, backend, environ) for part in parts), key=lambda each: each.of_process)
    available = found.available
    if show and launched_rank(environ) == 0:
        print("\n".join(found.lines()), flush=True)
    of_run = 0 if available is None else int(LEAST * (found.of_process - PROCESS))
    transport = TRANSPORT if backend == BYTEPS and "exchange" in found.parts else 0
    check_addresses(PROCESS + MAPPED + of_run + transport, ARENAS, found.what)
    if show:
        return 0 if found.fits else 2
    if available is not None and found.of_host > FAR * available.bytes:
        greatest = max(found.parts, key=lambda name: found.parts[name])
        several = f"{found.processes} processes need" if found.processes > 1 else "it needs"
        raise InputError(
            f"{found.what}: {several} about {_gib(found.of_host)} of memory, and {_gib(available.bytes)} are "
            f"{available.source}; most of it is for {greatest}. Lower --batch_size (--accumulate makes up "
            "for it), --max_seq_length or the model, or start fewer processes on a host; --estimate shows all"
        )
    return None


def estimate(part: Part, backend: str, environ: Mapping[str, str] = os.environ) -> Estimate:
    """The estimate of one stage of the recipe. Of a pipeline it is that of the stage that needs most."""
    config, inputs = part
    shape = shape_of(part)
    stages = config.pipeline.stages
    here = local_size(environ)
    workers = number_in(environ, "DMLC_NUM_WORKER", 1) * number_in(environ, "BYTEPS_LOCAL_SIZE", 1)
    world = max(here, workers, *announced_sizes(environ).values())
    if stages > 1 and world == 1:  # nothing has been launched: one replica on this host
        here = world = stages
    several = backend if world > 1 else LOCAL
    parts = [_parts(part, shape, several, stage, world) for stage in range(stages)]
    sizes = [sum(each.values()) for each in parts]
    largest = sizes.index(max(sizes))
    # On one host there are as many processes of each stage; of more hosts, one may have the largest stage's.
    on_host = sum(sizes) * (world // stages) if here == world else here * max(sizes)
    table = None
    if stages > 1:
        bert, micro_batches = config.model.bert, config.batch.accumulate
        table = stage_table(bert, inputs.vocab_size, shape.split, shape.costs, sizes, micro_batches)
    tokens = f"{shape.batch.rows:,} x {shape.batch.length} tokens a {'replica' if stages > 1 else 'process'}"
    model = f"{f'stage {largest} of ' if stages > 1 else ''}{config.model.bert.description}"
    # Rank 0 writes all stages' parameters and states, of which it has a copy.
    whole = parameter_count(config.model.bert, inputs.vocab_size, shape.pretraining)
    copied = copied_bytes(whole, shape.dtype, config.optimization.optimizer_state) if inputs.trains else 0
    available = None if shape.on_gpu else available_memory()
    what = f"{model}, {tokens} in {shape.dtype}, {MXNET if shape.operators == MXNET else FUSED} operators"
    return Estimate(parts[largest], copied, here, available, what, on_host, table)


def stage_table(
    bert: BertConfig,
    vocab_size: int,
    split: Split,
    costs: Costs,
    memory: Sequence[int],
    micro_batches: int,
) -> Table:
    """The stages as a table. `memory`: bytes of a process of each stage; `micro_batches`: of a step."""
    work = [costs.of_stage(split, stage) for stage in range(split.stages)]
    shares = [each / sum(work) for each in work]
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
    # As far as the operations go, time over that of an even split: the others wait for the slowest stage.
    uneven = split.stages * max(shares)
    enough = 4 * split.stages
    share = percent(bubble(split.stages, micro_batches))
    lost = f"{micro_batches} micro-batch{'es' if micro_batches > 1 else ''} a step: the bubble is {share}"
    if micro_batches < enough:
        lost += f" of the time; with --accumulate {enough} {percent(bubble(split.stages, enough))}"
    notes = [
        f"The stage with the most work takes {100 * (uneven - 1):.1f}% more than the mean.",
        f"{lost}.",
    ]
    head = ("stage", "holds", "layers", "parameters", "work", "memory")
    return Table(f"--pipeline_split {split}", head, rows, names=2, notes=notes)


class Shape(NamedTuple):
    """A micro-batch, the numbers and operators that work on it, and the layers of each stage, one without
    pipelines."""

    batch: Batch
    dtype: str
    operators: str
    on_gpu: bool
    pretraining: bool
    split: Split
    costs: Costs


def shape_of(part: Part) -> Shape:
    """The shape of a run's micro-batches, and the layers of each stage of its pipeline."""
    config, inputs = part
    model, batch = config.model, config.batch
    on_gpu = machine.gpus() is not None
    dtype = model.dtype or ("float16" if on_gpu else "float32")
    fused = not on_gpu and model.operators != MXNET and os.path.exists(OPERATORS_LIBRARY)
    length = inputs.max_seq_length
    pretraining = inputs.about.data is None and inputs.about.main_score is None
    predictions = 0
    if pretraining:
        predictions = min(length, batch.max_predictions_per_seq or default_max_predictions(length))
    size = batch.batch_size if inputs.trains else batch.batch_size_eval
    rows = max(1, size // length) if batch.use_avg_len and inputs.trains else size
    tiles = dtype == "bfloat16" and machine.multiplies_bfloat16()
    operators = MXNET if not fused else TILES if tiles else FUSED
    shape = Batch(rows, length, predictions, recompute=model.recompute and inputs.trains and fused)
    pipeline = config.pipeline
    layers = run_split(pipeline.split, pipeline.stages, model.bert, inputs.vocab_size, shape, operators)
    return Shape(shape, dtype, operators, on_gpu, pretraining, *layers)


def _parts(part: Part, shape: Shape, backend: str, stage: int, world: int) -> dict[str, int]:
    """Bytes of a process of a stage of the pipeline, or of one with the whole model, by their use. `world`:
    processes of the run."""
    config, inputs = part
    stages, fused = config.pipeline.stages, shape.operators != MXNET
    item = 2 if shape.dtype == "float16" else FLOAT32  # bytes of a number
    count = parameter_count(config.model.bert, inputs.vocab_size, shape.pretraining)
    if stages > 1:
        count = stage_parameters(config.model.bert, inputs.vocab_size, shape.split, stage)
    bert, ends = replace(config.model.bert, layers=shape.split.counts[stage]), ends_of(stage, stages)
    kept = micro_batches_kept(config.pipeline, config.batch.accumulate, stage)
    batch = shape.batch._replace(kept=kept)
    parts = {"the process itself": PROCESS, "parameters": count * item}
    if fused:
        parts["parameters as the operators take them"] = packed_bytes(bert, shape.dtype)
    moments = config.optimization.optimizer_state
    layers = bert if inputs.trains else replace(bert, layers=1)
    if inputs.trains:
        sums = count * item if fused and config.batch.accumulate > 1 else 0
        in_flight = 0
        if shape.pretraining:
            in_flight = gradient_bytes_in_flight(bert, inputs.vocab_size, batch, shape.operators, ends)
        parts["gradients"] = count * item + sums + in_flight * item // FLOAT32
        share = count
        if config.optimization.shard_states:  # the word embedding is on one
            share = max(math.ceil(count / world), inputs.vocab_size * bert.units)
        masters = FLOAT32 * share if item < FLOAT32 else 0
        numbers = 2 * share
        if config.optimization.optimizer == "muon":  # which has one moment of a matrix
            numbers -= matrix_count(bert) // (world if config.optimization.shard_states else 1)
        parts["optimizer states"] = MOMENT_BYTES[moments] * numbers + masters
    parts["activations"] = activation_bytes(layers, inputs.vocab_size, batch, shape.operators, item, ends)
    if inputs.trains and backend != LOCAL:
        exchanged = count * item
        parts["exchange"] = exchanged if backend == BYTEPS else 2 * min(FUSION, exchanged)
    return parts


def _gib(size: int) -> str:
    gib = size / 2**30
    return f"{gib:,.1f} GiB" if math.isfinite(gib) and gib < 1e9 else f"{gib:.1e} GiB"


def run_split(
    given: Sequence[int] | None, stages: int, bert: BertConfig, vocab_size: int, batch: Batch, operators: str
) -> tuple[Split, Costs]:
    """The layers of each stage of a run, as `given` or balanced, and the costs that they are balanced by:
    operations of a forward pass over a micro-batch; the backward pass has twice as many everywhere. Looking
    up embeddings is no multiplication: it counts nothing.

    Args:
        batch: a micro-batch; the split depends on its length and its masked tokens, not on its rows.
        operators: FUSED, TILES or MXNET; the fused ones compute no more than the masked tokens and the
            first one above the attention of the top layer.

    Raises:
        InputError: as `given_split`.
    """
    top_rows = batch.predictions + 1 if operators != MXNET and batch.predictions else None
    layer, shape = size_of(bert, vocab_size)._replace(layers=1), (batch.rows, batch.length, batch.predictions)
    one, top = (forward_flops(layer, *shape, rows) for rows in (None, top_rows))
    costs = Costs(0, one.encoder + one.attention, top.encoder + top.attention, one.heads + one.decoder)
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
