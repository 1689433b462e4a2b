"""hosts/launch.py over mpirun on two hosts: network namespaces of this machine (see tests/namespaces.py)."""

from __future__ import annotations

import os
import sys
import time

from hosts.over_mpirun import SHARED_MEMORY
from tests.processes import ROOT, start_command, wait_for_file

RANK = """
import os, pathlib, sys, time

folder, rank = pathlib.Path(sys.argv[1]), os.environ["OMPI_COMM_WORLD_RANK"]
(folder / f"begun.{rank}").touch()
while not (folder / "cut").exists():
    time.sleep(0.01)
if rank == "0":
    print("error: rank 1 (beta, pid 1) has given no sign of life", file=sys.stderr, flush=True)
sys.exit(1)
"""


def test_a_host_that_is_cut_off(two_hosts, tmp_path):
    """Its ranks end by themselves. mpirun, whose order to its daemon there arrives as little as the daemon's
    report arrives here, would wait for minutes, and so would the daemon."""
    before = set(os.listdir(SHARED_MEMORY))
    (tmp_path / "tmp").mkdir()
    launch = [*two_hosts.prefix, sys.executable, ROOT / "hosts" / "launch.py", "--backend", "hvd"]
    options = ["--hostfile", two_hosts.hostfile, "--ssh", two_hosts.agent, "--interface", "wire0"]
    env = {"TMPDIR": str(tmp_path / "tmp"), "OMPI_MCA_btl_vader_backing_directory": None}
    command = [*launch, *options, "--", sys.executable, "-c", RANK, tmp_path]
    with start_command(command, timeout=60, env=env, grace=10) as run:
        for rank in range(2):
            wait_for_file(tmp_path / f"begun.{rank}", run=run)
        two_hosts.cut()
        (tmp_path / "cut").touch()
        failed = time.monotonic()
        result = run.wait()  # raises when the daemon of the lost host outlives it by the grace
    assert time.monotonic() - failed < 30 and result.returncode == 1, result.describe()
    assert "[rank 0] error: rank 1 (beta, pid 1) has given no sign of life" in result.stderr
    line = (
        "launch: mpirun waited for 10.77.0.2, which does not answer any more, and was killed; ended the run"
    )
    assert line in result.stderr
    assert not list((tmp_path / "tmp").iterdir())
    assert not [name for name in set(os.listdir(SHARED_MEMORY)) - before if name.startswith("launch-")]
