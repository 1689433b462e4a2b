"""The comparison behind figure 6 sees all damage; `--figures 6` runs it on real ranks."""

from __future__ import annotations

import pytest

from tests.faults.poison import KINDS, faults_of, plan

STEPS, POISONS = plan(2)
EVERY = [poison for of_stage in POISONS.values() for poison in of_stage]


def sound() -> list[list]:
    """The record of a rank in a run without a fault."""
    bad, digest, lines = {poison.step for poison in EVERY}, 0, []
    for step in range(1, 2 * STEPS + 1):
        digest += step not in bad
        lines.append([step, step not in bad, 1.0, str(digest)])
    return lines


def test_every_kind_comes_on_every_rank_in_both_stages():
    for stage, first in ((1, 1), (2, STEPS + 1)):
        assert {(each.rank, each.kind) for each in POISONS[stage]} == {(r, k) for r in (0, 1) for k in KINDS}
        steps = [each.step for each in POISONS[stage]]
        assert len(set(steps)) == len(steps) and first < min(steps) and max(steps) < first + STEPS - 1


@pytest.mark.parametrize(
    "rank, place, column, value, said",
    [
        (1, 4, 3, "other", "ranks 0 and 1 differ from step 5"),
        (0, 1, 1, True, "step 2 applied"),
        (0, 2, 1, False, "step 3 skipped"),
        (0, 1, 3, "other", "step 2: parameters changed"),
    ],
)
def test_damage_is_seen(rank, place, column, value, said):
    recorded = [sound(), sound()]
    assert faults_of(recorded, EVERY, 2 * STEPS) == []
    assert faults_of([sound()[:-1], sound()], EVERY, 2 * STEPS)
    recorded[rank][place][column] = value
    assert any(said in fault for fault in faults_of(recorded, EVERY, 2 * STEPS))
