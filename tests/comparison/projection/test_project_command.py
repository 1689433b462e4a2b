"""`compare.py --project`: what it prints and writes, which options it takes and refuses."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import re
import shlex
from pathlib import Path

import pytest

from base.errors import InputError
from compare import main
from comparison.backends import BACKENDS
from comparison.options import parse_options
from comparison.projection.command import pipelines_of, plan_of
from comparison.projection.model import project
from comparison.projection.pipelines import project_pipeline
from comparison.projection.report import projection_figure
from comparison.projection.validation import validate
from comparison.projection.workload import bert_parts, read_measured
from comparison.report import Report, plain
from comparison.runs.record import Record
from comparison.settings import Setting
from tests.comparison.synthetic import PADDED, SEQUENCES, profiled, record
from tests.processes import ROOT


def plan(*words: str):
    return plan_of(parse_options(["--project", *words], BACKENDS))


@pytest.fixture(scope="module")
def default_run(tmp_path_factory):
    """Output of a run without options, the directory that it writes, and its report."""
    directory, reports = tmp_path_factory.mktemp("project") / "deep" / "er", []
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as shown:
        write = Report.write
        patch.setattr(Report, "write", lambda report, folder: reports.append(report) or write(report, folder))
        assert main(["--project", "--output", str(directory)]) == 0
    (report,) = reports
    return shown.getvalue(), directory, report


def test_the_default_run(default_run):
    shown, directory, _ = default_run
    assert "bert_24_1024_16, 336.2 M parameters, 672 MB of gradients that travel during" in shown
    assert "Batch: 64 sequences of 128 tokens a GPU. Precision: computing and gradients in float16." in shown
    assert "Flat ring" in shown and "Hierarchical ring" in shown and "BytePS" in shown
    assert "communicating ms  of it exposed ms  waiting ms" in shown
    pictures = ("projection.png", "projection_validation.png")
    texts = (f"projection.{kind}" for kind in ("html", "json", "md"))
    assert {path.name for path in directory.iterdir()} == {*texts, *pictures}
    for name in pictures:
        assert (directory / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    content = json.loads((directory / "projection.json").read_text("utf-8"))
    assert content["outcome"]["code"] == 0 and content["outcome"]["complete"]
    assert [each["gpus"] for each in content["projections"]] == 3 * [2**power for power in range(11)]
    assert (content["workload"]["sequences"], content["workload"]["length"]) == (64, 128)
    assert content["workload"]["gradient_dtype"] == content["workload"]["compute_dtype"] == "float16"
    assert content["workload"]["gradient_bytes"] == 2 * 336_226_108
    # As many as Hugging Face's BertForPreTraining has, bert-large-uncased; below bert-base-uncased.
    assert sum(part["elements"] for part in content["workload"]["parts"]) == 336_226_108
    assert len(content["validation"]) == 46
    one = content["projections"][0]
    assert one["sequences_per_s"] == pytest.approx(171.52)
    for each in content["projections"]:
        parts = [each[name] for name in ("compute_s", "exposed_s", "waiting_s", "optimizer_s")]
        assert each["step_s"] == pytest.approx(sum(parts))
        assert each["sequences_per_s"] == pytest.approx(each["gpus"] * 64 / each["step_s"])
        assert each["tokens_per_s"] == pytest.approx(128 * each["sequences_per_s"])
        assert each["efficiency"] == pytest.approx(each["sequences_per_s"] / each["gpus"] / 171.52)
    text = (directory / "projection.md").read_text("utf-8")
    last = content["projections"][10]
    assert f"| 1024 | 128 | {last['step_s']:.3f} |" in text
    assert "64 sequences of 128 tokens a GPU, computing and gradients in float16. Grey: " in text
    assert "## Where it must fail" in text and "](projection_validation.png)" in text


@functools.cache
def validated():
    return validate()


def figure_of(*words: str):
    made = plan(*words)
    found = {
        each.title: [project(made.workload, each, made.cluster, gpus) for gpus in made.gpus]
        for each in made.strategies
    }
    return projection_figure(made, found, validated()), [each for own in found.values() for each in own]


def test_strategies_can_be_told_apart_in_the_picture(default_run):
    """Lines whose predictions differ by 1% or more are some pixels from each other."""
    report = default_run[-1]
    figure, found = report.pictures["projection.png"], report.content["projections"]
    figure.draw_without_rendering()
    for axes, field in zip(figure.axes, ("efficiency", "without_overlap")):
        lines = {line.get_label(): line for line in axes.get_lines() if line.get_label() != "linear"}
        assert set(lines) == {each.title for each in found}
        pixels = {title: axes.transData.transform(line.get_xydata()) for title, line in lines.items()}
        shares = {title: [getattr(e, field) for e in found if e.title == title] for title in lines}
        apart = 0
        for one, other in itertools.combinations(lines, 2):
            for place in range(len(shares[one])):
                assert lines[one].get_ydata()[place] == pytest.approx(100 * shares[one][place])
                if abs(shares[one][place] - shares[other][place]) > 0.01:
                    apart += 1
                    assert abs(pixels[one][place][1] - pixels[other][place][1]) > 5
        assert apart > 5


def test_the_band_in_the_picture_is_the_error_of_the_validation():
    figure, found = figure_of("--gpus", "1", "8", "64")
    off_by = {"efficiency": (0.020, 0.364), "without_overlap": (-0.161, 0.150)}
    for axes, field in zip(figure.axes, off_by):
        (band,) = axes.collections
        assert band.get_label() in [text.get_text() for text in figure.legends[0].get_texts()]
        corners = band.get_paths()[0].vertices
        assert set(corners[:, 0]) == {8, 64}, "one GPU is calibrated, not predicted"
        least, most = off_by[field]
        for gpus in (8, 64):
            shares = [100 * getattr(each, field) for each in found if each.gpus == gpus]
            reached = corners[corners[:, 0] == gpus][:, 1]
            assert reached.min() == pytest.approx(min(shares) / (1 + most), rel=1e-3)
            assert reached.max() == pytest.approx(max(shares) / (1 + least), rel=1e-3)


@pytest.mark.parametrize(
    ("words", "batch", "precision"),
    [
        (
            ["--batch_size", "8", "--max_seq_length", "512", "--accumulate", "4"],
            "8 sequences of 512 tokens a GPU, 4 passes a step",
            "computing and gradients in float16",
        ),
        (
            ["--compute_s", "0.1", "--gradient_dtype", "float32", "--overlap", "none"],
            "64 sequences of 128 tokens a GPU",
            "computing in a precision that --compute_s leaves open, gradients in float32",
        ),
    ],
)
def test_batch_and_precision_are_stated(words, batch, precision):
    made = plan(*words)
    assert (made.batch, made.precision) == (batch, precision)
    assert made.workload.dtype == (None if "--compute_s" in words else "float16")
    figure, _ = figure_of(*words, "--gpus", "1", "8")
    assert any(f"{batch}; {precision}" in text.get_text() for text in figure.texts)
    panels = ["gradients travel during the backward pass", "gradients travel after the backward pass"]
    assert [axes.get_title() for axes in figure.axes] == (panels[1:] if "--overlap" in words else panels)


def test_options_change_what_they_name():
    base = plan()
    assert (base.model, base.gradient_dtype, base.cluster.name) == ("bert_24_1024_16", "float16", "p3dn")
    assert base.workload.overlap and base.workload.accumulate == 1
    words = (
        "--cluster dlperf --gpus_per_host 4 --intra_gbps 80 --inter_gbps 25 --network_efficiency 0.5"
        " --intra_latency_us 1 --inter_latency_us 2 --fusion_mb 16 --cycle_ms 0 --partition_bytes 1000000"
        " --overlap none --model bert_12_768_12 --max_seq_length 256 --accumulate 3 --batch_size 7"
        " --vocab_size 1000 --compute_s 0.5 --optimizer_s 0.25 --gradient_dtype float32"
        " --strategies byteps --servers 3 --server_placement mixed --gpus 12 4"
    )
    changed = plan(*words.split())
    cluster = changed.cluster
    assert (cluster.gpus_per_host, cluster.fusion_mb, cluster.cycle_ms) == (4, 16.0, 0.0)
    assert cluster.intra_bytes_s(2) == cluster.intra_bytes_s(4) == 10e9
    assert cluster.inter_bytes_s == 25e9 / 16
    assert (cluster.intra_latency_us, cluster.inter_latency_us, cluster.partition_bytes) == (1, 2, 1_000_000)
    work = changed.workload
    assert (work.compute_s, work.optimizer_s, work.gradient_bytes) == (0.5, 0.25, 4)
    assert (work.sequences, work.length, work.accumulate, work.overlap) == (7, 256, 3, False)
    assert work.elements == 110_106_428 - 29_522 * 769
    (strategy,) = changed.strategies
    assert (strategy.servers, strategy.placement) == (3, "mixed")
    assert changed.gpus == [4, 12]
    assert "intra_gbps" in changed.given and "memory_gbytes_s" not in changed.given


def test_the_documented_commands(tmp_path):
    """Those of docs/projection.md are taken as they stand; one names a report, which is made here."""
    text = (ROOT / "docs" / "projection.md").read_text("utf-8")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    commands = [shlex.split(line) for block in blocks for line in block.strip().split("\n")]
    measured, found = report(tmp_path, [record(ALONE)]), []
    for command in commands:
        assert command[:3] == [".venv/bin/python", "compare.py", "--project"]
        words = [measured if word == "runs/comparison/report.json" else word for word in command[2:]]
        options = parse_options(words, BACKENDS)
        made, pipelines = plan_of(options), pipelines_of(options)
        found.append([each.placement for each in pipelines])
        if pipelines:
            assert project_pipeline(made.workload, pipelines[1], made.cluster, made.gpus[-1]).step_s > 0
        else:
            assert made.gpus[-1] >= 256
            assert project(made.workload, made.strategies[-1], made.cluster, made.gpus[-1]).step_s > 0
    assert found == [[]] * 4 + [["intra_first", "inter_first"]] * 2


def test_numbers_of_gpus_fit_the_hosts():
    assert plan().gpus == [2**power for power in range(11)]
    six = plan("--gpus_per_host", "6").gpus
    assert six[:4] == [1, 2, 4, 6] and six[-1] <= 1024 and all(n <= 6 or n % 6 == 0 for n in six)
    assert plan("--gpus_per_host", "1").gpus == [2**power for power in range(11)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus", "8", "8"], "--gpus: a number is named twice"),
        (["--gpus", "12"], "--gpus 12: does not fill hosts of 8 GPUs"),
        (["--gpus", "99999999"], "--gpus 99999999: at most"),
        (["--strategies", "byteps", "byteps"], "--strategies: one is named twice"),
        (["--strategies", "flat_ring", "--servers", "2"], "--servers is of BytePS"),
        (["--model", "bert_base"], "--model bert_base"),
        (["--model", "bert_9999_9984_16"], "too many to simulate"),
        (["--partition_bytes", "1"], "too many to simulate"),
        (["--servers", "1000000"], "--servers 1000000: 1,000,000 servers of BytePS are too many to simulate"),
        (["--gpus", "1048576"], "--gpus 1048576: 131,072 servers of BytePS are too many"),
        (["--cluster", "university", "--gradient_dtype", "float16"], "--gradient_dtype float16"),
        (["--measured", "/none/report.json"], "/none/report.json: cannot be read: No such file"),
    ],
)
def test_bad_values_are_one_line(tmp_path, words, message):
    with pytest.raises(InputError) as error:
        main(["--project", "--output", str(tmp_path / "out"), *words])
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_an_output_that_is_a_file_stays_as_it_is(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(InputError, match="--output"):
        main(["--project", "--gpus", "1", "--output", str(path)])
    assert path.read_text() == "mine"


ALONE = Setting("hvd_mpi", 1, "float32", 512)
TWO = ALONE._replace(workers=2)


def report(tmp_path: Path, records: list[Record], **facts) -> str:
    path = tmp_path / "report.json"
    known = {"model": "bert_2_128_2", "vocab_size": 4096, "accumulate": 2, **facts}
    path.write_text(json.dumps({"facts": known, "launches": [plain(each) for each in records]}))
    return str(path)


def test_a_measured_step(tmp_path):
    breakdown = {"parts": {"optimizer": {"ms": 20.0, "share": 0.25}}}
    path = report(
        tmp_path,
        [
            *(record(ALONE, repeat, step_s) for repeat, step_s in enumerate((0.07, 0.08, 0.5))),
            record(ALONE._replace(batch_size=256), 0, 0.04),  # a smaller batch
            record(TWO, 0, 0.3),  # communicates
            record(ALONE, 3, 0.001, failure="exit code 1"),
            profiled(ALONE, breakdown=breakdown),
        ],
    )
    bert, step = read_measured(path)
    assert (bert.name, step.accumulate) == ("bert_2_128_2", 2)
    assert step.parts == bert_parts(bert, vocab_size=4096)
    assert step.optimizer_s == pytest.approx(0.02)
    assert step.compute_s == pytest.approx(0.03)  # (0.08 - 0.02) / 2 passes
    assert step.sequences == pytest.approx(SEQUENCES / 2)  # of a pass
    assert step.length == pytest.approx(PADDED / SEQUENCES)
    made = plan("--measured", path, "--gpus_per_host", "1", "--inter_gbps", "1")
    assert made.workload.gradient_bytes == 4
    half = plan("--measured", path, "--gradient_dtype", "float16")
    assert half.precision == "computing in float32, gradients in float16"
    assert made.workload.backward_ends_s == pytest.approx(0.06)
    for flag in ("--model=bert_2_128_2", "--batch_size=8", "--compute_s=1", "--max_seq_length=32"):
        with pytest.raises(InputError, match="and --measured exclude each other"):
            plan("--measured", path, flag)
    assert plan("--measured", path, "--accumulate", "1").workload.backward_ends_s == pytest.approx(0.03)


def test_a_measured_step_without_a_profile_is_all_compute(tmp_path):
    _, found = read_measured(report(tmp_path, [record(ALONE, 0, 0.08)], accumulate=None))
    assert (found.optimizer_s, found.accumulate) == (0.0, 1)
    assert found.compute_s == pytest.approx(0.08)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "not a JSON object"),
        (b'{"launches": 3}', "not the report.json"),
        (b'{"facts": {}, "launches": [{}]}', "not the report.json"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_what_is_no_report_is_rejected(tmp_path, content, message):
    path = tmp_path / "report.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_measured(str(path))
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_a_report_without_a_single_worker_is_rejected(tmp_path):
    with pytest.raises(InputError, match="no finished launch of one worker"):
        read_measured(report(tmp_path, [record(TWO)]))
    for step_s, message in ((0.0, "no time or no sequences"), (None, "not the report"), ("1", "not the rep")):
        lines = tuple(each._replace(step_s=step_s) for each in record(ALONE).intervals)
        with pytest.raises(InputError, match=message):
            read_measured(report(tmp_path, [record(ALONE, intervals=lines)]))
    with pytest.raises(InputError, match="no time or no sequences"):
        read_measured(report(tmp_path, [record(ALONE)], accumulate=-1))
