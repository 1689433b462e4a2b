"""The program of reliability figures: its time, its page, its exit, and figures that are cheap (the long form
is `make reliability`)."""

from __future__ import annotations

import os
import re
import signal
import sys
from dataclasses import replace

import pytest

from base.errors import InputError
from tests.faults import jobs
from tests.faults.__main__ import main
from tests.faults.catalogue import PROGRAMS
from tests.faults.figure import BACKENDS, ONCE, Damage, Figure, Program, Setting, Tally
from tests.faults.jobs import LAST, differences, patched
from tests.faults.measuring import Caught, Clock, Plan, measure, try_damages, units_of
from tests.faults.report import Page, read, text, write
from tests.processes import run_command, start_command, until

FACTS = {"machine": "a machine", "date": "today", "commit": "abc", "minutes": 1, "seed": 3}


def program(attempt, number="77", cases=("a=1", "a=2", "a=3"), **more) -> Program:
    given = {"seconds": 0.01, "backends": (ONCE,), **more}
    return Program(number, "a figure", "a goal", cases=lambda setting: cases, attempt=attempt, **given)


def measured(programs, folder, minutes=1.0) -> dict[tuple[str, str], Figure]:
    found = {}

    def keep(figure):
        found[figure.number, figure.backend] = figure

    measure(Plan(units_of(programs, BACKENDS), 3, folder), Clock(minutes), keep)
    return found


def test_cases_are_counted_and_failures_can_be_repeated(tmp_path):
    def attempt(setting, parts):
        (setting.work / "file").touch()
        if parts["a"] == "2":
            raise AssertionError("it | broke")
        return Tally(10, 10)

    figure = measured([program(attempt, backends=("byteps",))], tmp_path)["77", "byteps"]
    assert (figure.tried, figure.held, figure.holds) == (21, 20, False)
    (failure,) = figure.failures
    assert failure.what == "a=2: it | broke"
    words = "--figures 77 --backends byteps --seed 3 --case 'a=2'"
    assert failure.command == f"python -m tests.faults {words}"
    assert not list(tmp_path.glob("77*")), "files are left"
    page = text(Page().with_results(FACTS, [figure], []), [program(None, backends=("byteps",))])
    assert "**20 of 21**" in page and page.count("a=2: it \\| broke") == 1


def test_a_program_that_breaks_is_a_failure_of_its_figure_alone(tmp_path):
    broken = replace(program(None, "76"), cases=lambda setting: 1 / 0)
    untried = program(lambda *_: Tally(), "78", cases=())
    found = measured([broken, program(lambda *_: Tally()), untried], tmp_path)
    assert [number for (number, _), figure in found.items() if figure.holds] == ["77"] and len(found) == 3
    assert "ZeroDivisionError" in found["76", ONCE].failures[0].what


