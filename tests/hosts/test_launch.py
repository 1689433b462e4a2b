"""hosts/launch.py with real processes on this machine: their environment, their output, their ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hosts.launch import main
from hosts.launching.over_mpirun import SHARED_MEMORY
from tests.hosts.launcher import BYTEPS, LAUNCH, on, rejected
from tests.processes import (
    LIMIT,
    ROOT,
    executable,
    is_alive,
    python_3_9,
    run_command,
    start_command,
    until,
    wait_for_file,
)

PART = Path(__file__).with_name("part.py")
HERE, WORKERS = ["localhost slots=2"], ["localhost slots=1"] * 2


def words(tmp_path, lines, actions, *options):
    """The launcher's command line for ranks that do `actions` on the hosts of `lines`."""
    return [*on(tmp_path, *lines), *options, "--", sys.executable, PART, tmp_path, *actions]


def launch(tmp_path, lines, actions, *options, **more):
    return run_command(words(tmp_path, lines, actions, *options), **more)


def start(tmp_path, lines, actions, *options, ranks=2, **more):
    """Start, and wait until all ranks are ready."""
    run = start_command(words(tmp_path, lines, actions, *options), **more)
    for rank in range(ranks):
        wait_for_file(tmp_path / f"rank.{rank}.pid", run=run)
    return run


def pid_of(tmp_path, rank):
    return int((tmp_path / f"rank.{rank}.pid").read_text())


def facts(tmp_path, rank):
    return json.loads((tmp_path / f"rank.{rank}.json").read_text(encoding="utf-8"))


def last_line(result):
    return result.stderr.splitlines()[-1]


# ------------------------------------------------------------------------------- what the parts are given


def test_ranks_of_two_workers(tmp_path):
    options = ["--num_servers", "1", "--server_timeout", "0.5", "--env", "OWN=a b$c", "--env", "HOME"]
    lines = ["localhost slots=2", "localhost slots=2"]
    # What is left of another run in the environment must not reach the parts.
    env = {"DMLC_WORKER_ID": "9", "BYTEPS_LOCAL_RANK": "9", "DMLC_NODE_HOST": "9.9.9.9", "MXNET_X": "y"}
    launch(tmp_path, lines, ["exit0"], *options, env=env).check()
    ports = set()
    for rank, (worker, local) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        rank_facts = facts(tmp_path, rank)
        expected = {
            "DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1",
            "DMLC_WORKER_ID": str(worker), "BYTEPS_LOCAL_RANK": str(local), "BYTEPS_LOCAL_SIZE": "2",
            "BYTEPS_GLOBAL_RANK": str(rank), "RANKS_ON_HOST": "4", "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_NODE_HOST": "127.0.0.1", "OWN": "a b$c", "HOME": os.environ["HOME"], "MXNET_X": "y",
        }  # fmt: skip
        assert {name: rank_facts["environ"].get(name) for name in expected} == expected
        assert rank_facts["cwd"] == str(ROOT)
        ports.add(rank_facts["environ"]["DMLC_PS_ROOT_PORT"])
    assert len(ports) == 1 and 1024 < int(ports.pop()) < 65536


def test_a_single_worker_can_be_made_to_use_a_server(tmp_path):
    env = {"BYTEPS_FORCE_DISTRIBUTED": "1"}
    result = launch(tmp_path, ["localhost slots=1"], ["exit0"], "--server_timeout", "0.5", env=env).check()
    assert facts(tmp_path, 0)["environ"]["DMLC_NUM_SERVER"] == "1"
    assert "scheduler, server 0 had not ended 0.5 s after the last rank; ended" in result.stderr


def test_arguments_arrive_as_they_are(tmp_path):
    odd = ["exit0", "*", "$HOME", "it's", 'a "b"', "", "--dry_run", "--", "ü\n"]
    launch(tmp_path, ["localhost slots=1"], odd).check()
    assert facts(tmp_path, 0)["argv"][2:] == odd


