"""A launch ends with all its processes, whatever they do, and its memory is known by role."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from comparison.launch import MARKER, launch, marked, role_of
from tests.processes import LIMIT, is_alive, until, wait_for_file

# A grandchild that leaves the session and ignores SIGTERM, as a daemon may.
DAEMON = """
import os, signal, sys, time
if not os.fork():
    os.setsid()
    if not os.fork():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open(sys.argv[1], "w").write(str(os.getpid()))
        time.sleep(600)
    os._exit(0)
while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])):
    time.sleep(0.02)
print("started", flush=True)
time.sleep(float(sys.argv[2]))
sys.exit(3)
"""


def start(directory: Path, code: str, *words: object, limit_s: float = LIMIT, **variables: str):
    script = directory / "part.py"
    script.write_text(code, encoding="utf-8")
    argv = [sys.executable, str(script), *map(str, words)]
    return launch(argv, {**os.environ, **variables}, directory / "log", limit_s, script)


def test_return_code_output_and_a_daemon_that_is_left(tmp_path):
    ended = start(tmp_path, DAEMON, tmp_path / "pid", 0)
    assert ended.returncode == 3 and not ended.timed_out
    assert "started" in (tmp_path / "log").read_text()
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_what_other_programs_compute_meanwhile_is_not_taken_for_its_own(tmp_path):
    def used(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as beside:
        before = used(beside.pid)
        # Until both have computed for half a second: on a busy machine one alone may be let in for long.
        code = "import os, sys\nfrom pathlib import Path\n" + textwrap.dedent(inspect.getsource(used))
        code += "while min(used(os.getpid()), used(int(sys.argv[1])) - float(sys.argv[2])) < 0.5: pass\n"
        ended = start(tmp_path, code, beside.pid, before)
        theirs = used(beside.pid) - before
        beside.kill()
    assert 0.5 <= ended.cpu_s <= ended.seconds * os.cpu_count() * (1 - ended.others) + 0.1
    assert ended.others * ended.seconds * os.cpu_count() > 0.8 * theirs - 0.1 > 0


def test_the_time_limit_ends_everything(tmp_path):
    for limit_s in (1.5, 15, 150):
        ended = start(tmp_path, DAEMON, tmp_path / "pid", 600, limit_s=limit_s)
        assert ended.timed_out and ended.returncode == 124
        assert limit_s <= ended.seconds < 600
        if "started" in (tmp_path / "log").read_text():  # else the machine was busy
            break
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_death_by_a_signal(tmp_path):
    ended = start(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert ended.returncode == 128 + signal.SIGKILL


def test_an_interrupt_ends_everything_and_is_passed_on(tmp_path):
    def interrupt():
        wait_for_file(tmp_path / "log", "started")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path, DAEMON, tmp_path / "pid", 600)
    thread.join()
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_nothing_survives_when_the_comparison_is_killed(tmp_path):
    """SIGKILL leaves it no time to end anything itself."""
    code = tmp_path / "daemon.py"
    code.write_text(DAEMON)
    text = f"""
import os, sys
from pathlib import Path
from comparison.launch import launch
launch([sys.executable, {str(code)!r}, {str(tmp_path / "pid")!r}, "600"], dict(os.environ),
       Path({str(tmp_path / "log")!r}), 600)
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    process = subprocess.Popen([sys.executable, "-c", text], env=environ)
    wait_for_file(tmp_path / "log", "started")
    process.kill()
    process.wait()
    until(lambda: not is_alive(int((tmp_path / "pid").read_text())))


ROLES = """
import os, subprocess, sys, time
if os.environ.get("DMLC_ROLE") != "server":
    environ = {**os.environ, "DMLC_ROLE": "server"}
    child = subprocess.Popen([sys.executable, "-c", open(__file__).read()], env=environ)
block = bytearray(b"x") * ((100 if os.environ.get("DMLC_ROLE") == "server" else 200) << 20)
del block  # a peak is seen afterwards, too
time.sleep(4)
if os.environ.get("DMLC_ROLE") != "server":
    child.wait()
"""


def test_peak_memory_by_role(tmp_path):
    peaks = start(tmp_path, ROLES).peak_bytes
    assert set(peaks) == {"worker", "server"}
    assert 200 * 2**20 < peaks["worker"] < 280 * 2**20
    assert 100 * 2**20 < peaks["server"] < 180 * 2**20


@pytest.mark.parametrize(
    ("words", "variables", "role"),
    [
        (["/x/bin/python3.11", "/r/train.py", "--a"], ["DMLC_ROLE=worker"], "worker"),
        (["python", "-c", "import byteps.server"], ["A=b", "DMLC_ROLE=scheduler"], "scheduler"),
        (["python", "-I", "-S", "/r/hosts/supervise.py", "--", "python"], ["DMLC_ROLE=server"], None),
        (["mpirun", "-np", "2", "python", "/r/train.py"], [], None),
        (["/bin/sh", "-c", "python /r/train.py"], [], None),
        (["python", "-m", "horovod.runner.launch", "python", "/r/train.py"], [], None),
        ([], [], None),
    ],
)
def test_roles(words, variables, role):
    assert role_of(words, variables, "/r/train.py") == role


def test_only_marked_processes_count():
    with subprocess.Popen(["sleep", "60"], env={**os.environ, MARKER: "mine"}) as process:
        try:
            until(lambda: marked("mine") == [process.pid])  # it has become `sleep`
            assert marked("another") == []
        finally:
            process.kill()
