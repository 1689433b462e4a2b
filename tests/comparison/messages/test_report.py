"""Figures, verdicts, table and files on launches made up here."""

from __future__ import annotations

import json
import statistics

import pytest

from base.tables import terminal
from comparison.messages.plan import Cell, parse_messages
from comparison.messages.report import Place, bus_bandwidth, evaluate, report_of, tables_of
from tests.comparison import synthetic
from tests.pages import samples_behind

MESSAGES = parse_messages(["64KB", "1MB", "10x64KB"], "float32")
FACTS = {**synthetic.FACTS, "dtype": "float32", "repeats": 6}
# A slow minute in the third repeat, for everybody.
DRIFT = (1.0, 1.1, 3.0, 1.05, 0.95, 1.0)
JITTER = (
    (1.0, 1.01, 0.99, 1.02, 1.0, 0.98),
    (0.99, 1.0, 1.02, 1.0, 1.01, 0.99),
    (1.02, 0.97, 1.0, 1.01, 0.98, 1.0),
)


def launch(cell, repeat, seconds, **others):
    """`seconds`: message -> of its slowest rank's median round."""
    results = {
        name: {
            "first_s": 10 * value,
            "rounds_s": [value, 0.5 * value, 3 * value],
            "ranks_s": [[value, 0.5 * value, value], [0.9 * value, 0.4 * value, 3 * value]],
        }
        for name, value in seconds.items()
    }
    attempt = {"command": [], "returncode": 0, "seconds": 5.0, "peak_bytes": {"worker": 10**9}}
    attempts = [{**attempt, "others": 0.0, "start_up_s": None, "agreement_s": None}]
    return {
        **cell._asdict(), "repeat": repeat, "results": results, "wrong": {}, "failures": {}, "notes": [],
        "attempts": attempts, **others,
    }  # fmt: skip


def launches_of(factors, repeats=6):
    """Milliseconds of a backend: its factor, the repeat's drift and a jitter of its own."""
    return [
        launch(
            Cell(key, 2),
            repeat,
            {
                message.name: 1e-3 * factor * DRIFT[repeat] * JITTER[place][repeat]
                for message in MESSAGES
            },
        )
        for place, (key, factor) in enumerate(factors.items())
        for repeat in range(repeats)
    ]  # fmt: skip


def cells_of(*keys):
    return [Cell(key, 2) for key in keys]


def shown(directory, *measured):
    """Writes the report; the text for a terminal."""
    report = report_of(FACTS, *measured)
    report.write(directory)
    return report.terminal


def test_figures_by_hand():
    cells = cells_of("hvd_mpi", "byteps")
    launches = [
        launch(cells[0], 0, {"64KB": 1e-3}),
        launch(cells[0], 1, {"64KB": 4e-3}),
        launch(cells[1], 0, {"64KB": 2e-3}),
        launch(cells[1], 1, {"64KB": 2e-3}),
    ]
    found = evaluate(cells, MESSAGES, launches, {}, 0.95).rows
    own = found[Place(2, "64KB", "hvd_mpi")]
    assert own["samples_s"] == {0: 1e-3, 1: 4e-3} and own["ratio"] is None
    assert own["latency_s"] == pytest.approx((2.5e-3, 1.75e-3, 3.25e-3, 1e-3, 4e-3))
    assert own["algorithm_bytes_per_s"] == own["bus_bytes_per_s"] == pytest.approx(65536 / 2.5e-3)
    assert own["first_s"].median == pytest.approx(25e-3)
    # Within the repeats 2 and 0.5; not the ratio of the medians.
    ratio = found[Place(2, "64KB", "byteps")]["ratio"]
    assert (ratio.median, ratio.least, ratio.most) == (1.25, 0.5, 2.0)
    assert {place.message for place, row in found.items() if "latency_s" in row} == {"64KB"}