def test_runs_with_python_3_9_and_nothing_else(tmp_path):
    """The launcher and its supervisors without any installed package; the ranks exit with 7."""
    python = python_3_9()
    if python is None:
        pytest.skip("no Python 3.9 on this machine")
    command = [python, "-S", "-E", "-W", "error", *on(tmp_path, *HERE)[1:], "--"]
    result = run_command([*command, python, "-c", "import sys; print('here'); sys.exit(7)"])
    assert result.returncode == 7, result.describe()
    assert re.fullmatch(r"launch: rank \d exited with 7; ended the run\n", result.stderr)
    assert re.search(r"^\[rank \d\] here$", result.stdout, re.MULTILINE)


# ----------------------------------------------------------------------------------------------- output


def test_lines_are_whole_and_have_a_prefix(tmp_path):
    logs = tmp_path / "logs"
    result = launch(tmp_path, ["localhost slots=3"], ["talk"], "--log_dir", logs).check()
    dots = "." * 2000
    for rank in range(3):
        expected = {
            "stdout": [f"line {n} of rank {rank} {dots}\n" for n in range(0, 200, 2)],
            "stderr": [f"line {n} of rank {rank} {dots}\n" for n in range(1, 200, 2)],
        }
        expected["stdout"] += ["10%\r", "20%\r", "done\n", "unfinished\n"]
        for name, shown in (("stdout", result.stdout), ("stderr", result.stderr)):
            # Split at the prefixes: nothing of another rank may be between them.
            pieces = re.split(r"(?=\[rank \d\] )", shown)
            own = [piece[len("[rank 0] ") :] for piece in pieces if piece.startswith(f"[rank {rank}] ")]
            # Text files are read with universal newlines.
            assert own == [line.replace("\r", "\n") for line in expected[name]]
            logged = (logs / f"rank.{rank}" / name).read_bytes().decode()
            assert logged == "".join(expected[name])


def test_parts_cannot_act_on_the_terminal(tmp_path):
    """Neither on the launcher's nor, later, on that of who looks into the log."""
    evil = 'printf "\\033]0;owned\\007a\\033[2J \\033[1mbold\\033[0m\\ttab \\302\\233 \\303\\274\\n"'
    command = [*words(tmp_path, ["localhost slots=1"], [], "--log_dir", tmp_path / "log")]
    command = [*command[: command.index("--") + 1], "sh", "-c", evil]
    result = run_command(command).check()
    shown = "?]0;owned?a?[2J \x1b[1mbold\x1b[0m\ttab ? ü\n"
    assert result.stdout == f"[rank 0] {shown}"
    assert (tmp_path / "log" / "rank.0" / "stdout").read_text(encoding="utf-8") == shown


def test_quiet(tmp_path):
    options = ["--log_dir", tmp_path / "logs", "--quiet", "--server_timeout", "0.5"]
    result = launch(tmp_path, WORKERS, ["talk", "exit0"], *options).check()
    assert result.stdout == ""
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == ["launch"]
    assert (tmp_path / "logs" / "rank.0" / "stdout").stat().st_size > 200_000
    assert b"engine" in (tmp_path / "logs" / "server.0" / "stderr").read_bytes()
    assert (tmp_path / "logs" / "scheduler" / "stderr").stat().st_size > 0


def test_the_run_goes_on_when_its_reader_stops(tmp_path):
    text = " ".join(f"'{word}'" for word in words(tmp_path, ["localhost slots=1"], ["talk"]))
    result = run_command(["bash", "-c", f"{text} | head -n 1; exit ${{PIPESTATUS[0]}}"]).check()
    assert result.stdout.count("\n") == 1
    assert "Broken pipe; the run goes on" in result.stderr


def test_a_reader_that_stalls_does_not_keep_a_failed_run_alive(tmp_path):
    """rank 0 sleeps; rank 1 writes more than the pipe takes, then exits with 7."""
    command = [str(word) for word in words(tmp_path, HERE, ["sleep", "chatter7"])]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for_file(tmp_path / "rank.0.pid")
        until(lambda: not is_alive(pid_of(tmp_path, 0)))
        assert process.poll() is None  # it still has lines for its reader
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 7
    assert out == b"".join(b"[rank 1] line %d\n" % number for number in range(50_000))
    assert err == b"launch: rank 1 exited with 7; ended the run\n"


# ------------------------------------------------------------------------------------ a part that fails


STOPPED = r"had been stopped for \d+ s by a signal and was killed"


