"""How long a comparison will still take, from what its launches took."""

from __future__ import annotations

from comparison.launching.read_run import Work
from comparison.progress import seconds_left
from comparison.record import PROFILED, TIMED, Record
from comparison.settings import Setting

SLOW, FAST = Setting("byteps", 2, "float32", 512), Setting("hvd_mpi", 2, "float32", 512)
ALONE = Setting("hvd_mpi", 1, "float32", 512)


def made(*launches: tuple[Work, float]) -> dict[Work, Record]:
    return {work: Record(work.setting, work.kind, work.repeat, seconds=seconds) for work, seconds in launches}


def test_each_launch_is_taken_to_last_as_long_as_its_like():
    known = made(
        (Work(SLOW, TIMED, 0), 30.0),
        (Work(SLOW, TIMED, 1), 20.0),
        (Work(FAST, TIMED, 0), 10.0),
        (Work(SLOW, PROFILED, 0), 90.0),
    )
    assert seconds_left([Work(FAST, TIMED, 1)], known) == 10
    assert seconds_left([Work(SLOW, TIMED, 2), Work(SLOW, TIMED, 3)], known) == 50
    # Another backend with as many workers; then anything at all.
    assert seconds_left([Work(Setting("hvd_gloo", 2, "float32", 512), TIMED, 0)], known) == 20
    assert seconds_left([Work(ALONE, TIMED, 0)], known) == 25
    assert seconds_left([], known) == 0


def test_nothing_known():
    assert seconds_left([Work(FAST, TIMED, 1)], {}) == 0
