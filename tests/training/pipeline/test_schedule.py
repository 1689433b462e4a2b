"""Schedules, simulated: no stage waits for ever, gradients come in one order, and 1F1B holds few."""

from __future__ import annotations

import pytest

from training.pipeline.options import GPIPE, ONE_F_ONE_B, SCHEDULES, PipelineConfig
from training.pipeline.schedule import Pass, bubble, micro_batches_kept, passes

SIZES = [(stages, count) for stages in (1, 2, 3, 4, 8) for count in (1, 2, 3, 4, 7, 16)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "count"), SIZES)
def test_every_pass_comes_once_and_none_waits_for_ever(schedule, stages, count):
    left = [list(passes(schedule, stage, stages, count)) for stage in range(stages)]
    for stage in range(stages):
        assert sorted(left[stage]) == [Pass(way, n) for way in (False, True) for n in range(count)]
        assert [each.number for each in left[stage] if not each.forward] == list(range(count))
        assert [each.number for each in left[stage] if each.forward] == list(range(count))
    done: set[tuple[int, Pass]] = set()
    turns = 0
    while any(left):
        ready = []
        for stage in range(stages):
            if left[stage]:
                forward, number = left[stage][0]
                before = stage - 1 if forward else stage + 1
                needed = [(before, Pass(forward, number))] if 0 <= before < stages else []
                if not forward:
                    needed.append((stage, Pass(True, number)))
                if done.issuperset(needed):
                    ready.append(stage)
        assert ready, f"all wait: {[each[:1] for each in left]}"
        done.update((stage, left[stage].pop(0)) for stage in ready)
        turns += 1
    assert turns <= 2 * (count + stages - 1)  # no worse than the bubble of (p - 1) / (m + p - 1)


@pytest.mark.parametrize(("stages", "count"), SIZES)
def test_micro_batches_in_flight(stages, count):
    def most(schedule: str, stage: int) -> int:
        held = greatest = 0
        for each in passes(schedule, stage, stages, count):
            held += 1 if each.forward else -1
            greatest = max(greatest, held)
        return greatest

    for stage in range(stages):
        for schedule, held in ((ONE_F_ONE_B, min(stages - stage, count)), (GPIPE, count)):
            assert most(schedule, stage) == held
            kept = micro_batches_kept(PipelineConfig(stages, schedule=schedule), count, stage)
            assert kept == (held if stages > 1 else 1)


def test_the_bubble() -> None:
    assert bubble(1, 3) == 0 and bubble(2, 1) == 1 / 2 and bubble(2, 8) == 1 / 9 and bubble(4, 1) == 3 / 4