@pytest.mark.parametrize(
    ("lines", "action", "options", "strikes", "code", "said"),
    [
        (HERE, "stubborn", [], ["1 SEGV"], 139, "rank 1 was killed by SIGSEGV"),  # the other does not listen
        # The scheduler: tests/test_processes.py.
        (HERE, "stubborn", [], ["1 35"], 163, "rank 1 was killed by signal 35"),  # Python has no name for it
        (WORKERS, "sleep", [], ["server KILL"], 137, "server 0 was killed by SIGKILL"),
        (HERE, "sleep", ["--stopped_timeout", "1"], ["0 STOP"], 147, f"rank 0 {STOPPED}"),
        # It could not answer the killed rank; its end may be seen first.
        (WORKERS, "sleep", [], ["server ABRT", "1 KILL"], 137, "rank 1 was killed by SIGKILL"),
        # Ranks give up by themselves when one is missing for long; the stopped one is the cause.
        (HERE, "sleep", [], ["1 STOP", "0 ABRT"], 147, f"rank 1 {STOPPED}"),
    ],
)
def test_who_failed_is_named_and_ends_all(tmp_path, lines, action, options, strikes, code, said):
    with start(tmp_path, lines, [action], *options) as run:
        for who, number in map(str.split, strikes):
            pid = until(lambda: run.find_role("server"))[0] if who == "server" else pid_of(tmp_path, int(who))
            os.kill(pid, int(number) if number.isdecimal() else signal.Signals[f"SIG{number}"])
        result = run.wait()
    assert result.returncode == code, result.describe()
    assert re.fullmatch(f"launch: {said}; ended the run", last_line(result))
    assert not any(is_alive(pid_of(tmp_path, rank)) for rank in (0, 1))


def test_a_part_that_is_stopped_for_a_moment_only(tmp_path):
    with start(tmp_path, ["localhost slots=1"], ["obey"], "--stopped_timeout", "8", ranks=1) as run:
        for _ in range(3):  # more in all than the limit, never as long on end
            os.kill(pid_of(tmp_path, 0), signal.SIGSTOP)
            time.sleep(3)
            os.kill(pid_of(tmp_path, 0), signal.SIGCONT)
            time.sleep(0.5)
        assert run.poll() is None
        run.signal(signal.SIGTERM)
        assert run.wait().returncode == 143


def test_a_program_that_cannot_be_started(tmp_path):
    program = executable(tmp_path / "program", "no program\n")
    result = run_command([*on(tmp_path, *HERE), "--", program])
    assert result.returncode == 127
    assert re.search(
        r"rank \d could not be started: Exec format error: .*/program; ended the run", last_line(result)
    )


# ---------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize(
    ("number", "code"), [("SIGTERM", 143), ("SIGUSR1", 143), ("SIGINT", 130), ("SIGHUP", 143)]
)
def test_signals_reach_the_ranks(tmp_path, number, code):
    with start(tmp_path, ["localhost slots=3"], ["obey"], ranks=3) as run:
        # A terminal's own signals do not reach the ranks: they are in sessions of their own.
        sessions = {facts(tmp_path, rank)["session"] for rank in range(3)}
        assert len(sessions | {os.getsid(run.pid), os.getsid(0)}) == 5
        run.signal(signal.Signals[number])
        result = run.wait()
    assert result.returncode == code, result.describe()
    assert last_line(result) == f"launch: stopped by {number}"
    arrived = {"SIGHUP": "SIGTERM"}.get(number, number)
    for rank in range(3):  # the first that ends does not take the others down
        assert (tmp_path / f"rank.{rank}.saved").read_text() == arrived


@pytest.mark.parametrize(
    ("lines", "actions", "options", "said"),
    [
        # Without a word from ranks that never joined them, and sooner than after a run's last step.
        (WORKERS, ["obey"], [], "scheduler, server 0 had not ended 5 s after the last rank; ended"),
        (HERE, ["stubborn"], ["--grace", "0.5"], "rank 0, rank 1 had not ended 0.5 s after SIGTERM; killed"),
        (HERE, ["sleep", "stubborn"], [], "stopped by SIGTERM"),  # one does not handle signals yet
    ],
)
def test_all_end_after_a_signal(tmp_path, lines, actions, options, said):
    with start(tmp_path, lines, actions, *options) as run:
        run.signal(signal.SIGTERM)
        result = run.wait()
    assert result.returncode == 143 and not result.timed_out, result.describe()
    assert f"launch: {said}\n" in result.stderr


