"""The one door into a run: fresh, from parameters, or from a checkpoint.

Rank 0 alone reads and writes: the other ranks, perhaps on hosts that do not see its disk, get everything
from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from base.errors import InputError
from comm.base import Communicator
from training.checkpoint import Checkpoint, load_step, newest_complete
from training.config import RunConfig
from training.exchange import broadcast_json
from training.initial import Initial
from training.inputs import DATA_OPTIONS
from training.optimizer.optimizer import Optimizer
from training.stages import missing_stage_1, stage_to_continue
from training.start_options import DATA, OPTIMIZER, RESETS, SCHEDULE

_NEEDED = ("options", "scaler", "skips", "blocks")  # entries of a manifest


@dataclass
class Start:
    """The beginning of a run, or of one of its stages, as every rank knows it.

    Attributes:
        step: steps taken before; 0 for a fresh run.
        begun: those of them before the schedule began: 0, or stage 1's last step in stage 2.
        stage: the stage to go on with; None for a run without stages.
        facts: the checkpoint's manifest; empty for a fresh run, for bare parameters, and where nothing but
            parameters is taken over.
        resets: of `RESETS`, what is not taken over from the checkpoint.
        messages: sentences for people.
        checkpoint: rank 0's alone: what it reads parameters and states from.
        initial: rank 0's alone: the parameters of --init_from.
        source: the name of those parameters for people; None without.
        published: the vocabulary's name of the published parameters to begin with; None for others.
    """

    step: int = 0
    begun: int = 0
    stage: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    resets: frozenset[str] = frozenset()
    messages: list[str] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    initial: Initial | None = None
    source: str | None = None
    published: str | None = None

    @property
    def kind(self) -> str:
        """ "fresh", "initialised" (from parameters, perhaps with some states) or "resumed"."""
        if self.facts and not self.resets:
            return "resumed"
        return "initialised" if self.step or self.published or self.source else "fresh"

    @property
    def begins_stage_2(self) -> bool:
        """Whether the next step is the first of stage 2."""
        return self.stage == 2 and self.step == self.begun

    def keeps(self, what: str) -> bool:
        """Whether a checkpoint's states of this kind (of `RESETS`) are taken over."""
        return bool(self.facts) and what not in self.resets


def find_start(config: RunConfig, communicator: Communicator, initial: Initial | None = None) -> Start:
    """Looks for the checkpoint that the run goes on from; without one it begins with random parameters, those
    of --init_from or, with --pretrained, published ones. Every rank calls it.

    Args:
        config: of the run's first stage.
        initial: rank 0's: what --init_from names.

    Raises:
        InputError: on rank 0, when --start_step names a checkpoint that is missing or damaged; on all, when
            the checkpoint does not belong to a run with these stages.
    """
    start, place = Start(stage=config.start.stage), config.checkpoint
    if communicator.rank == 0:
        if place.start_step:
            start.checkpoint = load_step(place.ckpt_dir, place.start_step, start.messages.append)
        elif place.resume or config.start.follows_stage_1:
            start.checkpoint = newest_complete(place.ckpt_dir, start.messages.append)
        if start.checkpoint is not None:
            start.step = start.checkpoint.step
            start.facts = start.checkpoint.manifest or {}
    start.step, start.facts = broadcast_json([start.step, start.facts], communicator)
    if start.step:
        _take_place(start, config)
    elif config.start.init_from:
        _begin_with(start, config, communicator, initial)
    elif config.start.follows_stage_1:
        raise missing_stage_1(config)
    elif config.model.pretrained:
        start.published = config.model.dataset_name
    lacking = [name for name in _NEEDED if start.facts and name not in start.facts]
    if lacking:
        raise InputError(
            f"the manifest of step {start.facts['step']} has no {' and no '.join(lacking)}, and a run cannot "
            "go on with it; name another one with --start_step, or take its parameters with --init_from"
        )
    return start


def _take_place(start: Start, config: RunConfig) -> None:
    """Completes a start from a checkpoint of the run's own directory."""
    start.stage = stage_to_continue(config, start.facts)
    if start.stage != start.facts.get("stage"):
        start.begun, start.resets = start.step, config.start.stage_resets
        return
    start.begun = start.facts.get("begun", 0)
    if config.checkpoint.start_step:
        start.resets = config.start.resets


def _begin_with(start: Start, config: RunConfig, communicator: Communicator, initial: Initial | None) -> None:
    """Completes a start from --init_from: a step of 0, unless the schedule of a checkpoint is continued."""
    if initial is None and communicator.rank == 0:
        raise InputError(
            f"--ckpt_dir {config.checkpoint.ckpt_dir}: none of its checkpoints is complete "
            f"({start.messages[0] if start.messages else 'they have vanished'}); name another directory, or "
            f"remove them to begin again with --init_from {config.start.init_from}"
        )
    start.initial = initial
    start.resets = config.start.resets
    source: str | None = None
    facts: dict[str, Any] = {}
    if initial is not None:
        source = initial.source
        start.messages += initial.messages
        if initial.checkpoint is not None and start.resets != frozenset(RESETS):
            start.checkpoint, facts = initial.checkpoint, initial.checkpoint.manifest or {}
    start.source, start.facts = broadcast_json([source, facts], communicator)
    if start.keeps(SCHEDULE):
        start.step, start.begun = start.facts["step"], start.facts.get("begun", 0)
        if start.facts.get("stage") != start.stage:
            there = f"stage {start.facts['stage']}" if start.facts.get("stage") else "a run without stages"
            raise InputError(
                f"--init_from {config.start.init_from}: its schedule is that of {there}; reset it with "
                f"--reset {','.join(name for name in RESETS if name in {*start.resets, SCHEDULE})}"
            )


def restore_states(start: Start, optimizer: Optimizer, communicator: Communicator) -> None:
    """Gives every rank the optimizer's states of the checkpoint. Where they begin anew, only the float32
    masters of float16 parameters are taken over, which are the parameters themselves at full precision.

    Raises:
        InputError: on rank 0, for states of another model or dtype.
    """
    if not start.facts:
        return
    keeps = start.keeps(OPTIMIZER)
    if start.checkpoint is not None and (keeps or optimizer.has_masters):
        with start.checkpoint.open_states() as states:
            optimizer.restore(states) if keeps else optimizer.restore_masters(states)
    (optimizer.t,) = broadcast_json([optimizer.t], communicator)
    communicator.broadcast(list(optimizer.state_arrays().values()))


def position_to_continue(
    start: Start, options: Mapping[str, Any], world_size: int, data_options: Sequence[str] = DATA_OPTIONS
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
    seed, optimizer = config.optimization.seed, config.optimization.optimizer
    if seed is not None and start.facts.get("seed", seed) != seed:
        messages.append(
            f"--seed {seed}: the checkpoint's run had {start.facts['seed']}; data order, masks and dropout "
            "change from here on"
        )
    if saved.get("optimizer", optimizer) != optimizer and start.keeps(OPTIMIZER):
        messages.append(
            f"--optimizer {optimizer}: the checkpoint's run had {saved['optimizer']}; its moments are taken "
            "over"
        )
    moments, saved_moments = config.optimization.optimizer_state, saved.get("optimizer_state", "float32")
    if saved and saved_moments != moments and start.keeps(OPTIMIZER):
        messages.append(
            f"--optimizer_state {moments}: the checkpoint's run had {saved_moments}; its moments are "
            "converted"
        )
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
