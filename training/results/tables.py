"""Runs in folders, and tables of them from their results.json: machines, strategies, scaling, phases. No
MXNet.

A table is rows of values by the names of its columns, None where there is none: JSON has the values, text and
Markdown a dash for None.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from operator import attrgetter
from typing import Any, Callable, Hashable, Iterable, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.quantities import digits, duration, percent
from base.tables import EMPTY, Row, Table
from lamb_paper import STAGE_LENGTHS
from training.results.members import has_plan, read_plan
from training.results.record import (
    FAILED,
    FINISHED,
    NO_MEMORY,
    NOT_FINITE,
    UNFINISHED,
    Result,
    Stage,
    has_result,
    median_of,
    read_result,
)
from training.results.summary import form_of

PRETRAINING = "pretraining"
CHECKPOINTS = "ckpt"  # `make pretrain` has its checkpoints there
# Options in which runs that are one row of a table may differ.
_OF_ONE_RUN = (
    "seed",
    "seeds",
    "search",
    "resume",
    "progress",
    "verbose",
    "ckpt_dir",
    "output_dir",
    "cache_dir",
    "options_file",
)


class Run(NamedTuple):
    """A run's folder and its results; None with --partial, where there are none."""

    folder: str
    result: Result | None


def find_runs(given: Sequence[str], partial: bool) -> list[Run]:
    """The runs that folders hold: one each, or all members of --seeds and --search.

    Raises:
        InputError: folders that are not there or, unless `partial`, have no results, all of them in one line;
            damaged results.
    """
    folders: list[str] = []
    for folder in given:
        if has_plan(folder):
            folders += [os.path.join(folder, member.name) for member in read_plan(folder).members]
        elif not has_result(folder) and has_result(os.path.join(folder, CHECKPOINTS)):
            folders.append(os.path.join(folder, CHECKPOINTS))
        else:
            folders.append(folder)
    folders = list(dict.fromkeys(folders))
    lacking = [folder for folder in folders if not has_result(folder)]
    absent = [folder for folder in given if not os.path.isdir(folder)]
    if absent:
        raise InputError(f"no such folder: {', '.join(absent)}; name folders of runs")
    if lacking and not partial:
        raise InputError(
            f"no results.json in {', '.join(lacking)}: not the folder of a run, or the run has not begun to "
            "train, or is of an older version; leave it out, or --partial shows it as dashes"
        )
    return [Run(folder, None if folder in lacking else read_result(folder)) for folder in folders]


def parts_of(result: Result) -> list[Result]:
    """A result for each stage, with the stage's figures; the result itself without stages.

    The status belongs to the last stage: those before it have ended.
    """
    if not result.stages:
        return [result]
    parts = []
    for stage in result.stages:
        figures = {each.name: getattr(stage, each.name) for each in fields(Stage) if each.name != "stage"}
        status = result.status if stage is result.stages[-1] else FINISHED
        parts.append(replace(result, **figures, stages=(), status=status))
    return parts


def stages_of(result: Result) -> list[Stage]:
    """The stages of a pretraining run; one that has none is of the stage that has its sequence length in the
    paper (training.plan takes the same)."""
    if result.stages:
        return list(result.stages)
    number = 1 if (result.max_seq_length or 0) <= STAGE_LENGTHS[0] else 2
    return [Stage(number, result.max_seq_length, steps=result.steps, speed=result.speed, loss=result.loss)]