def test_a_second_interrupt_kills_at_once(tmp_path):
    with start(tmp_path, HERE, ["stubborn"]) as run:
        run.signal(signal.SIGINT)
        wait_for_file(tmp_path / "rank.0.heard", run=run)
        run.signal(signal.SIGINT)
        result = run.wait()
    assert result.returncode == 130
    assert "launch: interrupted; killed rank 0, rank 1" in result.stderr


def test_a_failure_while_stopping_is_a_failure(tmp_path):
    with start(tmp_path, HERE, ["stubborn", "obey"]) as run:
        run.signal(signal.SIGUSR1)
        wait_for_file(tmp_path / "rank.1.saved", run=run)
        os.kill(pid_of(tmp_path, 0), signal.SIGKILL)
        result = run.wait()
    assert result.returncode == 137
    assert last_line(result) == "launch: rank 0 was killed by SIGKILL; ended the run"


# ------------------------------------------------------------------------------------- nothing outlives


def test_a_launcher_that_is_killed_leaves_nothing(tmp_path):
    with start(tmp_path, WORKERS, ["stubborn"]) as run:
        until(lambda: run.find_role("server") and run.find_role("scheduler"))
        run.signal(signal.SIGKILL)
        result = run.wait()  # raises LeftoverProcesses after 12 seconds
    assert result.returncode == -signal.SIGKILL


def test_a_supervisor_that_is_killed_takes_its_part_along(tmp_path):
    with start(tmp_path, HERE, ["stubborn"]) as run:
        part = pid_of(tmp_path, 1)
        with open(f"/proc/{part}/stat", encoding="ascii") as file:
            supervisor = int(file.read().split()[3])
        os.kill(supervisor, signal.SIGKILL)
        result = run.wait()
    assert not is_alive(part)
    assert result.returncode == 137
    assert last_line(result) == "launch: rank 1 was lost: its supervisor ended by SIGKILL; ended the run"


def test_what_a_killed_part_has_left_ends_with_the_run(tmp_path):
    """Its supervisor waits for that, since ranks of mpirun may save, but not when the launcher kills."""
    part = ["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/started; kill -9 $$"]
    with start_command([*on(tmp_path, "localhost slots=1"), "--grace", "0.5", "--", *part]) as run:
        wait_for_file(tmp_path / "started", run=run)
        run.signal(signal.SIGTERM)
        result = run.wait()  # raises LeftoverProcesses
    assert result.returncode == 143, result.describe()


