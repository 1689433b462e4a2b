"""hosts/slurm.py: the script's text, its behaviour at signals, and a job on a real cluster
(tests/slurm_cluster.py). Jobs that are queued again are in tests/faults/slurm_runs.py: Slurm lets them wait
for two minutes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys

import pytest

from hosts import slurm
from tests.hosts.launcher import rejected
from tests.namespaces import or_skip
from tests.processes import ROOT, executable, run_command, start_command, until, wait_for_file
from tests.slurm_cluster import slurm_cluster

PLAN = ["--nodes", "4", "--tasks_per_node", "8", "--tokens_per_gpu", "8192", "--accumulate", "2"]
OWN = ["--raw", "--data", "/corpus/*.txt", "--vocab", "/vocab.txt"]
STEP = "SLURM_STEP_NUM_TASKS"
LOOK = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
from base.launchers import announced_sizes, launched_rank, local_size
from comm.options import choose_backend
seen = [choose_backend(None, os.environ)]
seen += [each(os.environ) for each in (launched_rank, announced_sizes, local_size)]
if "horovod" in sys.argv:
    import horovod.mxnet as hvd
    hvd.init()
    seen += [hvd.rank(), hvd.size()]
sys.stdout.write(json.dumps(seen) + chr(10))
"""


def script(*words):
    return run_command([sys.executable, ROOT / "hosts" / "slurm.py", *words]).check().stdout


@pytest.fixture(scope="module")
def planned():
    gpus = ["--gpus_per_node", "8", "--cpus_per_task", "12", "--time", "2-00:00:00"]
    gpus += ["--sbatch", "partition=gpu"]
    return script("--backend", "hvd", *PLAN, *gpus, "--", *OWN)


def test_directives(planned):
    directives = [line[len("#SBATCH --") :] for line in planned.splitlines() if line.startswith("#SBATCH")]
    assert directives == [
        *("job-name=bert", "nodes=4", "ntasks-per-node=8", "cpus-per-task=12", "gpus-per-node=8"),
        *("time=2-00:00:00", "signal=B:USR1@300", "requeue", "open-mode=append", "output=%x-%j.out"),
        "partition=gpu",
    ]
    assert planned.count("--resume") == 1


def test_byteps_and_network():
    text = script("--backend", "byteps", *PLAN, "--network", "tcp:ib0", "--", *OWN)
    assert "run_pretraining_byteps.py" in text and "--mpirun" not in text and "--network tcp:ib0" in text
    text = script("--backend", "hvd", *PLAN, "--network", "efa", "--", *OWN)
    assert "--network efa" in text and "# FI_PROVIDER=efa: " in text


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--name", "a b"], "--name: 'a b'"),
        (["--time", "tomorrow"], "--time: 'tomorrow'"),
        (["--gpus_per_node", "4"], "--gpus_per_node 4"),
        (["--notice", "60"], "--notice"),
        (["--sbatch", "nodes=3"], "--sbatch nodes=3"),
        (["--sbatch", "a b"], "--sbatch a b"),
        (["--python", "/my python"], "--python /my python"),
        (["--network", "carrier"], "--network carrier"),
    ],
)
def test_bad_input_is_one_line(words, named, capsys, monkeypatch):
    monkeypatch.setattr("hosts.plans.check_script", lambda words: None)  # test_kubernetes.py has it
    line = rejected(slurm.main, capsys, "--backend", "hvd", *PLAN, *words, "--", *OWN)
    assert line.startswith("slurm: ") and named in line


def test_a_run_without_checkpoints_is_not_queued_again(capsys):
    words = ["--nodes", "2", "--tasks_per_node", "1", "--", "tests/hosts/restarted.py", "[]"]
    line = rejected(slurm.main, capsys, "--backend", "hvd", *words)
    assert "--ckpt_dir is missing after --" in line


# ------------------------------------------------------------------- the script without Slurm
#
# `scontrol` writes its words down; the node is this machine.


@pytest.fixture
def job(tmp_path):
    """Words that start a script of one node, and the file with what it has asked scontrol for."""
    asked = tmp_path / "asked"
    text = f'if [ "$1" = show ]; then echo localhost; else echo "$@" >>{asked}; fi'
    executable(tmp_path / "bin" / "scontrol", f"#!/bin/sh\n{text}\n")
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "x", "TMPDIR": str(tmp_path / "tmp")}
    env["PATH"] = os.pathsep.join([str(tmp_path / "bin"), os.environ["PATH"]])
    (tmp_path / "tmp").mkdir()

    def start(plan, **more):
        run = ["tests/hosts/restarted.py", "--ckpt_dir", tmp_path / "ckpt", json.dumps(plan)]
        words = ["--backend", "byteps", "--nodes", "1", "--tasks_per_node", "1", "--python", sys.executable]
        text = script(*words, "--", *run).replace("--grace", "--max_restarts 0 --grace")
        (tmp_path / "job").write_text(text)
        return start_command(["bash", tmp_path / "job"], env={**env, **more})

    return start, asked, tmp_path


