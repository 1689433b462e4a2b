"""The order of a stage's forward and backward passes in a step. Standard library only.

Both schedules run the backward passes of all stages in the order of the micro-batches, so that gradients are
summed in one order, and every stage can begin its next pass as soon as its neighbours' messages are there:

- gpipe: all forward, then all backward (Huang et al., arXiv:1811.06965, section 2.2).
- 1f1b: as many forward passes as there are stages behind this one, then one forward and one backward in turn
  (Narayanan et al., arXiv:2104.04473, section 2.2). Stage i of p holds the activations of p - i micro-batches
  at most.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

from training.pipeline.options import GPIPE


class Pass(NamedTuple):
    """A pass of micro-batch `number` of a step, forward or backward."""

    forward: bool
    number: int


def passes(schedule: str, stage: int, stages: int, micro_batches: int) -> Iterator[Pass]:
    """The passes of one stage, in order."""
    ahead = micro_batches if schedule == GPIPE else min(stages - 1 - stage, micro_batches)
    for number in range(ahead):
        yield Pass(True, number)
    for number in range(micro_batches):
        if number + ahead < micro_batches:
            yield Pass(True, number + ahead)
        yield Pass(False, number)
