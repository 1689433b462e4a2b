"""Rank 0's files and output: metrics.jsonl, TensorBoard events, the plot, a bar or lines."""

from __future__ import annotations

import io
import json
import math
import os
import re
import resource
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest
from tqdm import tqdm

from base.errors import TrainingError
from base.progress import Printed
from tasks.base import Floors
from tests.processes import LIMIT, ROOT
from tests.training.tiny import TASK, Heard
from training import report
from training.metrics import finite_or_none
from training.report import Ending, RunReporter, Span, plot_losses, read_metrics, summarize


def training(step: int, **changes: Any) -> dict[str, Any]:
    return {
        **{"step": step, "mlm_loss": 7.5 - step / 100, "nsp_loss": 0.7, "mlm_acc": 0.125, "nsp_acc": 0.5},
        **{"lr": 1e-3 * step, "grad_norm": 1.5, "loss_scale": 1.0, "tokens_per_s": 12345.6},
        **{"padded_tokens_per_s": 20000.0, "sequences_per_s": 100.0, "step_s": 0.25, "skipped_steps": 0},
        **changes,
    }


def evaluation(step: int, **changes: Any) -> dict[str, Any]:
    return {
        **{"step": step, "eval_mlm_loss": 6.5, "eval_nsp_loss": 0.6, "eval_mlm_acc": 0.25},
        **{"eval_nsp_acc": 0.75, "eval_sequences": 1234, "eval_s": 2.5, **changes},
    }


def reported(directory: Path, *lines: dict[str, Any], start_step: int = 0, progress: str = "none") -> None:
    reporter = RunReporter(str(directory), TASK, Span(start_step, 100), progress)
    for line in lines:
        (reporter.evaluation if "eval_s" in line else reporter.training)(line)
    reporter.close()


