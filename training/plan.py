"""Steps or hours, learning rate and warmup of a run: as given, or the LAMB paper's for its processes.

Of --budget_hours the schedule follows the elapsed part. Counted is the time of steps, data waits included;
start-up, checkpoints and evaluations are not. The hours of a resumed run go on from those in its checkpoint,
so the time of steps that a killed process had taken since then is not counted: these steps are lost, too.

The clock of rank 0 decides. All ranks must take the same learning rate and end at the same step, so rank 0's
part travels as bits among the flags that every step agrees on anyway: the other ranks give ones, and the
logical AND of all is what rank 0 gave. It costs no exchange of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Mapping, Sequence

import lamb_paper
from base.errors import InputError
from training.config import BatchConfig, OptimizationConfig
from training.optimizer.schedule import Schedule

if TYPE_CHECKING:
    from training.metrics import Stopwatch


BITS = 30  # a tick of 1000 hours is 3 ms
TICKS = (1 << BITS) - 1  # the whole budget; the unit of the schedule is its part


class Steps:
    """Position of a run in its steps, which every rank counts for itself.

    Args:
        taken: steps of the schedule that were taken before. planned: all of them.
    """

    figures: Mapping[str, float] = {}  # for a line of the metrics

    def __init__(self, taken: int, planned: int):
        self._planned = planned
        self.ticks = taken + 1  # of the step about to be taken, for the schedule

    @property
    def spent(self) -> bool:
        """Whether no step is left."""
        return self.ticks > self._planned

    def flags(self) -> list[bool]:
        """None: there is nothing to agree on."""
        return []

    def take(self, agreed: Sequence[bool]) -> None:
        """Goes on from the step just taken to the next."""
        self.ticks += 1


class Budget:
    """Position of a run in its budget, in ticks; the same on every rank.

    A step's position is where it ends: the last one is at TICKS, where the schedule has its end. The end
    is foreseen from the shortest step so far: where steps take equally long, a run exceeds its budget by less
    than one, else by less than two.

    Args:
        hours: the budget.
        clock: of the training, with the seconds of earlier runs; the same number on every rank at first.
        leads: whether this is rank 0, whose clock counts.
    """

    def __init__(self, hours: float, clock: Stopwatch, leads: bool):
        self.seconds = hours * 3600
        self._clock = clock
        self._leads = leads
        self._shortest: float | None = None
        self._before: float | None = None
        self.spent = clock.at_start >= self.seconds  # whether no step is left
        self.ticks = self._at(clock.at_start)  # of the step about to be taken

    def flags(self) -> list[bool]:
        """The position of the step after this one as bits, lowest first; ones on every rank but 0. Asked once
        a step."""
        if not self._leads:
            return [True] * BITS
        now = self._clock.total
        if self._before is not None:
            interval = now - self._before
            self._shortest = interval if self._shortest is None else min(interval, self._shortest)
        self._before = now
        ticks = self._at(now + (self._shortest or 0.0))
        return [bool(ticks >> bit & 1) for bit in range(BITS)]

    def take(self, agreed: Sequence[bool]) -> None:
        """Goes on from the step just taken to the next. `agreed`: the AND of all ranks' flags."""
        if self.ticks == TICKS:
            self.spent = True
            self._clock.at_least(self.seconds)  # though the step may have been quicker than foreseen
        self.ticks = sum(1 << bit for bit, flag in enumerate(agreed) if flag)

    @property
    def figures(self) -> dict[str, float]:
        """Seconds of training that are left on this rank's clock, for a line of the metrics."""
        return {"budget_left_s": round(max(0.0, self.seconds - self._clock.total), 3)}

    def _at(self, seconds: float) -> int:
        return min(TICKS, max(1, round(TICKS * min(1.0, seconds / self.seconds))))


@dataclass(frozen=True)
class RunPlan:
    """Steps and learning rates of a run, and the sentences about them at its start.

    With --budget_hours `num_steps` is None, and `schedule` and `warmup_steps` count in ticks of `Budget`.
    """

    num_steps: int | None
    lr: float
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
    # Steps smaller than the table's the paper has no values for: one line, where something is left out.
    small = paper.sequences_per_step < lamb_paper.ROWS[0]
    warnings += [] if small else [each.sentence for each in lamb_paper.disagreements(run, paper)]
    if left_out:
        warnings += paper.warnings[:1] if small else paper.warnings
    return RunPlan(num_steps, lr, warmup_steps, predictions, schedule, summary, tuple(warnings))


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
