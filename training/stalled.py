"""A warning, once, where the loss does not fall, with the two likeliest reasons.

The level is the entropy of the training text's tokens: the loss of a model that knows how often each token
occurs, and nothing else. Every model stays there for a while; one whose last INTERVALS log intervals, of at
least STEPS steps, are all after the warmup and not below it has not left that place, or has come back to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, NamedTuple

import lamb_paper
from data.store.tokens import entropy

if TYPE_CHECKING:
    from training.run import Run

INTERVALS, STEPS = 20, 500
GUIDE = "docs/training.md#a-loss-that-does-not-fall"
_FACTOR = 5  # times more, or less, than the usual rate: rates differ by less that train one model as well
_HIGH = {"lamb": 0.03, "bertadam": 0.01, "adamw": 0.01}  # small models learn below, whatever the batch
_BATCH, _RATE = 256, 1e-4  # of Adam: Devlin et al., arXiv:1810.04805, section A.2


class Facts(NamedTuple):
    """A run as it is at `step`: the peak learning rate, sequences a step, the share of masked tokens, and
    steps without an update."""

    step: int
    optimizer: str
    lr: float
    sequences: float
    masked: float
    skipped: int


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
        facts = Facts(
            step, config.optimization.optimizer, self._run.plan.lr, sequences,
            config.data.masking.masked_lm_prob, line["skipped_steps"],
        )  # fmt: skip
        first, second = reasons(facts)
        shown = "-" if loss is None else format(loss, ".3f")
        return (
            f"the loss does not fall: {name} {shown} at step {step}, and for {self._streak} log intervals "
            f"not below {level:.3f}, which the tokens' frequencies alone bring. Likeliest reasons: {first}; "
            f"or {second} ({GUIDE})"
        )


def reasons(facts: Facts) -> tuple[str, str]:
    """The two likeliest reasons of a loss that does not fall: what is unusual first, then what is left."""
    usual = _RATE * (facts.sequences / _BATCH) ** 0.5
    if facts.optimizer == "lamb":
        usual = lamb_paper.scaled_lr(facts.sequences)
    found = []
    if facts.skipped * 10 > facts.step:
        found.append(f"{facts.skipped} of {facts.step} steps were skipped, for gradients that are not finite")
    if facts.lr > max(_FACTOR * usual, _HIGH[facts.optimizer]):
        found.append(f"--lr {facts.lr:g} is too high (usual: {usual:.2g}, small models a few times that)")
    elif facts.lr * _FACTOR < usual:
        found.append(f"--lr {facts.lr:g} is too low (usual: {usual:.2g}, small models a few times that)")
    if facts.masked > 0.5:
        found.append(f"--masked_lm_prob {facts.masked:g} hides most of the text; 0.15 to 0.4 are usual")
    if facts.sequences < 8:
        found.append(
            f"steps of {facts.sequences:.3g} sequences are noisy: raise --batch_size or --accumulate"
        )
    found.append(f"{facts.step} steps are too few yet")
    found.append(f"--lr {facts.lr:g} does not suit: try a third of it, and three times as much")
    return found[0], found[1]