@pytest.mark.parametrize(
    ("number", "requeued", "code"), [(signal.SIGUSR1, "requeue 7\n", 0), (signal.SIGTERM, "", 143)]
)
def test_a_signal_saves_and_only_the_notice_queues_again(job, number, requeued, code):
    start, asked, folder = job
    with start([[3, 0, "wait"]]) as run:
        wait_for_file(folder / "ckpt" / "metrics.jsonl", text='"step": 2', run=run)
        run.signal(number)
        result = run.wait()
    assert result.returncode == code, result.describe()
    assert (folder / "ckpt" / "0000003.json").exists()
    assert (asked.read_text() if asked.exists() else "") == requeued
    assert not list((folder / "tmp").iterdir())


def test_codes_of_the_run(job):
    start, asked, folder = job
    with start([[2, 0, "exit 75 saved"]], SLURM_RESTART_COUNT="100") as run:
        result = run.wait()
    assert result.returncode == 75 and "queued 100 times already (--requeues)" in result.stderr
    with start([None, [3, 0, "exit 75 saved"]], SLURM_RESTART_COUNT="99") as run:
        assert run.wait().returncode == 0
    assert asked.read_text() == "requeue 7\n"
    with start([None, None, [9, 0, "exit 3 broken"]]) as run:
        assert run.wait().returncode == 3
    assert asked.read_text() == "requeue 7\n"


# ------------------------------------------------------------------------------ a real cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with or_skip(slurm_cluster(tmp_path_factory.mktemp("cluster")), "Slurm cluster") as made:
        yield made


def test_a_job_of_two_nodes(cluster, tmp_path):
    """Both backends' scripts on a real slurmctld and two slurmd: a rank on each node, to the end."""
    jobs = {}
    for backend in ("hvd", "byteps"):
        folder = tmp_path / backend
        run = ["tests/hosts/restarted.py", "--ckpt_dir", folder, "[]"]
        words = ["--nodes", "2", "--tasks_per_node", "1", "--cpus_per_task", "1", "--python", sys.executable]
        words += ["--interface", "wire0", "--sbatch", f"output={folder}.out"]
        text = script("--backend", backend, *words, "--", *run)
        # Servers wait for ranks to join them; this script exchanges nothing.
        text = text.replace("--grace", "--server_timeout 1 --grace")
        (tmp_path / f"{backend}.sbatch").write_text(text)
        jobs[backend] = cluster.submit(f"--chdir={ROOT}", tmp_path / f"{backend}.sbatch")
    for backend, job in jobs.items():
        output = tmp_path / f"{backend}.out"
        try:
            facts = cluster.wait_for(job, "COMPLETED")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{output.read_text() if output.exists() else ''}") from None
        assert facts["NodeList"] == "alpha,beta" and facts["Requeue"] == "1"
        assert "[rank 0] start 0 of 2 ranks after step 0" in output.read_text()
        lines = (tmp_path / backend / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == list(range(1, 10))
    until(lambda: not (cluster.processes(0) or cluster.processes(1)))


def test_what_srun_announces_before_horovod_is_loaded(cluster, tmp_path):
    """Tasks of srun --mpi=pmix are ranks. Others have Slurm's variables too and are not: the job's own shell,
    tasks without MPI, and a step of one task, such as salloc's shell."""
    look = [sys.executable, "-c", LOOK]
    (tmp_path / "job").write_text(f"#!/bin/sh\nexec {shlex.join(look)}\n")
    output = tmp_path / "output"
    cluster.run(
        "sbatch", "--wait", "--nodes=2", "--ntasks-per-node=2", f"--output={output}", tmp_path / "job"
    )
    alone = ["local", 0, {}, 1]
    assert json.loads(output.read_text()) == alone
    assert json.loads(cluster.run("srun", "--mpi=pmix", "--ntasks=1", *look)) == [*alone[:2], {STEP: 1}, 1]
    both = ["srun", "--nodes=2", "--ntasks=2"]
    lines = cluster.run(*both, "--mpi=none", *look).splitlines()
    assert list(map(json.loads, lines)) == [alone] * 2
    lines = cluster.run(*both, "--mpi=pmix", *look, "horovod").splitlines()
    assert sorted(map(json.loads, lines)) == [["hvd", rank, {STEP: 2}, 1, rank, 2] for rank in (0, 1)]


def test_the_shell_of_a_step(tmp_path):
    """Variables of the whole job do not reach srun; the command is one text for sh."""
    code = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ)]))"
    environ = {**os.environ, "SLURM_NTASKS": "16", "SLURM_NTASKS_PER_NODE": "8", "SLURM_JOB_ID": "7"}
    environ.update(
        SLURM_CPUS_PER_TASK="12", SLURM_NNODES="2", SRUN_CPUS_PER_TASK="12", SLURM_GPUS_PER_NODE="8"
    )
    executable(tmp_path / "srun", f"#!{sys.executable}\n{code}\n")
    environ["PATH"] = os.pathsep.join([str(tmp_path), environ["PATH"]])
    words = [sys.executable, ROOT / "hosts" / "srun.py", "beta", "echo", "a b"]
    result = subprocess.run(words, env=environ, capture_output=True, text=True, check=True)
    said, variables = json.loads(result.stdout)
    assert said[-1] == "echo a b" and "--nodelist=beta" in said and "--overlap" in said
    kept = {name for name in variables if name.startswith(("SLURM_", "SRUN_"))}
    assert kept == {"SLURM_JOB_ID", "SLURM_GPUS_PER_NODE"}