def strict(line: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(line, parse_constant=refuse)


class TestMetricsFile:
    def test_one_json_object_a_line(self, tmp_path):
        nothing = training(20, mlm_loss=None, grad_norm=finite_or_none(math.nan))
        written = [training(10), evaluation(10), nothing]
        reported(tmp_path, *written)
        lines = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        assert [strict(line) for line in lines] == written == read_metrics(str(tmp_path))

    def test_nan_is_never_written(self, tmp_path):
        reporter = RunReporter(str(tmp_path), TASK, Span(0, 100), "none")
        with pytest.raises(ValueError):
            reporter.training(training(10, mlm_loss=math.nan))
        reporter.close()
        assert (tmp_path / "metrics.jsonl").read_text() == ""
        assert finite_or_none(math.inf) is None and finite_or_none(1.5) == 1.5

    @pytest.mark.parametrize("name", ["metrics.jsonl", "tensorboard/events*"])
    def test_a_full_disk_is_one_line(self, tmp_path, name):
        """Of either file; closing says nothing more."""
        reporter = RunReporter(str(tmp_path), TASK, Span(0, 100), "none")
        reporter.training(training(10))
        (path,) = tmp_path.glob(name)
        limit = path.stat().st_size + 10
        if path.name != "metrics.jsonl":
            (tmp_path / "metrics.jsonl").write_text("")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(TrainingError, match=r"metrics.jsonl cannot be written: .*--resume continues"):
                reporter.training(training(20))
            reporter.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    def test_resuming_drops_what_is_run_again(self, tmp_path):
        reported(tmp_path, training(10), training(20), evaluation(20), training(30), evaluation(40))
        with open(tmp_path / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"step": 50, "mlm_lo')  # killed while writing
        reported(tmp_path, training(30, mlm_loss=1.0), training(40), start_step=20)
        assert read_metrics(str(tmp_path)) == [
            *(training(10), training(20), evaluation(20)),
            *(training(30, mlm_loss=1.0, resumed_at=20), training(40)),
        ]
        for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
            strict(line)
        assert sorted(path.name for path in tmp_path.glob("metrics*")) == ["metrics.jsonl"]

    def test_a_new_run_moves_the_old_file_aside(self, tmp_path):
        reported(tmp_path)  # an empty file needs no keeping
        for loss in (3.0, 2.0, 1.0):
            reported(tmp_path, training(10, mlm_loss=loss))
        assert read_metrics(str(tmp_path)) == [training(10, mlm_loss=1.0)]
        kept = {path.suffix: strict(path.read_text()) for path in tmp_path.glob("metrics.jsonl.*")}
        assert kept == {".1": training(10, mlm_loss=3.0), ".2": training(10, mlm_loss=2.0)}


def events(directory: Path) -> Iterator[Any]:
    """The events of all event files: records of length, checksum, protocol buffer, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted(directory.glob("events.out.tfevents.*")):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event()
            event.ParseFromString(content[12 : 12 + length])
            yield event
            content = content[12 + length + 4 :]


class TestTensorBoard:
    def test_every_number_is_a_scalar(self, tmp_path):
        reported(tmp_path, training(10), training(20, grad_norm=None), evaluation(20))
        found = {
            (value.tag, event.step): value.simple_value
            for event in events(tmp_path / "tensorboard")
            for value in event.summary.value
        }
        evaluated = {name.replace("_", "/", 1): value for name, value in evaluation(20).items()}
        expected = {
            (name if name.startswith("eval/") else f"train/{name}", line["step"]): value
            for line in (training(10), training(20, grad_norm=None), evaluated)
            for name, value in line.items()
            if name != "step" and value is not None
        }
        assert found == pytest.approx(expected, rel=1e-6)
        assert ("train/grad_norm", 10) in found and ("train/grad_norm", 20) not in found

    def test_a_resumed_run_withdraws_the_steps_that_it_repeats(self, tmp_path):
        reported(tmp_path, training(10), training(20))
        reported(tmp_path, training(20), start_step=10)
        starts = [
            event.step
            for event in events(tmp_path / "tensorboard")
            if event.HasField("session_log") and event.session_log.status == 1
        ]
        assert starts[-1] == 11, "TensorBoard drops what an earlier file has from this step on"


class TestPlot:
    def picture(self, path: str) -> np.ndarray:
        from matplotlib import image

        with open(path, "rb") as file:
            assert file.read(8) == b"\x89PNG\r\n\x1a\n"
        return image.imread(path)

    def test_a_png_that_shows_the_losses(self, tmp_path):
        pictures = []
        for slope in (0.01, 0.05):
            run = tmp_path / str(slope)
            run.mkdir()
            lines = [training(step, mlm_loss=7 - slope * step) for step in range(10, 101, 10)]
            reported(run, *lines, evaluation(50), evaluation(100))
            path = plot_losses(str(run), TASK.panels(Floors(6.0)))
            assert path == str(run / "loss.png")
            pictures.append(self.picture(path))
        assert pictures[0].shape == pictures[1].shape and min(pictures[0].shape[:2]) > 300
        assert pictures[0][..., :3].std() > 0.01
        assert (pictures[0] != pictures[1]).any(), "other losses give another picture"
        assert not list(tmp_path.rglob("*.tmp"))

    def test_the_lines_of_floors(self, tmp_path):
        reported(tmp_path, training(10), training(20))
        without = self.picture(plot_losses(str(tmp_path), TASK.panels(Floors())))
        one = self.picture(plot_losses(str(tmp_path), TASK.panels(Floors(7.45))))
        both = self.picture(plot_losses(str(tmp_path), TASK.panels(Floors(7.45, 7.35))))
        assert (without != one).any() and (one != both).any()

    def test_a_single_point_can_be_seen(self, tmp_path):
        reported(tmp_path, training(10, nsp_loss=None))
        one = self.picture(plot_losses(str(tmp_path), TASK.panels(Floors())))
        colours = {tuple(colour) for colour in np.round(one[..., :3].reshape(-1, 3), 1)}
        assert any(max(colour) - min(colour) > 0.3 for colour in colours), "only grey"

    @pytest.mark.filterwarnings("error")
    def test_nothing_to_plot_is_no_error(self, tmp_path, caplog):
        nothing = training(10, mlm_loss=None, nsp_loss=None)
        reported(tmp_path, nothing)
        self.picture(plot_losses(str(tmp_path), TASK.panels(Floors())))
        assert not caplog.records, "of matplotlib"


class TestTerminal:
    CODE = "from training.report import launching_terminal; print(launching_terminal())"
    PARENT = (
        "import subprocess, sys\n"
        "command = [sys.executable, '-c', sys.argv[1]]\n"
        "print(subprocess.run(command, capture_output=True, text=True).stdout.strip())"
    )

    def found(self, arguments: list[str], stderr: Any, rank_in: str | None = None) -> str:
        """The result of launching_terminal in a process of its own."""
        environment = {name: value for name, value in os.environ.items() if name not in report.LAUNCHED}
        if rank_in is not None:
            environment[rank_in] = "0"
        given = {"cwd": ROOT, "env": environment, "timeout": LIMIT, "text": True, "stderr": stderr}
        return subprocess.check_output([sys.executable, "-c", *arguments], **given).strip()

    @pytest.mark.parametrize("rank_in", ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "BYTEPS_LOCAL_RANK"])
    def test_its_own_its_launchers_or_none(self, tmp_path, rank_in):
        master, terminal = os.openpty()
        try:
            name = os.ttyname(terminal)
            assert self.found([self.CODE], terminal) == name
            # As under mpirun or srun --mpi=pmix: a pipe of its own, the terminal is the launcher's.
            assert self.found([self.PARENT, self.CODE], terminal, rank_in) == name
            # As under a shell with `2>&1 | tee log`.
            assert self.found([self.PARENT, self.CODE], terminal) == "None"
        finally:
            os.close(terminal)
            os.close(master)
        with open(tmp_path / "log", "w") as log:
            assert self.found([self.CODE], log) == "None"
            assert self.found([self.PARENT, self.CODE], log, rank_in) == "None"

    def test_a_bar_on_a_terminal(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr(report, "launching_terminal", lambda: "/dev/pts/not-there")
        reporter = RunReporter(str(tmp_path), TASK, Span(10, 100), "auto")
        reporter.note("a note")
        for step in range(11, 31):
            reporter.advance(step)
        reporter.training(training(30))
        reporter.close()
        shown = capsys.readouterr()
        assert shown.out == "", "beside a bar everything goes to the bar's own stream"
        assert "a note\n" in shown.err and "nsp_acc" not in shown.err, "no lines of metrics beside the bar"
        assert "30/100" in shown.err and "mlm 7.200" in shown.err and "tokens/s" in shown.err

    def test_lines_in_a_log(self, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr(report, "launching_terminal", lambda: None)
        reporter = RunReporter(str(tmp_path), TASK, Span(0, 100), "auto")
        reporter.advance(10)
        reporter.training(training(10, mlm_acc=None))
        reporter.evaluation(evaluation(10))
        reporter.warn("careful")
        reporter.close()
        shown = capsys.readouterr()
        first, second = shown.out.splitlines()
        assert first.startswith("step 10/100  mlm_loss 7.400  mlm_acc -  nsp_loss 0.700")
        assert "12,346 tokens/s" in first and "0.25 s/step" in first
        assert second.startswith("evaluation at step 10: mlm_loss 6.500") and "1,234 sequences" in second
        assert shown.err == "warning: careful\n"

    def test_a_bar_of_the_data_ends_above_that_of_the_run(self, monkeypatch):
        """Nothing is left on the terminal of the longer line that was there before."""
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda: True)
        run, data = tqdm(total=5, ncols=90, file=stream), Printed(stream)
        data.begin("computing checksums", 1000)
        data.update(1000, {})
        data.end()
        run.close()
        lines, row, column = [""] * 9, 0, 0
        for text in re.findall(r"\x1b\[A|[\r\n]|[^\x1b\r\n]+", stream.getvalue()):
            if text in ("\x1b[A", "\n"):
                row += 1 if text == "\n" else -1
            column = 0 if text == "\r" else column
            if text[0] not in "\x1b\r\n":
                lines[row] = lines[row].ljust(column)[:column] + text + lines[row][column + len(text) :]
                column += len(text)
        assert lines[0].startswith("computing checksums: 100%") and lines[0].count("]") == 1
        assert "0/5" in lines[1]

    @pytest.mark.parametrize("progress", ["bar", "lines", "none"])
    def test_an_explicit_choice_wins_and_hours_take_the_place_of_steps(
        self, tmp_path, capsys, monkeypatch, progress
    ):
        monkeypatch.setattr(report, "launching_terminal", lambda: None if progress == "bar" else "/dev/pts/x")
        reporter = RunReporter(str(tmp_path), TASK, Span(0, None), progress)
        reporter.advance(10)
        reporter.training(training(10, mfu=0.4321, budget_left_s=3661.0))
        reporter.close()
        shown = capsys.readouterr()
        for said, mfu, kind in ((shown.err, "mfu 43%", "bar"), (shown.out, "mfu 43.2%", "lines")):
            assert ("1:01:01 left" in said) == (mfu in said) == (progress == kind)
            assert "/None" not in said
        assert shown.out.startswith("step 10  mlm_loss") == (progress == "lines")


class TestSummary:
    def closing_lines(self, directory: Path, floors: Floors, *lines: dict[str, Any]) -> str:
        reported(directory, *lines)
        reporter = Heard()
        summarize(TASK, str(directory), Ending(100, floors), reporter)
        return "\n".join(reporter.notes)

    def test_how_far_the_run_has_come(self, tmp_path, monkeypatch):
        monkeypatch.setattr(report, "plot_losses", plot_losses)  # again
        said = self.closing_lines(tmp_path, Floors(), training(10), training(100), evaluation(100))
        assert "7.400 at step 10 -> 6.500 at step 100" in said
        assert "held-out text: MLM loss 6.500, accuracy 25.0%" in said
        assert "context" not in said, "no floor is known, and no gain"
        assert str(tmp_path / "0000100.params") in said and str(tmp_path / "loss.png") in said
        assert (tmp_path / "loss.png").stat().st_size > 1000

    def test_a_single_log_interval_is_said_once(self, tmp_path):
        said = self.closing_lines(tmp_path, Floors(), training(1, mlm_loss=9.041))
        assert "MLM loss 9.041 at step 1; NSP loss 0.700\n" in said and "->" not in said

    def test_pairs_from_a_later_interval_on(self, tmp_path):
        """As of a run that began with --single_sentences and was resumed without."""
        said = self.closing_lines(
            tmp_path, Floors(), training(10, nsp_loss=None, nsp_acc=None), training(100)
        )
        assert "MLM loss 7.400 at step 10 -> 6.500 at step 100\n" in said

    @pytest.mark.parametrize(
        ("error", "difference", "shown"),
        [
            (0.01, "0.250 below the least (two standard errors: 0.020)", True),
            (0.124, "0.250 below the least (two standard errors: 0.248)", True),
            (0.126, "0.250 below the least (two standard errors: 0.252)", False),
            (None, "0.250 below the least (too few samples for a margin of error)", False),
        ],
    )
    def test_context_is_claimed_only_beyond_two_standard_errors(self, tmp_path, error, difference, shown):
        held_out = evaluation(100, eval_mlm_loss_se=error)
        said = self.closing_lines(tmp_path, Floors(3.0, 6.75), training(10), training(100), held_out)
        assert "has an MLM loss of at least 6.750 nats on the held-out text.\n" in said
        assert f"The held-out MLM loss, 6.500, is {difference}: " in said
        assert ("the model uses context." in said) == shown
        assert ("use of context is not shown." in said) != shown
        assert "training text" not in said, "the held-out loss is the one to judge by"

    @pytest.mark.parametrize(
        ("gain", "error", "margin", "shown"),
        [
            (0.3, 0.14, "two standard errors: 0.280", True),
            (0.3, 0.16, "two standard errors: 0.320", False),
            (0.004, 0.001, "two standard errors: 0.002", False),
            (-0.3, 0.01, "two standard errors: 0.020", False),
            (0.3, None, "too few batches for a margin of error", False),
        ],
    )
    def test_the_gain_of_context_decides_where_it_is_known(self, tmp_path, gain, error, margin, shown):
        found = {"eval_context_gain": gain, "eval_context_gain_se": error, "eval_mlm_loss_se": 0.01}
        for floors in (Floors(6.0, 6.75, 7.1), Floors(6.0, 6.25, 7.1), Floors()):
            said = self.closing_lines(tmp_path, floors, training(10), evaluation(100, **found))
            cost = f"cost {6.5 + gain:.3f}: context gain {gain:.3f} nats ({margin}): the model uses"
            assert (cost in said) == shown
            assert said.count("context is not shown.") == (not shown) and said.count("uses context.") == shown
            text = "at least 6.750 nats on the held-out text, of 7.100 by the training text's frequencies."
            assert (text in said) == (floors.held_out == 6.75)

    def test_without_held_out_text_the_training_loss_is_judged_on_its_own_text(self, tmp_path):
        line = training(100, mlm_loss_se=0.01)
        said = self.closing_lines(tmp_path, Floors(6.75, None), training(10), line)
        assert "at least 6.750 nats on the training text.\n" in said
        assert "The MLM loss of the last log interval, 6.500, is 0.250 below the least" in said
        assert "the model uses context." in said
        # Held-out files with masks: their text is not known.
        (tmp_path / "masks").mkdir()
        held_out = evaluation(100, eval_mlm_loss=3.0, eval_mlm_loss_se=0.01)
        said = self.closing_lines(tmp_path / "masks", Floors(6.0, None), line, held_out)
        assert "interval, 6.500, is 0.500 above the least" in said and "not shown" in said

    def test_an_evaluation_of_an_earlier_step_is_not_this_runs(self, tmp_path):
        lines = (training(50), evaluation(50, eval_mlm_loss_se=0.01), training(100))
        said = self.closing_lines(tmp_path, Floors(6.0, 6.75), *lines)
        assert "held-out" not in said and "on the training text" in said

    def test_no_metrics_at_all(self, tmp_path):
        assert "0000100.params" in self.closing_lines(tmp_path, Floors(6.0))


class TestStages:
    """Lines, plot and closing sentences of a run of two stages."""

    LINES = (
        training(1, stage=1), training(2, stage=1), evaluation(2, stage=1, eval_mlm_loss=6.0),
        evaluation(2, stage=2, eval_mlm_loss=6.5, eval_mlm_loss_se=0.03), training(3, stage=2),
        evaluation(3, stage=2, eval_mlm_loss=6.25, eval_mlm_loss_se=0.04),
    )  # fmt: skip

    def write(self, directory: Path) -> None:
        (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in self.LINES))

    @pytest.mark.parametrize(
        ("span", "kept"),
        [
            (Span(1, 2, 1, 0), 1),  # stage 1 goes on
            (Span(2, 2, 1, 0), 3),  # it has ended, and is evaluated again
            (Span(2, 3, 2, 2), 3),  # stage 2 begins, perhaps again
            (Span(3, 3, 2, 2), 6),  # it has ended
        ],
    )
    def test_lines_that_a_stage_follows(self, span, kept, tmp_path):
        self.write(tmp_path)
        RunReporter(str(tmp_path), TASK, span, "none").close()
        assert read_metrics(str(tmp_path)) == list(self.LINES[:kept])

    def test_lines_and_evaluations_name_the_stage(self, tmp_path, capsys):
        reporter = RunReporter(str(tmp_path), TASK, Span(2, 9, 2, 2), "lines")
        reporter.training(training(3, stage=2))
        reporter.evaluation(evaluation(3, stage=2))
        reporter.close()
        said = capsys.readouterr().out
        assert "stage 2, step 3/9  " in said and "stage 2, evaluation at step 3: " in said

    def test_the_plot_has_the_boundary(self, tmp_path, monkeypatch):
        from matplotlib.axes import Axes

        self.write(tmp_path)
        drawn: list[tuple[float, str]] = []
        original = Axes.axvline

        def axvline(axes: Axes, x: float, **options: Any) -> Any:
            drawn.append((x, options["label"]))
            return original(axes, x, **options)

        monkeypatch.setattr(Axes, "axvline", axvline)
        plot_losses(str(tmp_path), TASK.panels(Floors()))
        assert drawn == [(2, "stage 2 begins")] * 2, "in both panels"

    def test_what_stage_2_brought(self, tmp_path):
        ending = Ending(3, Floors(), 2, 64)
        lines = [line for line in self.LINES if line["stage"] == 2]
        brought = (
            "Stage 2 brought mlm_loss on held-out text of 64 tokens from 6.500 (step 2) to 6.250: 0.250 less "
        )
        assert report.brought_by_stage_2(TASK, lines, ending) == brought + "(no margin of error)."
        assert report.brought_by_stage_2(TASK, lines, ending._replace(stage=1)) is None
        assert report.brought_by_stage_2(TASK, lines[:1], ending) is None
        assert report.brought_by_stage_2(TASK, lines[:-1], ending) is None
        # Sequences differ far more than what stage 2 has brought to them.
        counts, before = np.arange(1.0, 33), np.arange(1.0, 33) * np.tile([4.0, 9.0], 16)
        change = counts * np.tile([0.2, 0.3], 16)
        parts = [{"loss": each.tolist(), "count": counts.tolist()} for each in (before, before - change)]
        evaluations = [{**lines[0], "eval_parts": parts[0]}, {**lines[-1], "eval_parts": parts[1]}]
        mean = change.sum() / counts.sum()
        error = math.sqrt(32 / 31 * ((change - mean * counts) ** 2).sum()) / counts.sum()
        margin = f"(two standard errors of the pairs: {2 * error:.3f})."
        assert report.brought_by_stage_2(TASK, evaluations, ending) == brought + margin
        parts[1]["count"] = parts[1]["count"][::-1]  # of other text
        assert report.brought_by_stage_2(TASK, evaluations, ending) == brought + "(no margin of error)."
