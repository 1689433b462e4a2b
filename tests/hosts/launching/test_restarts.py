"""hosts/launch.py starts a run again: what it decides, and what it then does, with real processes of a script
that behaves like training (restarted.py). Training itself: tests/faults/test_kill_at_boundary.py."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from base import failures
from base.errors import InputError
from base.failures import Note
from base.json_files import read_json_lines
from base.notify import END, FAILURE, RESTART
from hosts.hostfile import read_host_lines, read_spares
from hosts.launch import main
from hosts.launching.mpirun_output import End, MpirunOutput
from hosts.launching.over_byteps import Servers
from hosts.launching.restarts import Budget, Policy, append, has_room, noted
from hosts.launching.roster import Roster
from hosts.launching.running import Failure
from hosts.launching.saved import Saved, logged_step, look
from tests.faults.disks import limited
from tests.hosts.launcher import LAUNCH, on, rejected
from tests.processes import LIMIT, executable, run_command, start_command, until, wait_for_file

SCRIPT = Path(__file__).parents[1] / "restarted.py"
POLICY = Policy(max_restarts=2, min_hosts=1, backoff=5.0, again=False, rejoin=60.0, patience=600.0)


def failure(words="error: it broke", code=1, own_end=True, host="a", kind=failures.FAILED, part="rank 1"):
    return Failure(part, host, code, f"{part} exited with {code}", words, own_end, kind)


def saved(step):
    return Saved({"ckpt": step} if step else {}, step, 0.0)


# --------------------------------------------------------------------------------------------- decisions


def test_a_budget_ends_and_is_full_again_after_a_checkpoint():
    budget = Budget(POLICY, saved(0))
    killed = failure("", 137, own_end=False)
    assert budget.take(killed, 4) is None and budget.wait == 5
    assert budget.take(killed, 4) is None and budget.wait == 10
    assert not budget.progressed(saved(0))
    said = budget.take(failure("", 139, own_end=False), 4)
    assert "2 restarts have brought no checkpoint later than step 0" in said
    assert "First: rank 1 exited with 137. Then: rank 1 exited with 139" in said
    assert budget.progressed(saved(6)) and not budget.progressed(saved(6))
    assert budget.take(killed, 7) is None and budget.wait == 5 and budget.left == 1


def test_waits_are_bounded():
    budget = Budget(Policy(10_000, 1, 5.0, False, 60.0, 600.0), saved(0))
    for _ in range(2_000):
        assert budget.take(failure("", 137, own_end=False), 4) is None
    assert budget.wait == 300


@pytest.mark.parametrize(
    ("second", "step", "ends"),
    [
        (failure("error: it broke at 0x7f11"), 4, True),
        (failure("error: it broke at 0x7f11"), 5, False),  # it got further
        (failure("error: something else"), 4, False),
        (failure("error: it broke at 0x7f11", code=134, own_end=False), 4, False),
    ],
)
def test_the_same_failure_at_the_same_step_ends_the_run(second, step, ends):
    budget = Budget(POLICY, saved(3))
    assert budget.take(failure("error: it broke at 0x7f10"), 4) is None
    reason = budget.take(second, step)
    assert (reason is not None) == ends
    if ends:
        assert "after step 4" in reason and "at 0x7f10" in reason and "at 0x7f11" in reason  # both messages


@pytest.mark.parametrize("kind", [failures.DISK, failures.MISSING, failures.PASSING])
def test_what_may_pass_is_tried_again(kind):
    budget = Budget(POLICY, saved(3))
    assert budget.take(failure(kind=kind), 4) is None and budget.take(failure(kind=kind), 4) is None


def test_the_note_of_a_rank_says_what_failed():
    lines = [("a", 2), ("b", 2)]
    notes = {
        2: Note(2, "b.example", 1, failures.MISSING, "error: rank 3 is gone", missing=3),
        1: Note(1, "a.example", 1, failures.DISK, "error: no room"),
    }
    seen = noted(failure("last line"), notes, lines)
    assert (seen.words, seen.kind, seen.host) == ("error: no room", failures.DISK, "a")
    assert noted(failure("killed"), {}, lines) == failure("killed")
    # mpirun that waits for a host names no rank: the first note does, and the host that is missed.
    seen = noted(failure("", host=None, part="mpirun"), notes, lines)
    assert (seen.words, seen.kind, seen.host) == ("error: rank 3 is gone", failures.MISSING, "b")
    server = failure("broken pipe", host="b", part="server 0")
    assert noted(server, notes, lines) == server


def test_notes_are_whole_and_in_their_order(tmp_path, monkeypatch):
    failures.leave(1, failures.FAILED, "nobody asks")
    monkeypatch.setenv(failures.FOLDER, str(tmp_path / "notes"))
    for rank, kind in ((3, failures.PASSING), (1, failures.FAILED)):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
        failures.leave(1, kind, f"error: of {rank}\n")
        os.utime(tmp_path / "notes" / f"rank.{rank}.json", (10 - rank, 10 - rank))
    whole = {"rank": 4, "host": "a", "code": 1, "kind": "failed", "message": "error"}
    wrong = [
        {**whole, name: value} for name, value in (("rank", "4"), ("kind", "x"), ("message", 1), ("m", 1))
    ]
    wrong += [{**whole, "missing": -1}, {**whole, "missing": [2]}, {}, [1]]
    for number, text in enumerate([*map(json.dumps, wrong), '{"rank"', "[" * 9_000]):
        (tmp_path / "notes" / f"{number}.json").write_text(text)
    os.mkfifo(tmp_path / "notes" / "pipe")  # would keep a reader waiting
    notes = failures.read(str(tmp_path / "notes"))
    assert [(rank, note.kind, note.message) for rank, note in notes.items()] == [
        (3, failures.PASSING, "error: of 3 "),
        (1, failures.FAILED, "error: of 1 "),
    ]
    assert failures.read(str(tmp_path / "none")) == {}


@pytest.mark.parametrize(
    ("raised", "code", "kind"),
    [
        ("InputError('--lr')", 2, failures.BAD_OPTION),
        ("InputError('run.lock') from OSError(errno.ENOSPC, 'No space')", 1, failures.DISK),
        ("TrainingError('gradients')", 1, failures.FAILED),
        ("CommunicationError('lost')", 1, failures.PASSING),
        ("OSError(errno.EROFS, 'Read-only')", 1, failures.FAILED),
        ("TrainingError('cannot save') from OSError(errno.ENOSPC, 'No space')", 1, failures.DISK),
        ("RuntimeError('broken') from ConnectionResetError(104, 'reset')", 1, failures.PASSING),
        ("OSError(errno.EADDRINUSE, 'in use')", 1, failures.PASSING),
    ],
)
def test_a_failing_script_leaves_a_note(tmp_path, raised, code, kind):
    """`training.entry`, through which all training scripts go."""
    script = "import errno\nfrom base.errors import InputError, TrainingError\n"
    script += "from comm.base import CommunicationError\nfrom training.entry import exit_code\n"
    script += f"def main():\n    raise {raised}\nexit_code(main)"
    result = run_command([sys.executable, "-c", script], env={failures.FOLDER: str(tmp_path)})
    (note,) = failures.read(str(tmp_path)).values()
    assert (result.returncode, note.code, note.kind) == (code, code, kind), result.describe()
    assert result.stderr.splitlines()[-1].endswith(note.message[len("error: ") :])


def test_a_disk_without_room_is_noticed(tmp_path):
    assert has_room(str(tmp_path)) and not list(tmp_path.iterdir())
    with limited(1000):
        assert not has_room(str(tmp_path)) and not list(tmp_path.iterdir())


def test_spare_hosts_take_the_place_of_those_left_out():
    roster = Roster([("a", 2), ("b", 2), ("b", 2)], [("c", 2)], tries=2)
    assert roster.in_use() == ["a", "b"] and not roster.is_short()
    assert not roster.strike("b")
    roster.forgive()  # progress
    assert not roster.strike("b") and roster.strike("b")
    assert roster.lines() == [("a", 2), ("c", 2)] and not roster.is_short() and roster.available == 2
    assert not roster.strike("a") and roster.strike("a")
    assert roster.in_use() == ["c"] and roster.is_short() and roster.left_out == {"b": 1, "a": 1}
    roster.take_back(["b"])
    assert roster.lines() == [("b", 2), ("b", 2), ("c", 2)] and not roster.is_short()
    assert not roster.strike("b") and roster.strike("b") and roster.left_out["b"] == 2


def test_a_spare_host_with_more_slots_does_not_make_more_ranks():
    """They could be more than a step has micro-batches, which the script rejects."""
    roster = Roster([("a", 2), ("b", 2)], [("c", 4), ("d", 8)], tries=1)
    assert roster.strike("b") and roster.lines() == [("a", 2), ("c", 2)]
    assert roster.strike("a") and roster.lines() == [("c", 4)]
    roster.take_back(["a"])
    assert roster.lines() == [("a", 2), ("c", 2)]
    less = Roster([("a", 2), ("b", 2)], [("c", 1)], tries=1)
    assert less.strike("b") and less.lines() == [("a", 2), ("c", 1)]


def test_options_of_byteps_that_a_run_without_some_hosts_cannot_have():
    given = Servers(2, "b:9000")
    assert given.without({}, 1) == given and given.without({"c": 1}, 2) == given
    assert given.without({"b": 1}, 2) == Servers(2, None)
    assert given.without({"c": 1}, 1) == Servers(None, None)


# ------------------------------------------------------------------------------------------------- files


def test_spares_in_a_host_file(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# spare hosts are below\na slots=2\n# spare: b slots=2 # old\n#spare:c slots = 4\n")
    assert read_host_lines(str(path)) == [("a", 2)]  # as Open MPI reads it
    assert read_spares(str(path)) == [("b", 2), ("c", 4)]
    for line, named in (("# spare:", "names no spare host"), ("# spare: b", "slots are missing")):
        path.write_text(f"a slots=2\n{line}\n")
        with pytest.raises(InputError, match=f"line 2: {named}"):
            read_spares(str(path))
    path.write_text("a slots=2\n# spare: a slots=2\n")
    with pytest.raises(InputError, match="line 2: a is listed already"):
        read_spares(str(path))


def test_progress_is_read_from_names(tmp_path):
    assert look(str(tmp_path / "none")) == Saved() and logged_step(str(tmp_path / "none")) == 0
    for name in ("0000003.json", "0000006.params", "0000006.json.tmp-1-2", "run.json", "seed1/0000009.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    os.utime(tmp_path / "0000003.json", (100, 100))
    before = look(str(tmp_path))
    assert before.steps == {str(tmp_path): 3, str(tmp_path / "seed1"): 9} and before.step == 9
    (tmp_path / "seed2").mkdir()
    (tmp_path / "seed2" / "0000001.json").touch()  # the next seed begins
    assert look(str(tmp_path)).is_later_than(before) and not before.is_later_than(before)

    # A run that fails after every step would be started for ever if what it saves then were progress.
    (tmp_path / "0000004.json").write_text('{"rescued": true}')
    after = look(str(tmp_path))
    assert after.steps[str(tmp_path)] == 3 and after.step == 4

    os.mkfifo(tmp_path / "metrics.jsonl")  # would keep a reader waiting
    assert logged_step(str(tmp_path)) == 0
    (tmp_path / "metrics.jsonl").unlink()
    (tmp_path / "metrics.jsonl").write_text('{"step": 7}\n{"other": 1}\n{"step": 8')
    assert logged_step(str(tmp_path)) == 7


def test_a_record_after_half_a_line(tmp_path):
    path = tmp_path / "ckpt" / "restarts.jsonl"
    append(str(path), {"restart": 1})
    with path.open("a") as file:
        file.write('{"resta')  # the launcher was killed
    append(str(path), {"restart": 2, "last_words": "\udce4\n"})
    assert path.read_text().splitlines() == ['{"restart": 1}', '{"restart": 2, "last_words": "?\\n"}']


def test_a_record_that_does_not_fit_leaves_no_half(tmp_path):
    path = tmp_path / "restarts.jsonl"
    append(str(path), {"restart": 1})
    with limited(path.stat().st_size + 5), pytest.raises(OSError):
        append(str(path), {"restart": 2})
    assert path.read_text() == '{"restart": 1}\n'


def test_lines_of_mpirun():
    output = MpirunOutput()
    assert output.split(0, b"[1,0]<stdout>:out[1,1]<stdout>:other\n") == [("rank 1", b"other\n")]
    assert output.split(0, b"[1,0]<stdout>: 1\n") == [("rank 0", b"out 1\n")]
    assert output.split(0, b"[1,2]<stdout>:10%\r") == [("rank 2", b"10%\r")]
    assert output.split(0, b"20%\r") == [("rank 2", b"20%\r")]  # no tag after a carriage return
    assert output.split(0, b"[1,3]<stdout>:end") == [] and output.finish() == [(0, "rank 3", b"end\n")]
    assert output.split(1, b"There are not enough slots\n") == [("mpirun", b"There are not enough slots\n")]
    assert output.end == End()
    said = ["-" * 74, "mpirun detected that one or more processes exited with non-zero status, thus causing"]
    said += ["the job to be terminated. The first process to do so was:", ""]
    for line in [*said, "  Process name: [[7,1],5]", "  Exit code:    2", "-" * 74]:
        assert output.split(1, f"{line}\n".encode()) == []
    assert output.end == End(5, "exited with 2")
    killed = MpirunOutput(["node-1", "node-2"])
    said = b"mpirun noticed that process rank 1 with PID 0 on node vm exited on signal 9 (Killed).\n"
    assert killed.split(1, said) == [] and killed.end == End(1, "was killed by SIGKILL", "node-2")
    lost = MpirunOutput(["localhost", "localhost", "node-1", "node-2"])
    lost.split(1, b"ORTE was unable to reliably start one or more daemons.\n")
    assert lost.end == End(None, "has lost a host") and lost.end.is_of_host and not killed.end.is_of_host
    lost.split(1, b"ORTE has lost communication with a remote daemon.\n")
    lost.split(1, b"  Remote daemon: [[49747,0],1] on node 10.77.0.2\n")
    assert lost.end == End(None, "has lost the host node-1", "node-1")
    aggregate = b'[a:1] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages\n'
    assert lost.split(1, aggregate) == []


KILLED = """
prterun noticed that process rank 3 with PID 59 on node vm exited on
signal 9 (Killed).
"""
EXITED = """
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-vm-12@1,3]
   Exit code:    9
