"""compare.py --merge: reports of earlier comparisons over each other, as their own code writes them."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path

import pytest

from base.errors import InputError
from compare import main
from comparison.backends import BACKENDS
from comparison.emulation import report as emulation
from comparison.emulation.plan import Group, Scale
from comparison.emulation.plan import Setting as EmulatedSetting
from comparison.messages.plan import Cell, parse_messages
from comparison.messages.report import report_of as messages_report
from comparison.report import as_json, write_text
from comparison.runs.report import report_of
from comparison.settings import Setting, all_settings
from tests.comparison import synthetic
from tests.comparison.emulation.test_emulation import launch_of
from tests.comparison.messages.test_report import launch as sent

MPI, BYTEPS = (Setting(name, 2, "float32", 512) for name in ("hvd_mpi", "byteps"))
OPTIONS = {"repeats": 5, "output": "runs/x", "dry_run": False}


def facts_of(commit="abc1234", **changes):
    where = {**synthetic.FACTS["machine"], "commit": commit}
    return {**synthetic.FACTS, "machine": where, "options": {**OPTIONS}, **changes}


def times(base, repeats=5, spread=0.01):
    """Launches' seconds per step, with a geometric mean of `base` where their number is odd."""
    return [base * math.exp(spread * (each - (repeats - 1) / 2)) for each in range(repeats)]


def saved(folder, report):
    """The folder's name; it has the report's JSON and no pictures."""
    folder.mkdir(parents=True)
    write_text(folder / f"{report.name}.json", as_json(report.content))
    return str(folder)


def runs(folder, samples, failures=(), complete=True, others=0.0, **facts):
    """The report of training runs in `folder`. `samples`: seconds of each launch by setting."""
    records = [
        synthetic.record(setting, repeat, seconds, others=others)
        for setting, values in samples.items()
        for repeat, seconds in enumerate(values)
    ]
    records += [synthetic.failed(setting, 0, "exit code 3: no such luck") for setting in failures]
    return saved(folder, report_of(facts_of(**facts), records, [*samples, *failures], 5, complete)[0])


def merged(output, *words):
    """Exit code and content."""
    code = main(["--merge", *map(str, words), "--output", str(output)], BACKENDS)
    content = json.loads((output / "merged.json").read_text("utf-8"))
    assert content["outcome"]["code"] == code
    return code, content


def test_two_commits_side_by_side(tmp_path, capsys):
    # A folder may have a backend's name: the verdict has its own, as the column does.
    first = runs(tmp_path / "byteps", {MPI: times(0.07), BYTEPS: times(0.1)})
    second = runs(tmp_path / "new", {MPI: times(0.07), BYTEPS: times(0.13, 7)}, commit="def5678")
    code, content = merged(tmp_path / "out", first, second)
    assert code == 0 and content["kind"] == "training runs"
    verdicts = {pair["group"]["setting"][-1]: pair for pair in content["pairs"]}
    assert verdicts["BytePS"]["ratio"] == pytest.approx(1.3) and verdicts["BytePS"]["repeats"] == 5
    assert verdicts["BytePS"]["verdict"] == "different" and verdicts["BytePS"]["faster"] == "byteps"
    assert verdicts["Horovod, MPI"]["verdict"] == "equal within 5%"
    assert content["outcome"]["verdicts"] == {"equal within 5%": 1, "different": 1}
    text = (tmp_path / "out" / "merged.md").read_text("utf-8")
    (row,) = (line for line in text.splitlines() if line.startswith("| 2 | float32 | 512 | BytePS |"))
    assert row.count("byteps is faster") == 1 and "| 100 (98 to 102) | 130 (126 to 134) | 1.300 (1.2" in row
    assert "| commit | abc1234 | def5678 |" in text and "| cpu | Example CPU | Example CPU |" in text
    assert "busy" not in text.replace("| busy | – | – |", "") and "partial" not in text
    ratio = statistics.geometric_mean([1.0, 1.3])
    assert f"takes {ratio:.3f} times as long" in capsys.readouterr().out
    assert (tmp_path / "out" / "merged.png").read_bytes().startswith(b"\x89PNG")


