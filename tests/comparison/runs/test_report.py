"""report.md, report.json, plots and the terminal's text, from records that nobody measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.container import ErrorbarContainer

import comparison.report
from comparison.runs.plots import breakdown_figure
from comparison.runs.record import Record
from comparison.runs.report import report_of
from comparison.runs.results import gather
from comparison.settings import Setting, all_settings
from tests.comparison.synthetic import (
    FACTS,
    default_settings,
    failed,
    loss_at,
    profiled,
    record,
    whole_comparison,
)
from tests.pages import checked, look_at, samples_behind

PLOTS = {"throughput.png", "scaling.png", "breakdown.png", "losses.png"}
PRICED = {**FACTS, "price_per_hour": 31.2, "gpus_per_instance": 8}
REPEATS = 7


def written(directory, records, planned=None, repeats=REPEATS, complete=True, facts=FACTS, page=False):
    """The report, its Markdown, its JSON. `page`: with the pictures in its page too, each drawn once more."""
    planned = default_settings() if planned is None else planned
    report, _ = report_of(facts, records, planned, repeats, complete)
    with pytest.MonkeyPatch.context() as patch:
        if not page:
            patch.setattr(comparison.report, "as_svg", lambda figure, name: "")
        paths = report.write(directory)
    assert set(paths) == set(directory.iterdir())
    assert all(each.read_bytes().startswith(b"\x89PNG\r\n") for each in paths if each.suffix == ".png")
    # What JSON does not have must not come back as Python's NaN.
    text = (directory / "report.json").read_text(encoding="utf-8")
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in report.json"))
    return report, (directory / "report.md").read_text(encoding="utf-8"), content


def table(markdown, title):
    """Rows of a table as lists of cells, its head first."""
    section = markdown.split(f"### {title}\n", 1)[1]
    lines = [line for line in section.split("\n### ")[0].splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert {len(row) for row in rows} == {len(rows[0])}
    return [rows[0], *rows[2:]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    return (directory, *written(directory, whole_comparison(REPEATS), facts=PRICED, page=True))


def test_a_page_leads_from_every_verdict_to_its_samples(whole):
    directory, report, markdown, content = whole
    text = (directory / "report.html").read_text(encoding="utf-8")
    checked(text)
    rows = table(markdown, "Which is faster")[1:]
    behind = samples_behind(text)
    assert [verdict for verdict, _ in behind] == [row[-1] for row in rows]
    known = {
        tuple(each["setting"].values()): each["figures"]["samples"] for each in content["results"]
    }  # backend, workers, dtype, batch size
    for pair, (_, samples) in zip(content["pairs"], behind):
        for place, name in ((1, pair["first"]), (2, pair["second"])):
            expected = known[(name, *pair["group"].values())]
            assert [int(row[0]) for row in samples] == [1 + int(each) for each in expected]
            taken = [float(row[place]) for row in samples]
            assert taken == pytest.approx([*expected.values()], rel=1e-5)
        assert float(samples[0][3]) == pytest.approx(float(samples[0][2]) / float(samples[0][1]), rel=1e-3)


def test_a_page_in_a_browser(whole, tmp_path):
    """Every plot has marks, a column sorts by its values, nothing is wider than a phone."""
    seen = look_at(whole[0] / "report.html", tmp_path)
    assert seen.console == []
    for frame in seen.frames:
        assert frame["overflow"] == 0 and len(frame["marks"]) == len(PLOTS) and min(frame["marks"]) >= 8
        rates = [float(cell.replace(",", "")) for cell in frame["columns"][5][2]]
        assert rates == sorted(rates) and len(rates) == 24 and frame["opened"] == 1


def test_the_first_sentences_say_who_is_faster_where(whole):
    _, report, markdown, content = whole
    first = markdown.split("\n\n")[1]
    where = "in 4 of 8 settings (4 of 4 with 2 workers)"
    assert first.startswith(f"Horovod, MPI is faster than BytePS {where}, 1.")
    assert "in the other 4 equal within 5%" in first
    assert "Equal within 5%: Horovod, MPI and Horovod, Gloo." in markdown
    assert content["summary"][0] == first
    assert report.terminal.rstrip().endswith(content["summary"][-1])


def test_the_speed_table_has_the_medians(whole):
    _, report, markdown, content = whole
    rows = table(markdown, "Speed")
    assert rows[0][:4] == ["workers", "dtype", "tokens a worker", "backend"]
    assert len(rows) == 25
    for row, result in zip(rows[1:], content["results"]):
        values = sorted(result["figures"]["samples"].values())
        assert float(row[4].split()[0]) == pytest.approx(values[len(values) // 2], rel=6e-3)
        assert row[4].split()[0] in report.terminal
        assert row[-1] == "7 of 7"


def test_every_figure_that_is_wanted_has_a_column(whole):
    _, report, markdown, _ = whole
    for title, columns in (
        ("Speed", "s/step (quartiles) | tokens/s | with padding | sequences/s | launches"),
        ("Which is faster", "A | B | B's time / A's | p | repeats | verdict"),
        ("Communication", "under way, ms | hidden, ms | exposed, ms | exposed share | profiles"
                          " | a rank hands over | a worker sends | servers send"),
        ("Start-up and memory", "memory of a worker | memory of a server | memory of a scheduler"),
        ("Scaling", "speed-up (quartiles) | efficiency"),
        ("Time to finish both stages", "steps | stage 1 | stage 2 | both stages | cost"),
    ):  # fmt: skip
        assert " | ".join(table(markdown, title)[0]).endswith(f" | {columns}")
        assert f"\n{title}\n" in f"\n{report.terminal}"


def test_the_tables_of_the_field_are_there(whole):
    _, _, markdown, content = whole
    wide = table(markdown, "n GPUs × precision × batch size, examples/s")
    assert wide[0][3:] == ["Horovod, MPI", "Horovod, Gloo", "BytePS"] and len(wide) == 9
    time = table(markdown, "Instance, GPUs, steps, throughput, train time")
    assert [time[0][0], *time[0][4:]] == ["instance", "GPUs", "steps", "sequences/s", "train time"]
    assert len(time) == 25 and time[1][0] == "Example CPU"
    nodes = table(markdown, "Nodes, time per step, expansion, speed-up")
    assert nodes[0][3:] == ["nodes", "time per step, s", "expansion", "speed-up"]
    for one, two in zip(nodes[1::2], nodes[2::2]):
        assert (one[3], two[3], one[5]) == ("1", "2", "1.000")
        assert one[:3] == two[:3]
        assert float(two[5]) == pytest.approx(float(two[6]) / 2, rel=0.01)
        assert 0 < float(two[5]) < 1 < float(two[6]) < 2
    assert "Expansion: speed-up ÷ nodes, the scaling efficiency relative to one node" in markdown
    scaling = content["results"][-1]["figures"]["scaling"]
    assert scaling["expansion"]["median"] == scaling["efficiency"] == scaling["speed_up"]["median"] / 2
    assert content["results"][0]["figures"]["finish"]["cost"] > 0


def test_the_communication_table_has_medians_with_their_extremes(whole):
    _, _, markdown, _ = whole
    rows = table(markdown, "Communication")
    assert rows[1][4:9] == ["0", "0", "0", "0%", "3"]  # one worker
    assert rows[-1][3:9] == ["BytePS", "50 (45 to 400)", "10 (9 to 80)", "40 (36 to 320)",
                             "44% (42% to 86%)", "3"]  # fmt: skip
    assert "medians over so many profiles, in brackets least and greatest" in markdown


def test_the_report_says_what_was_run_where_and_how_verdicts_come_about(whole):
    _, _, markdown, content = whole
    for words in ("Example CPU", "mxnet: 1.9.1", "python compare.py --output 'runs/a directory'",
                  "mpirun -np 2 python run_pretraining_hvd.py", "Holm",
                  "With 1 and 2 workers, on CPUs and with gradients that travel uncompressed",
                  "the SHA-256 of the parameters that rank 0 has saved after the last step",
                  "relative difference of backends that agree, of losses: none; of gradient norms: none.",
                  "no difference shown\", which does not say that there is none"):  # fmt: skip
        assert words in markdown
    assert content["rule"] in markdown and content["compared"] in markdown
    for name in PLOTS:
        assert f"]({name})" in markdown


def test_the_json_has_every_launch_as_it_was(whole):
    _, _, _, content = whole
    records = whole_comparison(REPEATS)
    assert [Record.from_json(each) for each in content["launches"]] == records
    assert content["facts"]["machine"]["cpu"] == "Example CPU" and content["complete"] is True
    assert len(content["pairs"]) == 24
    pair = content["pairs"][-1]
    assert pair["group"] == {"workers": 2, "dtype": "bfloat16", "batch_size": 1024}
    assert pair["faster"] == "hvd_gloo" and pair["verdict"] == "different"
    figures = content["results"][-1]["figures"]
    breakdown = figures["breakdown"]
    assert breakdown["launches"] == 3 and breakdown["exposed_share"]["median"] == pytest.approx(40 / 90.5)
    assert breakdown["exposed_ms"] == {"median": 40, "low": 38, "high": 180, "least": 36, "most": 320}
    assert breakdown["parts"]["optimizer"]["median"] == 12.0
    assert figures["traffic"] == {"handed": 4_200_000, "worker": 4_200_000, "servers": 8_400_000}
    stages = figures["finish"]["stages"]
    assert figures["finish"]["seconds"] == pytest.approx(sum(each["seconds"] for each in stages))


def damaged():
    """The default comparison with a crash, a wrong backend, one out of memory and one that did not run."""
    settings = default_settings()
    kept = []
    for each in whole_comparison(REPEATS):
        place = settings.index(each.setting)
        if each.kind == "timed":
            if place == 0 and each.repeat == 3:
                each = failed(each.setting, 3, "rank 1: RuntimeError: a | b")
            if place == 14:
                each = record(each.setting, each.repeat, 0.001, scale=1.01, from_step=20)
            if place == 11:
                each = failed(each.setting, each.repeat, "std::bad_alloc", True)
        if place != 6:
            kept.append(each)
    return settings, kept


def test_what_went_wrong_has_a_reason_and_no_number_anywhere(tmp_path):
    settings, records = damaged()
    report, markdown, content = written(tmp_path, records)
    rows = table(markdown, "Speed")[1:]
    expected = {
        0: "failed: rank 1: RuntimeError: a \\| b (in 1 of 7 launches)",
        6: "not run yet",
        11: "out of memory: std::bad_alloc (in 7 of 7 launches)",
        14: f"wrong: losses differ (first at step 30: mlm_loss {loss_at(30) * 1.01:.4g} instead of"
        f" {loss_at(30):.4g})",
    }
    for place, row in enumerate(rows):
        if place in expected:
            assert row[4].replace("7.2050", "7.205").replace("7.1337", "7.134") == expected[place]
            assert set(row[5:]) == {"–"}
            assert content["results"][place]["figures"] is None
        else:
            assert content["results"][place]["kind"] == "ok"
    for title, columns in (
        ("Communication", 8), ("Start-up and memory", 4), ("Time to finish both stages", 4),
    ):  # fmt: skip
        for place in expected:
            assert not any(re.search(r"\d", cell) for cell in table(markdown, title)[1 + place][-columns:])
    wrong = settings[14]
    compared = [(pair["first"], pair["second"]) for pair in content["pairs"]
                if pair["group"] == wrong.group._asdict()]  # fmt: skip
    assert compared == [("hvd_mpi", "hvd_gloo")]
    words = "Wrong, without figures: BytePS (2 workers, float32, 512 tokens: losses differ)."
    assert words in markdown
    assert table(markdown, "Start-up and memory")[1 + 14][4] == "losses differ"
    assert "Out of memory: BytePS (1 worker, bfloat16, 1,024 tokens)." in markdown
    assert "Failed: Horovod, MPI (1 worker, float32, 512 tokens)." in markdown
    assert "RuntimeError: a | b" in report.terminal


def test_every_table_says_what_differs(tmp_path):
    words = "gradient norms differ"
    planned = [Setting(each, 2, "float32", 512) for each in ("hvd_mpi", "byteps")]
    records = [record(setting, repeat) for setting in planned for repeat in range(5)]
    for place, each in enumerate(records):
        if each.setting.backend == "byteps":
            lines = [one._replace(grad_norm=2 * one.grad_norm) for one in each.intervals]
            records[place] = replace(each, intervals=tuple(lines))
    _, markdown, content = written(tmp_path, records, planned, 5)
    row = next(row for row in table(markdown, "Start-up and memory") if row[3] == "BytePS")
    assert row[4] == content["results"][-1]["differs"] == words
    for title in ("Instance, GPUs, steps, throughput, train time", "Time to finish both stages"):
        assert words in {cell for row in table(markdown, title) for cell in row}
    where = f"2 workers, float32, 512 tokens: {words}"
    start = "Backends differ and no majority says which is right, without figures: "
    assert f"{start}Horovod, MPI ({where}), BytePS ({where})." in content["summary"]


def test_a_partial_report_is_whole_in_form_and_says_so(tmp_path):
    records = [each for each in whole_comparison(3) if each.kind == "timed"][: 24 + 24 + 10]
    report, markdown, content = written(tmp_path, records, repeats=5, complete=False)
    sentence = "PARTIAL: 58 of 120 timed launches are done; the same command goes on."
    assert markdown.split("\n\n")[1] == sentence == content["summary"][0]
    assert sentence in report.terminal
    assert {row[-1] for row in table(markdown, "Which is faster")[1:]} == {"too few repeats"}
    assert {row[-1] for row in table(markdown, "Speed")[1:]} == {"2 of 5", "3 of 5"}
    assert "### Communication" not in markdown and not (tmp_path / "breakdown.png").exists()


@pytest.mark.parametrize("count", [0, 1])
def test_a_report_after_no_or_one_launch(tmp_path, count):
    records = whole_comparison(1)[:count]
    report, markdown, content = written(tmp_path, records, repeats=5, complete=False)
    assert f"PARTIAL: {count} of 120" in markdown
    assert "there is nothing to compare" in markdown
    assert content["pairs"] == []
    assert sum(each["kind"] == "not run" for each in content["results"]) == 24 - count
    assert len(table(markdown, "Speed")) == 25


def test_everything_failed(tmp_path):
    records = [failed(setting, 0, "no such host") for setting in default_settings()]
    report, markdown, _ = written(tmp_path, records)
    assert "Failed: Horovod, MPI (everywhere), Horovod, Gloo (everywhere), BytePS (everywhere)." in markdown
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "report.html", "report.json"}


def test_backends_of_others_have_their_names(tmp_path):
    settings = [Setting(name, 2, "float32", 8) for name in ("hvd_mpi", "mine")]
    records = [record(setting, repeat) for setting in settings for repeat in range(5)]
    facts = {**FACTS, "titles": {**FACTS["titles"], "mine": "My exchange"}, "use_avg_len": False}
    _, markdown, _ = written(tmp_path, records, settings, 5, facts=facts)
    assert "Equal within 5%: Horovod, MPI and My exchange." in markdown
    assert "sequences a worker" in markdown
    assert "256 tokens a worker cannot hold one sequence of 512, which stage 2 has." in markdown
    assert not (tmp_path / "scaling.png").exists()


def test_a_group_of_one_backend_is_called_unchecked(tmp_path):
    setting = Setting("byteps", 2, "float32", 512)
    records = [record(setting, repeat) for repeat in range(5)]
    _, markdown, _ = written(tmp_path, records, [setting], 5)
    assert "No second backend to compare with: byteps-2x-float32-512." in markdown


@pytest.mark.parametrize("repeats", [1, 2])
def test_whiskers_axes_and_marks_of_few_launches(tmp_path, repeats):
    """One launch has no spread to draw, and a short run no half steps on its axis. Where other programs took
    much of the machine during some launches, every figure says so."""
    settings = all_settings(("hvd_mpi", "byteps"), (1, 2), ("float32",), (512,))
    records = [
        record(setting, repeat, 0.07 + 0.01 * repeat, others=0.78 * repeat)
        for setting in settings
        for repeat in range(repeats)
    ]
    short = [
        replace(each, warm_up=(), intervals=tuple(i._replace(step=i.step // 2) for i in each.intervals[:3]))
        for each in records
    ]
    report, markdown, content = written(tmp_path, short, settings, repeats, page=True)
    named = {Path(name).stem: figure for name, figure in report.pictures.items() if figure}
    for name in ("throughput", "scaling"):
        bars = [
            each
            for axes in named[name].axes
            for each in axes.containers
            if isinstance(each, ErrorbarContainer)
        ]
        assert len(bars) == (4 if repeats > 1 else 0)
    assert f"Too few repeats for verdicts: {repeats}; it takes 5." in markdown
    assert ("one launch" in named["throughput"]._suptitle.get_text()) == (repeats == 1)
    for axes in named["losses"].axes:
        assert all(float(tick).is_integer() for tick in axes.get_xticks())
    mark = "4 of 8 launches on a busy machine" if repeats > 1 else ""
    titles = [line for line in markdown.splitlines() if line.startswith("### ")]
    assert content["facts"]["busy"] == mark and all(
        line.endswith(f" ({mark})") == bool(mark) for line in titles
    )
    assert all(figure._suptitle.get_text().endswith(f"\n{mark}") == bool(mark) for figure in named.values())
    assert not mark or (tmp_path / "report.html").read_text("utf-8").count(f">{mark}</text>") == len(named)
    assert content["summary"][0].startswith("MEASURED ON A BUSY MACHINE. ") == bool(mark)
    assert ("other programs took 0.0%" in content["summary"][-1]) == (not mark)


# the bars and whiskers of the breakdown

BACKENDS = ("hvd_mpi", "hvd_gloo", "byteps")
COMPUTING = 50.5  # ms of a profiled step


def drawn(exposed: dict[Setting, list[float]]):
    """The axes of the figure for these milliseconds of exposed communication, a value for each profile."""
    records = [record(setting, repeat) for setting in exposed for repeat in range(5)]
    for setting, values in exposed.items():
        records += [profiled(setting, value, 1.0, repeat) for repeat, value in enumerate(values)]
    figure = breakdown_figure(gather(FACTS, records, list(exposed)))
    return None if figure is None else figure.axes[0]


def ends(axes, number: int) -> list[float]:
    """Of the bars, from the top."""
    found = [0.0] * number
    for container in axes.containers:
        if len(container) == number and hasattr(container, "patches"):
            for place, patch in enumerate(container.patches):
                found[place] = max(found[place], patch.get_x() + patch.get_width())
    return found


def whiskers(axes) -> list[tuple[float, float]]:
    return [tuple(segment[:, 0]) for lines in axes.collections for segment in lines.get_segments()]


def settings(batch_size: int = 512) -> list[Setting]:
    return [Setting(backend, 2, "float32", batch_size) for backend in BACKENDS]


def test_bars_are_medians_and_whiskers_go_from_the_fastest_to_the_slowest():
    first, second, third = settings()
    axes = drawn({first: [10, 14, 12], second: [20, 20, 20], third: [30, 31, 38]})
    assert ends(axes, 3) == pytest.approx([COMPUTING + each for each in (12, 20, 31)])
    expected = [(10, 14), (20, 20), (30, 38)]
    assert np.array(whiskers(axes)) == pytest.approx(COMPUTING + np.array(expected))
    words = [text.get_text() for text in axes.texts]
    assert words == ["19% (17% to 22%) exposed", "28% (28% to 28%) exposed", "38% (37% to 43%) exposed"]
    assert "median of 3 profiled launches" in axes.get_title()


def test_a_launch_that_stalled_does_not_squeeze_the_others():
    first, second, third = settings()
    axes = drawn({first: [10, 12, 11], second: [20, 9000, 21], third: [15, 15, 16]})
    longest = COMPUTING + 21
    assert ends(axes, 3)[1] == pytest.approx(longest)
    assert whiskers(axes)[1] == pytest.approx((COMPUTING + 20, 1.25 * longest))  # cut
    assert axes.get_xlim()[1] < 2 * longest
    assert axes.texts[1].get_text().startswith("→ 9,050 ms; ")


def test_a_setting_that_stalled_every_time_is_cut_and_says_its_length():
    first, second, third = settings()
    axes = drawn({first: [10] * 3, second: [9000, 8000, 8500], third: [15] * 3})
    limit = 3 * (COMPUTING + 15)
    assert ends(axes, 3) == pytest.approx([COMPUTING + 10, limit, COMPUTING + 15])
    assert axes.get_xlim()[1] < 1.6 * limit
    assert axes.texts[1].get_text() == "→ 8,550 to 9,050 ms; 99% (99% to 99%) exposed"


def test_long_steps_of_another_group_are_no_outliers():
    small, large = settings(), settings(4096)
    axes = drawn({**{each: [5.0] * 3 for each in small}, **{each: [900.0] * 3 for each in large}})
    assert ends(axes, 6) == pytest.approx([COMPUTING + 5] * 3 + [COMPUTING + 900] * 3)


def test_one_profile_has_no_whisker():
    (first, *_) = settings()
    axes = drawn({first: [10.0]})
    assert whiskers(axes) == [] and axes.get_title().endswith("one profiled launch")
    assert [text.get_text() for text in axes.texts] == ["17% exposed"]
    assert drawn({first: []}) is None
