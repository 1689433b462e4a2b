"""A page of runs: their tables, verdicts with the scores behind them, and plots: everything in metrics.jsonl
by step, runs laid over each other, and scores over seeds. No MXNet."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Mapping, NamedTuple, Sequence

from base.drawing import COLOURS, as_svg, literal, new_figure
from base.page import page
from base.tables import Table
from tasks.seeds import CONFIDENCE, Scores, summarize
from training.report import boundary, read_metrics
from training.results.summary import RULE, Members, compared, verdict_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Of a line of metrics, what is no figure of its task; of these, `_SHOWN` have panels behind the task's.
_OF_STEPS = (
    *("step", "stage", "time", "lr", "grad_norm", "loss_scale", "tokens_per_s", "padded_tokens_per_s"),
    *("sequences_per_s", "step_s", "mfu", "training_s", "budget_left_s", "data_wait", "rank_wait_s"),
    *("skipped_steps", "resumed_at", "eval_sequences", "eval_labelled", "eval_s", "eval_parts"),
)
_SHOWN = {"lr": "learning rate", "tokens_per_s": "tokens/s"}
_EVAL = "eval_"
_DASHES = ("-", "--", ":", "-.")
_LONGEST = 60  # characters of a run's name


class Curves(NamedTuple):
    """A run's metrics. `restarts`: the steps after which a launch went on with the run. `stage_2`: the step
    at which that begins, None where there are not both."""

    name: str
    metrics: Sequence[Mapping[str, Any]]
    restarts: Sequence[int]
    stage_2: int | None

    def points(self, figure: str) -> list[tuple[int, float]]:
        """Steps and values, as far as they are numbers."""
        return [(each["step"], each[figure]) for each in self.metrics if _number(each.get(figure))]


def read_curves(folder: str) -> Curves:
    """The metrics of a run, none where it has not written any. Raises InputError for a file that cannot be
    read."""
    metrics = [each for each in read_metrics(folder) if _number(each.get("step"))]
    stages = [each for each in metrics if _number(each.get("stage", 0))]
    restarts = [each["resumed_at"] for each in metrics if _number(each.get("resumed_at"))]
    return Curves(folder, metrics, restarts, boundary(stages))


def draw_curves(runs: Sequence[Curves]) -> Figure | None:
    """A panel for each figure of the runs, with evaluations as points; None where there is nothing."""
    names = dict.fromkeys(
        name.removeprefix(_EVAL)
        for run in runs
        for line in run.metrics
        for name in line
        if name not in _OF_STEPS and not name.endswith("_se")
    )
    drawn = [
        name
        for name in [*names, *_SHOWN]
        if any(run.points(name) or run.points(_EVAL + name) for run in runs)
    ]
    if not drawn:
        return None
    from matplotlib.lines import Line2D

    columns = min(2, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    figure = new_figure((5.5 * columns, 3.1 * rows + 0.25 * len(runs) + 0.4))
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, name in zip(panels, drawn):
        for index, run in enumerate(runs):
            _draw_run(axes, run, name, _style(index, len(runs)))
        unit = ", nats" if name.endswith("loss") else ""
        axes.set(title=_SHOWN.get(name, literal(name.replace("_", " ") + unit)), xlabel="step")
        axes.title.set_fontsize(10)
        if name == "tokens_per_s":
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    for axes in panels[len(drawn) :]:
        axes.set_axis_off()
    handles = [
        Line2D([], [], label=_label(run.name), **_style(index, len(runs))) for index, run in enumerate(runs)
    ]
    if any(name.startswith(_EVAL) for run in runs for line in run.metrics for name in line):
        handles.append(Line2D([], [], color="grey", marker="o", linestyle="none", label="evaluation"))
    if any(run.restarts for run in runs):
        handles.append(Line2D([], [], color="grey", linestyle=":", label="restart"))
    if any(run.stage_2 for run in runs):
        handles.append(Line2D([], [], color="grey", linestyle="--", label="stage 2 begins"))
    wide = max(len(run.name) for run in runs) > 24
    figure.legend(handles=handles, loc="outside lower center", ncols=1 if wide else 3, frameon=False)
    return figure


def _draw_run(axes: Axes, run: Curves, name: str, style: Mapping[str, Any]) -> None:
    points = run.points(name)
    if points:
        # A line needs two points to be seen.
        axes.plot(*zip(*points), marker="o" if len(points) == 1 else None, **style)
    evaluated = run.points(_EVAL + name)
    if evaluated:
        axes.plot(*zip(*evaluated), "o", color=style["color"], markersize=6.5, markeredgecolor="white")
    for step in run.restarts:
        axes.axvline(step, color=style["color"], linestyle=":", linewidth=1.2)
    if run.stage_2 is not None:
        axes.axvline(run.stage_2, color=style["color"], linestyle="--", linewidth=0.8)


def draw_scores(models: Mapping[str, Scores], score: str) -> Figure | None:
    """Each seed's score, and the mean with its interval, of folders of --seeds or settings of --search; None
    for none."""
    known = {name: scores for name, scores in models.items() if scores}
    if not known:
        return None
    figure = new_figure((9, 1.3 + 0.4 * len(known)))
    axes = figure.subplots()
    for place, scores in enumerate(known.values()):
        summary = summarize(scores)
        axes.plot(summary.values, [place] * len(scores), "o", color=COLOURS[0], alpha=0.6, markersize=6)
        axes.errorbar(summary.mean, place + 0.22, xerr=summary.half, fmt="D", color=COLOURS[5], capsize=3)
    axes.set_yticks(range(len(known)), [_label(name) for name in known])
    axes.set_ylim(len(known) - 0.4, -0.6)
    title = f"a point is a seed; below, the mean and its {CONFIDENCE:.0%} interval"
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(literal(score.replace("_", " ")))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.3)
    return figure


def _style(index: int, count: int) -> dict[str, Any]:
    """Style of a run: lines drawn first are wider, so that equal ones are all seen."""
    dash = _DASHES[index // len(COLOURS) % len(_DASHES)]
    width = max(1.2, 3.2 - index) if count > 1 else 1.4
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": dash, "linewidth": width}


def _label(name: str) -> str:
    return literal(name if len(name) <= _LONGEST else f"…{name[-_LONGEST:]}")


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e100


def page_of(
    tables: Sequence[Table], folders: Sequence[str], members: Sequence[Members], score: str | None
) -> str:
    """The file.

    Args:
        tables: those that results.py prints.
        folders: single runs, whose metrics are plotted.
        members: folders of --seeds or --search; where there are no single runs, models that are compared.
        score: by which they are, None for the one that decides.

    Raises:
        InputError: metrics that cannot be read.
    """
    verdicts = []
    # A plot for each score: folders of --seeds side by side, a search by itself.
    scores: dict[str, tuple[str, dict[str, Scores]]] = {}
    for each in members:
        name = score or each.main_score or ""
        title = f"{name} of the settings in {each.folder}" if each.searched else f"{name} over seeds"
        scores.setdefault(title, (name, {}))[1].update(each.models(name))
        if each.searched:
            table = verdict_table(f"Verdicts on {each.folder}", each.verdicts(), each.models(name))
            verdicts.append(replace(table, notes=[RULE]))
    if not folders:
        (_, models), *_ = scores.values()
        verdicts.append(verdict_table("Verdicts", compared(members, score), models))
    figures = {title: draw_scores(models, name) for title, (name, models) in scores.items()}
    figures["Metrics by step"] = draw_curves([read_curves(folder) for folder in folders])
    drawn = [(" ".join(title.split()), figure) for title, figure in figures.items() if figure]
    images = [f"![{title}]({index})" for index, (title, _) in enumerate(drawn)]
    svgs = {str(index): as_svg(figure, f"plot-{index}") for index, (_, figure) in enumerate(drawn)}
    shown = [each for each in verdicts if each.rows]
    heading = ["## Plots"] if images else []
    return page(["# Results of runs", *tables, *shown, *heading, *images], svgs)
