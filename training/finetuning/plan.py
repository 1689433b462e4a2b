"""Epochs to steps: linear warmup and linear decay, as Google's run_squad.py and run_classifier.py have it."""

from __future__ import annotations

from dataclasses import dataclass

from base.errors import InputError
from training.config import BatchConfig, OptimizationConfig
from training.optimizer.schedule import Schedule
from training.plan import RunPlan


@dataclass(frozen=True)
class Epochs:
    """The length of a training. `num_steps`: of all epochs; `examples`: of one epoch."""

    epochs: float
    examples: int
    num_steps: int


def step_examples(batch: BatchConfig, world_size: int) -> int:
    """Examples of a step, over all processes and micro-batches."""
    return batch.batch_size * batch.accumulate * world_size


def make_finetuning_plan(
    batch: BatchConfig, optimization: OptimizationConfig, world_size: int, epochs: Epochs | None
) -> RunPlan:
    """The plan of a run, for so many processes; `epochs` is None where nothing is trained.

    Warmup has the share `warmup_ratio` of the steps, rounded down; then the rate falls linearly to zero at
    the last step. Without --ckpt_interval there is a checkpoint, and an evaluation, after each epoch.

    Raises:
        InputError: the settings leave the learning rate open.
    """
    if optimization.lr is None or optimization.warmup_ratio is None:
        raise InputError("--lr and --warmup_ratio: fine-tuning has no default of the LAMB paper; give both")
    num_steps = optimization.num_steps or (epochs.num_steps if epochs else 1)
    warmup_steps = int(optimization.warmup_ratio * num_steps)
    schedule = Schedule(num_steps, optimization.lr, warmup_steps, optimization.end_lr)
    examples = step_examples(batch, world_size)
    of_epoch = -(-epochs.examples // examples) if epochs else 1
    length = f"{epochs.epochs:g} epochs" if epochs and not optimization.num_steps else "--training_steps"
    summary = (
        f"{examples} examples a step ({world_size} x {batch.batch_size} x {batch.accumulate}), "
        f"{epochs.examples if epochs else 0:,} an epoch; {length}: {num_steps} steps, "
        f"{optimization.optimizer}, peak learning rate {optimization.lr:.5g}, {warmup_steps} warmup steps"
    )
    ratio = optimization.warmup_ratio
    return RunPlan(num_steps, optimization.lr, ratio, warmup_steps, 0, schedule, summary, (), of_epoch)