def test_bandwidth_by_hand():
    """10^9 bytes in half a second: 2 GB/s. In a ring of 4 a rank sends 2 * 3/4 of that, of 2 just as much, of
    64 nearly twice."""
    assert bus_bandwidth(10**9, 0.5, 2) == 2e9
    assert bus_bandwidth(10**9, 0.5, 4) == 3e9
    assert bus_bandwidth(10**9, 0.5, 64) == pytest.approx(3.9375e9)


def test_verdicts_meet_the_drift_within_the_repeat():
    cells = cells_of("hvd_mpi", "hvd_gloo", "byteps")
    outcome = evaluate(
        cells, MESSAGES, launches_of({"hvd_mpi": 1.0, "hvd_gloo": 1.0, "byteps": 1.3}), {}, 0.95
    )
    found = {(pair.group.message, pair.first, pair.second): pair for pair in outcome.pairs}
    assert len(found) == 6
    for message in MESSAGES:
        assert found[message.name, "hvd_mpi", "byteps"].faster == "hvd_mpi"
        assert found[message.name, "hvd_mpi", "hvd_gloo"].verdict == "equal within 5%"
    text = terminal(*tables_of(MESSAGES, outcome, FACTS["titles"]))
    assert text.count("Horovod, MPI is faster") == 3 and text.count("equal within 5%") == 3
    few = evaluate(cells, MESSAGES, launches_of({"hvd_mpi": 1.0, "hvd_gloo": 1, "byteps": 2}, 4), {}, 0.95)
    assert {pair.verdict for pair in few.pairs} == {"too few repeats"}


def test_wrong_once_is_wrong(tmp_path):
    """One wrong element in one launch: the reason, no figure at that size, no verdict anywhere."""
    cells = cells_of("hvd_mpi", "byteps")
    launches = launches_of({"hvd_mpi": 1.0, "byteps": 0.2})
    launches[8]["wrong"] = {"1MB": "rank 1, round 3: element 17 is 5 instead of 2.5 (1 of 262,144 are wrong)"}
    del launches[8]["results"]["1MB"]
    outcome = evaluate(cells, MESSAGES, launches, {}, 0.95)
    known = [
        place.message for place, row in outcome.rows.items() if "ratio" in row and place.backend == "byteps"
    ]
    assert known == ["64KB", "10x64KB"]
    assert outcome.pairs == []
    text = shown(tmp_path, cells, MESSAGES, launches, {}, True)
    assert "BytePS with 2 ranks is wrong at 1MB: rank 1, round 3: element 17 is 5 instead of 2.5" in text
    assert "faster" not in text
    row = next(line for line in text.splitlines() if "wrong: rank 1" in line)
    assert row.partition("wrong:")[0].split() == ["BytePS"]


def test_failed_and_left_out_have_reasons_and_no_figures(tmp_path):
    cells = cells_of("hvd_mpi", "byteps")
    launches = launches_of({"hvd_mpi": 1.0, "byteps": 1.0})
    launches[7]["failures"] = {"64KB": "exit code 1: rank 1: gone"}
    left_out = {cells[1]: {"10x64KB": "left out: needs about 9.0 GiB, 2.0 GiB are available"}}
    for each in launches[6:]:
        del each["results"]["10x64KB"]
    launches[3]["notes"] = ["after the last message: exit code 1"]
    text = shown(tmp_path, cells, MESSAGES, launches, left_out, True)
    assert "failed: exit code 1: rank 1: gone" in text and "left out: needs about 9.0 GiB" in text
    assert "Horovod, MPI, 2 ranks, repeat 4: after the last message: exit code 1" in text
    written = json.loads((tmp_path / "messages.json").read_text())
    rows = {(row["backend"], row["message"]): row for row in written["figures"]}
    assert "latency_s" not in rows["byteps", "64KB"] and "latency_s" not in rows["byteps", "10x64KB"]
    assert {(pair["group"]["message"], pair["second"]) for pair in written["pairs"]} == {("1MB", "byteps")}


