"""A warning, once, where the loss does not fall, with the two likeliest reasons.

The level is the entropy of the training text's tokens: the loss of a model that knows how often each token
occurs, and nothing else. Every model stays there for a while; one whose last INTERVALS log intervals, of at
least STEPS steps, are all after the warmup and not below it has not left that place, or has come back to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping

import lamb_paper
from data.store.tokens import entropy

if TYPE_CHECKING:
    from training.run import Run

INTERVALS, STEPS = 20, 500
GUIDE = "docs/training.md#a-loss-that-does-not-fall"
_FACTOR = 5  # times more, or less, than the usual rate: rates differ by less that train one model as well
_HIGH = {"lamb": 0.03}  # else 0.01: small models learn below, whatever the batch
_BATCH, _RATE = 256, 1e-4  # of Adam: Devlin et al., arXiv:1810.04805, section A.2


class Stalled:
    """Looks at each line of the metrics; on rank 0. Where the text's frequencies are not known, as of files
    with masks and in fine-tuning, it finds nothing."""

    def __init__(self, run: Run):
        counts = run.feed.token_counts if run.feed else None
        self._run, self._level = run, None if counts is None else entropy(counts)
        self._streak, self._since = 0, run.start.step

    def look(self, line: Mapping[str, Any], warm: bool, sequences: float) -> str | None:
        """A warning, where there is one now.

        Args:
            line: the metrics of a log interval.
            warm: whether its end is after the warmup.
            sequences: of a step, over all ranks.
        """
        name, step = self._run.task.judged[0], line["step"]
        loss = line[name]
        if self._level is None or not warm or (loss is not None and loss < self._level):
            self._streak, self._since = 0, step
            return None
        self._streak += 1
        if self._streak < INTERVALS or step - self._since < STEPS:
            return None
        level, self._level = self._level, None  # once
        config = self._run.config
        masked, skipped = config.data.masking.masked_lm_prob, line["skipped_steps"]
        optimizer, lr = config.optimization.optimizer, self._run.plan.lr
        first, second = reasons(step, optimizer, lr, sequences, masked, skipped)
        shown = "-" if loss is None else format(loss, ".3f")
        return (
            f"the loss does not fall: {name} {shown} at step {step}, and for {self._streak} log intervals "
            f"not below {level:.3f}, which the tokens' frequencies alone bring. Likeliest reasons: {first}; "
            f"or {second} ({GUIDE})"
        )


def reasons(
    step: int, optimizer: str, lr: float, sequences: float, masked: float, skipped: int
) -> tuple[str, str]:
    """The two likeliest reasons of a loss that does not fall: what is unusual first, then what is left.

    Args:
        lr: the peak. sequences: of a step. masked: share of the tokens. skipped: steps without an update.
    """
    usual = _RATE * (sequences / _BATCH) ** 0.5
    if optimizer == "lamb":
        usual = lamb_paper.scaled_lr(sequences)
    found = []
    if skipped * 10 > step:
        found.append(f"{skipped} of {step} steps were skipped, as not finite or far off")
    if lr > max(_FACTOR * usual, _HIGH.get(optimizer, 0.01)):
        found.append(f"--lr {lr:g} is too high (usual: {usual:.2g}, small models a few times that)")
    elif lr * _FACTOR < usual:
        found.append(f"--lr {lr:g} is too low (usual: {usual:.2g}, small models a few times that)")
    if masked > 0.5:
        found.append(f"--masked_lm_prob {masked:g} hides most of the text; 0.15 to 0.4 are usual")
    if sequences < 8:
        found.append(f"steps of {sequences:.3g} sequences are noisy: raise --batch_size or --accumulate")
    found.append(f"{step} steps are too few yet")
    found.append(f"--lr {lr:g} does not suit: try a third of it, and three times as much")
    return found[0], found[1]