"""
LOST = """
PRTE has lost communication with a remote daemon.

  HNP daemon   : [prterun-vm-12@0,0] on node vm
  Remote daemon: [prterun-vm-12@0,2] on node vm

This is usually due to either a failure of the TCP network
connection to the node, or possibly an internal failure of
the daemon itself. We cannot recover from this failure, and
therefore will terminate the job.
"""


def test_lines_of_mpirun_5():
    """As 5.0.7 has written them; a zero byte behind some, which the launcher shows as a question mark."""
    output = MpirunOutput()
    assert output.split(0, b"[0]<stdout>:   in[1]<stdout>: part1 \n") == [("rank 1", b"part1 \n")]
    assert output.split(0, b"[0]<stdout>: dented\n") == [("rank 0", b"  indented\n")]
    assert output.split(1, b"[12]<stderr>: 10%\r") == [("rank 12", b"10%\r")]
    assert output.split(1, b"20%\r") == [("rank 12", b"20%\r")]  # written in one piece with the first

    def read(text):
        reader = MpirunOutput()
        lines = [*text.split("\n"), "?", "[vm:12] plm:ssh: Warning: setpgid(16,16) failed in parent with"]
        shown = [line for each in lines for line in reader.split(1, f"{each}\n".encode())]
        return reader, shown

    for text, end in ((KILLED, "was killed by SIGKILL"), (EXITED, "exited with 9")):
        reader, shown = read(text)
        assert (reader.end, shown) == (End(3, end), [])
    reader, shown = read(LOST)
    assert reader.end == End(None, "has lost the host vm", "vm") and len(shown) == 7


# -------------------------------------------------------------------------------------------------- runs


def words(tmp_path, plan, *options, backend="byteps", hosts="localhost slots=2\n", python=sys.executable):
    script = [python, SCRIPT, "--ckpt_dir", tmp_path / "ckpt", json.dumps(plan)]
    launcher = on(tmp_path, *hosts.splitlines(), backend=backend)
    return [*launcher, "--backoff", "0.2", *options, "--", *script]


def launch(tmp_path, plan, *options, **more):
    return run_command(words(tmp_path, plan, *options, **more))


def records(tmp_path):
    path = tmp_path / "ckpt" / "restarts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def metrics(tmp_path):
    return read_json_lines(str(tmp_path / "ckpt" / "metrics.jsonl"))


def steps(tmp_path):
    return [line["step"] for line in metrics(tmp_path)]


def nothing_is_left(tmp_path, starts=1):
    """The folders of every start, for temporary files and shared memory, are gone."""
    folders = [path.read_text().splitlines() for path in (tmp_path / "ckpt").glob("folders.*")]
    assert [len(each) for each in folders] == [2] * starts
    return not any(map(os.path.exists, sum(folders, [])))


@pytest.mark.parametrize("backend", ["hvd", "byteps"])
def test_a_run_with_two_failures_comes_to_its_end(tmp_path, backend):
    plan = [[5, 1, "kill 9"], [8, 0, "exit 1 error: it broke"]]
    result = launch(tmp_path, plan, "--max_restarts", "1", backend=backend).check()
    assert steps(tmp_path) == list(range(1, 10))
    first, second = records(tmp_path)
    for record, part, code, said, step in (
        (first, "rank 1", 137, "", 3),
        (second, "rank 0", 1, "error: it broke", 6),
    ):
        expected = {
            **{"reason": "failure", "failed": part, "host": "localhost", "code": code, "last_words": said},
            **{"step": step, "lost_steps": 1, "restarts_left": 0, "wait_s": 0.2, "hosts": ["localhost"]},
        }
        assert {name: record[name] for name in expected} == expected
        assert 0 <= record["lost_s"] < LIMIT
    lines = [line for line in result.stderr.splitlines() if line.startswith("launch: restart ")]
    assert "rank 0 exited with 1 (error: it broke); 1 steps and" in lines[1]
    assert lines[1].endswith("goes on after step 6") and len(lines) == 2
    assert backend == "byteps" or nothing_is_left(tmp_path, starts=3)


@pytest.mark.parametrize(
    "plan, code, events, last",
    [
        ([[5, 1, "kill 9"]], 0, [f"{RESTART}||restart 1", f"{END}|0|complete"], "complete"),
        ([[5, 1, "kill 9"]] * 2, 137, [f"{RESTART}||restart 1", f"{FAILURE}|137|"], "not started again"),
        ([[5, 1, "exit 143"]], 143, [f"{END}|143|"], "ended the run"),
    ],
)
def test_a_command_hears_of_restarts_and_the_end(tmp_path, plan, code, events, last):
    said = tmp_path / "said"
    command = f'echo "$RUN_EVENT|$RUN_CODE|$RUN_MESSAGE" >> {said}'
    result = launch(tmp_path, plan, "--max_restarts", "1", "--notify", command)
    assert result.returncode == code, result.describe()
    until(lambda: said.exists() and len(said.read_text().splitlines()) == len(events))
    lines = said.read_text().splitlines()
    assert all(line.startswith(event) for line, event in zip(lines, events)), lines
    assert last in lines[-1]


def test_a_command_hears_of_a_launcher_that_cannot_go_on(tmp_path):
    said, log = tmp_path / "said", tmp_path / "log"
    log.mkdir()
    (log / "rank.0").touch()  # where its folder would be
    command = f'echo "$RUN_EVENT|$RUN_CODE|$RUN_MESSAGE" >> {said}'
    result = launch(tmp_path, [], "--log_dir", log, "--notify", command)
    assert result.returncode == 1, result.describe()
    until(lambda: said.exists() and said.read_text())
    assert said.read_text() == f"{FAILURE}|1|{log}/rank.0: File exists; ended the run\n"


@pytest.mark.parametrize(
    ("plan", "options", "code", "starts"),
    [
        ([[5, 1, "exit 2 error: bad input"]], [], 2, 1),
        ([[5, 0, "exit 75"]], [], 75, 1),
        ([[5, 0, "exit 75"], [8, 0, "exit 75"]], ["--again", "--max_restarts", "0"], 0, 3),
        ([[5, 0, "exit 75"], [5, 0, "exit 75"]], ["--again", "--max_restarts", "0"], 75, 2),
        ([[5, 1, "exit 1 error: step 5"], [5, 1, "exit 1 error: step 5"]], [], 1, 2),
        ([[5, 1, "note disk"], [5, 1, "note disk"]], [], 0, 3),
        ([[5, 1, "kill 9"]], ["--max_restarts", "0"], 137, 1),
    ],
)
def test_exit_codes_decide(tmp_path, plan, options, code, starts):
    result = launch(tmp_path, plan, *options)
    assert result.returncode == code, result.describe()
    assert len(list((tmp_path / "ckpt").glob("begins.*"))) == starts
    assert len(records(tmp_path)) == starts - 1


def test_what_waits_in_memory_is_not_lost(tmp_path):
    kept = Path(failures.memory_of(str(tmp_path / "ckpt")))
    kept.mkdir(mode=0o700)
    try:
        (kept / "0000004.json").write_text('{"rescued": true}')
        launch(tmp_path, [[5, 1, "note disk"]]).check()
    finally:
        shutil.rmtree(kept)
    (record,) = records(tmp_path)
    assert (record["step"], record["lost_steps"], record["wait_s"]) == (4, 0, 0.2)


def test_restarts_need_a_folder_of_checkpoints(tmp_path, capsys):
    base = on(tmp_path, "localhost slots=1")
    once = ["--", sys.executable, "-c", "import sys; print('once'); sys.exit(7)"]
    result = run_command([*base, *once])
    assert (result.returncode, result.stdout.count("once")) == (7, 1)
    text = "#!/bin/sh\necho HYDRA build details:\necho '    Version: 4.2.1'\n"
    mpich = executable(tmp_path / "hydra", text)
    missing = "this machine has no network interface ens5x"
    for options, own, named in (
        ("--max_restarts 2", "", "--max_restarts 2: needs --ckpt_dir"),
        ("--again", "", "--again: needs --ckpt_dir"),
        ("--min_hosts 2", "", "--min_hosts 2"),
        ("--backend hvd --num_servers 2", "", "--num_servers 2: goes with --backend byteps"),
        ("--backend hvd --mpirun no-such-mpirun", "", "--mpirun no-such-mpirun"),
        (f"--backend hvd --mpirun {mpich}", "", "hydra: is not Open MPI's (HYDRA build details:)"),
        ("--backend hvd --interface ens5x", "", missing),
        ("--backend hvd --mpirun 'mpirun -mca btl_tcp_if_include lo,ens5x'", "", missing),
        ("", "--ckpt_dir x --start_step 3", "--start_step: "),
    ):
        command = ["--", sys.executable, "-c", "pass", *own.split()]
        assert named in rejected(main, capsys, *base[len(LAUNCH) :], *shlex.split(options), *command)


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGUSR1", 143)])
def test_signals_reach_the_ranks_of_mpirun(tmp_path, number, code):
    """mpirun alone would kill them a second after a Ctrl-C."""
    with start_command(words(tmp_path, [[5, 0, "wait"]], backend="hvd")) as run:
        wait_for_file(tmp_path / "ckpt" / "metrics.jsonl", text='"step": 4', run=run)
        run.signal(signal.Signals[number])
        result = run.wait()
    assert result.returncode == code, result.describe()
    assert (tmp_path / "ckpt" / "0000005.json").exists() and not records(tmp_path)
    assert f"launch: stopped by {number}" in result.stderr and "restart" not in result.stderr
    assert nothing_is_left(tmp_path)


def test_a_signal_that_comes_before_mpirun_has_ranks(tmp_path):
    """mpirun forwards it to nobody and says so; it is repeated."""
    with start_command(words(tmp_path, [[5, 0, "wait"]], backend="hvd")) as run:
        until(lambda: any(is_mpirun(pid) for pid in run.pids()), run, pause=0.005)
        run.signal(signal.SIGTERM)
        result = run.wait()
    assert result.returncode == 143, result.describe()


def is_mpirun(pid):
    """Whether it is the run's; its version is asked before."""
    try:
        name, words = Path(f"/proc/{pid}/comm").read_text(), Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return name in ("mpirun\n", "prterun\n") and b"\0-np\0" in words


