"""The containers of a BytePS run on Kubernetes as processes, with the variables that Kubernetes sets: a small
real training that a removed pod interrupts, and that the replaced pods finish."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from hosts.addresses import free_port
from tests.hosts.manifests import command, objects
from tests.processes import ROOT, start_command, wait_for_file
from tests.training import small_runs
from training.checkpoint import list_steps

TRAINING = ["--comm_timeout", 300, "--log_interval", 5, "--ckpt_interval", 100_000]
PART = ROOT / "tests" / "hosts" / "part.py"
SCHEDULER = ["scheduler", "--workers", "2", "--servers", "1", "--scheduler", "a.b", "--secret"]


class Run:
    """The pods of a run over BytePS with 2 workers and a server. `start` starts all of them, as their Jobs do
    when every pod has failed; DNS and ports are this machine's."""

    def __init__(self, folder: Path, *own: object):
        words = ["--backend", "byteps", "--name", "pods", "--image", "i", "--workers", 2, "--slots", 1]
        words += ["--servers", 1, "--directory", ROOT, "--grace", 120, "--patience", 300, "--", *own]
        documents = objects(*words)
        self.jobs = [each for each in documents if each["kind"] == "Job"]
        (secret,) = (each["stringData"] for each in documents if each["kind"] == "Secret")
        self._secret = folder / "secret"  # where the kubelet would mount it
        self._secret.write_text(secret["secret"], "ascii")

    def start(self, stack: contextlib.ExitStack) -> dict[str, object]:
        ports = free_port("127.0.0.1"), free_port("127.0.0.1")
        pods = {}
        for job in self.jobs:
            words = command(job["spec"]["template"]["spec"])
            words[words.index("--scheduler") + 1] = "127.0.0.1"  # what the service's name would lead to
            words[words.index("--secret") + 1] = str(self._secret)
            words[5:5] = ["--port", str(ports[0]), "--gathering_port", str(ports[1])]
            for index in range(job["spec"]["completions"]):
                env = {
                    "JOB_COMPLETION_INDEX": str(index),
                    "POD_IP": "127.0.0.1",
                    "HOSTNAME": f"{job['metadata']['name']}-{index}",
                    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
                    "KUBERNETES_PORT": "tcp://10.96.0.1:443",
                    "OMP_NUM_THREADS": "1",
                }
                run = start_command(words, env=env, cwd=ROOT)
                pods[env["HOSTNAME"].split("-", 1)[1]] = stack.enter_context(run)
        return pods


def wait_all(pods, code):
    """The results by the pods' names; each pod has to end with `code`."""
    results = {name: pod.wait() for name, pod in pods.items()}
    assert {each.returncode for each in results.values()} == {code}, results["scheduler-0"].describe()
    return results


def test_a_run_that_a_removed_pod_interrupts_goes_on(tmp_path):
    """SIGTERM to the server's pod, which has no rank: the ranks save, every pod ends with 143, which the Jobs
    do not count; new pods go on at the same step and end with 0."""

    def run_of(steps):
        words = small_runs.command(tmp_path / "ckpt", *TRAINING, "--num_steps", steps)
        return Run(tmp_path, "run_pretraining_byteps.py", *words)

    run = run_of(100_000)
    with contextlib.ExitStack() as stack:
        pods = run.start(stack)
        wait_for_file(tmp_path / "ckpt" / "metrics.jsonl", text="mlm_loss", run=pods["worker-0"])
        os.kill(pods["server-0"].pid, signal.SIGTERM)
        wait_all(pods, 143)
    (step,) = list_steps(str(tmp_path / "ckpt"))
    assert step >= 5
    last = step - step % 5 + 10
    with contextlib.ExitStack() as stack:
        results = wait_all(run_of(last).start(stack), 0)
    assert f"continuing after step {step}" in results["worker-0"].stdout
    lines = (tmp_path / "ckpt" / "metrics.jsonl").read_text("utf-8").splitlines()
    steps = [each["step"] for each in map(json.loads, lines) if "mlm_loss" in each]
    assert steps[-1] == last and sorted(set(steps)) == steps


@pytest.mark.parametrize(("actions", "code"), [(["sleep"], 1), (["sleep", "exit2"], 2)])
def test_all_pods_end_with_the_runs_code(actions, code, tmp_path):
    """A lost pod is a failure of all; bad input too has one code everywhere, by which the Jobs decide
    (podFailurePolicy)."""
    run = Run(tmp_path, PART.relative_to(ROOT), tmp_path, *actions)
    with contextlib.ExitStack() as stack:
        pods = run.start(stack)
        if code == 1:
            for rank in (0, 1):
                wait_for_file(tmp_path / f"rank.{rank}.pid", run=pods["worker-0"])
            os.kill(pods["worker-1"].pid, signal.SIGKILL)  # as where a node's power fails
            assert pods.pop("worker-1").wait().returncode == -signal.SIGKILL
        wait_all(pods, code)
    facts = json.loads((tmp_path / "rank.1.json").read_text("utf-8"))["environ"]
    expected = {"DMLC_WORKER_ID": "1", "DMLC_NODE_HOST": "127.0.0.1", "DMLC_PS_ROOT_URI": "127.0.0.1"}
    expected.update(DMLC_NUM_WORKER="2", DMLC_NUM_SERVER="1", BYTEPS_LOCAL_RANK="0", BYTEPS_GLOBAL_RANK="1")
    assert {name: facts.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        (["worker", "--workers", "2"], {}, "--workers 2: several need --servers, --scheduler and --secret"),
        (["server", "--workers", "1", "--", PART], {}, "only workers run a script"),
        (
            ["worker", "--workers", "1", "--", PART],
            {"JOB_COMPLETION_INDEX": "1"},
            "JOB_COMPLETION_INDEX=1: a",
        ),
        (["worker", "--workers", "1", "--", PART], {}, "JOB_COMPLETION_INDEX=: a worker's is 0 to 0"),
        (["worker", "--workers", "1"], {}, "the command of the ranks is missing"),
        ([*SCHEDULER, "no-such"], {"POD_IP": "10.0.0.1"}, "--secret no-such: No such file or directory"),
        ([*SCHEDULER, "s"], {"POD_IP": "fd00::1"}, "POD_IP=fd00::1: it must be the pod's IPv4 address"),
    ],
)
def test_bad_input_is_one_line(words, env, said):
    own = {"JOB_COMPLETION_INDEX": None, "POD_IP": None, **env}
    program = [sys.executable, "-m", "hosts.pod", "byteps", words[0], "--slots", "1", *words[1:]]
    with start_command(program, env=own) as run:
        result = run.wait()
    assert result.returncode == 2 and said in result.stderr, result.describe()
    assert result.stderr.count("\n") == 1


def test_a_single_worker_runs_alone(tmp_path):
    words = [sys.executable, "-m", "hosts.pod", "byteps", "worker", "--workers", "1", "--slots", "2", "--"]
    with start_command([*words, PART, tmp_path, "obey"], env={"JOB_COMPLETION_INDEX": "0"}) as run:
        for rank in (0, 1):
            wait_for_file(tmp_path / f"rank.{rank}.pid", run=run)
        os.kill(run.pid, signal.SIGTERM)
        result = run.wait()
    assert result.returncode == 143, result.describe()
    assert {(tmp_path / f"rank.{rank}.saved").read_text() for rank in (0, 1)} == {"SIGTERM"}
