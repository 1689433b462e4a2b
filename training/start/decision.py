"""The decision on a run's beginning. Rank 0 makes it, before MXNet is imported.

A run goes on from a checkpoint of its own directory, takes the parameters of --init_from or published ones,
or begins with random numbers. Two stages share a directory and count their steps through: stage 2's first
step follows stage 1's last. The manifest of a checkpoint has `stage`, `begun` (the step after which the stage
began), `num_steps` (its own, as planned; null where hours end it) and `ended`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Mapping

from base.errors import InputError
from base.launchers import launched_rank
from training.checkpoint import Checkpoint, list_steps, load_step, newest_complete
from training.config import RunConfig
from training.start.directory import check_bare, check_model, check_unused, look, newest_manifest
from training.start.initial import Initial, Wanted
from training.start.start import Start
from training.start_options import RESETS, SCHEDULE

_NEEDED = ("options", "scaler", "skips", "blocks")  # entries of a manifest

FindInitial = Callable[[], "Initial | None"]


def check_start(config: RunConfig, wanted: Wanted, find_initial: FindInitial) -> Start:
    """Decides how the run begins. Every rank calls it; those but rank 0, which perhaps do not see its disk,
    look at nothing.

    Args:
        config: of the run's first stage.
        wanted: its model, with which checkpoints are compared.
        find_initial: finds the parameters of --init_from, None without the option; called where they are
            needed.

    Raises:
        InputError: naming the directory and what is wrong with it; as `find_initial`.
    """
    again = partial(decide, config, wanted, find_initial)
    return Start(again=again) if launched_rank(os.environ) else again()


def decide(config: RunConfig, wanted: Wanted, find_initial: FindInitial) -> Start:
    """`check_start` on rank 0."""
    place, follows = config.checkpoint, config.start.follows_stage_1
    ckpt_dir = place.ckpt_dir
    messages: list[str] = []
    if os.path.exists(ckpt_dir) and not os.path.isdir(ckpt_dir):
        raise InputError(f"--ckpt_dir {ckpt_dir} is a file; name a directory")
    seen, checkpoint = look(ckpt_dir), None
    if not (place.start_step or place.resume or follows):
        if wanted.trains:
            check_unused(config)
    else:
        newest = newest_manifest(ckpt_dir, place.start_step)
        if newest is not None:
            check_model(config, newest, wanted)  # before files of gigabytes are read
        if place.start_step:
            checkpoint = load_step(ckpt_dir, place.start_step, messages.append)
        else:
            checkpoint = newest_complete(ckpt_dir, messages.append)
    if checkpoint is not None:
        if checkpoint.manifest is None:
            check_bare(config, checkpoint, wanted.vocab_size)
        start = continuing(config, checkpoint)
        if follows and not (place.resume or place.start_step or start.begins_stage_2):
            check_unused(config)  # --stages 2 with steps of its own
    elif follows:
        raise InputError(
            f"--stages 2: --ckpt_dir {ckpt_dir} has no complete checkpoint of stage 1; train it there with "
            "--stages 1 or both, or name the parameters with --init_from"
        )
    elif config.start.init_from and place.resume and list_steps(ckpt_dir):
        raise InputError(
            f"--ckpt_dir {ckpt_dir}: none of its checkpoints is complete "
            f"({messages[0] if messages else 'they have vanished'}); name another directory, or remove them "
            f"to begin again with --init_from {config.start.init_from}"
        )
    else:
        start = _with_parameters(config, find_initial())
    lacking = [name for name in _NEEDED if start.facts and name not in start.facts]
    if lacking:
        raise InputError(
            f"the manifest of step {start.facts['step']} has no {' and no '.join(lacking)}, and a run cannot "
            "go on with it; name another one with --start_step, or take its parameters with --init_from"
        )
    again = partial(decide, config, wanted, find_initial)
    return replace(start, messages=(*messages, *start.messages), seen=seen, again=again)


def continuing(config: RunConfig, checkpoint: Checkpoint) -> Start:
    """The start from a checkpoint of the run's own directory.

    Raises:
        InputError: as `stage_to_continue`.
    """
    facts = checkpoint.manifest or {}
    stage = stage_to_continue(config, facts)
    start = Start(checkpoint.step, facts.get("begun", 0), stage, facts, checkpoint=checkpoint)
    if stage != facts.get("stage"):
        return replace(start, begun=checkpoint.step, resets=config.start.stage_resets)
    return replace(start, resets=config.start.resets) if config.checkpoint.start_step else start


def _with_parameters(config: RunConfig, initial: Initial | None) -> Start:
    """The start without a checkpoint of the run's own: at step 0, unless the schedule of the checkpoint that
    --init_from names is continued."""
    stage, resets = config.start.stage, config.start.resets
    if initial is None:
        published = config.model.dataset_name if config.model.pretrained else None
        return Start(stage=stage, published=published)
    start = Start(
        stage=stage,
        resets=resets,
        source=initial.source,
        messages=tuple(initial.messages),
        initial=initial,
    )
    if initial.checkpoint is None or resets == frozenset(RESETS):
        return start
    facts = initial.checkpoint.manifest or {}
    start = replace(start, checkpoint=initial.checkpoint, facts=facts)
    if not start.keeps(SCHEDULE):
        return start
    if facts.get("stage") != stage:
        there = f"stage {facts['stage']}" if facts.get("stage") else "a run without stages"
        raise InputError(
            f"--init_from {config.start.init_from}: its schedule is that of {there}; reset it with "
            f"--reset {','.join(name for name in RESETS if name in {*resets, SCHEDULE})}"
        )
    return replace(start, step=facts["step"], begun=facts.get("begun", 0))


def stage_to_continue(config: RunConfig, facts: Mapping[str, Any]) -> int | None:
    """The stage that a run goes on with after a checkpoint of its own directory; None for a run without
    stages.

    Args:
        config: of the run's first stage.
        facts: the checkpoint's manifest.

    Raises:
        InputError: the checkpoint is not of a run with these stages.
    """
    stages, place = config.start.stages, config.checkpoint.ckpt_dir
    stage = facts.get("stage")
    if facts:
        there = f"--ckpt_dir {place}: its checkpoint of step {facts['step']}"
        elsewhere = f"start from it with --init_from {place}:{facts['step']} and another --ckpt_dir"
    else:
        there, elsewhere = f"--ckpt_dir {place}: its .params file", "name it with --init_from"
    if stages is None:
        if stage is not None and config.trains:
            raise InputError(f"{there} is of stage {stage}; go on with --stages, or {elsewhere}")
        return None
    if stage is None:
        raise InputError(f"--stages {stages}: {there} is of a run without stages; {elsewhere}")
    if stage == 2 and stages == "1":
        raise InputError(f"--stages 1: {there} is of stage 2 already; go on with --stages 2 or both")
    ended = has_ended(config, facts)
    if stage == 1 and stages == "2" and not ended:
        taken, planned = facts["step"] - facts["begun"], facts["num_steps"]
        far = f"{taken} of {planned} steps" if planned else f"{facts['training_s'] / 3600:.3g} hours"
        raise InputError(
            f"--stages 2: {there} is of stage 1, which has not ended ({far}); end it with --stages 1 or "
            "both, and --resume"
        )
    if stage == 1 and stages == "2" and config.start.init_from:
        raise InputError(
            f"--init_from {config.start.init_from}: {there} is the end of stage 1, which stage 2 would go "
            "on from; leave --init_from out, or name another --ckpt_dir"
        )
    return 2 if stage == 1 and ended and stages != "1" else stage


def has_ended(config: RunConfig, facts: Mapping[str, Any]) -> bool:
    """Whether the checkpoint is the last of its stage, as it was planned, unless this run gives that stage
    other --num_steps or --num_epochs, or more --budget_hours.

    Planned steps that follow from the number of processes may differ now; the stage has ended all the same.
    """
    if not facts.get("ended") or config.start.stage != facts["stage"]:
        return bool(facts.get("ended"))
    num_steps, hours = config.optimization.num_steps, config.optimization.budget_hours
    if hours is not None:
        return bool(facts["training_s"] >= hours * 3600)
    epochs = config.optimization.num_epochs
    if epochs is not None and facts["options"].get("num_epochs") != epochs:
        return False
    return num_steps in (None, facts["step"] - facts["begun"])
