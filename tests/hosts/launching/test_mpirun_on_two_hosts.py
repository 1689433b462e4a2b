"""hosts/launch.py over mpirun on two hosts: network namespaces of this machine (see tests/namespaces.py)."""

from __future__ import annotations

import socket
import struct
import sys

import pytest

from hosts.launching.over_mpirun import SHARED_MEMORY
from hosts.supervise import address_in
from tests.hosts.launcher import HVD
from tests.namespaces import bound
from tests.processes import run_command, start_command, wait_for_file

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
    folders = [tmp_path / name for name in ("tmp", "memory")]
    for folder in folders:
        folder.mkdir()
    prefix = [*two_hosts.prefix, *bound(folders[1], SHARED_MEMORY)]
    options = ["--hostfile", two_hosts.hostfile, "--ssh", two_hosts.agent, "--interface", "wire0"]
    env = {"TMPDIR": str(folders[0]), "OMPI_MCA_btl_vader_backing_directory": None}
    command = [*prefix, *HVD, *options, "--", sys.executable, "-c", RANK, tmp_path]
    with start_command(command, env=env) as run:
        for rank in range(2):
            wait_for_file(tmp_path / f"begun.{rank}", run=run)
        two_hosts.cut()
        (tmp_path / "cut").touch()
        result = run.wait()  # raises when the daemon of the lost host outlives it by the grace
    assert result.returncode == 1, result.describe()
    assert "[rank 0] error: rank 1 (beta, pid 1) has given no sign of life" in result.stderr
    line = (
        "launch: mpirun waited for 10.77.0.2, which does not answer any more, and was killed; ended the run"
    )
    assert line in result.stderr
    assert not [path for folder in folders for path in folder.iterdir()]


def test_an_interpreter_in_a_folder_with_a_blank(two_hosts, tmp_path):
    python = tmp_path / "own folder" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    options = ["--hostfile", two_hosts.hostfile, "--ssh", two_hosts.agent, "--interface", "wire0"]
    words = [*two_hosts.prefix, *HVD, *options, "--", python, "-c", "print('here')"]
    assert run_command(words).check().stdout.count("here") == 2


@pytest.mark.parametrize("address", ["10.77.0.2", "2001:db8::1:2"])
def test_addresses_in_the_kernels_tables(address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    packed = socket.inet_pton(family, address)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    assert address_in("".join(f"{word:08X}" for word in words)) == address
    mapped = struct.unpack("=4I", socket.inet_pton(socket.AF_INET6, "::ffff:10.77.0.2"))
    assert address_in("".join(f"{word:08X}" for word in mapped)) == "10.77.0.2"
