"""Computation and gradients of one GPU in a step of BERT pretraining, from the shapes alone. No MXNet.

The parts of the model are listed in the order of the forward pass. The backward pass goes through them from
the last to the first; when it leaves a part, the gradients of that part are ready to travel. The time of a
pass is divided among the parts by their operations (bert.flops). The decoder of the
masked-LM loss shares the word embedding, so its gradient, the largest, is the last to be ready.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Sequence

from bert.configuration import BertConfig
from bert.flops import BACKWARD, forward_flops, size_of

VOCABULARY = 30522  # BERT's uncased English vocabulary
FORWARD_SHARE = 1 / (1 + BACKWARD)  # of the time of a forward and backward pass
ELEMENT_BYTES = {"float32": 4, "float16": 2}
# Accesses of 4 bytes to the GPU's memory for each parameter in an update with LAMB: two sweeps, of which the
# first reads gradient, weight and both moments and writes the moments and the update, and the second reads
# weight and update and writes the weight. Adam needs fewer.
UPDATE_ACCESSES = 10


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
    bert: BertConfig, vocab_size: int = VOCABULARY, length: int = 128, predictions: int = 20
) -> tuple[Part, ...]:
    """BERT with pooler, next-sentence classifier and masked-LM head, as `bert.model.build_model` makes it.

    Args:
        length: tokens of a sequence. `predictions`: masked ones among them.
    """
    units, hidden = bert.units, bert.hidden
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
    """

    parts: tuple[Part, ...]
    compute_s: float
    optimizer_s: float
    gradient_bytes: int
    sequences: float
    length: float = 128
    accumulate: int = 1
    overlap: bool = True

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


def update_seconds(elements: int, memory_gbytes_s: float) -> float:
    """A LAMB update bound by memory of `memory_gbytes_s` (1e9 bytes a second)."""
    return elements * UPDATE_ACCESSES * 4 / (memory_gbytes_s * 1e9)