def test_a_second_interrupt_kills_the_ranks_of_mpirun(tmp_path):
    code = "import os, signal, time\n"
    code += "for number in (2, 10, 15): signal.signal(number, lambda *_: os.write(1, b'heard\\n'))\n"
    code += "print('ready', flush=True)\ntime.sleep(600)\n"
    (tmp_path / "stubborn.py").write_text(code)
    base = on(tmp_path, "localhost slots=2", backend="hvd")
    with start_command([*base, "--", tmp_path / "stubborn.py"]) as run:
        for state in ("ready", "heard"):
            until(lambda state=state: run.stdout().count(state) >= 2, run)
            run.signal(signal.SIGINT)
        result = run.wait()  # raises when a process outlives the launcher
    assert result.returncode == 130, result.describe()


def test_a_killed_launcher_leaves_nothing_of_mpirun(tmp_path):
    with start_command(words(tmp_path, [[5, 0, "wait"]], backend="hvd")) as run:
        wait_for_file(tmp_path / "ckpt" / "metrics.jsonl", text='"step": 4', run=run)
        run.signal(signal.SIGKILL)
        run.wait()  # raises LeftoverProcesses
    assert nothing_is_left(tmp_path)


def test_an_interrupt_before_anything_is_started(tmp_path):
    slow = executable(tmp_path / "mpirun", f"#!/bin/sh\ntouch {tmp_path}/asked; exec sleep 600\n")
    with start_command(words(tmp_path, [], "--mpirun", slow, backend="hvd")) as run:
        until((tmp_path / "asked").exists, run)
        run.signal(signal.SIGINT)
        result = run.wait()
    assert (result.returncode, result.stderr) == (130, ""), result.describe()


