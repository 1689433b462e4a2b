from __future__ import annotations

import os
import sys

import pytest

from base.errors import InputError
from base.launchers import local_size
from base.threads import choose_threads, read_cpu_quota, set_threads
from tests.processes import run_command, run_ranks

BOUND = {"OMPI_MCA_orte_bound_at_launch": "1"}


@pytest.mark.parametrize(
    ("environ", "affinity", "cpus", "ranks", "quota", "threads"),
    [
        ({}, 2, 2, 1, None, 2),
        ({}, 2, 2, 2, None, 1),
        ({}, 2, 2, 4, None, 1),  # never below 1
        ({}, 8, 96, 4, None, 2),  # taskset or a cpuset: all ranks share what is left
        (BOUND, 1, 2, 2, None, 1),  # bound to cores: already this rank's own
        (BOUND, 12, 96, 8, None, 12),  # -map-by ppr:4:socket:pe=6, two hardware threads a core
        (BOUND, 48, 96, 8, None, 12),  # bound to one of two sockets, four ranks there
        ({"BYTEPS_NUMA_ON": "1"}, 4, 8, 2, None, 4),  # by bpslaunch, each of two ranks to its half
        ({"BYTEPS_NUMA_ON": "0"}, 8, 8, 2, None, 4),
        (BOUND, 2, 2, 2, None, 1),  # "bound" to the only socket, that is to everything
        ({"PRTE_LAUNCHED": "1"}, 48, 96, 8, None, 12),  # Open MPI 5: fewer CPUs than its daemon has
        ({"PRTE_LAUNCHED": "1"}, 96, 96, 8, None, 12),
        ({}, 16, 16, 1, 4.0, 4),  # docker run --cpus 4
        ({}, 16, 16, 4, 6.0, 1),
        ({}, 16, 16, 1, 0.5, 1),
        ({}, 2, 2, 1, 64.0, 2),
        ({"OMP_NUM_THREADS": "5"}, 2, 2, 2, 1.0, 5),
        ({"OMP_NUM_THREADS": "4,2"}, 2, 2, 1, None, 4),
        ({"OMP_NUM_THREADS": ""}, 2, 2, 1, None, 2),
    ],
)
def test_choose_threads(environ, affinity, cpus, ranks, quota, threads):
    assert choose_threads(environ, affinity, cpus, ranks, quota) == threads


@pytest.mark.parametrize("value", ["0", "-2", "many", "1.5"])
def test_wrong_explicit_number(value):
    with pytest.raises(InputError, match=f"OMP_NUM_THREADS={value}"):
        choose_threads({"OMP_NUM_THREADS": value}, 2, 2, 1)


@pytest.mark.parametrize(
    ("environ", "size"),
    [
        ({}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "8"}, 4),
        ({"HOROVOD_LOCAL_SIZE": "2"}, 2),
        ({"MPI_LOCALNRANKS": "3"}, 3),
        ({"BYTEPS_LOCAL_SIZE": "8"}, 8),
        # bpslaunch starts one worker; on a loopback address all of them are on this host
        ({"BYTEPS_LOCAL_SIZE": "1", "DMLC_NUM_WORKER": "2", "DMLC_PS_ROOT_URI": "127.0.0.1"}, 2),
        ({"BYTEPS_LOCAL_SIZE": "2", "DMLC_NUM_WORKER": "3", "DMLC_PS_ROOT_URI": "10.0.0.1"}, 2),
        (
            {
                **{"BYTEPS_LOCAL_SIZE": "2", "DMLC_NUM_WORKER": "2", "DMLC_PS_ROOT_URI": "127.0.0.1"},
                "RANKS_ON_HOST": "4",
            },
            4,
        ),
        ({"SLURM_NTASKS_PER_NODE": "6"}, 1),  # of the job; its script's shell is one process
        ({"SLURM_STEP_TASKS_PER_NODE": "4(x2),3"}, 4),
        ({"HOROVOD_LOCAL_SIZE": "nonsense"}, 1),
    ],
)
def test_local_size(environ, size):
    assert local_size(environ) == size


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n", encoding="ascii")


def test_cpu_quota_version_2(tmp_path):
    assert read_cpu_quota(tmp_path / "proc", tmp_path / "cgroup") is None  # another system
    write(tmp_path / "proc/self/cgroup", "0::/job/step")
    assert read_cpu_quota(tmp_path / "proc", tmp_path / "cgroup") is None
    write(tmp_path / "cgroup/job/step/cpu.max", "max 100000")
    assert read_cpu_quota(tmp_path / "proc", tmp_path / "cgroup") is None
    write(tmp_path / "cgroup/job/cpu.max", "250000 100000")  # an ancestor's limit counts too
    assert read_cpu_quota(tmp_path / "proc", tmp_path / "cgroup") == 2.5


def test_cpu_quota_version_1(tmp_path):
    write(tmp_path / "proc/self/cgroup", "3:memory:/docker/abc\n2:cpu,cpuacct:/docker/abc\n1:name=systemd:/")
    # Inside the container the group's directory is the mount itself.
    write(tmp_path / "cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    write(tmp_path / "cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1")
    assert read_cpu_quota(tmp_path / "proc", tmp_path / "cgroup") is None
    write(tmp_path / "cgroup/cpu,cpuacct/cpu.cfs_quota_us", "400000")
    assert read_cpu_quota(tmp_path / "proc", tmp_path / "cgroup") == 4.0


def test_set_threads_leaves_what_is_given_and_else_counts():
    environ = {"OMP_NUM_THREADS": "3"}
    assert set_threads(environ) == 3 and environ == {"OMP_NUM_THREADS": "3"}
    environ = {"HOROVOD_LOCAL_SIZE": "1"}
    threads = set_threads(environ)
    assert 1 <= threads <= len(os.sched_getaffinity(0))
    assert environ["OMP_NUM_THREADS"] == str(threads)


def test_set_threads_comes_before_mxnet():
    code = "import sys, types\nsys.modules['mxnet'] = types.ModuleType('mxnet')\n"
    result = run_command([sys.executable, "-c", code + "import base.threads as t; t.set_threads()"])
    assert result.returncode != 0
    assert "before mxnet is imported" in result.stderr


CODE = "from base.threads import set_threads\nprint(set_threads())\n"


def test_two_real_ranks_share_the_cores():
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("binding two ranks needs two CPUs")
    alone = int(run_command([sys.executable, "-c", CODE], env={"OMP_NUM_THREADS": None}).check().stdout)
    # A core may have two hardware threads.
    for binding, expected in (([], {max(1, alone // 2)}), (["--bind-to", "core"], {1, 2})):
        result = run_ranks(CODE, 2, launcher_args=binding, env={"OMP_NUM_THREADS": None}).check()
        assert {int(rank.stdout) for rank in result.ranks} <= expected
