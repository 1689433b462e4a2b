"""Launches: their order, their number, the exit code; with ranks that do not train."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from base.processes import running
from comparison.settings import all_settings, order_of_repeat
from tests.processes import RunResult, run_command, start_command, until

SCRIPT = Path(__file__).resolve().with_name("compare_quick.py")
AXES = ["--workers", "1", "--dtypes", "float32", "--batch_sizes", "4"]
STEPS = ["--steps", "8", "--warmup_steps", "2", "--log_interval", "2", "--model", "bert_1_32_2"]


def command(output: Path, *words: str) -> list[str]:
    profile = [] if "--profiles" in words else ["--no_profile"]
    own = ["--output", str(output), *AXES, *STEPS, *profile, *words]
    return [sys.executable, str(SCRIPT), *own, "--", "--dummy_data_len", "16"]


def compare(output: Path, *words: str) -> RunResult:
    return run_command(command(output, *words))


def launched(result: RunResult) -> list[str]:
    """Setting and repeat of each launch."""
    return re.findall(r"^launch \d+/\d+ (\S+ (?:repeat|profile) \d+):", result.stdout, re.MULTILINE)


def report_of(output: Path) -> dict:
    return json.loads((output / "report.json").read_text("utf-8"))


def test_backends_take_turns_in_an_order_of_their_own_for_each_repeat(tmp_path):
    output = tmp_path / "out"
    result = compare(output, "--backends", "one", "two", "--repeats", "4", "--seed", "3").check()
    settings = all_settings(["one", "two"], [1], ["float32"], [4])
    wanted = [
        f"{setting.name} repeat {repeat + 1}"
        for repeat in range(4)
        for setting in order_of_repeat(settings, repeat, seed=3)
    ]
    assert launched(result) == wanted
    first_of_repeat = {name.split("-")[0] for name in wanted[::2]}
    assert first_of_repeat == {"one", "two"}  # neither always follows the other
    found = report_of(output)
    assert found["complete"] and len(found["launches"]) == 8
    assert found["outcome"] == {
        "code": 0, "complete": True, "failed": [], "verdicts": {"too few repeats": 1}
    }  # fmt: skip
    assert "--repeats 4: verdicts take 5" in result.stderr

    again = compare(output, "--backends", "one", "two", "--repeats", "5", "--seed", "3").check()
    assert len(launched(again)) == 2 and all(name.endswith("repeat 5") for name in launched(again))
    assert len(report_of(output)["launches"]) == 10 and "warning" not in again.stderr

    other = compare(output, "--backends", "one", "two", "--repeats", "5", "--seed", "4")
    assert other.returncode == 2 and other.stderr.count("\n") == 1
    assert "--seed 4 instead of 3" in other.stderr and "--output" in other.stderr
    assert len(report_of(output)["launches"]) == 10


def test_what_an_earlier_launch_has_left_and_cannot_be_removed_is_named(tmp_path):
    output = tmp_path / "out"
    compare(output, "--backends", "one", "--repeats", "1").check()
    (record,) = output.glob("launches/*/*/record.json")
    shutil.rmtree(record.parent)
    record.parent.write_text("")
    result = compare(output, "--backends", "one", "--repeats", "1")
    assert result.returncode == 2
    assert result.stderr.endswith(f"--output {output}: {record.parent}: Not a directory\n")


def everything(folder: Path) -> dict[str, int]:
    """Path -> time of its last change."""
    return {str(path): path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


def test_a_dry_run_says_what_is_launched_and_leaves_nothing(tmp_path):
    """With the embedded text, which the comparison itself writes first. A copy of the folder is continued,
    with all that lies in it: the text, its tokens, the launches that were made."""
    output = tmp_path / "out"
    axes = ["--workers", "1", "--dtypes", "float32", "--batch_sizes", "64", "128", "--backends", "one", "two"]
    words = [sys.executable, str(SCRIPT), *axes, *STEPS, "--no_profile", "--output", str(output)]
    words += ["--time_limit", "13"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary)}
    dry = run_command([*words, "--repeats", "1", "--dry_run"], env=env).check().stdout
    assert list(tmp_path.iterdir()) == [temporary] and not list(temporary.iterdir())
    assert f"4 launches for 4 settings; 0 are made in {output}, 4 would be made" in dry
    assert "hosts and slots: this machine" in dry
    assert "\nabout 52 s (by a rule of thumb: 10 s to start and 0.5 s for each of --steps, at most" in dry
    run_command([*words, "--repeats", "1"]).check()
    records = [json.loads(path.read_text()) for path in output.glob("launches/*/*/record.json")]
    made = {shlex.join(each["command"]) for each in records}
    printed = [line.strip() for line in dry.splitlines() if line.startswith("  ")]
    assert set(printed) == made and len(printed) == 4  # word for word
    begun = sorted(records, key=lambda each: printed.index(shlex.join(each["command"])))
    assert [each["begun"] for each in begun] == sorted(each["begun"] for each in records)

    there = everything(output)
    again = run_command([*words, "--repeats", "3", "--dry_run"]).check().stdout
    assert everything(output) == there
    assert "12 launches for 4 settings; 4 are made in" in again and "8 would be made" in again
    assert re.search(r"\nabout .* s \(by the 4 launches that are made\); nothing was launched", again)
    other = run_command([*words, "--repeats", "3", "--seed", "1", "--dry_run"])
    assert other.returncode == 2 and "--seed 1 instead of 0" in other.stderr

    tokens = sorted(path.name for path in (output / "tokens").glob("tokens-*"))
    copied = tmp_path / "else" / "there"
    shutil.copytree(output, copied, copy_function=shutil.copyfile)  # with other times
    shutil.rmtree(output)
    words[words.index(str(output))] = str(copied)
    continued = run_command([*words, "--repeats", "2"]).check()
    assert len(launched(continued)) == 4 and all(each.endswith("repeat 2") for each in launched(continued))
    assert not output.exists() and len(report_of(copied)["launches"]) == 8
    assert tokens == sorted(path.name for path in (copied / "tokens").glob("tokens-*")) and tokens


def test_profiles_stand_between_the_repeats(tmp_path):
    """quick_training leaves no trace; that is for the profile to say."""
    output = tmp_path / "out"
    result = compare(output, "--backends", "one", "--repeats", "4", "--profiles", "2")
    words = ["profile 1", "repeat 1", "profile 2"]  # two failures of a setting are enough
    assert launched(result) == [f"one-1x-float32-4 {each}" for each in words]
    again = compare(output, "--backends", "one", "--repeats", "4", "--profiles", "3")
    assert again.returncode == 2 and "--profiles 3 instead of 2" in again.stderr


def test_a_backend_that_fails_twice_is_not_launched_again(tmp_path):
    output = tmp_path / "out"
    words = ["--backends", "one", "fails", "--repeats", "3"]
    result = compare(output, *words)
    assert result.returncode == 1
    assert sum(name.startswith("fails") for name in launched(result)) == 2
    assert sum(name.startswith("one") for name in launched(result)) == 3
    assert "fails-1x-float32-4 has failed too often: 1 more launches of it are left out" in result.stdout
    found = report_of(output)
    reasons = [each["failure"] for each in found["launches"] if each["setting"]["backend"] == "fails"]
    assert reasons == ["exit code 3: no such luck"] * 2 and found["complete"]
    kinds = {each["setting"]["backend"]: each["kind"] for each in found["results"]}
    assert kinds == {"one": "ok", "fails": "failed"}
    outcome = found["outcome"]
    assert (outcome["code"], outcome["complete"]) == (1, True)
    assert outcome["failed"] == ["fails-1x-float32-4: failed: exit code 3: no such luck (in 2 of 2 launches)"]

    assert launched(compare(output, *words)) == []  # its failures are remembered
    retried = compare(output, *words, "--retry_failed")
    assert [name.split("-")[0] for name in launched(retried)] == ["fails"] * 2


def test_the_time_limit_is_a_failure(tmp_path):
    output = tmp_path / "out"
    result = compare(output, "--backends", "hangs", "--repeats", "1", "--time_limit", "1.5")
    assert result.returncode == 1
    (launch,) = report_of(output)["launches"]
    assert re.fullmatch(
        r"no end within \d+ s \(--time_limit\); 0 of 8 steps were reported", launch["failure"]
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_end_the_launch_and_leave_a_report(tmp_path, number, code):
    """Also before anything has been measured. `run.wait` fails if a process is left."""
    output = tmp_path / "out"
    with start_command(command(output, "--backends", "hangs", "--repeats", "1")) as run:
        until(
            lambda: any("quick_training" in str(each.words) and each.pid in run.pids() for each in running()),
            run,
        )
        if number == signal.SIGTERM:  # a second comparison is refused meanwhile, and harms nothing
            second = compare(output, "--backends", "hangs", "--repeats", "1")
            assert second.returncode == 2 and "another comparison is using it" in second.stderr
        run.signal(number)
        result = run.wait()
    assert result.returncode == code, result.describe()
    found = report_of(output)
    assert not found["complete"] and found["launches"] == []
    assert (found["outcome"]["code"], found["outcome"]["complete"]) == (code, False)
    assert "the same command continues" in result.stderr


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="no terminals")
def test_on_a_terminal_there_is_a_bar(tmp_path):
    words = command(tmp_path / "out", "--backends", "one", "--repeats", "2")
    shell = ["sh", "-c", f"stty rows 30 cols 100; exec {shlex.join(words)}"]
    text = f"import pty, sys; sys.exit(pty.spawn({shell!r}) >> 8)"
    result = run_command([sys.executable, "-c", text]).check()
    assert "2/2" in result.stdout and "none left" in result.stdout
    assert "launch 1/2" not in result.stdout  # the bar says it
