"""`bpslaunch python run_pretraining_byteps.py …`: BytePS's own launcher, which starts one process each."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from base.threads import choose_threads, read_cpu_quota
from hosts.addresses import free_port
from setup.environment import leave_ranks_unbound
from tests.processes import ROOT, nothing_new, run_command, start_command

BIN = Path(sys.executable).parent
SCRIPT = [
    *("python", str(ROOT / "run_pretraining_byteps.py")),
    *("--dummy_data_len", "32", "--model", "bert_1_32_2", "--batch_size", "4", "--num_steps", "6"),
    *("--log_interval", "3", "--ckpt_interval", "6", "--ckpt_dir", "ckpt", "--peak_tflops", "1"),
]
ALONE = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_WORKER_ID": "0"}


def traces():
    """Files that BytePS may leave on a machine."""
    places = [("/tmp", "socket_"), ("/dev/shm", "BytePS_")]
    return {
        f"{place}/{name}" for place, start in places for name in os.listdir(place) if name.startswith(start)
    }


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """An environment like .venv, with the packages of this one: its folder, and the variables with which its
    Python finds them: bpslaunch starts servers with the first python3 on PATH, and ranks through a shell."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (folder / "bin" / "bpslaunch").write_bytes((BIN / "bpslaunch").read_bytes())
    leave_ranks_unbound(folder)
    variables = {
        name: None for name in os.environ if name.startswith(("DMLC_", "BYTEPS_", "NVIDIA_", "OMP_"))
    }
    variables["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), sysconfig.get_path("purelib")])
    return folder, variables


def typed(environment, more, *words, cwd):
    """bpslaunch as somebody types it who knows nothing of BYTEPS_NUMA_ON."""
    folder, variables = environment
    argv = [folder / "bin" / "python", folder / "bin" / "bpslaunch", *words]
    return start_command(argv, env={**variables, **more}, cwd=cwd)


def test_training_of_a_worker_with_two_ranks(environment, tmp_path):
    """Several workers are below; both at once in test_contract.py and tests/native."""
    before = traces()
    with typed(environment, {**ALONE, "NVIDIA_VISIBLE_DEVICES": "0,1"}, *SCRIPT, cwd=tmp_path) as run:
        result = run.wait().check()
    assert "2 processes on cpu" in result.stdout and "saved ckpt/0000006.params" in result.stdout
    assert os.listdir(tmp_path) == ["ckpt"], "a file was written outside ckpt_dir"
    nothing_new(before, traces)


def test_more_ranks_than_its_arithmetic_has_cores_for(environment, tmp_path):
    """Without our default it fails on every machine, and a value of the user's own stays."""
    folder, _ = environment
    ranks = os.cpu_count() + 1
    worker = {**ALONE, "NVIDIA_VISIBLE_DEVICES": ",".join(map(str, range(ranks)))}
    says = "echo numa=$BYTEPS_NUMA_ON rank=$BYTEPS_LOCAL_RANK"

    def run(**more):
        with typed(environment, {**worker, **more}, says, cwd=tmp_path) as started:
            return started.wait()

    written = leave_ranks_unbound(folder)
    assert len(re.findall(r"numa=0 rank=\d+", run().check().stdout)) == ranks
    assert "IndexError" in run(BYTEPS_NUMA_ON="1").stderr
    written.unlink()
    assert "IndexError" in run().stderr
    leave_ranks_unbound(folder)
    python = run_command(
        [folder / "bin" / "python", "-c", "import os; print(os.environ.get('BYTEPS_NUMA_ON'))"]
    )
    assert python.check().stdout == "None\n", "only bpslaunch is affected"


def test_two_workers_as_somebody_types_them(environment, tmp_path):
    """No variable but those that docs/byteps.md asks for: no traceback, nobody waits, and both workers share
    the cores."""
    shared = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", "DMLC_PS_ROOT_URI": "127.0.0.1"}
    shared.update(DMLC_PS_ROOT_PORT=str(free_port("127.0.0.1")), DMLC_NODE_HOST="127.0.0.1")
    with contextlib.ExitStack() as stack:
        runs = []
        for role, number in (("worker", "0"), ("worker", "1"), ("scheduler", None), ("server", None)):
            more = {**shared, "DMLC_ROLE": role, **({"DMLC_WORKER_ID": number} if number else {})}
            words = SCRIPT if number else []
            runs.append(stack.enter_context(typed(environment, more, *words, cwd=tmp_path)))
        results = [run.wait().check() for run in runs]
    found = re.search(r"2 processes on .*OMP_NUM_THREADS (\d+)", results[0].stdout)
    cores = len(os.sched_getaffinity(0))
    assert found and int(found[1]) == choose_threads({}, cores, os.cpu_count() or 1, 2, read_cpu_quota())


def test_a_pattern_that_its_shell_expands(environment, tmp_path):
    """Though it is quoted; what the message says to do then leads past it."""
    for name in "abc":
        (tmp_path / f"{name}.txt").touch()

    def error(data):
        with typed(environment, ALONE, *SCRIPT, "--data", data, cwd=tmp_path) as run:
            result = run.wait()
        assert result.returncode != 0
        (line,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
        return line

    said = error("*.txt")
    assert re.match(
        "error: no option takes '[abc].txt', a file: most likely a shell has expanded a pattern", said
    )
    assert "no option takes" not in error(re.findall(r'"(.*)"', said)[0])
