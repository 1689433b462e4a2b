"""Learning rate by step: linear warmup, then polynomial decay, or a plateau and a cooldown (standard library
only)."""

from __future__ import annotations

from dataclasses import dataclass

DECAY_POWERS = {"polynomial": 1.0, "wsd": 0.5}  # the schedules, and the power where none is given
COOLDOWN_RATIO = 0.2  # Haegele et al., arXiv:2405.18392, section 3: more brings little


@dataclass(frozen=True)
class Schedule:
    """Learning rate of the step about to be taken; steps count from 1 to num_steps.

        step <= warmup_steps:  lr * step / warmup_steps
        after that:            end_lr + (lr - end_lr) * remaining ** power
                               with remaining = (num_steps - step) / (num_steps - warmup_steps)

    This is the LAMB paper's schedule (arXiv:1904.00962, section 4: linear warmup, then polynomial decay,
    power 1). The peak `lr` is reached at step == warmup_steps, `end_lr` at step == num_steps, and both
    formulas give the same value where they meet. GluonNLP and Google's BERT decay from step 0
    instead, as lr * (1 - step / num_steps), and therefore drop where the warmup ends, to
    lr * (1 - warmup_steps / num_steps): with the 32K row's lr 0.005 and 2813 warmup steps of 14063, from
    0.005 at step 2813 to 0.0039995 at step 2814, where this class gives 0.0049996.

    With cooldown_steps it is warmup, stable, decay (wsd) instead:

        up to num_steps - cooldown_steps:  lr
        after that:                        end_lr + (lr - end_lr) * (1 - elapsed ** power)
                                           with elapsed = 1 - (num_steps - step) / cooldown_steps

    Power 1 is the linear cooldown, power 0.5 the "1-sqrt" that Haegele et al. (arXiv:2405.18392, section 3)
    found to be better. Up to the cooldown nothing depends on num_steps but the number of warmup steps.
    """

    num_steps: int
    lr: float
    warmup_steps: int = 0
    end_lr: float = 0.0
    power: float = 1.0
    cooldown_steps: int | None = None

    def __call__(self, step: int) -> float:
        """Learning rate of `step`, from 1; after num_steps it stays at end_lr."""
        if step <= self.warmup_steps:
            return self.lr * step / self.warmup_steps
        if step >= self.num_steps:
            return self.end_lr
        if self.cooldown_steps is None:
            remaining = (self.num_steps - step) / (self.num_steps - self.warmup_steps)
            return self.end_lr + (self.lr - self.end_lr) * remaining**self.power
        elapsed = step - (self.num_steps - self.cooldown_steps)
        if elapsed <= 0:
            return self.lr
        return self.end_lr + (self.lr - self.end_lr) * (1 - (elapsed / self.cooldown_steps) ** self.power)
