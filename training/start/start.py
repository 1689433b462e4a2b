"""The beginning of a run, as one value, and all that follows from it: the place in the data, the processes
that count, and options that differ from the checkpoint's run. MXNet is not imported."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from training.checkpoint import Checkpoint
from training.config import OptimizationConfig, RunConfig
from training.start.initial import Initial
from training.start_options import DATA, OPTIMIZER, SCHEDULE


@dataclass(frozen=True)
class Start:
    """The beginning of a run, or of one of its stages, as every rank knows it.

    A fresh run has neither `facts` nor `source` nor `published`. One that begins with parameters has a
    `source`, and `facts` where it takes over more than these. One that resumes has the `facts` of its own
    directory's checkpoint.

    Attributes:
        step: steps taken before; 0 for a fresh run.
        begun: those of them before the schedule began: 0, or stage 1's last step in stage 2.
        stage: the stage to go on with; None for a run without stages.
        facts: the checkpoint's manifest; empty for a fresh run, for bare parameters, and where nothing but
            parameters is taken over.
        resets: of `RESETS`, what is not taken over from the checkpoint.
        source: the name of the parameters of --init_from for people; None without.
        published: the vocabulary's name of the published parameters to begin with; None for others.
        lacks_evaluation: whether the run was killed between saving the checkpoint and the evaluation that
            belongs to it.
        messages, checkpoint, initial: rank 0's alone: sentences for people; where parameters and states are
            read from; the parameters of --init_from.
        seen, again: rank 0's alone: the directory as it was when this was decided, and the decision made
            anew. On other ranks nothing is decided before rank 0 tells them.
    """

    step: int = 0
    begun: int = 0
    stage: int | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    resets: frozenset[str] = frozenset()
    source: str | None = None
    published: str | None = None
    lacks_evaluation: bool = False
    messages: tuple[str, ...] = ()
    checkpoint: Checkpoint | None = None
    initial: Initial | None = None
    seen: Any = field(default=None, compare=False)
    again: Callable[[], Start] | None = field(default=None, compare=False)

    @property
    def begins_stage_2(self) -> bool:
        """Whether the next step is the first of stage 2."""
        return self.stage == 2 and self.step == self.begun

    def keeps(self, what: str) -> bool:
        """Whether a checkpoint's states of this kind (of `RESETS`) are taken over."""
        return bool(self.facts) and what not in self.resets


def data_seed(seed: int, stage: int | None) -> int:
    """The seed of a stage's data order, pairs and masks: the run's own but for stage 2, so that no epoch of
    stage 2 repeats the draws of one in stage 1."""
    if stage != 2:
        return seed
    return int(np.random.SeedSequence([seed, stage]).generate_state(1, np.uint64)[0])


def position_to_continue(
    start: Start, options: Mapping[str, Any], world_size: int, data_options: Sequence[str]
) -> tuple[int, list[str]]:
    """The place in the data to go on from (a position of the feed), and messages where it cannot be exact.

    `options`: of this run, by name; `data_options`: those that a position depends on.
    """
    if DATA in start.resets or not (start.step or start.facts):
        return 0, []
    if not start.facts:
        return start.step * options["accumulate"] * world_size, []
    saved = start.facts["options"]
    changed = [name for name in data_options if name in saved and saved[name] != options[name]]
    messages = []
    if changed:
        messages.append(
            f"--{', --'.join(changed)} differ from the checkpoint's run: some sequences of this epoch may "
            "be seen twice or not at all"
        )
    return start.facts["blocks"], messages


def processes_to_count(start: Start, config: RunConfig, world_size: int) -> int:
    """Processes that --accumulate counts for. They are those that the run began with, so that a step keeps
    its sequences when the run goes on with another number; a new schedule counts for `world_size`, the
    present ones."""
    same_launch = start.begins_stage_2 and config.start.stages == "both"
    if not (start.keeps(SCHEDULE) or (start.facts and same_launch)):
        return world_size
    return int(start.facts.get("processes") or start.facts.get("world_size") or world_size)


def changed_options(start: Start, config: RunConfig) -> list[str]:
    """Messages about options that differ from the checkpoint's run, though it goes on all the same."""
    saved = start.facts.get("options", {})
    messages = []
    seed = config.optimization.seed
    if seed is not None and start.facts.get("seed", seed) != seed:
        messages.append(
            f"--seed {seed}: the checkpoint's run had {start.facts['seed']}; data order, masks and dropout "
            "change from here on"
        )
    for name, more in (
        ("optimizer", "; its moments are taken over"),
        ("optimizer_state", "; its moments are converted"),
        *((number, "") for number in ("beta1", "beta2", "epsilon", "weight_decay")),
    ):
        value = getattr(config.optimization, name)
        before = saved.get(name, getattr(OptimizationConfig, name))  # older runs had the defaults
        if saved and before != value and start.keeps(OPTIMIZER):
            now, then = (each if isinstance(each, str) else f"{each:g}" for each in (value, before))
            messages.append(f"--{name} {now}: the checkpoint's run had {then}{more}")
    batch = config.batch
    accumulate = saved.get("accumulate", batch.accumulate)
    if accumulate != batch.accumulate and start.keeps(SCHEDULE):
        messages.append(
            f"--accumulate {batch.accumulate}: the checkpoint's run had {accumulate}; from here on a step "
            f"has {batch.micro_batches} micro-batches, not {accumulate * batch.processes}"
        )
    hours = config.optimization.budget_hours
    if hours and start.facts and "training_s" not in start.facts:
        messages.append(
            f"--budget_hours {hours:g}: the checkpoint does not say how long its run trained: 0 s"
        )
    return messages
