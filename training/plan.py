"""Steps or hours, learning rate and warmup of a run: as given, or the LAMB paper's for its number of
processes."""

from __future__ import annotations

from dataclasses import dataclass

import lamb_paper
from base.errors import InputError
from training.budget import TICKS
from training.config import BatchConfig, OptimizationConfig
from training.optimizer.schedule import Schedule


@dataclass(frozen=True)
class RunPlan:
    """Steps and learning rates of a run, and the sentences about them at its start.

    With --budget_hours `num_steps` is None, and `schedule` and `warmup_steps` count in ticks of
    training.budget.
    """

    num_steps: int | None
    lr: float
    warmup_ratio: float
    warmup_steps: int
    max_predictions_per_seq: int
    schedule: Schedule
    summary: str
    warnings: tuple[str, ...]
    ckpt_interval: int | None = None  # where --ckpt_interval is left out


def make_plan(
    batch: BatchConfig,
    optimization: OptimizationConfig,
    world_size: int,
    max_seq_length: int,
    stage: int | None = None,
) -> RunPlan:
    """Fills in what was left out with the LAMB paper's values; what was given is kept and compared.

    Args:
        world_size: processes that train.
        max_seq_length: tokens a sequence.
        stage: the paper's; without, up to 128 tokens are its stage 1, longer sequences its stage 2.

    Raises:
        InputError: a batch that cannot hold one sequence, or options that contradict the resulting plan.
    """
    tokens = batch.batch_size * (1 if batch.use_avg_len else max_seq_length)
    try:
        paper = lamb_paper.stage_for_run(world_size, tokens, batch.accumulate, max_seq_length, stage=stage)
    except InputError as error:
        message = str(error).replace("--tokens_per_gpu (the training scripts' --batch_size)", "--batch_size")
        raise InputError(message) from error
    hours = optimization.budget_hours
    num_steps = None if hours else optimization.num_steps or paper.num_steps
    lr = optimization.lr or paper.lr
    ratio = paper.warmup_ratio if optimization.warmup_ratio is None else optimization.warmup_ratio
    length = num_steps or TICKS
    warmup_steps = lamb_paper.warmup_steps(length, ratio)
    predictions = batch.max_predictions_per_seq or paper.max_predictions_per_seq
    if optimization.end_lr > lr:
        raise InputError(f"--end_lr {optimization.end_lr} is above the learning rate {lr:.5g}; give --lr too")
    cooldown = _cooldown_steps(optimization, length, warmup_steps)
    schedule = Schedule(length, lr, warmup_steps, optimization.end_lr, optimization.decay_power, cooldown)
    left_out = [
        f"--{name} {getattr(paper, name)!r}"
        for name in ("num_steps", "lr", "warmup_ratio")
        if getattr(optimization, name) is None and not (hours and name == "num_steps")
    ]
    # What was left out is the formula's, and agrees; the mixed run's values have to be there together.
    run = {"num_steps": num_steps, "lr": lr, "warmup_ratio": ratio, "max_predictions_per_seq": predictions}
    epochs = f"{optimization.num_epochs:g} epochs, " if optimization.num_epochs else ""
    duration = f"{hours:g} hours of training" if hours else f"{epochs}{num_steps} steps"
    warmup = f"{ratio:.3g} of them warmup" if hours else f"{warmup_steps} warmup steps"
    constant = "" if cooldown is None else f", then constant, cooldown in the last {cooldown / length:.3g}"
    summary = (
        ("" if stage is None else f"stage {stage}: ")
        + f"{paper.sequences_per_step:g} sequences of {max_seq_length} tokens a step"
        f" ({world_size} x {tokens} tokens x {batch.accumulate}); {duration},"
        f" peak learning rate {lr:.5g}, {warmup}{constant}"
        + (f"; from the LAMB paper: {' '.join(left_out)}" if left_out else "")
    )
    hint = lamb_paper.batch_size_hint(batch.batch_size, batch.use_avg_len, max_seq_length)
    warnings = [hint] if hint else []
    # Smaller steps than its table's the paper did not take: one line says so, where something is left out.
    small = paper.sequences_per_step < lamb_paper.ROWS[0]
    different = lamb_paper.disagreements(run, paper)
    warnings += [each.sentence for each in different if not (small and each.option in lamb_paper.SCHEDULE)]
    if left_out:
        warnings += paper.warnings[:1] if small else paper.warnings
    return RunPlan(num_steps, lr, ratio, warmup_steps, predictions, schedule, summary, tuple(warnings))


def _cooldown_steps(optimization: OptimizationConfig, length: int, warmup_steps: int) -> int | None:
    """Of --schedule wsd, at least 1. Raises InputError where the warmup leaves too few."""
    if optimization.cooldown_ratio is None:
        return None
    steps = max(1, round(optimization.cooldown_ratio * length))
    if steps > length - warmup_steps + 1:  # both are rounded
        raise InputError(
            f"--cooldown_ratio {optimization.cooldown_ratio:g}: the warmup leaves"
            f" {1 - warmup_steps / length:.3g} of the run; lower it or --warmup_ratio"
        )
    return min(steps, length - warmup_steps)
