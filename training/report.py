"""Output of rank 0: a progress bar or lines, metrics.jsonl, TensorBoard events, a plot, closing lines."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import statistics
import sys
import time
from typing import IO, Any, Iterator, Mapping, NamedTuple, Sequence

from tqdm import tqdm

from base.drawing import new_figure
from base.errors import TrainingError
from base.files import replacing
from base.json_files import read_json_lines
from base.launchers import RANK_VARIABLES
from tasks.base import Figures, Floors, Panel, Task
from training.checkpoint import params_path
from training.spread import paired_error

METRICS_FILE = "metrics.jsonl"
PLOT_FILE = "loss.png"
TENSORBOARD_DIR = "tensorboard"
LAUNCHED = (*RANK_VARIABLES, "BYTEPS_LOCAL_RANK")  # set by a launcher


class Span(NamedTuple):
    """The steps of a run, or of one of its stages: `first` have been taken before, `last` is the last one,
    None where hours end it. The stage began after `begun`."""

    first: int
    last: int | None
    stage: int | None = None
    begun: int = 0

    @property
    def prefix(self) -> str:
        """The stage, before a sentence on it."""
        return "" if self.stage is None else f"stage {self.stage}, "

    def follows(self, metrics: Mapping[str, Any]) -> bool:
        """Whether a line of metrics is of what came before this span."""
        if self.stage is None or metrics.get("step", 0) > self.first:
            return bool(metrics.get("step", 0) <= self.first)
        begins = self.first == self.begun  # such a stage has no lines yet
        return bool(metrics.get("stage", 0) <= self.stage - begins)


class Ending(NamedTuple):
    """The end of a run, or of one of its stages, with sequences of `max_seq_length` tokens."""

    step: int
    floors: Floors
    stage: int | None = None
    max_seq_length: int | None = None


class Reporter:
    """Receiver of a run's messages and metrics, which shows nothing: that of every rank but 0."""

    def note(self, message: str) -> None:
        """A sentence for people."""

    def warn(self, message: str) -> None:
        """A sentence that should not be missed."""

    def debug(self, message: str) -> None:
        """Detail for --verbose."""

    def advance(self, step: int) -> None:
        """Step `step` is done."""

    def training(self, metrics: dict[str, Any]) -> None:
        """The metrics of one log interval; `step` among them."""

    def evaluation(self, metrics: dict[str, Any]) -> None:
        """The metrics of one evaluation; `step` among them, the others begin with eval_."""

    def close(self) -> None:
        """Nothing follows."""


