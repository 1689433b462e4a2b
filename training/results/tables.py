"""Tables of many runs, from their results.json: machines, strategies, scaling, phases. No MXNet.

A table is rows of values by the names of its columns, None where there is none: JSON has the values, text and
Markdown a dash for None.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Callable, Hashable, Iterable, Mapping, NamedTuple, Sequence

from base.quantities import digits, duration, percent
from base.tables import EMPTY, Row, Table
from lamb_paper import STAGE_LENGTHS
from training.results.record import (
    FAILED,
    FINISHED,
    NO_MEMORY,
    NOT_FINITE,
    UNFINISHED,
    Result,
)
from training.results.runs import (
    PRETRAINING,
    Run,
    but_for_the_seed,
    grouped,
    machine_name,
    parts_of,
    stages_of,
)

SHORT = {NO_MEMORY: "OOM", NOT_FINITE: "NaN", FAILED: "failed", UNFINISHED: "unfinished"}
QUESTIONS = ("SQuAD 1.1", "SQuAD 2.0")  # columns of the table of phases, whether there are such runs or not


class Column(NamedTuple):
    """A column: the name of its values, its heading, and a value as text."""

    name: str
    heading: str
    show: Callable[[Any], str] = str


@dataclass(frozen=True)
class Values:
    """A table before it becomes text. `names`: the first columns, which say what a row is about."""

    kind: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    names: int = 1
    notes: Sequence[str] = ()

    def table(self) -> Table:
        """The table for people."""
        rows = [
            Row([EMPTY if row[each.name] is None else each.show(row[each.name]) for each in self.columns])
            for row in self.rows
        ]
        return Table(self.title, [each.heading for each in self.columns], rows, self.names, self.notes)

    def json(self) -> dict[str, Any]:
        """The table for programs."""
        return {"title": self.title, "rows": [dict(row) for row in self.rows], "notes": list(self.notes)}


def run_table(runs: Sequence[Run]) -> Values:
    """Every run with its state."""
    rows = [
        {
            "run": folder,
            "task": result and (result.data or result.task),
            "model": result and result.model,
            "seed": result and result.seed,
            "status": result and result.status,
            "reason": result and result.reason,
            "steps": result and result.steps,
            "train_s": result and result.speed.train_s,
            "wall_s": result and result.wall_s,
            "loss": result and result.loss,
            "main_score": result and result.main_score,
            "score": result and result.score,
        }
        for folder, result in runs
    ]
    columns = (
        *(Column("run", "run"), Column("task", "task"), Column("model", "model"), Column("seed", "seed")),
        *(Column("status", "status"), Column("steps", "steps", _count)),
        *(Column("train_s", "training", duration), Column("wall_s", "whole time", duration)),
        *(
            Column("loss", "loss", _loss),
            Column("main_score", "score"),
            Column("score", "value", shown_score),
        ),
    )
    notes = [f"{row['run']}: {row['reason']}" for row in rows if row["reason"]]
    return Values("runs", "Runs", columns, rows, 3, notes)


def instance_table(runs: Sequence[Run]) -> Values | None:
    """Fine-tuning by machine: score, throughput, time; runs that differ in their seed alone are one row."""
    results = [each.result for each in runs if each.result and each.result.task != PRETRAINING]
    rows = []
    for group in grouped(results, but_for_the_seed):
        first, done = group[0], [each for each in group if each.status == FINISHED]
        rows.append(
            {
                **_machine(first),
                "task": first.data or first.task,
                "model": first.model,
                "runs": len(group),
                "status": _status(group),
                "main_score": first.main_score,
                "score": _spread(_scores(group)),
                "sequences_per_s": _median(each.speed.sequences_per_s for each in done),
                "train_s": _median(each.speed.train_s for each in done),
            }
        )
    columns = (
        *_machine_columns(),
        *(Column("task", "task"), Column("model", "model"), Column("runs", "runs", _count)),
        *(Column("status", "status"), Column("main_score", "score")),
        Column("score", "mean ± sd", _mean_and_deviation),
        *(Column("sequences_per_s", "sequences/s", digits), Column("train_s", "training", duration)),
    )
    notes = ["Sequences/s and training time: medians over runs. ± sd: standard deviation over seeds (n - 1)."]
    return Values("instances", "Fine-tuning by machine", columns, rows, 6, notes) if rows else None


def strategy_table(runs: Sequence[Run]) -> Values | None:
    """Sequences a second by exchange, processes, precision (rows) and batch of a process (columns), with what
    ended a run in place of a number."""
    parts = [part for each in runs if each.result for part in parts_of(each.result)]
    parts = [part for part in parts if part.batch_size]
    batches = sorted({_of_process(part) for part in parts})
    rows = []
    for group in grouped(parts, lambda each: (*_work(each), each.backend, each.world_size, each.dtype)):
        first = group[0]
        row: dict[str, Any] = {
            "task": first.data or first.task,
            "model": first.model,
            "max_seq_length": first.max_seq_length,
            "backend": first.backend,
            "world_size": first.world_size,
            "dtype": first.dtype,
        }
        for batch in batches:
            row[_column_of(batch)] = _speed_or_end([each for each in group if _of_process(each) == batch])
        rows.append(row)
    columns = (
        *(Column("task", "task"), Column("model", "model"), Column("max_seq_length", "tokens", _count)),
        *(Column("backend", "exchange"), Column("world_size", "processes", _count)),
        Column("dtype", "precision"),
        *(Column(_column_of(each), f"batch {each:,g}", _number_or_word) for each in batches),
    )
    notes = [
        "Sequences/s, median over runs; batch: sequences of a process in a step. OOM: out of memory, NaN: "
        "gradients that stayed non-finite."
    ]
    return (
        Values("strategies", "Exchange, processes, precision, batch", columns, rows, 6, notes)
        if rows
        else None
    )


def scaling_table(runs: Sequence[Run]) -> Values | None:
    """Runs of the same work on more and more processes: time, loss, speed-up and parallel efficiency."""
    parts = [part for each in runs if each.result for part in parts_of(each.result)]
    rows = []
    for group in grouped(parts, lambda each: (*_work(each), each.backend, each.dtype, each.device)):
        done = [each for each in group if each.status == FINISHED and each.speed.sequences_per_s]
        fewest = min((each.world_size for each in done), default=0)
        base = _median(each.speed.sequences_per_s for each in done if each.world_size == fewest)
        several = len({each.world_size for each in done}) > 1
        for part in sorted(group, key=lambda each: each.world_size):
            speed_up = None
            if several and base and part in done and part.speed.sequences_per_s:
                speed_up = part.speed.sequences_per_s / base
            rows.append(
                {
                    "task": part.data or part.task,
                    "model": part.model,
                    "backend": part.backend,
                    "dtype": part.dtype,
                    "max_seq_length": part.max_seq_length,
                    "hosts": part.hosts,
                    "world_size": part.world_size,
                    "epochs": part.epochs,
                    "batch_size": part.batch_size,
                    "steps": part.steps,
                    "step_s": part.speed.step_s,
                    "train_s": part.speed.train_s,
                    "status": part.status,
                    "loss": part.loss,
                    "speed_up": speed_up,
                    "efficiency": speed_up and speed_up * fewest / part.world_size,
                }
            )
    columns = (
        *(Column("task", "task"), Column("model", "model"), Column("backend", "exchange")),
        *(Column("dtype", "precision"), Column("max_seq_length", "tokens", _count)),
        *(Column("hosts", "nodes", _count), Column("world_size", "processes", _count)),
        *(Column("epochs", "epochs", _plain), Column("batch_size", "batch", _plain)),
        *(Column("steps", "steps", _count), Column("step_s", "s/step", digits)),
        *(Column("train_s", "training", duration), Column("status", "status", _short_status)),
        *(Column("loss", "loss", _loss), Column("speed_up", "speed-up", _two_places)),
        Column("efficiency", "expansion", percent),
    )
    notes = [
        "Speed-up: sequences/s over those of the fewest processes with the same exchange, precision, task, "
        "model and length; expansion: speed-up over the growth in processes. Batch: sequences of a step, of "
        "all processes."
    ]
    return Values("scaling", "Scaling", columns, rows, 5, notes) if rows else None


def phase_table(runs: Sequence[Run]) -> Values | None:
    """Pretraining in phases with the scores of the fine-tuning that began with its parameters."""
    results = [each.result for each in runs if each.result and each.result.task == PRETRAINING]
    tuned = [each.result for each in runs if each.result and each.result.task != PRETRAINING]
    names = {id(each.result): each.folder for each in runs}
    by_parameters = {each.parameters: each for each in results if each.parameters}
    continued = {each.began_with for each in results}
    others = sorted({str(each.data) for each in tuned if each.data} - set(QUESTIONS))
    rows = []
    for last in results:
        if last.parameters in continued and last.parameters:
            continue  # the first part of another row
        first = by_parameters.get(last.began_with) if last.began_with else None
        chain = [first, last] if first is not None and first is not last else [last]
        phases = [stage for each in chain for stage in stages_of(each)]
        seconds = {
            number: _sum(each.speed.train_s for each in phases if each.stage == number) for number in (1, 2)
        }
        row = {
            "run": " -> ".join(names[id(each)] for each in chain),
            **_machine(last),
            "status": _status(chain),
            "phase_1_s": seconds[1],
            "phase_2_s": seconds[2],
            "total_s": _sum(each.speed.train_s for each in phases),
        }
        scores = [_scores_after(last, tuned, data) for data in (*QUESTIONS, *others)]
        for found in zip_longest(*scores) if any(scores) else [(None,) * len(scores)]:
            rows.append(
                {**row, **{_column_of(data): score for data, score in zip((*QUESTIONS, *others), found)}}
            )
    columns = (
        Column("run", "run"),
        *_machine_columns(),
        *(Column("status", "status"), Column("phase_1_s", "phase 1", duration)),
        *(Column("phase_2_s", "phase 2", duration), Column("total_s", "total", duration)),
        *(Column(_column_of(data), _score_heading(data, tuned), _mean_and_deviation) for data in QUESTIONS),
        *(Column(_column_of(data), _score_heading(data, tuned), _mean_and_deviation) for data in others),
    )
    notes = [
        "Times are of training, without start-up, checkpoints and evaluations. Scores: mean and standard "
        "deviation over seeds, of runs that began with exactly these parameters. A run without --stages is "
        f"phase 1 with sequences of up to {STAGE_LENGTHS[0]} tokens, else phase 2."
    ]
    return Values("phases", "Pretraining in phases", columns, rows, 6, notes) if rows else None


TABLES: Mapping[str, Callable[[Sequence[Run]], Values | None]] = {
    "runs": run_table,
    "instances": instance_table,
    "strategies": strategy_table,
    "scaling": scaling_table,
    "phases": phase_table,
}


def tables_of(runs: Sequence[Run], kinds: Sequence[str] | None) -> list[Values]:
    """The tables of these kinds, of TABLES, that have rows. None for the kinds: all but that of single runs,
    which is there if a run has not finished, or if there is no other one."""
    if kinds is not None:
        return [table for kind in kinds for table in [TABLES[kind](runs)] if table is not None]
    found = [table for kind, make in TABLES.items() if kind != "runs" for table in [make(runs)] if table]
    all_finished = all(each.result is not None and each.result.status == FINISHED for each in runs)
    return found if found and all_finished else [run_table(runs), *found]


def shown_score(value: float) -> str:
    """A score: shares to four places, percentages to two."""
    return f"{value:.4f}" if abs(value) <= 1 else f"{value:.2f}"


def _machine(result: Result) -> dict[str, Any]:
    return {
        "machine": machine_name(result),
        "hosts": result.hosts,
        "world_size": result.world_size,
        "dtype": result.dtype,
    }


def _machine_columns() -> tuple[Column, ...]:
    return (
        *(Column("machine", "machine"), Column("hosts", "nodes", _count)),
        *(Column("world_size", "processes", _count), Column("dtype", "precision")),
    )


def _work(result: Result) -> tuple[Hashable, ...]:
    """The work of a step but for its batch."""
    return result.task, result.data, result.model, result.max_seq_length, machine_name(result)


def _scores_after(last: Result, tuned: Sequence[Result], data: str) -> list[dict[str, Any]]:
    """Mean and deviation of the scores on `data` of runs that began with a run's parameters: an entry for
    each group of runs that differ in their seed alone."""
    began = [each for each in tuned if each.data == data and each.began_with == last.parameters is not None]
    spreads = [_spread(_scores(group)) for group in grouped(began, but_for_the_seed)]
    return [spread for spread in spreads if spread is not None]


def _scores(group: Sequence[Result]) -> list[float]:
    """The scores of those that finished."""
    return [each.score for each in group if each.status == FINISHED and each.score is not None]


def _spread(scores: Sequence[float]) -> dict[str, Any] | None:
    """Mean, deviation (n - 1) and number of scores; None for none."""
    if not scores:
        return None
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return {"mean": statistics.fmean(scores), "sd": deviation, "runs": len(scores)}


def _score_heading(data: str, tuned: Sequence[Result]) -> str:
    names = {each.main_score for each in tuned if each.data == data and each.main_score}
    name = names.pop() if len(names) == 1 else "f1" if data in QUESTIONS else ""
    return f"{data} {'F1' if name == 'f1' else name}".rstrip()


def _mean_and_deviation(score: Mapping[str, Any]) -> str:
    mean = shown_score(score["mean"])
    places = len(mean.partition(".")[2])
    return mean if score["sd"] is None else f"{mean} ± {score['sd']:.{places}f}"


def _status(results: Sequence[Result]) -> str:
    """`finished`, or what runs have come to where they have not all: `2 finished, 1 OOM`."""
    counts = dict.fromkeys((FINISHED, *SHORT), 0)
    for each in results:
        counts[each.status] += 1
    there = {status: count for status, count in counts.items() if count}
    if len(there) == 1:
        return _short_status(next(iter(there)))
    return ", ".join(f"{count} {_short_status(status)}" for status, count in there.items())


def _speed_or_end(parts: Sequence[Result]) -> float | str | None:
    """Median sequences a second of those that finished; without any, why not."""
    done = [each for each in parts if each.status == FINISHED]
    if done:
        return _median(each.speed.sequences_per_s for each in done)
    return SHORT[parts[-1].status] if parts else None


def _of_process(part: Result) -> float:
    return float(part.batch_size or 0) / part.world_size


def _column_of(what: Any) -> str:
    """The name of a column in JSON."""
    return f"batch_{what:g}" if isinstance(what, float) else str(what)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of all; None where there are none or one is not known."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return math.fsum(known) if known and len(known) == len(listed) else None


def _count(value: float) -> str:
    return f"{value:,}"


def _plain(value: float) -> str:
    return f"{value:,.6g}"


def _loss(value: float) -> str:
    return f"{value:.3f}"


def _two_places(value: float) -> str:
    return f"{value:.2f}"


def _short_status(status: str) -> str:
    return SHORT.get(status, status)


def _number_or_word(value: float | str) -> str:
    return value if isinstance(value, str) else digits(value)