def test_files_hold_everything(tmp_path):
    cells = cells_of("hvd_mpi", "byteps")
    launches = launches_of({"hvd_mpi": 1.0, "byteps": 1.3})
    launches[5]["attempts"] = [{**launches[5]["attempts"][0], "others": share} for share in (0.03, 0.78)]
    shown(tmp_path, cells, MESSAGES, launches, {}, True)
    written = json.loads((tmp_path / "messages.json").read_text())
    assert written["complete"] and written["machine"] == FACTS["machine"] and len(written["launches"]) == 12
    assert written["launches"][0]["results"]["64KB"]["ranks_s"][1][2] == pytest.approx(3e-3)
    row = next(row for row in written["figures"] if (row["backend"], row["message"]) == ("byteps", "1MB"))
    expected = statistics.median(1.3e-3 * a * b for a, b in zip(DRIFT, JITTER[1]))
    assert row["latency_s"]["median"] == pytest.approx(expected)
    assert row["algorithm_bytes_per_s"] == pytest.approx(2**20 / expected)
    text = (tmp_path / "messages.md").read_text()
    mark = "1 of 12 launches on a busy machine"
    assert written["busy"] == mark and text.splitlines()[2].startswith("MEASURED ON A BUSY MACHINE. While ")
    assert f"2 ranks ({mark})" in text and "at most 78%" in text
    assert "slower at 64KB, 1MB, 10x64KB." in text and "Holm" in text and "| 10x64KB | BytePS |" in text
    assert "Partial" not in text and "python compare.py --output" in text
    assert (tmp_path / "messages.png").read_bytes().startswith(b"\x89PNG")
    behind = samples_behind((tmp_path / "messages.html").read_text())
    assert [verdict for verdict, _ in behind] == ["Horovod, MPI is faster"] * 3
    sample = 1.3e-3 * DRIFT[2] * JITTER[1][2]
    assert [float(each[2]) for each in (rows[2] for _, rows in behind)] == pytest.approx(
        [sample] * 3, rel=1e-4
    )


@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_partial_report_is_valid(tmp_path, count):
    cells = cells_of("hvd_mpi", "byteps")
    launches = launches_of({"hvd_mpi": 1.0, "byteps": 1.3})[:count]
    text = shown(tmp_path, cells, MESSAGES, launches, {}, False)
    assert f"Partial: {count} of 12 launches are done" in text and ("not measured yet" in text) == (count < 7)
    assert not json.loads((tmp_path / "messages.json").read_text())["complete"]
    assert (tmp_path / "messages.png").exists() == (count > 0)


def test_start_up_and_agreement(tmp_path):
    """Of the launches' first start; a backend that was wrong has none, nor one that never came to its end."""
    cells = cells_of("hvd_mpi", "hvd_gloo", "byteps")
    launches = launches_of({"hvd_mpi": 1.0, "hvd_gloo": 2.0, "byteps": 1.0}, repeats=3)
    for place, each in enumerate(launches):
        ended = each["backend"] != "hvd_gloo"
        own = {"start_up_s": 2.0 + place, "agreement_s": 0.001 if ended else None}
        each["attempts"] = [{**each["attempts"][0], **own}, {**each["attempts"][0], "start_up_s": 90.0}]
    launches[-1]["wrong"] = {"64KB": "element 0 is 2 instead of 1"}
    text = shown(tmp_path, cells, MESSAGES, launches, {}, True)
    (start,) = json.loads((tmp_path / "messages.json").read_text())["starts"]
    assert (start["backend"], start["start_up_s"]["median"], start["start_up_s"]["most"]) == ("hvd_mpi", 3, 4)
    (line,) = (line for line in text.splitlines() if line.startswith("2      Horovod, MPI"))
    assert "3.00 (2.00 to 4.00)" in line
    assert line.endswith("1.00") and "Start-up, and agreement" in (tmp_path / "messages.md").read_text()
