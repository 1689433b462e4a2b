"""Computation and gradients of one GPU in a step of BERT pretraining, from the shapes alone; or its compute
time from the report.json of a comparison. No MXNet.

The parts of the model are listed in the order of the forward pass. The backward pass goes through them from
the last to the first; when it leaves a part, the gradients of that part are ready to travel. The time of a
pass is divided among the parts by their operations (bert.flops). The decoder of the
masked-LM loss shares the word embedding, so its gradient, the largest, is the last to be ready.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.json_files import read_json_object
from bert.configuration import BertConfig, recorded_config
from bert.flops import BACKWARD, forward_flops, size_of
from training.profiling.trace import OPTIMIZER

VOCABULARY = 30522  # BERT's uncased English vocabulary
FORWARD_SHARE = 1 / (1 + BACKWARD)  # of the time of a forward and backward pass
ELEMENT_BYTES = {"float32": 4, "float16": 2}
# Accesses of 4 bytes to the GPU's memory for each parameter in an update with LAMB: two sweeps, of which the
# first reads gradient, weight and both moments and writes the moments and the update, and the second reads
# weight and update and writes the weight. Adam needs fewer.
UPDATE_ACCESSES = 10
MOST_BYTES = 1 << 30  # of a report.json that is read


class Part(NamedTuple):
    """A piece of the model whose gradients are ready together.

    `gradients`: elements of each array, in forward order. `flops`: of its forward pass over one sequence.
    """

    name: str
    gradients: tuple[int, ...]
    flops: int

    @property
    def elements(self) -> int:
        return sum(self.gradients)


class Message(NamedTuple):
    """One gradient array: when it is ready, in seconds from the start of the step, and its bytes."""

    ready_s: float
    nbytes: int


def bert_parts(
    bert: BertConfig, vocab_size: int = VOCABULARY, length: int = 128, predictions: int | None = None
) -> tuple[Part, ...]:
    """BERT with pooler, next-sentence classifier and masked-LM head, as `bert.model.build_model` makes it.

    Args:
        length: tokens of a sequence. `predictions`: masked ones among them; None: 15%, and 20 of 128, as
            everybody has it.
    """
    units, hidden = bert.units, bert.hidden
    if predictions is None:
        predictions = round(0.15 * length) + (length == 128)
    flops = forward_flops(size_of(bert, vocab_size), rows=1, length=length, predictions=predictions)
    norm = (units, units)
    square = (units * units, units)
    layer = (*square * 4, *norm, units * hidden, hidden, hidden * units, units, *norm)
    embedding = (vocab_size * units, bert.token_types * units, bert.positions * units, *norm)
    heads = (*square, 2 * units, 2, *square, *norm, vocab_size)
    layer_flops = (flops.encoder + flops.attention) // bert.layers
    return (
        Part("embeddings", embedding, 0),
        *(Part(f"layer {number}", layer, layer_flops) for number in range(bert.layers)),
        Part("heads", heads, flops.heads + flops.decoder),
    )


@dataclass(frozen=True)
class Workload:
    """A step of one GPU.

    Attributes:
        parts: the model in forward order.
        compute_s: seconds of one forward and backward pass over `sequences` sequences.
        optimizer_s: seconds of the update, which waits for all gradients.
        gradient_bytes: of one element of a gradient on its way: 4 for float32, 2 for float16.
        sequences, length: of one pass on one GPU; tokens of a sequence, padding included. Means: not always
            whole.
        accumulate: passes added up for one step; only the last one's gradients travel.
        overlap: whether gradients travel during the backward pass, or only after it.
        ready_s: measured times, in seconds from the start of the step, at which the arrays become ready, from
            the last part's to the first's; None: they follow from the operations.
        dtype: of computing; None where it is not known.
        source: of the times, for people.
    """

    parts: tuple[Part, ...]
    compute_s: float
    optimizer_s: float
    gradient_bytes: int
    sequences: float
    length: float = 128
    accumulate: int = 1
    overlap: bool = True
    ready_s: tuple[float, ...] | None = None
    dtype: str | None = None
    source: str = ""

    @property
    def elements(self) -> int:
        return sum(part.elements for part in self.parts)

    @property
    def total_bytes(self) -> int:
        """All gradients of a step."""
        return self.elements * self.gradient_bytes

    @property
    def backward_ends_s(self) -> float:
        return self.accumulate * self.compute_s

    def messages(self) -> list[Message]:
        """Every gradient array in the order in which they become ready."""
        if self.ready_s is not None and self.overlap:
            sizes = [size for part in reversed(self.parts) for size in reversed(part.gradients)]
            return [Message(ready, size * self.gradient_bytes) for ready, size in zip(self.ready_s, sizes)]
        backward_s = self.compute_s * (1 - FORWARD_SHARE)
        flops = sum(part.flops for part in self.parts)
        now = self.backward_ends_s - backward_s
        messages = []
        for part in reversed(self.parts):
            now += backward_s * part.flops / flops
            ready = now if self.overlap else self.backward_ends_s
            # The embeddings follow the first layer at once: looking up rows is not counted as operations.
            messages += [Message(ready, size * self.gradient_bytes) for size in reversed(part.gradients)]
        return messages


def step_flops(parts: Sequence[Part], sequences: float) -> float:
    """Operations of one forward and backward pass over `sequences` sequences."""
    return sequences * (1 + BACKWARD) * float(sum(part.flops for part in parts))


def update_seconds(parts: Sequence[Part], memory_gbytes_s: float) -> float:
    """A LAMB update bound by memory of `memory_gbytes_s` (1e9 bytes a second)."""
    return sum(part.elements for part in parts) * UPDATE_ACCESSES * 4 / (memory_gbytes_s * 1e9)


def read_measured(path: str) -> tuple[BertConfig, Workload]:
    """Model and step of a report: the largest batch that one worker ran in float32, or else in the first
    dtype there is. Gradients are in float32.

    With one worker nothing is exchanged, so all backends count alike: the median over their launches.

    Raises:
        InputError: a file that is no report, or one without a good launch of one worker.
    """
    report = read_json_object(path, MOST_BYTES, f"--measured {path}")
    try:
        return _measured(path, report)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"--measured {path}: not the report.json of a comparison ({error!r})") from error


def _measured(path: str, report: Mapping[str, Any]) -> tuple[BertConfig, Workload]:
    from comparison.runs.record import PROFILED, TIMED, Record  # reads checkpoints, with NumPy

    records = [Record.from_json(each) for each in report["launches"]]
    facts = report["facts"]
    vocab_size, accumulate = int(facts["vocab_size"]), int(facts.get("accumulate") or 1)
    bert = recorded_config(facts, f"--measured {path}")
    alone = [each for each in records if each.setting.workers == 1 and not each.failure]
    timed = [each for each in alone if each.kind == TIMED and each.intervals]
    if not timed:
        raise InputError(
            f"--measured {path}: no finished launch of one worker in it; compare --workers 1 first"
        )
    dtypes = [each.setting.dtype for each in timed]
    dtype = "float32" if "float32" in dtypes else dtypes[0]
    batch = max(each.setting.batch_size for each in timed if each.setting.dtype == dtype)
    chosen = [each for each in timed if (each.setting.dtype, each.setting.batch_size) == (dtype, batch)]
    step_s = _median(chosen, lambda line: line.step_s)
    sequences = _median(chosen, lambda line: line.sequences_per_s * line.step_s)
    tokens = _median(chosen, lambda line: line.padded_tokens_per_s * line.step_s)
    if not all(0 < each < math.inf for each in (step_s, sequences, tokens, accumulate, vocab_size)):
        raise InputError(f"--measured {path}: its steps of one worker have no time or no sequences")
    # The update's share of a profiled step, of the time of a step that was not profiled; 0 without a profile.
    optimizer_s = 0.0
    for each in alone:
        if each.kind == PROFILED and (each.setting.dtype, each.setting.batch_size) == (dtype, batch):
            part = ((each.breakdown or {}).get("parts") or {}).get(OPTIMIZER) or {}
            share = part.get("share")
            if isinstance(share, (int, float)) and 0 <= share < 1:
                optimizer_s = step_s * share
                break
    return bert, Workload(
        parts=bert_parts(bert, vocab_size),
        compute_s=(step_s - optimizer_s) / accumulate,
        optimizer_s=optimizer_s,
        gradient_bytes=ELEMENT_BYTES["float32"],
        sequences=sequences / accumulate,
        length=tokens / sequences,
        accumulate=accumulate,
        dtype=dtype,
        source=f"{path}: {bert.description}, one worker, {dtype}, batch size {batch}, {len(chosen)} launches",
    )


def _median(launches: Sequence[Any], value: Any) -> float:
    """Over the launches (Records), of each launch's median."""
    return statistics.median(statistics.median(value(line) for line in each.intervals) for each in launches)
