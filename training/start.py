"""The one door into a run: fresh, from parameters, or from a checkpoint.

Rank 0 alone reads and writes: the other ranks, perhaps on hosts that do not see its disk, get everything
from it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Mapping

import mxnet as mx
import numpy as np

from comm.base import Communicator
from training.checkpoint import Checkpoint, load_step, newest_complete
from training.config import RunConfig

# Those that a data position depends on.
DATA_OPTIONS = (
    "data",
    "raw",
    "text_format",
    "split_sentences",
    "batch_size",
    "use_avg_len",
    "num_buckets",
    "max_seq_length",
    "short_seq_prob",
)


@dataclass
class Start:
    """The beginning of a run, as every rank knows it.

    Attributes:
        step: steps taken before; 0 for a fresh run.
        facts: the checkpoint's manifest; empty for a fresh run and for bare parameters.
        messages: sentences for people.
        checkpoint: rank 0's alone: what it reads parameters and states from.
        published: the vocabulary's name of the published parameters to begin with; None for others.
    """

    step: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    published: str | None = None

    @property
    def kind(self) -> str:
        """ "fresh", "initialised" (from parameters without states) or "resumed"."""
        if self.facts:
            return "resumed"
        return "initialised" if self.step or self.published else "fresh"


def find_start(config: RunConfig, communicator: Communicator) -> Start:
    """Looks for the checkpoint that --resume or --start_step requests; without one a run begins with random
    or, with --pretrained, published parameters. Every rank calls it.

    Raises:
        InputError: on rank 0, when --start_step names a checkpoint that is missing or damaged.
    """
    start, place = Start(), config.checkpoint
    if communicator.rank == 0:
        if place.start_step:
            start.checkpoint = load_step(place.ckpt_dir, place.start_step, start.messages.append)
        elif place.resume:
            start.checkpoint = newest_complete(place.ckpt_dir, start.messages.append)
        if start.checkpoint is not None:
            start.step = start.checkpoint.step
            start.facts = start.checkpoint.manifest or {}
    start.step, start.facts = broadcast_json([start.step, start.facts], communicator)
    if config.model.pretrained and not start.step:
        start.published = config.model.dataset_name
    return start


def position_to_continue(start: Start, options: Mapping[str, Any], world_size: int) -> tuple[int, list[str]]:
    """The place in the data to go on from (a position of `data.pretraining.batches`), and messages where it
    cannot be exact. `options`: of this run, by name."""
    if not start.step:
        return 0, []
    if start.kind == "initialised":
        return start.step * options["accumulate"] * world_size, []
    saved = start.facts["options"]
    changed = [name for name in DATA_OPTIONS if name in saved and saved[name] != options[name]]
    messages = []
    if changed:
        messages.append(
            f"--{', --'.join(changed)} differ from the checkpoint's run: some sequences of this epoch may be "
            "seen twice or not at all"
        )
    return start.facts["blocks"], messages


def changed_options(start: Start, config: RunConfig) -> list[str]:
    """Messages about options that differ from the checkpoint's run, though it goes on all the same."""
    saved = start.facts.get("options", {})
    messages = []
    seed, optimizer = config.optimization.seed, config.optimization.optimizer
    if seed is not None and start.facts.get("seed", seed) != seed:
        messages.append(
            f"--seed {seed}: the checkpoint's run had {start.facts['seed']}; "
            "data order, masks and dropout change from here on"
        )
    if saved.get("optimizer", optimizer) != optimizer:
        messages.append(
            f"--optimizer {optimizer}: the checkpoint's run had {saved['optimizer']}; "
            "its moments are taken over"
        )
    hours = config.optimization.budget_hours
    if hours and start.facts and "training_s" not in start.facts:
        messages.append(
            f"--budget_hours {hours:g}: the checkpoint does not say how long its run trained: 0 s"
        )
    return messages


def broadcast_json(value: Any, communicator: Communicator) -> Any:
    """Rank 0's `value`, on every rank, through JSON."""
    encoded = np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)
    length = mx.nd.array([len(encoded)], ctx=mx.cpu(), dtype="int64")
    communicator.broadcast([length])
    text = mx.nd.zeros((int(length.asscalar()),), ctx=mx.cpu(), dtype="uint8")
    if communicator.rank == 0:
        text[:] = mx.nd.array(encoded, ctx=mx.cpu(), dtype="uint8")
    communicator.broadcast([text])
    return json.loads(text.asnumpy().tobytes().decode())
