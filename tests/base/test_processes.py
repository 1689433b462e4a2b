"""Child processes end with all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from base.processes import end_group, kill_group, run_in_session
from tests.processes import LIMIT, is_alive, run_command, start_command, until

# Prints its own process id and that of a child in the same group.
PARENT = """
import os, signal, subprocess, sys, time
{}
child = subprocess.Popen([sys.executable, "-c", {!r}], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""
OBEDIENT = "import time; print('here', flush=True); time.sleep(600)"
IGNORE = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
STUBBORN = f"import signal; {IGNORE}; {OBEDIENT}"


def start(first_line: str, child: str) -> tuple[subprocess.Popen, list[int]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(first_line, child)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    return process, [int(word) for word in process.stdout.readline().split()]


def wait_until_ended(pids: list[int]) -> None:
    until(lambda: not any(map(is_alive, pids)))


def test_exit_code_and_output():
    code = "import sys; print('out', flush=True); print('error', file=sys.stderr); sys.exit(3)"
    assert run_in_session([sys.executable, "-c", code], os.environ, LIMIT) == (3, "out\nerror\n")


def test_at_the_limit_the_group_ends():
    pids: list[int] = []
    for limit in (3, 30, 300):  # on a busy machine they start slowly
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            run_in_session([sys.executable, "-c", PARENT.format("", OBEDIENT)], os.environ, limit)
        pids = [int(word) for word in (caught.value.output or "").split()]
        wait_until_ended(pids)
        if pids:
            return
    raise AssertionError("nothing was started")


@pytest.mark.parametrize("first_line, child", [("", OBEDIENT), ("", STUBBORN), (IGNORE, OBEDIENT)])
def test_end_group(first_line, child):
    """Also what ignores SIGTERM, be it the leader or one that outlives it."""
    process, pids = start(first_line, child)
    assert all(map(is_alive, pids))
    end_group(process, grace=1.0)
    assert process.returncode == (-signal.SIGKILL if first_line else -signal.SIGTERM)
    wait_until_ended(pids)


def test_kill_group_of_a_leader_that_has_ended():
    process, pids = start("", STUBBORN)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kill_group(process)
    wait_until_ended(pids)
    kill_group(process)  # nobody is left


def test_end_with_parent():
    child = (
        "import os, time; from base.processes import end_with_parent\n"
        "end_with_parent(os.getppid()); print('here', flush=True); time.sleep(600)"
    )
    code = PARENT.format("", child)
    with start_command([sys.executable, "-c", code]) as run:
        until(lambda: run.stdout().endswith("\n"), run)
        child_pid = int(run.stdout().split()[1])
        assert is_alive(child_pid)
        run.signal(signal.SIGKILL)
        run.wait()
    wait_until_ended([child_pid])


def test_end_with_a_parent_that_has_ended():
    code = "from base.processes import end_with_parent; end_with_parent(-1); print('goes on')"
    result = run_command([sys.executable, "-c", code])
    assert result.returncode == 1 and result.stdout == ""