def grouped(results: Iterable[Result], key: Callable[[Result], Hashable]) -> list[list[Result]]:
    """The results with equal keys together, in the order of the first of each."""
    groups: dict[Hashable, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return list(groups.values())


def machine_name(result: Result) -> str | None:
    """The GPUs of the run's machine, or its processor, cores and memory; None where they are not recorded."""
    facts = result.machine
    if result.device == "gpu":
        return facts.get("gpu")
    if not facts.get("cpu"):
        return None
    return f"{facts['cpu']}, {facts.get('cores', EMPTY)} cores, {facts.get('memory_gib', 0):.0f} GiB"


def but_for_the_seed(result: Result) -> Hashable:
    """All that two runs of one row have in common."""
    options = sorted((name, repr(value)) for name, value in result.options.items() if name not in _OF_ONE_RUN)
    machine = (machine_name(result), result.hosts, result.world_size, result.backend, result.dtype)
    return (result.task, result.data, result.model, result.began_with, *machine, tuple(options))


SHORT = {NO_MEMORY: "OOM", NOT_FINITE: "NaN", FAILED: "failed", UNFINISHED: "unfinished"}
QUESTIONS = ("SQuAD 1.1", "SQuAD 2.0")  # columns of the table of phases, whether there are such runs or not
_MACHINE = "machine hosts world_size dtype"


def _mean_and_deviation(score: Mapping[str, Any]) -> str:
    form = form_of(score["mean"])
    return f"{score['mean']:{form}}" + ("" if score["sd"] is None else f" ± {score['sd']:{form}}")


class Column(NamedTuple):
    """A column: its heading, a value as text, and the value of a run where the run's results have none of the
    column's name."""

    heading: str
    show: Callable[[Any], str] = str
    of: Callable[[Result], Any] | None = None


_COUNT: Callable[[Any], str] = "{:,}".format
COLUMNS: Mapping[str, Column] = {
    "run": Column("run"),
    "task": Column("task", of=lambda result: result.data or result.task),
    "model": Column("model"),
    "seed": Column("seed"),
    "machine": Column("machine", of=machine_name),
    "hosts": Column("nodes", _COUNT),
    "world_size": Column("processes", _COUNT),
    "backend": Column("exchange"),
    "dtype": Column("precision"),
    "max_seq_length": Column("tokens", _COUNT),
    "epochs": Column("epochs", "{:,.6g}".format),
    "batch_size": Column("batch", "{:,.6g}".format),
    "runs": Column("runs", _COUNT),
    "status": Column("status", lambda status: SHORT.get(status, status)),
    "reason": Column("reason"),
    "steps": Column("steps", _COUNT),
    "step_s": Column("s/step", digits, attrgetter("speed.step_s")),
    "sequences_per_s": Column("sequences/s", digits, attrgetter("speed.sequences_per_s")),
    "train_s": Column("training", duration, attrgetter("speed.train_s")),
    "wall_s": Column("whole time", duration),
    "loss": Column("loss", "{:.3f}".format),
    "main_score": Column("score"),
    "score": Column("mean ± sd", _mean_and_deviation),
    "speed_up": Column("speed-up", "{:.2f}".format),
    "efficiency": Column("expansion", percent),
    "phase_1_s": Column("phase 1", duration),
    "phase_2_s": Column("phase 2", duration),
    "total_s": Column("total", duration),
}


@dataclass(frozen=True)
class Values:
    """A table before it becomes text. `columns`: by name, in order; `names`: the first ones, which say what a
    row is about."""

    kind: str
    title: str
    columns: Mapping[str, Column]
    rows: Sequence[Mapping[str, Any]]
    names: int = 1
    notes: Sequence[str] = ()

    def table(self) -> Table:
        """The table for people."""
        rows = [
            Row([EMPTY if row[name] is None else each.show(row[name]) for name, each in self.columns.items()])
            for row in self.rows
        ]
        return Table(
            self.title, [each.heading for each in self.columns.values()], rows, self.names, self.notes
        )

    def json(self) -> dict[str, Any]:
        """The table for programs."""
        return {"title": self.title, "rows": [dict(row) for row in self.rows], "notes": list(self.notes)}


def _columns(names: str) -> dict[str, Column]:
    return {name: COLUMNS[name] for name in names.split()}


def _cells(result: Result | None, names: str) -> dict[str, Any]:
    """The values of a run in these columns; None without results."""
    ways = {name: column.of or attrgetter(name) for name, column in _columns(names).items()}
    return {name: None if result is None else way(result) for name, way in ways.items()}


def run_table(runs: Sequence[Run]) -> Values:
    """Every run with its state."""
    names = "task model seed status reason steps train_s wall_s loss main_score score"
    rows = [{"run": each.folder, **_cells(each.result, names)} for each in runs]
    columns = _columns(f"run {names}")
    columns["status"] = Column("status")
    columns["score"] = Column("value", lambda score: format(score, form_of(score)))
    del columns["reason"]  # which is a sentence
    notes = [f"{row['run']}: {row['reason']}" for row in rows if row["reason"]]
    return Values("runs", "Runs", columns, rows, 3, notes)


def instance_table(runs: Sequence[Run]) -> Values:
    """Fine-tuning by machine: score, throughput, time; runs that differ in their seed alone are one row."""
    results = [each.result for each in runs if each.result and each.result.task != PRETRAINING]
    rows = []
    for group in grouped(results, but_for_the_seed):
        done = [each for each in group if each.status == FINISHED]
        rows.append(
            {
                **_cells(group[0], f"{_MACHINE} task model"),
                "runs": len(group),
                "status": _status(group),
                **_cells(group[0], "main_score"),
                "score": _spread(_scores(group)),
                "sequences_per_s": median_of(each.speed.sequences_per_s for each in done),
                "train_s": median_of(each.speed.train_s for each in done),
            }
        )
    columns = _columns(f"{_MACHINE} task model runs status main_score score sequences_per_s train_s")
    notes = ["Sequences/s and training time: medians over runs. ± sd: standard deviation over seeds (n - 1)."]
    return Values("instances", "Fine-tuning by machine", columns, rows, 6, notes)


def strategy_table(runs: Sequence[Run]) -> Values:
    """Sequences a second by exchange, processes, precision (rows) and batch of a process (columns), with what
    ended a run instead of a number."""
    names = "task model max_seq_length backend world_size dtype"
    parts = [part for each in runs if each.result for part in parts_of(each.result)]
    parts = [part for part in parts if part.batch_size]
    batches = {f"batch_{batch:g}": batch for batch in sorted({_of_process(part) for part in parts})}
    rows = []
    for group in grouped(parts, lambda each: (*_work(each), each.backend, each.world_size, each.dtype)):
        row = _cells(group[0], names)
        for name, batch in batches.items():
            row[name] = _speed_or_end([each for each in group if _of_process(each) == batch])
        rows.append(row)
    columns = _columns(names)
    for name, batch in batches.items():
        columns[name] = Column(
            f"batch {batch:,g}", lambda cell: cell if isinstance(cell, str) else digits(cell)
        )
    notes = [
        "Sequences/s, median over runs; batch: sequences of a process in a step. OOM: out of memory, NaN: "
        "gradients that stayed non-finite."
    ]
    return Values("strategies", "Exchange, processes, precision, batch", columns, rows, 6, notes)


def scaling_table(runs: Sequence[Run]) -> Values:
    """Runs of the same work on more and more processes: time, loss, speed-up and parallel efficiency."""
    names = "task model backend dtype max_seq_length hosts world_size epochs batch_size steps step_s train_s"
    names += " status loss"
    parts = [part for each in runs if each.result for part in parts_of(each.result)]
    rows = []
    for group in grouped(parts, lambda each: (*_work(each), each.backend, each.dtype, each.device)):
        done = [each for each in group if each.status == FINISHED and each.speed.sequences_per_s]
        fewest = min((each.world_size for each in done), default=0)
        base = median_of(each.speed.sequences_per_s for each in done if each.world_size == fewest)
        several = len({each.world_size for each in done}) > 1
        for part in sorted(group, key=lambda each: each.world_size):
            speed_up = None
            if several and base and part in done and part.speed.sequences_per_s:
                speed_up = part.speed.sequences_per_s / base
            efficiency = speed_up and speed_up * fewest / part.world_size
            rows.append({**_cells(part, names), "speed_up": speed_up, "efficiency": efficiency})
    notes = [
        "Speed-up: sequences/s over those of the fewest processes with the same exchange, precision, task, "
        "model and length; expansion: speed-up over the growth in processes. Batch: sequences of a step, of "
        "all processes."
    ]
    return Values("scaling", "Scaling", _columns(f"{names} speed_up efficiency"), rows, 5, notes)


def phase_table(runs: Sequence[Run]) -> Values:
    """Pretraining in phases with the scores of the fine-tuning that began with its parameters."""
    results = [each.result for each in runs if each.result and each.result.task == PRETRAINING]
    tuned = [each.result for each in runs if each.result and each.result.task != PRETRAINING]
    folders = {id(each.result): each.folder for each in runs}
    by_parameters = {each.parameters: each for each in results if each.parameters}
    continued = {each.began_with for each in results}
    data = [*QUESTIONS, *sorted({str(each.data) for each in tuned if each.data} - set(QUESTIONS))]
    rows = []
    for last in results:
        if last.parameters in continued and last.parameters:
            continue  # the first part of another row
        first = by_parameters.get(last.began_with) if last.began_with else None
        chain = [first, last] if first is not None and first is not last else [last]
        phases = [stage for each in chain for stage in stages_of(each)]
        row = {
            "run": " -> ".join(folders[id(each)] for each in chain),
            **_cells(last, _MACHINE),
            "status": _status(chain),
            "phase_1_s": _sum(each.speed.train_s for each in phases if each.stage == 1),
            "phase_2_s": _sum(each.speed.train_s for each in phases if each.stage == 2),
            "total_s": _sum(each.speed.train_s for each in phases),
        }
        scores = [_scores_after(last, tuned, each) for each in data]
        for found in zip_longest(*scores) if any(scores) else [(None,) * len(scores)]:
            rows.append({**row, **dict(zip(data, found))})
    columns = _columns(f"run {_MACHINE} status phase_1_s phase_2_s total_s")
    columns.update({each: Column(_score_heading(each, tuned), _mean_and_deviation) for each in data})
    notes = [
        "Times are of training, without start-up, checkpoints and evaluations. Scores: mean and standard "
        "deviation over seeds, of runs that began with exactly these parameters. A run without --stages is "
        f"phase 1 with sequences of up to {STAGE_LENGTHS[0]} tokens, else phase 2."
    ]
    return Values("phases", "Pretraining in phases", columns, rows, 6, notes)


TABLES: Mapping[str, Callable[[Sequence[Run]], Values]] = {
    "runs": run_table,
    "instances": instance_table,
    "strategies": strategy_table,
    "scaling": scaling_table,
    "phases": phase_table,
}


def tables_of(runs: Sequence[Run], kinds: Sequence[str] | None) -> list[Values]:
    """The tables of these kinds, of TABLES, that have rows. None for the kinds: all but that of single runs,
    which is there if a run has not finished, or if there is no other one."""
    if kinds is None:
        others = [table for table in tables_of(runs, list(TABLES)) if table.kind != "runs"]
        all_finished = all(each.result is not None and each.result.status == FINISHED for each in runs)
        return others if others and all_finished else [run_table(runs), *others]
    return [table for table in (TABLES[kind](runs) for kind in kinds) if table.rows]


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


def _status(results: Sequence[Result]) -> str:
    """`finished`, or what runs have come to where they have not all: `2 finished, 1 OOM`."""
    counts = Counter(SHORT.get(each.status, each.status) for each in results)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{counts[each]} {each}" for each in (FINISHED, *SHORT.values()) if each in counts)


def _speed_or_end(parts: Sequence[Result]) -> float | str | None:
    """Median sequences a second of those that finished; without any, why not."""
    done = [each for each in parts if each.status == FINISHED]
    if done:
        return median_of(each.speed.sequences_per_s for each in done)
    return SHORT[parts[-1].status] if parts else None


def _of_process(part: Result) -> float:
    return float(part.batch_size or 0) / part.world_size


def _sum(values: Iterable[float | None]) -> float | None:
    """The sum of all; None where there are none or one is not known."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return math.fsum(known) if known and len(known) == len(listed) else None
