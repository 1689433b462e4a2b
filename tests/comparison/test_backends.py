"""The words that start the ranks of each backend, here and on a cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from base.errors import InputError
from comparison.backends import BACKENDS, Cluster, environment, launch_words
from hosts.mpirun import options_of_mpirun

CLUSTER = Cluster((("a", 8), ("b", 8), ("a", 8)))


def words(key: str, workers: int, cluster: Cluster | None, directory: Path) -> list[str]:
    return launch_words(BACKENDS[key], workers, cluster, directory)


def hostfile(directory: Path) -> str:
    return (directory / "hostfile").read_text("ascii")


def test_on_this_machine(tmp_path):
    mpi = words("hvd_mpi", 2, None, tmp_path)
    assert mpi[:3] == ["mpirun", "-np", "2"] and "mpi_yield_when_idle" in mpi
    assert mpi[mpi.index("--bind-to") + 1] == "none"
    assert not (tmp_path / "hostfile").exists()
    gloo = words("hvd_gloo", 2, None, tmp_path)
    assert gloo[0] == sys.executable and gloo[-5:] == ["--gloo", "-np", "2", "-H", "localhost:2"]
    byteps = words("byteps", 2, None, tmp_path)
    assert byteps[-1] == "--" and byteps[byteps.index("--hostfile") + 1] == str(tmp_path / "hostfile")
    assert hostfile(tmp_path) == "localhost slots=1\nlocalhost slots=1\n"
    words("byteps_local", 2, None, tmp_path)
    assert hostfile(tmp_path) == "localhost slots=2\n"


def test_on_a_cluster_the_first_slots_are_taken(tmp_path):
    mpi = words("hvd_mpi", 16, CLUSTER, tmp_path)
    assert hostfile(tmp_path) == "a slots=8\nb slots=8\n"
    assert mpi[:5] == ["mpirun", "-np", "16", "--hostfile", str(tmp_path / "hostfile")]
    assert mpi[5:] == sum(options_of_mpirun([("a", 8), ("b", 8)]), [])
    assert "ppr:4:socket" in mpi and "--oversubscribe" not in mpi
    unbound = words("hvd_mpi", 16, CLUSTER._replace(gpus=False), tmp_path)
    assert unbound[5:] == sum(options_of_mpirun([("a", 8), ("b", 8)], without_gpus=True), [])
    assert "mpi_yield_when_idle" in unbound and "ppr:4:socket" not in unbound
    assert words("hvd_gloo", 12, CLUSTER, tmp_path)[-1] == "a:8,b:4"
    assert words("hvd_gloo", 24, CLUSTER, tmp_path)[-1] == "a:16,b:8"
    words("byteps", 24, CLUSTER, tmp_path)  # a line is a worker
    assert hostfile(tmp_path) == "a slots=8\nb slots=8\na slots=8\n"
    words("byteps", 4, CLUSTER, tmp_path)
    assert hostfile(tmp_path) == "a slots=4\n"


@pytest.mark.parametrize(("key", "workers"), [("byteps", 12), ("byteps_local", 24)])
def test_slots_that_cannot_be_shared_out(tmp_path, key, workers):
    with pytest.raises(InputError, match=f"{workers} workers"):
        words(key, workers, CLUSTER, tmp_path)


def test_all_backends_get_the_same_variables_on_a_cluster(monkeypatch):
    monkeypatch.setenv("PATH", "/bin")
    found = [environment(backend, CLUSTER) for backend in BACKENDS.values()]
    assert all(each == found[0] for each in found)
    assert found[0]["MXNET_GPU_MEM_POOL_TYPE"] == "Round" and found[0]["PATH"] == "/bin"
    assert "MXNET_GPU_MEM_POOL_TYPE" not in environment(BACKENDS["hvd_gloo"])
    monkeypatch.setenv("MXNET_GPU_MEM_POOL_TYPE", "Naive")
    assert environment(BACKENDS["hvd_mpi"], CLUSTER)["MXNET_GPU_MEM_POOL_TYPE"] == "Naive"
