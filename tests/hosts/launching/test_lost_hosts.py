"""A real run under hosts/launch.py that loses one of two hosts, goes on with the other, and gets it back
(tests/faults/lose_hosts.py has more of them)."""

from __future__ import annotations

import pytest

from tests.embedded import built_once
from tests.faults.figure import Setting
from tests.faults.lose_hosts import PROGRAM
from tests.namespaces import Unavailable


def test_a_run_that_loses_a_host_and_takes_it_back(tmp_path_factory, tmp_path):
    """Samples, masks, dropout and losses are those of a run of one process; restarts.jsonl has its hosts."""
    shared, work = tmp_path / "shared", tmp_path / "work"
    shared.mkdir()
    work.mkdir()
    (shared / "embedded").symlink_to(built_once(tmp_path_factory, vocab_size=1024))
    try:
        case = {"kind": "pair", "step": "5", "away": "3"}
        assert PROGRAM.attempt(Setting("hvd_mpi", 0, work, shared), case).failures == ()
    except Unavailable as reason:
        pytest.skip(f"no network namespaces: {reason}")
