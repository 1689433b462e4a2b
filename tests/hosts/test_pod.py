"""The containers of an MPIJob as processes: a launcher and two workers in network namespaces, with ssh
servers, keys, host file and variables as the MPI operator gives them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from base.json_files import read_json_lines
from hosts.batch.ssh import SSHD, answers, client_command, private_keys, server_configuration
from hosts.pod import main, ranks_below
from tests.hosts.launcher import rejected
from tests.hosts.manifests import command, objects, pod_specs
from tests.namespaces import or_skip, two_hosts
from tests.processes import ROOT, run_command, start_command, until, wait_for_file

SCRIPT = Path(__file__).with_name("restarted.py")
WORKERS = ("10.77.0.2", "10.77.0.3")


class Pods:
    """A job's pods: `worker` and `launcher` start a container's command from the manifest."""

    def __init__(self, hosts, directory: Path, temporary: Path):
        self.hosts, self.directory, self.temporary = hosts, directory, temporary
        self._environ = {"TMPDIR": str(temporary)}
        self.keys = directory / "keys"
        self.keys.mkdir()
        make_keys(self.keys)
        self.notes = directory / "notes"  # of the launcher's pod: it outlives a container
        self.notes.mkdir()
        self.hostfile = directory / "hostfile.mpi"
        self.hostfile.write_text("".join(f"{name} slots=1\n" for name in WORKERS), "ascii")
        words = ["--backend", "hvd", "--name", "pods", "--image", "i", "--workers", 2, "--slots", 1]
        words += ["--directory", ROOT, "--grace", 120, "--patience", 300, "--", "run_pretraining_hvd.py"]
        (job,) = (each for each in objects(*words, "--dummy_data_len", 8) if each["kind"] == "MPIJob")
        launcher, worker = map(command, pod_specs(job))
        self._launcher = launcher[: launcher.index("--") + 1]
        self._worker = worker
        self._mounted = job["spec"]["sshAuthMountPath"]

    def worker(self, index: int, keys: Path | None = None):
        words = [str(keys or self.keys) if word == self._mounted else word for word in self._worker]
        enter = ["nsenter", "--target", self.hosts.holders[index + 1], "--net", "--uts", "--"]
        enter += ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"]  # it is process 1 there
        return start_command([*enter, *words], env={"K_MPI_JOB_ROLE": "worker", **self._environ}, cwd=ROOT)

    def launcher(self, *own: object, patience: int = 300):
        words = [str(self.keys) if word == self._mounted else word for word in self._launcher]
        words[words.index("--patience") + 1] = str(patience)
        words[words.index("--notes") + 1] = str(self.notes)
        env = {
            **self._environ,
            "K_MPI_JOB_ROLE": "launcher",
            "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
            "OMPI_MCA_orte_default_hostfile": str(self.hostfile),
            "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
            "OMPI_MCA_orte_set_default_slots": "1",
            "NVIDIA_VISIBLE_DEVICES": "",
        }
        words += [sys.executable, SCRIPT, "--resume", "--ckpt_dir", self.directory / "ckpt", *map(str, own)]
        return start_command([*self.hosts.prefix, *words], env=env, cwd=ROOT)

    def steps(self) -> list[int]:
        return [each["step"] for each in read_json_lines(str(self.directory / "ckpt" / "metrics.jsonl"))]


def make_keys(folder: Path) -> None:
    """As the operator makes them: one pair, under these names whatever its kind."""
    words = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-C", ""]
    subprocess.run([*words, "-f", folder / "id_rsa"], check=True)
    shutil.copy(folder / "id_rsa.pub", folder / "authorized_keys")


@pytest.fixture
def pods(tmp_path):
    if not os.access(SSHD, os.X_OK):
        pytest.skip("no ssh hosts: no ssh server: apt-get install openssh-server")
    made = or_skip(two_hosts(tmp_path, spare=True), "network namespaces")
    with made as hosts, tempfile.TemporaryDirectory() as temporary:  # a short path, for Open MPI's sockets
        yield Pods(hosts, tmp_path, Path(temporary))


def test_workers_that_must_go_save_and_the_next_launcher_goes_on(pods, tmp_path):
    """A node pool is drained: SIGTERM to the workers' pods. The ranks in them save and end, the launcher's
    container ends with 143 and starts again, with new workers."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(pods.worker(index)) for index in (0, 1)]
        launcher = stack.enter_context(pods.launcher("--steps", 8, '[[5, 0, "wait"]]'))
        wait_for_file(tmp_path / "ckpt" / "metrics.jsonl", text='"step": 4', run=launcher)
        for worker in workers:
            (pid,) = worker.find("hosts.pod")
            os.kill(pid, signal.SIGTERM)
        results = [worker.wait() for worker in workers]
        result = launcher.wait()
    assert [each.returncode for each in results] == [143, 143], results[0].describe()
    assert all("launch: SIGTERM; 1 ranks here save and end" in each.stderr for each in results)
    assert result.returncode == 143, result.describe()
    assert pods.steps() == [1, 2, 3, 4, 5]
    assert not list(pods.temporary.glob("ssh-*")), "keys are removed"
    with pods.worker(0), pods.worker(1), pods.launcher("--steps", 8, "[null, null]") as launcher:
        result = launcher.wait().check()
    assert "start 1 of 2 ranks after step 5" in result.stdout and pods.steps() == list(range(1, 9))


