"""bench/pipelines.py and the rank that it measures: what is launched, limited, counted and shown."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from base.tables import terminal
from bench import pipelines
from bench.launches import environment, step_seconds
from bench.pipelines import (
    GPIPE,
    Launch,
    Outcome,
    Work,
    _reason,
    beside,
    command,
    ideal,
    limit_table,
    measure_limit,
    memory_table,
    speed_table,
)
from tests.pipeline_hosts import CASES, hosts_table
from tests.processes import ROOT, run_command, start_command, wait_for_file
from training.options import parse_options

WORK = Work("bert_4_256_4", 4, 6)


def test_data_parallel_ranks_have_the_same_micro_batches() -> None:
    assert beside(Launch(2, 2, 8)) == Launch(2, 1, 4)
    assert beside(Launch(2, 2, 8)).micro_batches == Launch(2, 2, 8).micro_batches == 8
    assert beside(Launch(2, 2, 1)).micro_batches == 2, "one for each rank at least"


def test_commands_are_what_the_script_takes() -> None:
    words = command(Launch(4, 2, 8, GPIPE), WORK, "folder", 123)
    assert words[:3] == ["mpirun", "-np", "4"] and words[-2:] == ["--pipeline_schedule", GPIPE]
    assert words[words.index("bench.measured_rank") + 1 :][:2] == ["folder", "123"]
    script = words.index(str(ROOT / "run_pretraining_hvd.py"))
    options = parse_options(words[script + 1 :], "")
    assert (options.pipeline_stages, options.accumulate, options.batch_size) == (2, 8, 4)
    assert "--pipeline_stages" not in command(Launch(2), WORK, "folder")


def test_the_callers_threads_do_not_count() -> None:
    environ = environment({"OMP_NUM_THREADS": "7", "GOMP_SPINCOUNT": "9", "PATH": "p"}, False)
    assert environ == {"PATH": "p", "PYTHONPATH": str(ROOT)}
    found = environment({"PYTHONPATH": "own"}, True)
    assert found["PYTHONPATH"] == f"{ROOT}:own" and found["OMPI_ALLOW_RUN_AS_ROOT"] == "1"


def test_the_first_intervals_do_not_count(tmp_path: Path) -> None:
    lines = [{"step": 3 * n, "step_s": s} for n, s in enumerate((9, 5, 1.0, 3.0, 2.0), 1)]
    lines.insert(2, {"step": 6, "eval_mlm_loss": 1})
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert step_seconds(tmp_path / "metrics.jsonl") == 2


def test_the_ideal_is_the_bubble_and_the_split() -> None:
    even = Work("bert_8_512_8", 4, 6)
    assert 0.85 < ideal(Launch(2, 2, 8), even) < 8 / 9
    assert ideal(Launch(2, 2, 8), even) / ideal(Launch(2, 2, 1), even) == pytest.approx(16 / 9)


def test_tables() -> None:
    rounds = [{"pipeline": 0.2, "ranks": 0.1}, {"pipeline": 0.4, "ranks": 0.1}]
    figure = {**Launch(2, 2, 8)._asdict(), "rounds": rounds, "ideal": 0.88}
    row = terminal(speed_table([figure], WORK)).splitlines()[2]
    assert row.split()[:5] == ["2", "8", "2.400", "13.33", "40.00"] and "0.38 (0.31 to 0.44)" in row
    assert row.endswith("0.88     11%")
    memory = [{"schedule": "1f1b", "micro_batches": 4, "resident": [3 << 20, 2 << 20]}]
    assert terminal(memory_table(memory, WORK)).splitlines()[2].split()[-4:] == ["3", "MiB", "2", "MiB"]
    figures = {"launch": "two stages", "address_space": [3 << 30, 2 << 30], "limit": 7 << 28, "step_s": 0.5}
    row = terminal(limit_table([{**figures, "reason": "bad_alloc"}], WORK)).splitlines()[2]
    assert row.split("  ")[-1].strip() == "bad_alloc" and "3,072 MiB and 2,048 MiB" in row
    assert "1,792 MiB" in row and "0.500" in row
    found = {"case": list(CASES[0]), "intra_first": [2.0, 1.0], "inter_first": [0.5]}
    row = terminal(hosts_table([found], "1mbit")).splitlines()[2]
    assert row.split()[-3:] == ["1.50", "0.50", "inter_first"]


def test_the_least_limit_is_searched(monkeypatch) -> None:
    """Ranks that reserve twice what they need."""
    needs = {"one process": 900 << 20, "two stages": 400 << 20}
    tried = []

    def run(launch: Launch, work: Work, part: str, limit: int | None = None) -> Outcome:
        need = needs["two stages" if launch.stages > 1 else "one process"]
        tried.append(limit)
        if limit is not None and limit < need:
            return Outcome(None, [], "MXNetError: cannot allocate memory")
        return Outcome(0.5, [{"address_space": 2 * need}] * launch.ranks, "")

    monkeypatch.setattr(pipelines, "run", run)
    found = {each["launch"]: each for each in measure_limit(WORK)}
    for name, need in needs.items():
        assert need <= found[name]["limit"] <= 1.02 * need and found[name]["step_s"] == 0.5
        assert found[name]["reason"] == "MXNetError: cannot allocate memory"
    assert len(tried) <= 20


def test_the_reason_of_a_failure() -> None:
    lines = ["warning: Unable to allocate", "[vm:1] *** End of error message ***"]
    lines += ["MXNetError: cannot allocate memory", "mpirun detected"]
    assert _reason("\n".join(lines)) == "MXNetError: cannot allocate memory"
    assert _reason("") == "no output" and _reason("a\nb") == "a"


def measured(tmp_path: Path, limit: int, program: str) -> tuple[int, dict[str, int]]:
    words = [sys.executable, "-m", "bench.measured_rank", tmp_path, limit, sys.executable, "-c", program]
    result = run_command(words, cwd=ROOT)
    return result.returncode, json.loads((tmp_path / "0.json").read_text("utf-8"))


def test_a_rank_is_measured(tmp_path: Path) -> None:
    program = "import time; a = bytearray(64 << 20); time.sleep(0.2); raise SystemExit(3)"
    code, found = measured(tmp_path, 0, program)
    assert code == found["code"] == 3
    assert 64 << 20 < found["resident"] < 120 << 20 < 2 * found["address_space"]


def test_a_rank_is_limited(tmp_path: Path) -> None:
    program = "a = bytearray(600 << 20); import time; time.sleep(0.2)"
    assert measured(tmp_path, 0, program)[0] == 0
    code, found = measured(tmp_path, 400 << 20, program)
    assert code == 1 and found["address_space"] <= 400 << 20


def test_a_signal_reaches_the_rank(tmp_path: Path) -> None:
    program = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        f"pathlib.Path({str(tmp_path / 'begun')!r}).touch()\n"
        "time.sleep(600)\n"
    )
    words = [sys.executable, "-m", "bench.measured_rank", tmp_path, 0, sys.executable, "-c", program]
    with start_command(words, cwd=ROOT) as run:
        wait_for_file(tmp_path / "begun", run=run)
        time.sleep(0.05)
        (process,) = run.find(argument="bench.measured_rank")
        os.kill(process, signal.SIGTERM)
        assert run.wait().returncode == 7