class RunReporter(Reporter):
    """That of rank 0.

    Args:
        directory: where metrics.jsonl and the TensorBoard events go; it exists.
        task: puts its figures into words.
        span: lines of an earlier metrics.jsonl that do not come before it are dropped, since their steps are
            run again. A new run moves an earlier file aside.
        progress: auto, bar, lines or none.
        verbose: whether debug messages are shown.
    """

    def __init__(
        self,
        directory: str,
        task: Task,
        span: Span,
        progress: str,
        verbose: bool = False,
    ):
        self._path = os.path.join(directory, METRICS_FILE)
        # A short stage 1 and stage 2 may begin in one second, which is all that the name says else.
        suffix = "" if span.stage is None else f".stage{span.stage}"
        with _on_disk(self._path):
            _keep_before(self._path, span)
            self._metrics = open(self._path, "ab", buffering=0)  # noqa: SIM115 - closed by close()
            self._events = _new_events(os.path.join(directory, TENSORBOARD_DIR), span.first + 1, suffix)
        terminal = launching_terminal()
        if progress == "auto":
            progress = "lines" if terminal is None else "bar"
        self._lines = progress == "lines"
        self._bar = None
        if progress == "bar":
            self._bar = tqdm(
                desc=span.prefix.rstrip(", ") or None,
                total=span.last,
                initial=span.first,
                unit="step",
                ncols=_columns(terminal),
                file=sys.stderr,
                mininterval=0.5,
                leave=True,
            )
        self._task = task
        self._span = span
        self._verbose = verbose
        self._start_time = time.monotonic()
        # Goes into the first line that a launch writes of a stage that another one began.
        self._restart = {} if span.first == span.begun else {"resumed_at": span.first}

    def note(self, message: str) -> None:
        self._print(message, sys.stdout)

    def warn(self, message: str) -> None:
        self._print(f"warning: {message}", sys.stderr)

    def debug(self, message: str) -> None:
        if self._verbose:
            self._print(message, sys.stdout)

    def advance(self, step: int) -> None:
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def training(self, metrics: dict[str, Any]) -> None:
        self._write(metrics)
        speed = f"{metrics['tokens_per_s']:,.0f}"
        if self._bar is not None:
            loss = self._task.judged[0]
            shown = "-" if metrics[loss] is None else format(metrics[loss], self._task.shown[loss])
            more = f", mfu {metrics['mfu']:.0%}" if "mfu" in metrics else ""
            more += "" if self._span.last else f", {self._remaining(metrics)} left"
            self._bar.set_postfix_str(
                f"{self._task.short} {shown}, lr {metrics['lr']:.2e}, {speed} tokens/s{more}"
            )
        if self._lines:
            of = f"/{self._span.last}" if self._span.last else ""
            mfu = f"  mfu {metrics['mfu']:.1%}" if "mfu" in metrics else ""
            self.note(
                f"{self._span.prefix}step {metrics['step']}{of}  {self._task.line(metrics)}  lr "
                f"{metrics['lr']:.3g}  {speed} tokens/s  {metrics['step_s']:.3g} s/step{mfu}  "
                f"{self._remaining(metrics)} left"
            )

    def evaluation(self, metrics: dict[str, Any]) -> None:
        self._write(metrics)
        sequences, labelled = metrics["eval_sequences"], metrics.get("eval_labelled")
        of_them = "" if labelled in (None, sequences) else f", {labelled:,} with a label"
        self.note(
            f"{self._span.prefix}evaluation at step {metrics['step']}: {self._task.line(metrics, 'eval_')}  "
            f"({sequences:,} sequences{of_them}, {metrics['eval_s']:.1f} s)"
        )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        for file in (self._metrics, self._events):
            # Each line has reached its file, or its failure was reported.
            with contextlib.suppress(OSError):
                file.close()

    def _print(self, message: str, stream: IO[str]) -> None:
        if self._bar is None:
            print(message, file=stream, flush=True)
        else:
            # On the bar's own stream: mpirun copies the two streams to the terminal in any order.
            tqdm.write(message, file=sys.stderr)
            sys.stderr.flush()

    def _write(self, metrics: dict[str, Any]) -> None:
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        line = json.dumps({**metrics, **self._restart}, allow_nan=False).encode() + b"\n"
        self._restart = {}
        with _on_disk(self._path):
            while line:
                line = line[self._metrics.write(line) :]
            for name, value in metrics.items():
                if name not in ("step", "stage", "time") and isinstance(value, (int, float)):
                    kind, _, rest = name.partition("_") if name.startswith("eval_") else ("train", "", name)
                    summary = scalar(f"{kind}/{rest}", value)
                    event = Event(step=metrics["step"], wall_time=time.time(), summary=summary)
                    self._events.write_event(event)
            self._events.flush()

    def _remaining(self, metrics: dict[str, Any]) -> str:
        if self._span.last is None:
            return tqdm.format_interval(metrics["budget_left_s"])
        step = metrics["step"]
        elapsed = time.monotonic() - self._start_time
        seconds = elapsed / max(1, step - self._span.first) * (self._span.last - step)
        return tqdm.format_interval(seconds)


def launching_terminal() -> str | None:
    """The terminal that this process writes errors to, itself or through a launcher; None in a log.

    mpirun gives its ranks pipes and copies what they write, so a rank looks at its parent's standard error
    too. A process that nobody launched does not: its parent is a shell, on the terminal even where this
    process writes to `| tee`.
    """
    processes = [os.getpid()]
    if any(name in os.environ for name in LAUNCHED):
        processes.append(os.getppid())
    for process in processes:
        try:
            target = os.readlink(f"/proc/{process}/fd/2")
        except OSError:
            continue
        if target.startswith(("/dev/pts/", "/dev/tty")):
            return target
    return None


def read_metrics(directory: str) -> list[dict[str, Any]]:
    """The objects of metrics.jsonl in the order written; a last line cut off by a crash is left out."""
    try:
        return read_json_lines(os.path.join(directory, METRICS_FILE))
    except FileNotFoundError:
        return []


def plot_losses(directory: str, panels: Sequence[Panel]) -> str:
    """Draws loss.png from metrics.jsonl: each panel's figure by step, evaluations as points. Returns its
    path."""
    metrics = read_metrics(directory)
    stages = sorted({each.get("stage", 0) for each in metrics}) or [0]
    begun = boundary(metrics)
    figure = new_figure((5.5 * len(panels), 4.2))
    rows = figure.subplots(1, len(panels), squeeze=False)
    for axes, panel in zip(rows[0], panels):
        for (name, style, label), stage in itertools.product(
            ((panel.figure, "-", "training"), (f"eval_{panel.figure}", "o", "evaluation")), stages
        ):
            of_stage = [each for each in metrics if each.get("stage", 0) == stage]
            points = [(each["step"], each[name]) for each in of_stage if each.get(name) is not None]
            if points:
                # A line needs two points to be seen.
                style = style if len(points) > 1 else "o"
                shown = label + (f", stage {stage}" if stage else "")
                axes.plot(*zip(*points), style, label=shown, markersize=4)
        if begun is not None:
            axes.axvline(begun, color="black", linewidth=0.8, label="stage 2 begins")
        axes.set(title=panel.title, xlabel="step", ylabel=panel.unit)
        axes.grid(alpha=0.3)
        for (label, value), style in zip(panel.marks.items(), ("--", ":", "-.")):
            axes.axhline(value, color="grey", linestyle=style, label=label)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    path = os.path.join(directory, PLOT_FILE)
    with _on_disk(path), replacing(path) as file:
        figure.savefig(file, format="png")
    return path


