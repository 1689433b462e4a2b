"""Parts of real runs are killed, and one of the ranks that are left saves what all have."""

from __future__ import annotations

import pytest

from tests.faults.figure import Setting
from tests.faults.rescue import attempt


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "who"), [("hvd_mpi", "0"), ("hvd_gloo", "1"), ("byteps", "server")])
def test_one_of_the_ranks_that_are_left_saves(backend, who, tmp_path):
    setting = Setting(backend, 0, tmp_path / "work", tmp_path / "shared", calm=False)
    setting.shared.mkdir()
    tally = attempt(setting, {"who": who, "seed": "1"})
    assert tally.held == 1, tally.failures