def test_repeats_of_two_reports_are_not_paired(tmp_path):
    """The order of the launches of one of them does not matter."""
    first = runs(tmp_path / "a", {MPI: times(0.07, spread=0.1)})
    second = runs(tmp_path / "b", {MPI: times(0.08, spread=0.1)})
    third = runs(tmp_path / "c", {MPI: times(0.08, spread=0.1)[::-1]})
    _, content = merged(tmp_path / "out", first, second, third)
    one, other = content["pairs"]
    assert one["p"] == pytest.approx(other["p"]) and one["verdict"] == "no difference shown"


def test_what_was_busy_partial_failed_or_not_there_is_said(tmp_path):
    first = runs(tmp_path / "a", {MPI: times(0.07)})
    second = runs(tmp_path / "b", {MPI: times(0.07)}, failures=[BYTEPS], complete=False, others=0.4)
    code, content = merged(tmp_path / "out", first, second)
    assert code == 0 and not content["outcome"]["complete"]
    text = (tmp_path / "out" / "merged.md").read_text("utf-8")
    assert "| b (busy), ms |" in text and "MEASURED ON A BUSY MACHINE: b (5 of 5" in text
    assert "b is partial." in text
    (row,) = (line for line in text.splitlines() if line.startswith("| 2 | float32 | 512 | BytePS |"))
    assert row.endswith("| – | failed | – | – |")
    assert "b, 2 float32 512 BytePS: failed: exit code 3: no such luck." in text


def test_a_regression_fails(tmp_path, capsys):
    first = runs(tmp_path / "a", {MPI: times(0.07), BYTEPS: times(0.1)})
    second = runs(tmp_path / "b", {MPI: times(0.0714), BYTEPS: times(0.115)})  # by 2 and 15%
    assert merged(tmp_path / "out", first, second, "--fail_if_slower", "20")[0] == 0
    code, content = merged(tmp_path / "out", first, second, "--fail_if_slower", "10")
    failed = "b, 2 float32 512 BytePS: slower by more than 10%"
    assert code == 1 and content["outcome"]["failed"] == [failed]
    assert f"FAILED by --fail_if_slower 10: {failed}." in capsys.readouterr().out
    assert merged(tmp_path / "out", second, first, "--fail_if_slower", "0")[0] == 0  # it is faster


def test_a_setting_that_fails_where_it_did_not_is_a_regression(tmp_path):
    first = runs(tmp_path / "a", {MPI: times(0.07), BYTEPS: times(0.1)})
    second = runs(tmp_path / "b", {MPI: times(0.07)}, failures=[BYTEPS])
    _, content = merged(tmp_path / "out", first, second, "--fail_if_slower", "10")
    assert content["outcome"]["failed"] == ["b, 2 float32 512 BytePS: failed: exit code 3: no such luck"]
    third = runs(tmp_path / "c", {MPI: times(0.07)})  # one that was not asked for is none
    assert merged(tmp_path / "out", first, third, "--fail_if_slower", "10")[0] == 0


def messages(folder, factor):
    cells, sizes = [Cell("hvd_mpi", 2), Cell("byteps", 2)], parse_messages(["64KB", "1MB"], "float32")
    launches = [
        sent(cell, repeat, {each.name: factor * (1e-3 + 1e-5 * repeat) for each in sizes})
        for cell in cells
        for repeat in range(5)
    ]
    launches[-1]["wrong"] = {"1MB": "rank 1, round 0"}
    facts = facts_of(dtype="float32", repeats=5)
    return saved(folder, messages_report(facts, cells, sizes, launches, {}, True))


