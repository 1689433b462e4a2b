"""A campaign's directory, which a second call continues, and the time that its launches will still take."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from base import machine
from base.errors import InputError
from comparison.backends import Cluster
from comparison.campaign import Store, versions, what_counts
from comparison.runs.command import Runs
from comparison.runs.record import PROFILED, TIMED, Record
from comparison.settings import Setting, Turn

SETTING = Setting("hvd_mpi", 2, "bfloat16", 512)
WORK = Turn(SETTING, 0, TIMED)
PLAN = {
    "--backends": ["hvd_mpi", "byteps"],
    "num_steps": 60,
    "versions": {"mxnet": "1.9.1", "numpy": "1.23.5"},
}


def runs(store: Store, *works: Turn) -> Runs:
    return Runs(SimpleNamespace(retry_failed=False, repeats=5), None, store, works)


@pytest.mark.parametrize(
    ("changes", "repeats", "named"),
    [
        ({"versions": {"mxnet": "1.9.1", "numpy": "2"}}, 5, 'versions: numpy "2" instead of "1.23.5"'),
        ({"new": 1}, 5, "new 1 instead of null"),
        ({}, 3, "--repeats 3 instead of 5"),
    ],
)
def test_another_comparison_is_not_mixed_in(tmp_path, changes, repeats, named):
    with Store(str(tmp_path)) as store:
        store.agree_on(PLAN, 2)
        store.agree_on(PLAN, 5)
        with pytest.raises(InputError, match="another|other") as raised:
            store.agree_on({**PLAN, **changes}, repeats)
        assert named in str(raised.value) and "\n" not in str(raised.value)
        store.agree_on(PLAN, 5)  # nothing was changed by the attempt


def test_a_directory_that_holds_another_report_is_left_alone(tmp_path):
    (tmp_path / "report.md").write_text("mine")
    with pytest.raises(InputError, match=r"holds a report.md that is not of a comparison"):
        Store(str(tmp_path)).__enter__()
    with pytest.raises(InputError, match="--output .*: (Not a directory|File exists)"):
        Store(str(tmp_path / "report.md")).__enter__()
    assert os.listdir(tmp_path) == ["report.md"]


@pytest.mark.parametrize("text", ["{", "{}", '{"setting": 1}', "[]"])
def test_damaged_records_are_named(tmp_path, text):
    with Store(str(tmp_path)) as store:
        path = store.directory / runs(store).record_of(WORK)
        path.parent.mkdir(parents=True)
        path.write_text(text)
        with pytest.raises(InputError, match="record.json is damaged"):
            runs(store, WORK)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_plan_is_named(tmp_path, text):
    with Store(str(tmp_path)) as store:
        (tmp_path / "plan.json").write_text(text)
        with pytest.raises(InputError, match="plan.json"):
            store.agree_on(PLAN, 5)


def test_what_counts_is_json_and_has_what_changes_results(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OMPI_MCA_btl_vader_backing_directory", "/dev/shm/a")
    monkeypatch.setenv("HOME", "/somewhere")
    found = what_counts({"seed": 1, "--workers": [1, 2]}, Cluster((("a", 8), ("b", 8))))
    assert json.loads(json.dumps(found)) == found
    assert found["hosts"] == [["a", 8], ["b", 8]] and found["seed"] == 1 and found["--workers"] == [1, 2]
    assert found["environment"]["OMP_NUM_THREADS"] == "1"
    assert not {"OMPI_MCA_btl_vader_backing_directory", "HOME"} & set(found["environment"])
    assert {"python", "mxnet", "horovod", "byteps", "numpy"} <= set(versions())
    monkeypatch.setattr(machine, "_commit", lambda root: "another")
    assert what_counts({}, None)["machine"] == {**found["machine"], "commit": "another"} != found["machine"]


# the time that is left

SLOW, FAST = Setting("byteps", 2, "float32", 512), Setting("hvd_mpi", 2, "float32", 512)
ALONE = Setting("hvd_mpi", 1, "float32", 512)


def made(*launches: tuple[Turn, float]) -> dict[Turn, Record]:
    return {work: Record(work.setting, work.kind, work.repeat, seconds=seconds) for work, seconds in launches}


def test_each_launch_is_taken_to_last_as_long_as_its_like(tmp_path):
    known = made(
        (Turn(SLOW, 0, TIMED), 30.0),
        (Turn(SLOW, 1, TIMED), 20.0),
        (Turn(FAST, 0, TIMED), 10.0),
        (Turn(SLOW, 0, PROFILED), 90.0),
    )

    def left(todo: list[Turn]) -> float:
        found = runs(Store(str(tmp_path)))
        found.made = known
        return found.seconds_left(todo)

    assert left([Turn(FAST, 1, TIMED)]) == 10
    assert left([Turn(SLOW, 2, TIMED), Turn(SLOW, 3, TIMED)]) == 50
    # Another backend with as many workers; then anything at all.
    assert left([Turn(Setting("hvd_gloo", 2, "float32", 512), 0, TIMED)]) == 20
    assert left([Turn(ALONE, 0, TIMED)]) == 25
    assert left([]) == 0
    known.clear()
    assert left([Turn(FAST, 1, TIMED)]) == 0