def test_a_signal_between_two_runs(tmp_path):
    with start_command(words(tmp_path, [[5, 0, "kill 9"]], "--backoff", "600")) as run:
        until(lambda: "restart 1" in run.stderr(), run)
        run.signal(signal.SIGINT)
        assert run.wait().returncode == 130


# ---------------------------------------------------------------------------------------------- elastic
#
# The hosts are names; the remote shell runs commands here, unless the host's file says that it is down.

HOSTS = "198.51.100.1 slots=1\n198.51.100.2 slots=1\n"


@pytest.fixture
def elastic(tmp_path):
    """Options of the launcher, the ranks' interpreter, and the file that takes the second host down."""
    down = tmp_path / "down.198.51.100.2"
    text = f'host=$1; shift\n[ -e {tmp_path}/down.$host ] && exit 255\nAWAY=1 exec sh -c "$*"'
    shell = executable(tmp_path / "shell", f"#!/bin/sh\n{text}\n")
    # Servers and scheduler have nothing to do: the script exchanges nothing.
    ill = f'[ -z "$AWAY" ] && [ -e {tmp_path}/down.here ] && exit 1'
    text = f'{ill}\n[ "$1" = -c ] && exec sleep 0.2\nexec {sys.executable} "$@"'
    python = executable(tmp_path / "python", f"#!/bin/sh\n{text}\n")
    options = ["--ssh", shell, "--server_timeout", "1", "--rejoin_interval", "0.2", "--host_patience", "0.5"]
    return options, python, down


