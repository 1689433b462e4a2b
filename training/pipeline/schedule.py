"""The order of a stage's forward and backward passes in a step, and what it costs. MXNet is not imported.

Both schedules run the backward passes of all stages in the order of the micro-batches, so that gradients are
summed in one order, and every stage can begin its next pass as soon as its neighbours' messages are there:

- gpipe: all forward, then all backward (Huang et al., arXiv:1811.06965, section 2.2).
- 1f1b: as many forward passes as there are stages behind this one, then one forward and one backward in turn
  (Narayanan et al., arXiv:2104.04473, section 2.2). Stage i of p holds the activations of p - i micro-batches
  at most.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

from training.pipeline.options import GPIPE, ONE_F_ONE_B, PipelineConfig


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


def micro_batches_kept(pipeline: PipelineConfig, accumulate: int, stage: int) -> int:
    """Micro-batches whose activations a stage keeps at once, of `accumulate` in a step: under GPipe all
    (Huang et al., arXiv:1811.06965), under 1F1B one for each stage from this one on (Narayanan et al.,
    arXiv:2104.04473, section 2.2)."""
    if pipeline.schedule == ONE_F_ONE_B:
        return min(accumulate, pipeline.stages - stage)
    return accumulate if pipeline.stages > 1 else 1


def bubble(stages: int, micro_batches: int) -> float:
    """Share of a step's time in which an evenly split pipeline waits, under either schedule (the same
    section)."""
    return (stages - 1) / (micro_batches + stages - 1)
