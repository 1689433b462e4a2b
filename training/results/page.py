"""A page of runs: their tables, verdicts with the scores behind them, and plots. No MXNet."""

from __future__ import annotations

from dataclasses import replace
from typing import Sequence

from base.drawing import as_svg
from base.page import page
from base.tables import Table
from tasks.seeds import Scores
from training.results.plots import draw_curves, draw_scores, read_curves
from training.results.summary import Members, compared, rule, verdict_table


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
            verdicts.append(replace(table, notes=[rule()]))
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