def test_a_host_that_does_not_come_back_ends_the_run(tmp_path, elastic):
    options, python, down = elastic
    result = launch(tmp_path, [[5, 1, f"down {down}"]], *options, hosts=HOSTS, python=python)
    assert result.returncode == 1, result.describe()
    assert "198.51.100.2 is left out: it does not answer" in result.stderr
    assert result.stderr.endswith("1 hosts are left, the run needs 2; left out: 198.51.100.2\n")


def test_a_launcher_whose_own_machine_cannot_be_used_does_not_ask_for_ever(tmp_path, elastic):
    options, python, _ = elastic
    plan = [[5, 1, f"down {tmp_path / 'down.here'}"]]
    result = launch(tmp_path, plan, *options, hosts=HOSTS, python=python)
    assert result.returncode == 1, result.describe()
    said = "launch: this machine does not answer: the remote shell exited with 1; nothing has been started\n"
    assert result.stderr.endswith(said)


def test_mpirun_reaches_a_host_as_another_user(tmp_path, elastic):
    options, python, _ = elastic
    result = launch(tmp_path, [], *options, backend="hvd", hosts="me@198.51.100.1 slots=2\n", python=python)
    assert "start 0 of 2 ranks after step 0" in result.check().stdout


def test_a_spare_host_takes_its_place(tmp_path, elastic):
    options, python, down = elastic
    hosts = f"{HOSTS}# spare: 198.51.100.3 slots=1\n"
    launch(tmp_path, [[5, 1, f"down {down}"]], *options, hosts=hosts, python=python).check()
    assert [line["ranks"] for line in metrics(tmp_path)] == [2] * 9 and steps(tmp_path) == list(range(1, 10))
    (record,) = records(tmp_path)
    assert record["how"] == "rank 1 on 198.51.100.2 was killed by SIGKILL"
    assert record["hosts"] == ["198.51.100.1", "198.51.100.3"] and record["left_out"] == ["198.51.100.2"]