def boundary(metrics: Sequence[Figures]) -> int | None:
    """The step at which stage 1 of a run ended and stage 2 began; None where there are not both."""
    ended = [each["step"] for each in metrics if each.get("stage") == 1]
    return max(ended) if ended and any(each.get("stage") == 2 for each in metrics) else None


def summarize(task: Task, directory: str, ending: Ending, reporter: Reporter) -> None:
    """Draws the plot and says how far a run, or a stage, has come; rank 0 calls it."""
    metrics = read_metrics(directory)
    plot = plot_losses(directory, task.panels(ending.floors))
    reporter.note("")
    if boundary(metrics) is not None:
        before = [each for each in metrics if each.get("stage") == 1 and "lr" in each]
        reporter.note(f"stage 1, step {before[-1]['step']}: {task.line(before[-1])}" if before else "stage 1")
    if ending.stage is not None:
        metrics = [each for each in metrics if each.get("stage") == ending.stage]
        reporter.note(f"stage {ending.stage}, {ending.max_seq_length} tokens:")
    for line in task.summary(metrics, ending.step, ending.floors):
        reporter.note(line)
    brought = brought_by_stage_2(task, metrics, ending)
    if brought is not None:
        reporter.note(brought)
    shares = [each["mfu"] for each in metrics if each.get("mfu") is not None]
    if shares:
        reporter.note(f"model FLOPs utilisation {statistics.median(shares):.1%} (median of log intervals)")
    reporter.note(f"checkpoint {params_path(directory, ending.step)}")
    reporter.note(f"plot       {plot}")


def brought_by_stage_2(task: Task, metrics: Sequence[Figures], ending: Ending) -> str | None:
    """A sentence on the held-out loss at stage 2's length before and after it; None without both
    evaluations."""
    loss = f"eval_{task.judged[0]}"
    found = [each for each in metrics if each.get(loss) is not None]
    if ending.stage != 2 or len(found) < 2 or found[-1]["step"] != ending.step:
        return None
    first, last = found[0], found[-1]
    before, after = first.get("eval_parts"), last.get("eval_parts")
    # Of the same predictions, unless --data_eval has changed in between, or an older version has evaluated.
    error = paired_error(before, after) if before and after else None
    margin = "no margin of error" if error is None else f"two standard errors of the pairs: {2 * error:.3f}"
    less = first[loss] - last[loss]
    return (
        f"Stage 2 brought {task.judged[0]} on held-out text of {ending.max_seq_length} tokens from "
        f"{first[loss]:.3f} (step {first['step']}) to {last[loss]:.3f}: {abs(less):.3f} "
        f"{'less' if less > 0 else 'more'} ({margin})."
    )


def _new_events(folder: str, first: int, suffix: str) -> Any:
    """A file of events in a folder, which is created, as its writer: the thread that tensorboardX's
    SummaryWriter has for it ends when a disk is full, and then training would wait for it for ever.

    `first`: step from which on events of earlier files do not count. `suffix`: of the file's name, which has
    the time in seconds.
    """
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    os.makedirs(folder, exist_ok=True)
    writer = EventsWriter(os.path.join(folder, "events"), suffix)
    for entry in ({"file_version": "brain.Event:2"}, {"session_log": SessionLog(status=SessionLog.START)}):
        writer.write_event(Event(step=first, wall_time=time.time(), **entry))
    writer.flush()
    return writer


@contextlib.contextmanager
def _on_disk(path: str) -> Iterator[None]:
    """Raises TrainingError where the disk does not take what the block writes."""
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"{error.filename or path} cannot be written: {error.strerror}; checkpoints that were saved are "
            "intact, and --resume continues from the newest"
        ) from error


def _keep_before(path: str, span: Span) -> None:
    if not os.path.exists(path) or os.path.getsize(path) == 0:
        return
    if span.first == 0:
        names = (f"{path}.{number}" for number in itertools.count(1))
        os.rename(path, next(name for name in names if not os.path.exists(name)))
        return
    kept = [each for each in read_metrics(os.path.dirname(path)) if span.follows(each)]
    with replacing(path) as file:
        file.writelines(json.dumps(each).encode() + b"\n" for each in kept)


def _columns(terminal: str | None) -> int | None:
    if terminal is None:
        return None
    with (
        contextlib.suppress(OSError),
        open(terminal, "rb", 0, opener=lambda path, flags: os.open(path, flags | os.O_NOCTTY)) as file,
    ):
        return os.get_terminal_size(file.fileno()).columns or 100
    return 100
