"""bench/threads.py: which settings it tries, with which commands, and what it makes of the figures."""

from __future__ import annotations

import json

from bench.threads import DEFAULT, environment, settings, step_seconds, table


def numbers_of_threads(cores: int, ranks: int) -> set[int | None]:
    return {setting.omp for setting in settings(cores, ranks, False).values()}


def test_no_number_of_threads_is_tried_twice():
    """Two ranks on two cores have one thread each by default, which `one_thread` would be again."""
    assert numbers_of_threads(2, 1) == {None, 1, 3}
    assert numbers_of_threads(2, 2) == {None, 2}
    assert numbers_of_threads(16, 2) == {None, 1, 7, 9, 16}
    assert "one_less" not in settings(2, 2, False)


def test_every_setting_differs_from_the_default():
    for ranks in (1, 2, 4):
        found = settings(4, ranks, True)
        assert [name for name, setting in found.items() if setting == found[DEFAULT]] == [DEFAULT]


def test_the_callers_threads_do_not_count():
    environ = {"OMP_NUM_THREADS": "7", "GOMP_SPINCOUNT": "9", "PATH": "p"}
    found = settings(2, 1, False)
    assert environment(found[DEFAULT], environ, False) == {"PATH": "p"}
    assert environment(found["one_thread"], environ, False) == {"PATH": "p", "OMP_NUM_THREADS": "1"}
    assert environment(found["omp_passive"], environ, True)["OMPI_ALLOW_RUN_AS_ROOT"] == "1"


def test_the_first_intervals_do_not_count(tmp_path):
    lines = [{"step": 3 * n, "step_s": s} for n, s in enumerate((9, 5, 1.0, 3.0, 2.0), 1)]
    lines.insert(2, {"step": 6, "eval_mlm_loss": 1})
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert step_seconds(tmp_path / "metrics.jsonl") == 2


def test_ratios_are_taken_within_a_repeat():
    repeats = [{DEFAULT: 1.0, "one_thread": 2.0}, {DEFAULT: 3.0, "one_thread": 6.0}]
    rows = table({2: repeats}).splitlines()
    assert rows[1] == "2 ranks"
    assert rows[2].split()[0] == DEFAULT and "1.00 (1.00 to 1.00)" in rows[2]
    assert rows[3].split()[0] == "one_thread" and "2.00 (2.00 to 2.00)" in rows[3]
