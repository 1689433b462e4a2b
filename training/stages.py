"""Two stages in one directory: the stage that a checkpoint belongs to, and the one that a run goes on with.

Steps are counted through: stage 2's first step follows stage 1's last. The manifest of a checkpoint has
`stage`, `begun` (the step after which the stage began), `num_steps` (its own, as planned; null where hours
end it) and `ended`. MXNet is not imported: errors come before it.
"""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

from base.errors import InputError
from training.config import RunConfig


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
    other --num_steps or more --budget_hours.

    Planned steps that follow from the number of processes may differ now; the stage has ended all the same.
    """
    if not facts.get("ended") or config.start.stage != facts["stage"]:
        return bool(facts.get("ended"))
    num_steps, hours = config.optimization.num_steps, config.optimization.budget_hours
    if hours is not None:
        return bool(facts["training_s"] >= hours * 3600)
    return num_steps in (None, facts["step"] - facts["begun"])


def missing_stage_1(config: RunConfig) -> InputError:
    """The error of a stage 2 that has nothing to go on from."""
    return InputError(
        f"--stages 2: --ckpt_dir {config.checkpoint.ckpt_dir} has no complete checkpoint of stage 1; train "
        "it there with --stages 1 or both, or name the parameters with --init_from"
    )


def data_seed(seed: int, stage: int | None) -> int:
    """The seed of a stage's data order, pairs and masks: the run's own but for stage 2, so that no epoch of
    stage 2 repeats the draws of one in stage 1."""
    if stage != 2:
        return seed
    return int(np.random.SeedSequence([seed, stage]).generate_state(1, np.uint64)[0])


def length_message(lengths: tuple[int, int]) -> str | None:
    """A warning where both stages have sequences of one length.

    Raises:
        InputError: stage 2's are the shorter ones.
    """
    first, second = lengths
    if second < first:
        raise InputError(
            f"--max_seq_length: stage 1 has sequences of {first} tokens and stage 2 of {second}, but the "
            "second stage is there to learn longer positions; exchange them, or train the shorter ones as "
            "a run of its own with --init_from"
        )
    if second > first:
        return None
    return (
        f"both stages have sequences of {first} tokens; the paper's have 128, then 512 (--max_seq_length "
        "128,512)"
    )
