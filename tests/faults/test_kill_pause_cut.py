"""A rank, the BytePS server or the scheduler is killed or stopped, at the start, between two steps and while
rank 0 saves: every process of the run ends and with an error, somebody says who is missing, and the last
checkpoint is intact. With the real scripts and launchers; some of figure 7's cases, without its limits of
seconds. A rank that is stopped in its steps over MPI: tests/training/pipeline/test_pipelines.py."""

from __future__ import annotations

import pytest

from tests.embedded import built_once
from tests.faults.figure import Setting
from tests.faults.kill_pause_cut import PROGRAM

CASES = [
    ("hvd_mpi", "1", "stopped", "start"),
    ("hvd_mpi", "0", "killed", "saving"),
    ("hvd_gloo", "1", "killed", "steps"),
    ("hvd_gloo", "0", "stopped", "saving"),
    ("byteps", "1", "stopped", "steps"),
    ("byteps", "server", "stopped", "start"),
    ("byteps", "server", "stopped", "steps"),
    ("byteps", "server", "killed", "saving"),
    ("byteps", "scheduler", "killed", "start"),
    ("byteps", "scheduler", "stopped", "steps"),
]
# While a part is stopped the others may go on for 20 s: in steps that take long and cost little.
SLOW = """
import time, training.step
take = training.step.TrainStep.__call__
def slow(self, *given, **named):
    time.sleep(0.1)
    return take(self, *given, **named)
training.step.TrainStep.__call__ = slow
"""


@pytest.mark.parametrize(("backend", "who", "how", "when"), CASES, ids=map("-".join, CASES))
def test_every_process_ends_and_the_checkpoint_is_good(backend, who, how, when, tmp_path_factory, tmp_path):
    shared = tmp_path / tmp_path.name
    shared.mkdir()
    (shared / "embedded").symlink_to(built_once(tmp_path_factory, vocab_size=1024))
    patch = SLOW if when == "steps" else ""
    setting = Setting(backend, 0, tmp_path / "work", shared, patch=patch, calm=False)
    assert PROGRAM.attempt(setting, {"who": who, "how": how, "when": when}).failures == ()