def test_what_a_part_has_started_ends_with_it(tmp_path):
    launch(tmp_path, ["localhost slots=1"], ["daemon"]).check()
    assert not is_alive(int((tmp_path / "daemon.pid").read_text()))


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("lines", "options", "named"),
    [
        ([*WORKERS, "# spare: b slots=4"], [], "b has 4; BytePS needs the same number on every line"),
        (WORKERS, ["--num_servers", "0"], "--num_servers 0"),
        (WORKERS[:1], ["--num_servers", "1"], "--num_servers 1"),
        (WORKERS[:1], ["--scheduler", "localhost"], "--scheduler localhost"),
        (WORKERS, ["--scheduler", "localhost:0"], "--scheduler localhost:0"),
        (WORKERS, ["--scheduler", "localhost:http"], "--scheduler localhost:http"),
        (WORKERS, ["--env", "NOT_SET_ANYWHERE"], "--env NOT_SET_ANYWHERE"),
        (WORKERS, ["--env", "=x"], "--env =x"),
        (WORKERS, ["--env", "DMLC_ROLE=worker"], "--env DMLC_ROLE=worker"),
        (WORKERS, ["--grace", "0"], "--grace"),
        (WORKERS, ["--quiet"], "--log_dir"),
        (WORKERS, ["--log_dir", str(PART)], "--log_dir"),
        (WORKERS, ["--hostfile", "hosts/none"], "hosts/none"),
        (WORKERS, ["--num_server", "1"], "--num_server"),
        (["localhost slots=1", "192.0.2.1 slots=1"], [], "localhost means another machine on each host"),
        (["192.0.2.1 slots=1"] * 2, ["--ssh", ""], "--ssh"),
        (["192.0.2.1 slots=1"] * 2, ["--ssh", "no-such-shell -p 1"], "no-such-shell"),
        (["192.0.2.1 slots=1"] * 2, ["--ssh", "ssh 'a"], "--ssh"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_starts_nothing(tmp_path, lines, options, named, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert named in rejected(main, capsys, *words(tmp_path, lines, ["exit0"], *options)[len(LAUNCH) :])
    assert not (tmp_path / "rank.0.json").exists() and not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ([], "the command of the ranks is missing"),
        (["--", "no-such-program"], "no-such-program"),
        (["--", sys.executable, "no_such_script.py"], "no_such_script.py"),
    ],
)
def test_a_command_that_is_not_there(tmp_path, command, named):
    """As a process: exit code and line are its own."""
    result = run_command([*on(tmp_path, "localhost slots=1"), *command])
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1 and named in result.stderr


def test_a_host_that_cannot_be_reached(tmp_path):
    shell = write_shell(tmp_path, "echo $host: out of order >&2; exit 255")
    result = launch(tmp_path, ["192.0.2.1 slots=1"], ["exit0"], "--ssh", shell)
    said = "192.0.2.1 does not answer: the remote shell exited with 255 (192.0.2.1: out of order)"
    assert (result.returncode, result.stderr) == (1, f"launch: {said}; nothing has been started\n")


def test_a_host_that_cannot_be_reached_any_more(tmp_path):
    """It has answered before the start."""
    text = f"[ -e {tmp_path}/asked ] && {{ echo $host: no route to host >&2; exit 255; }}\n"
    shell = write_shell(tmp_path, f'{text}touch {tmp_path}/asked; exec sh -c "$*"')
    result = launch(tmp_path, ["192.0.2.1 slots=1"], ["exit0"], "--ssh", shell)
    assert result.returncode == 255
    assert "[rank 0] 192.0.2.1: no route" in result.stderr
    said = "rank 0 on 192.0.2.1 could not be reached: it does not answer; look whether it is on"
    assert last_line(result).startswith(f"launch: {said}")


# ------------------------------------------------------------------------------------- other hosts
#
# The remote shells here run their commands on this machine; test_byteps_on_two_hosts.py has real hosts.


def write_shell(tmp_path, text):
    return executable(tmp_path / "shell", f"#!/bin/sh\nhost=$1; shift\n{text}\n")


def test_no_host_gets_many_new_connections_at_once(tmp_path):
    (tmp_path / "new").mkdir()
    text = f"""cd {tmp_path}
touch new/$$; sleep 0.2; ls new | wc -l >>seen; rm new/$$; sleep 0.1
exec sh -c "$*" """
    launch(tmp_path, ["192.0.2.1 slots=10"], ["exit0"], "--ssh", write_shell(tmp_path, text)).check()
    seen = [int(line) for line in (tmp_path / "seen").read_text().split()]
    assert len(seen) == 1 + 10 and 2 <= max(seen) <= 4  # the first asks whether the host can be used


def test_a_lost_connection(tmp_path):
    """The shell's death leaves a part that nobody waits for any more, as a broken network does."""
    shell = write_shell(tmp_path, f'echo $$ >{tmp_path}/$$.shell\ncat | sh -c "$*"')
    options = ["--ssh", shell]
    with start(tmp_path, ["192.0.2.1 slots=1"], ["sleep"], *options, ranks=1) as run:
        _, path = sorted(tmp_path.glob("*.shell"), key=os.path.getmtime)  # the first asked the host
        pid = int(path.stem)
        os.kill(pid, signal.SIGKILL)
        result = run.wait()
    assert result.returncode == 137
    said = "rank 0 on 192.0.2.1 was lost: the remote shell ended by SIGKILL; ended the run"
    assert last_line(result) == f"launch: {said}"
    assert not is_alive(pid_of(tmp_path, 0))


# ---------------------------------------------------------------------------------------------- --dry_run


def test_dry_run_prints_a_command_for_each_part(tmp_path):
    result = launch(tmp_path, WORKERS, ["exit0", "exit0", "it's", "*"], "--dry_run", "--env", "OWN=a b")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[::2] == [f"# {name} on localhost" for name in ("scheduler", "server 0", "rank 0", "rank 1")]
    assert not (tmp_path / "rank.0.json").exists()
    # The printed line of a rank does what the launcher would have done.
    run_command(["sh", "-c", lines[7]], cwd=tmp_path).check()
    rank_facts = facts(tmp_path, 1)
    assert rank_facts["argv"][2:] == ["exit0", "exit0", "it's", "*"]
    assert rank_facts["environ"]["OWN"] == "a b" and rank_facts["environ"]["DMLC_WORKER_ID"] == "1"


def test_the_printed_command_of_mpirun_works_by_hand(tmp_path):
    code = "from mpi4py import MPI; assert MPI.COMM_WORLD.allreduce(1) == 2"
    words = [*on(tmp_path, *HERE, backend="hvd"), "--dry_run", "--", sys.executable, "-c", code]
    shown = run_command(words).check().stdout
    try:
        result = run_command(["sh", "-c", shown]).check()
    finally:
        for folder in re.findall(f"{SHARED_MEMORY}/launch\\.\\w+", shown):
            shutil.rmtree(folder, ignore_errors=True)
    assert "shmem" not in result.stderr, result.describe()


def test_public_addresses_are_said_on_one_line(tmp_path):
    public = ["8.8.4.1 slots=1", "8.8.4.2 slots=1", "10.0.0.3 slots=1"]
    result = launch(tmp_path, public, ["exit0"], "--dry_run").check()
    assert result.stderr == (
        "launch: BytePS listens where the public may connect, and anyone who does can end the run: "
        "8.8.4.1 (scheduler, server 0, rank 0); 8.8.4.2 (server 1, rank 1); "
        "let only the run's hosts through (docs/network.md), or use a private network\n"
    )
    private = [line.replace("8.8.4", "10.0.0") for line in public[:2]]
    result = launch(tmp_path, private, ["exit0"], "--dry_run", "--env", "DMLC_USE_KUBERNETES=1").check()
    assert "all addresses of its host (scheduler)" in result.stderr


def test_dry_run_with_names_that_have_no_address(tmp_path):
    lines = ["a.invalid slots=1", "b.invalid slots=1"]
    result = launch(tmp_path, lines, ["exit0"], "--dry_run").check()
    assert "DMLC_PS_ROOT_URI=a.invalid" in result.stdout and "DMLC_NODE_HOST=b.invalid" in result.stdout
    assert result.stderr.splitlines() == [
        f"launch: {name} has no address here; its name is printed, a run would stop here"
        for name in ("a.invalid", "b.invalid")
    ]
    result = launch(tmp_path, lines, ["exit0"], "--interface", "ens5")
    assert (result.returncode, result.stdout) == (2, "")
    assert "a.invalid has no address here for the others; write it: --scheduler ADDRESS" in result.stderr


@pytest.mark.parametrize(("name", "workers"), [("1x_p3dn", 1), ("32x_p3dn", 32)])
def test_dry_run_of_the_experiments(name, workers):
    command = ["--hostfile", f"hosts/{name}", "--ssh", "ssh -p 2222", "--dry_run", "--"]
    command += [sys.executable, "hparams.py"]
    lines = run_command([*BYTEPS, *command], env={"NCCL_DEBUG": "WARN"}).check().stdout.splitlines()
    names = [line[2:].partition(" on ") for line in lines[::2]]
    servers = workers if workers > 1 else 0
    expected = [("scheduler", "p3dn-01")] * (workers > 1)
    expected += [(f"server {n}", f"p3dn-{n + 1:02d}") for n in range(servers)]
    expected += [(f"rank {n}", f"p3dn-{n // 8 + 1:02d}") for n in range(8 * workers)]
    assert [(part, host) for part, _, host in names] == expected
    for line, (_, host) in zip(lines[1::2], expected):
        assert line.startswith("ssh -p 2222 -o BatchMode=yes ") and f" {host} " in line
        assert "NCCL_DEBUG=WARN" in line and "PATH=" in line