def test_a_launcher_that_must_go_lets_the_ranks_save(pods, tmp_path):
    with pods.worker(0), pods.worker(1), pods.launcher("--steps", 8, '[[5, 0, "wait"]]') as launcher:
        wait_for_file(tmp_path / "ckpt" / "metrics.jsonl", text='"step": 4', run=launcher)
        (pid,) = launcher.find("hosts.pod")
        os.kill(pid, signal.SIGTERM)  # as Kubernetes does: to the container's process 1
        result = launcher.wait()
    assert result.returncode == 143, result.describe()
    assert pods.steps() == [1, 2, 3, 4, 5] and (tmp_path / "ckpt" / "0000005.json").exists()


def test_bad_input_is_not_started_again(pods, tmp_path):
    """Kubernetes starts an MPIJob's launcher again after every exit code but 0. After bad input it says the
    same line and ends with 2, without workers."""
    plan = '[[3, 1, "exit 2 no such file"]]'
    with pods.worker(0), pods.worker(1), pods.launcher("--steps", 8, plan) as launcher:
        first = launcher.wait()
    assert first.returncode == 2, first.describe()
    assert "no such file" in first.stderr and pods.steps() == [1, 2]
    last = "; ".join(first.stderr.splitlines()[-2:])
    assert "[rank 1] no such file; launch: rank 1 on 10.77.0.3 exited with 2" in last
    with pods.launcher("--steps", 8, "[null, null]") as launcher:
        again = launcher.wait()
    assert (again.returncode, again.stdout) == (2, ""), again.describe()
    said = "bad input, not started again; mend it and make the MPIJob anew"
    assert again.stderr == f"launch: {said}: {last}\n" and pods.steps() == [1, 2]
    assert len(list(pods.temporary.glob("ssh-*"))) == 2, (
        "the launchers' keys are removed, not the killed workers'"
    )


def test_a_launcher_names_workers_that_do_not_come(pods):
    with pods.worker(0), pods.launcher("[]", patience=1) as launcher:
        result = launcher.wait()
    assert result.returncode == 1
    said = "launch: no ssh server at port 2222 after 1 s: 10.77.0.3 (Connection refused)\n"
    assert result.stderr == said, result.describe()


def test_a_server_with_another_key_is_not_trusted(pods, tmp_path):
    """Whoever takes a worker's address has not the run's key."""
    strange = tmp_path / "strange"
    strange.mkdir()
    make_keys(strange)
    with pods.worker(0), pods.worker(1, strange):
        connect = f"import socket; socket.create_connection(({WORKERS[1]!r}, 2222), 1)"
        probe = [*pods.hosts.prefix, sys.executable, "-c", connect]
        until(lambda: run_command(probe).returncode == 0)
        with private_keys(str(pods.keys)) as keys:
            for index, code in ((0, 0), (1, 255)):
                words = [*pods.hosts.prefix, *client_command(keys, 2222), WORKERS[index], "true"]
                result = run_command(words)
                assert result.returncode == code, result.describe()
        assert "Host key verification failed" in result.stderr


def test_keys_are_copied_for_this_user_alone(tmp_path):
    make_keys(tmp_path)
    for each in tmp_path.iterdir():
        each.chmod(0o644)  # as the kubelet mounts them where root does not run
    with private_keys(str(tmp_path)) as folder:
        names = ("id_rsa", "id_rsa.pub", "authorized_keys")
        assert {(folder / name).stat().st_mode & 0o777 for name in names} == {0o600}
        assert (folder / "known_hosts").read_text().startswith("* ecdsa-sha2-nistp521 ")
        written = server_configuration(folder, 2222, "bert")
        assert "PasswordAuthentication no\n" in written and "AllowUsers bert\n" in written
    assert not folder.exists()


def test_missing_keys_are_bad_input(tmp_path, capsys):
    make_keys(tmp_path)
    (tmp_path / "authorized_keys").unlink()
    assert "authorized_keys: No such file" in rejected(main, capsys, "hvd", "worker", "--keys", tmp_path)


@pytest.mark.skipif(os.geteuid() or not os.access(SSHD, os.X_OK), reason="no ssh hosts: needs root and sshd")
def test_a_user_without_a_name_is_bad_input():
    """Such as --user of hosts/kubernetes.py that the image does not have."""
    become = "import os, pathlib; from hosts.batch.ssh import server_command; os.setuid(54321); "
    result = run_command([sys.executable, "-c", f"{become} server_command(pathlib.Path(), 2222)"])
    assert "InputError: user 54321 has no name in this image" in result.stderr


def test_a_launcher_outside_of_an_mpijob_is_bad_input(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("OMPI_MCA_orte_default_hostfile", raising=False)
    line = rejected(main, capsys, "hvd", "launcher", "--keys", tmp_path, "--", sys.executable)
    assert "OMPI_MCA_orte_default_hostfile is not set" in line


def test_a_host_without_an_address_does_not_answer():
    assert answers("no-such-host.invalid", 1, 1.0)


def test_only_ranks_get_the_signal(tmp_path):
    """Neither does a process that a rank has started, such as a loader, nor mpirun's daemon around it."""
    ready = tmp_path / "ready"
    loader = "import time; time.sleep(60)"
    rank = f"import subprocess, sys; open({str(ready)!r}, 'w')\n"
    rank += f"subprocess.run([sys.executable, '-c', {loader!r}])"
    environment = {**os.environ, "OMPI_COMM_WORLD_RANK": "0"}
    process = subprocess.Popen([sys.executable, "-c", rank], env=environment, start_new_session=True)
    try:
        until(ready.exists)
        until(lambda: len(list(Path(f"/proc/{process.pid}/task/{process.pid}").glob("children"))) == 1)
        assert process.pid in ranks_below(os.getpid())
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until(lambda: children.read_text().split())
        assert int(children.read_text().split()[0]) not in ranks_below(os.getpid())
        assert ranks_below(process.pid + (1 << 22)) == [], "another run's ranks are left alone"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