def emulated(folder, factor):
    setting = EmulatedSetting("byteps", "separate:n", Group(2, 25.0, "1MB", "float16", 1, "none"))
    launches = [launch_of(setting, repeat, factor * (0.02 + 1e-4 * repeat)) for repeat in range(5)]
    facts = facts_of(scale=Scale(100, 10), repeats=5, launches=5, cluster={"title": "p3dn"})
    return saved(folder, emulation.report_of(facts, {setting: None}, launches, True))


def test_messages_over_each_other(tmp_path):
    words = [messages(tmp_path / "a", 1.0), Path(messages(tmp_path / "b", 2.0)) / "messages.json"]
    _, content = merged(tmp_path / "out", *words)
    assert content["kind"] == "communication alone"
    found = {tuple(each["group"]["setting"]): each for each in content["pairs"]}
    assert found.keys() == {
        ("2", "64KB", "float32", "Horovod, MPI"),
        ("2", "1MB", "float32", "Horovod, MPI"),
    }
    assert all(each["ratio"] == pytest.approx(2.0) for each in found.values())
    text = (tmp_path / "out" / "merged.md").read_text("utf-8")  # who is wrong once has no verdict
    assert "BytePS: wrong: rank 1, round 0." in text and "64KB float32 BytePS: wrong with another" in text


def test_emulated_clusters_over_each_other(tmp_path):
    _, content = merged(tmp_path / "out", emulated(tmp_path / "a", 1.0), emulated(tmp_path / "b", 0.5))
    (pair,) = content["pairs"]
    assert pair["group"]["setting"] == ["2", "25", "1MB, float16", "BytePS separate:n"]
    assert pair["ratio"] == pytest.approx(0.5) and pair["verdict"] == "different"


def test_what_cannot_be_merged_is_one_line_that_names_it(tmp_path):
    good = runs(tmp_path / "good", {MPI: times(0.07, 4)})
    (tmp_path / "empty").mkdir()
    whole = (Path(good) / "report.json").read_text()
    for name, text in (
        ("cut", '{"complete": tru'),
        ("foreign", '{"complete": true}'),
        ("list", "[]"),
        ("negative", re.sub(r'("samples": {\s*"0": )', r"\1-", whole)),
        ("no_text", whole.replace('"reason": ""', '"reason": 0')),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(text)
    both = messages(tmp_path / "both", 1.0)
    (tmp_path / "both" / "report.json").write_text("{}")
    large = runs(tmp_path / "large", {MPI: times(0.07)}, model="bert_12_768_12")
    other = all_settings(["hvd_gloo"], [2], ["float32"], [512])
    apart = runs(tmp_path / "apart", {each: times(0.07) for each in other})
    for words, said in (
        ([good, tmp_path / "none"], "none: neither a folder nor one of report.json"),
        ([good, tmp_path / "empty"], "empty: holds no report.json"),
        ([good, tmp_path / "cut"], "cut/report.json: not JSON"),
        ([good, tmp_path / "foreign"], "foreign/report.json: damaged, or no report"),
        ([good, tmp_path / "list"], "list/report.json: not a JSON object"),
        ([good, tmp_path / "negative"], "negative/report.json: damaged, or no report"),
        ([good, tmp_path / "no_text"], "no_text/report.json: damaged, or no report"),
        ([good, both], "both: holds report.json and messages.json; name one"),
        ([good, f"{both}/messages.json"], "messages.json: kind is communication alone, that of"),
        ([good, large], "large/report.json: model is bert_12_768_12, that of"),
        ([good, good], "--merge: name two reports or more, each once"),
        ([good], "--merge: name two reports or more"),
        ([good, apart, "--fail_if_slower", "5"], "--fail_if_slower: no setting has 5 launches"),
        ([good, apart, "--repeats", "3"], "--repeats: is not for --merge"),
        ([good, apart, "--raw"], "--raw: is not for --merge"),
        ([good, apart, "--comm_only"], "--comm_only and --merge exclude each other"),
    ):
        with pytest.raises(InputError) as error:
            merged(tmp_path / "out", *words)
        assert said in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="--fail_if_slower: is an option of --merge"):
        main(["--fail_if_slower", "5"], BACKENDS)