def test_time_is_shared_and_kept(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def slow(setting, case):
        clock[0] += 0.1
        return Tally()

    endless = ["a=1"] * 1000
    programs = [program(slow, "1", endless, weight=1), program(slow, "2", endless, weight=3)]
    found = measured(programs, tmp_path, minutes=1.2 / 60)
    assert 0.8 < clock[0] < 1.5
    first, second = (found[number, ONCE].tried for number in "12")
    assert 1 <= first < second
    assert measured([program(slow, seconds=100)], tmp_path)["77", ONCE].note.startswith("not tried: ")


def test_damage_counts_where_the_figure_says_why(tmp_path):
    said = {"noticed": "other bits", "unnoticed": "", "of another reason": "ImportError"}
    each = {name: Damage("a=1", "other bits") for name in said}
    caught: list[Caught] = []
    spoilt = program(lambda setting, case: Tally.of(said[setting.damage]), damages=each)
    try_damages(Plan(units_of([spoilt], []), 3, tmp_path), Clock(1), caught.append)
    assert [(one.damage, one.noticed) for one in caught] == [
        ("noticed", True),
        ("unnoticed", False),
        ("of another reason", False),
    ]


def test_all_damages_can_be_done():
    """The names that they replace are there; those in the text of a patch are tried by --damage alone."""
    assert all(program.damages for program in PROGRAMS), "a figure that notices nothing"
    for damage in (each for program in PROGRAMS for each in program.damages.values()):
        assert re.compile(damage.noticed)
        with damage.broken():
            compile(damage.patch, "patch", "exec")


def test_the_page_goes_on_with_what_other_commands_measured(tmp_path):
    path = tmp_path / "page.md"
    programs = [program(None), program(None, "78", backends=("byteps", "hvd_mpi"))]
    second = Figure("78", "a figure", "a goal", "byteps", 5, 4, cases=5)
    first = [replace(program(None).empty(ONCE), tried=5, held=5, measured=("5.1 s",)), second]
    caught = [Caught("77", "a damage", ONCE, True, "other bits")]
    write(Page().with_results(FACTS, first, caught), programs, path)
    more = [replace(second, tried=1000, held=1000, cases=1000), Figure("78", "b", "c", "hvd_mpi")]
    write(read(path.with_suffix(".json")).with_results({**FACTS, "minutes": 4}, more, []), programs, path)
    page = path.read_text()
    assert "| 77 | a figure | a goal | 5 of 5 | – | – |" in page and "77: 5.1 s" in page
    assert "| 78 | a figure | a goal | not tried | – | 1,000 of 1,000 |" in page
    assert "| 77, 78, damages | a machine | today | abc | 1 | 3 |" in page
    assert "| 78 | a machine | today | abc | 4 | 3 |" in page
    assert "| 77 | a damage | all | yes | other bits |" in page
    for changes in ({"commit": "abd"}, {"commit": "abc+"}, {"seed": 4}):
        with pytest.raises(InputError, match="--anew begins a new page"):
            read(path.with_suffix(".json")).check({**FACTS, **changes}, path)


def test_a_figure_is_continued_behind_the_cases_that_were_tried(tmp_path):
    seen = []

    def attempt(setting, parts):
        seen.append(parts["a"])
        return Tally(10, 9, ("it broke",))

    earlier = {("77", ONCE): replace(program(None).empty(ONCE), tried=20, held=20, cases=2)}
    found = []
    measure(Plan([(program(attempt), ONCE)], 3, tmp_path, earlier), Clock(1), found.append)
    assert seen == ["3"] and (found[-1].tried, found[-1].held, found[-1].cases) == (30, 29, 3)


def test_every_figure_of_the_table_is_there():
    numbers = [program.number for program in PROGRAMS]
    assert [each for each in numbers if each.isdigit()] == [str(n) for n in range(1, 14) if n != 5]
    assert {"5a", "5b", "feeds", "hosts", "memory", "restarts"} <= set(numbers)
    assert len(set(numbers)) == len(numbers)


WITHOUT_FILES = [program for program in PROGRAMS if program.number != "11"]  # 11 makes files


@pytest.mark.parametrize("one", WITHOUT_FILES, ids=lambda one: one.number)
def test_cases_depend_on_the_seed_alone(one, tmp_path):
    def cases(seed):
        setting = Setting(one.backends[0], seed, tmp_path, tmp_path)
        return [case for case, _ in zip(one.cases(setting), range(20))]

    assert cases(1) == cases(1) and (len(cases(1)) < 20 or cases(1) != cases(2)), cases(1)


def test_differences_between_runs(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{LAST:07d}.params").write_bytes(b"123")
        (tmp_path / name / "metrics.jsonl").write_text('{"step": 1, "lr": 1, "time": 2}\n')
    assert differences(tmp_path / "a", tmp_path / "b") == ""
    (tmp_path / "a" / f"{LAST:07d}.params").write_bytes(b"124")
    (tmp_path / "a" / "metrics.jsonl").write_text('{"step": 1, "lr": 2, "time": 2}\n')
    assert differences(tmp_path / "a", tmp_path / "b").endswith(f": {LAST:07d}.params, metrics.jsonl")


def test_a_patch_is_run_when_the_threads_are_set(tmp_path):
    script = tmp_path / "script.py"
    print_it = "print(sys.argv[1], sys.damaged)"
    script.write_text(f"import sys, base.threads\nbase.threads.set_threads()\n{print_it}\n")
    (tmp_path / "patched.py").write_text(patched(script, "import mxnet\nsys.damaged = mxnet.__name__"))
    result = run_command([sys.executable, tmp_path / "patched.py", "word"]).check()
    assert result.stdout == "word mxnet\n"


SAVES_TWICE = """
import sys, base.threads
base.threads.set_threads()
import numpy as np
from training.checkpoint import Kept
from training.saving import Saver
saver = Saver(sys.argv[1], Kept(), None)
saver._report = lambda: None
for step in (4, 8):
    saver.begin(step, {"weight": np.ones(3, np.float32)}, {"t": np.array(step)}, {})
    saver.finish()
    print("saved", step, flush=True)
"""


def test_a_run_stops_itself_while_it_saves(tmp_path):
    """As attacks on pipelines have it: at one moment of the first saving from a step on."""
    script = tmp_path / "script.py"
    script.write_text(SAVES_TWICE)
    patch = jobs.STOPPING_ITSELF.format(step=5, moment=".states.npz")
    (tmp_path / "patched.py").write_text(patched(script, patch))
    with start_command([sys.executable, tmp_path / "patched.py", tmp_path / "saved"]) as run:
        until(lambda: jobs.is_stopped(run.pid), run)
        left = sorted(path.name.partition(".tmp-")[0] for path in (tmp_path / "saved").glob("*8*.tmp-*"))
        assert left == ["0000008.json", "0000008.params", "0000008.states.npz"]
        assert run.stdout() == "saved 4\n"
        os.kill(run.pid, signal.SIGCONT)
        assert run.wait().check().stdout == "saved 4\nsaved 8\n"


# --- The command.


def command(*words: object) -> list[object]:
    return [sys.executable, "-m", "tests.faults", *words]


def test_bad_options(capsys):
    for words in (
        *(("--minutes", "0"), ("--figures", "1,99"), ("--backends", "nccl")),
        ("--output", "/dev/null/page.md"),
    ):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 2 and words[1].split(",")[-1] in capsys.readouterr().err


def test_a_cheap_figure_and_its_damage(tmp_path):
    """The short form: those figures that need no ranks, for seconds."""
    cheap = [each for each in PROGRAMS if each.backends == (ONCE,) and each.seconds <= 5]
    chosen = [each.number for each in cheap]
    page = tmp_path / "new" / "page.md"
    words = ("--figures", ",".join(chosen), "--minutes", "0.1", "--output", page)
    result = run_command(command(*words), env={"TMPDIR": str(tmp_path)}).check()
    assert re.search(r"\d+ of \d+", result.stdout) and "**" not in page.read_text()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "page.json", "page.md"]


def test_a_signal_ends_it_in_order(tmp_path):
    """With the table so far, without processes or files."""
    env = {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    words = ("--figures", "1", "--backends", "hvd_mpi", "--output", tmp_path / "page.md")
    with start_command(command(*words), env=env) as run:
        until(lambda: list(tmp_path.glob("reliability-*/shared/embedded/vocab.txt")), run)
        run.signal(signal.SIGTERM)
        result = run.wait()  # raises LeftoverProcesses
    assert result.returncode == 143, result.describe()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.json", "page.md"]