def test_fewer_hosts_go_on_and_the_lost_one_is_taken_back(tmp_path, elastic):
    options, python, down = elastic
    plan = [[5, 1, f"down {down}"], [20, 0, "wait"]]  # one host waits for the other
    command = words(tmp_path, plan, *options, "--min_hosts", "1", hosts=HOSTS, python=python)
    command += ["--steps", "40"]
    with start_command(command) as run:
        until(lambda: down.exists() and any(line["ranks"] == 1 for line in metrics(tmp_path)), run)
        down.unlink()
        result = run.wait().check()
    assert steps(tmp_path) == list(range(1, 41))
    ranks = [line["ranks"] for line in metrics(tmp_path)]
    assert [number for number, _ in itertools.groupby(ranks)] == [2, 1, 2]
    failed, back = records(tmp_path)
    assert failed["host"] == "198.51.100.2" and back["reason"] == "rejoin" and not back["left_out"]
    assert failed["hosts"] == ["198.51.100.1"] and failed["left_out"] == ["198.51.100.2"]
    assert back["hosts"] == ["198.51.100.1", "198.51.100.2"] and back["step"] == 40 - ranks[::-1].index(1)
    assert "198.51.100.2 answers again and is taken back" in result.stderr


def test_a_run_does_not_begin_with_fewer_hosts(tmp_path, elastic):
    """Its steps would have fewer sequences than was asked for."""
    options, python, down = elastic
    down.touch()
    result = launch(tmp_path, [], *options, "--min_hosts", "1", hosts=HOSTS, python=python)
    assert result.returncode == 1 and "the run needs 2 before the first checkpoint" in result.stderr
    assert not (tmp_path / "ckpt").exists()
