"""What a comparison keeps, so that a second call continues it and nobody else's files are harmed."""

from __future__ import annotations

import json
import os

import pytest

from base.errors import InputError
from comparison.launching.backends import Cluster
from comparison.launching.read_run import METRICS, Work
from comparison.record import PROFILED, TIMED, Interval, Record
from comparison.settings import Setting
from comparison.store import Store, finished, versions, what_counts

SETTING = Setting("hvd_mpi", 2, "bfloat16", 512)
WORK = Work(SETTING, TIMED, 0)
PLAN = {
    "--backends": ["hvd_mpi", "byteps"],
    "num_steps": 60,
    "versions": {"mxnet": "1.9.1", "numpy": "1.23.5"},
}


def record(**changes: object) -> Record:
    interval = Interval(10, 0.1, 900.0, 1000.0, 30.0, 9.0, 0.7)
    return Record(**{"setting": SETTING, "kind": TIMED, "repeat": 0, "intervals": (interval,), **changes})


def test_records_come_back(tmp_path):
    works = [WORK, Work(SETTING, PROFILED, 0), Work(SETTING, TIMED, 1)]
    with Store(str(tmp_path / "out")) as store:
        store.agree_on(PLAN, 5)
        assert finished(store, works) == {}
        store.make_directory(WORK)
        store.save(WORK, record(seconds=3.5))
    with Store(str(tmp_path / "out")) as store:
        assert finished(store, works) == {WORK: record(seconds=3.5)}


def test_a_half_done_launch_does_not_count_and_is_cleared_away(tmp_path):
    with Store(str(tmp_path)) as store:
        directory = store.make_directory(WORK)
        (directory / "metrics.jsonl").write_text("{}")
        assert store.load(WORK) is None
        assert list(store.make_directory(WORK).iterdir()) == []


def test_of_a_launch_the_metrics_and_the_manifest_stay_and_checkpoints_go(tmp_path):
    with Store(str(tmp_path)) as store:
        checkpoints = store.make_directory(WORK) / "ckpt"
        checkpoints.mkdir()
        (checkpoints / METRICS).write_text("lines")
        (checkpoints / "0000060.params").write_bytes(b"x" * 1000)
        for step in ("0000050", "0000060"):
            (checkpoints / f"{step}.json").write_text(step)
        store.keep_outcome(WORK, 60)
        assert sorted(os.listdir(store.directory_of(WORK))) == ["0000060.json", METRICS]
        assert (store.directory_of(WORK) / "0000060.json").read_text() == "0000060"
        assert (store.directory_of(WORK) / METRICS).read_text() == "lines"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_steps": 80}, "num_steps 80 instead of 60"),
        ({"--backends": ["hvd_mpi"]}, "--backends hvd_mpi instead of hvd_mpi byteps"),
        ({"versions": {"mxnet": "1.9.1", "numpy": "1.24.0"}}, 'versions: numpy "1.24.0" instead of "1.23.5"'),
        ({"new": 1}, "new 1 instead of null"),
    ],
)
def test_another_comparison_is_not_mixed_in(tmp_path, changes, named):
    with Store(str(tmp_path)) as store:
        store.agree_on(PLAN, 5)
        with pytest.raises(InputError, match="another|other") as raised:
            store.agree_on({**PLAN, **changes}, 5)
        assert named in str(raised.value) and "\n" not in str(raised.value)
        store.agree_on(PLAN, 5)  # nothing was changed by the attempt


def test_more_repeats_may_be_asked_for_but_not_fewer(tmp_path):
    with Store(str(tmp_path)) as store:
        store.agree_on(PLAN, 2)
        store.agree_on(PLAN, 5)
        with pytest.raises(InputError, match="--repeats 3 instead of 5"):
            store.agree_on(PLAN, 3)


def test_one_comparison_at_a_time(tmp_path):
    with Store(str(tmp_path)), pytest.raises(InputError, match="another comparison is using it"):
        Store(str(tmp_path)).__enter__()
    with Store(str(tmp_path)):
        pass


def test_a_directory_that_holds_another_report_is_left_alone(tmp_path):
    (tmp_path / "report.md").write_text("mine")
    with pytest.raises(InputError, match=r"holds a report.md that is not of a comparison"):
        Store(str(tmp_path)).__enter__()
    assert os.listdir(tmp_path) == ["report.md"]


def test_a_directory_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="--output"):
        Store(str(tmp_path / "file" / "out")).__enter__()


@pytest.mark.parametrize("text", ["{", "{}", '{"setting": 1}', "[]"])
def test_damaged_records_are_named(tmp_path, text):
    with Store(str(tmp_path)) as store:
        (store.make_directory(WORK) / "record.json").write_text(text)
        with pytest.raises(InputError, match="record.json is damaged"):
            store.load(WORK)


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
    found = what_counts({"seed": 1}, {"--workers": [1, 2]}, Cluster("file", (("a", 8), ("b", 8))))
    assert json.loads(json.dumps(found)) == found
    assert found["hosts"] == [["a", 8], ["b", 8]] and found["seed"] == 1 and found["--workers"] == [1, 2]
    assert found["environment"]["OMP_NUM_THREADS"] == "1"
    assert not {"OMPI_MCA_btl_vader_backing_directory", "HOME"} & set(found["environment"])
    assert {"python", "mxnet", "horovod", "byteps", "numpy"} <= set(versions())
