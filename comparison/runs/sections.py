"""Tables of a report; the last three hold the same results as this field prints them, for comparison with
published ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Mapping, Sequence

from base.quantities import digits, duration, percent
from base.tables import EMPTY, Row, Table
from comparison.report import judged, memory, share_with_extremes, size, with_extremes, with_quartiles
from comparison.runs.results import (
    FAILED,
    NOT_RUN,
    OK,
    OUT_OF_MEMORY,
    Breakdown,
    Figures,
    Finish,
    Result,
    Results,
    StageTime,
)
from comparison.settings import Group, Setting

_SERVICES = ("server", "scheduler")  # the order of their columns
_LEAST_MS = 0.0005  # of communication: less is none
SPEED = "Speed"  # a title
NAMES = 4  # columns that say which setting a row is about

Columns = Mapping[str, Callable[[Figures], str]]  # head of a column -> its cells


def setting_cells(setting: Setting, results: Results) -> list[str]:
    workers, dtype, batch_size = setting.group
    return [str(workers), dtype, f"{batch_size:,}", results.title(setting.backend)]


def short_reason(result: Result) -> str:
    """For tables after the first, which has the whole reason."""
    return result.kind if result.kind in (FAILED, OUT_OF_MEMORY, NOT_RUN) else result.differs


def _rows(
    results: Sequence[Result],
    names: Callable[[Setting], Sequence[str]],
    columns: Columns,
    reason: Callable[[Result], str] = short_reason,
) -> list[Row]:
    """A row for each setting: its names, then its figures or the reason why it has none."""
    return [
        Row([*names(each.setting), *(cell(each.figures) for cell in columns.values())])
        if each.figures
        else Row(names(each.setting), reason(each))
        for each in results
    ]


def _part(name: str, cell: Callable[[Any], str], without: str = EMPTY) -> Callable[[Figures], str]:
    """Cells about a part of the figures; `without`: where a setting lacks it."""
    return lambda own: without if getattr(own, name) is None else cell(getattr(own, name))


def _table(title: str, columns: Columns, results: Results, notes: Sequence[str]) -> Table:
    """A row for each setting. The first table, of speed, has the whole reasons."""
    head = ["workers", "dtype", f"{results.unit} a worker", "backend", *columns]
    reason = short_reason if title != SPEED else lambda each: each.reason
    rows = _rows(results.results, lambda setting: setting_cells(setting, results), columns, reason)
    return Table(title, head, rows, NAMES, notes)


def speed(results: Results, repeats: int) -> Table:
    columns: Columns = {
        "s/step (quartiles)": lambda own: with_quartiles(own.step_s),
        "tokens/s": lambda own: digits(own.tokens_per_s.median),
        "with padding": lambda own: digits(own.padded_tokens_per_s.median),
        "sequences/s": lambda own: digits(own.sequences_per_s.median),
        "launches": lambda own: f"{len(own.samples)} of {repeats}",
    }
    notes = ["Medians over the launches; rates are of all workers together."]
    unchecked = [each.setting.name for each in results.results if each.kind == OK and not each.confirmed]
    if unchecked:
        notes.append(f"No second backend to compare with: {', '.join(unchecked)}.")
    return _table(SPEED, columns, results, notes)


def pairs(results: Results) -> Table | None:
    """None where no group has two backends with figures."""
    if not results.pairs:
        return None
    rows = []
    for each in results.pairs:
        p = EMPTY if each.adjusted is None else f"{each.adjusted:.4f}"
        if each.adjusted is not None and each.adjusted < 1e-4:
            p = "< 0.0001"
        ratio = f"{each.ratio:.3f}" if each.repeats else EMPTY
        if each.low is not None:
            ratio += f" ({each.low:.3f} to {each.high:.3f})"
        cells = setting_cells(Setting(each.first, *each.group), results)
        cells += [results.title(each.second), ratio, p, str(each.repeats)]
        ran = {name: results.of(Setting(name, *each.group)) for name in (each.first, each.second)}
        found = {name: own.figures.samples for name, own in ran.items() if own.figures}
        rows.append(judged(cells, each, found, results.facts["titles"], results.words(each.group)))
    head = ["workers", "dtype", f"{results.unit} a worker"]
    head += ["A", "B", "B's time / A's", "p", "repeats", "verdict"]
    confidence = 100 * results.facts["confidence"]
    note = f"Geometric mean over the repeats with its {confidence:g}% interval; p after Holm's adjustment."
    return Table("Which is faster", head, rows, NAMES + 1, [note])


def communication(results: Results) -> Table | None:
    """None without a profile."""
    if not any(each.figures and (each.figures.breakdown or each.notes) for each in results.results):
        return None

    def time(name: str) -> Callable[[Any], str]:
        return lambda own: with_extremes(getattr(own, name)) if getattr(own, name).most >= _LEAST_MS else "0"

    def share(own: Breakdown) -> str:
        return share_with_extremes(own.exposed_share) if own.exposed_ms.most >= _LEAST_MS else "0%"

    columns: Columns = {
        "under way, ms": _part("breakdown", time("under_way_ms")),
        "hidden, ms": _part("breakdown", time("hidden_ms")),
        "exposed, ms": _part("breakdown", time("exposed_ms")),
        "exposed share": _part("breakdown", share),
        "profiles": _part("breakdown", lambda own: str(own.launches)),
        "a rank hands over": _part("traffic", lambda own: size(own.handed)),
        "a worker sends": _part("traffic", lambda own: size(own.worker)),
        "servers send": _part("traffic", lambda own: size(own.servers)),
    }
    notes = [
        "A step of rank 0 in launches of their own with --profile, which slows it: medians over so many"
        " profiles, in brackets least and greatest. Hidden: while operators compute; exposed: while none"
        " does, waiting for slower ranks included.",
        "Bytes of one step. What is sent follows from the algorithm (a ring, or pushes to servers and pulls"
        " from them) and is received likewise; nothing counted it on a wire.",
        *(f"{each.setting.name}: {note}." for each in results.results for note in each.notes),
    ]
    return _table("Communication", columns, results, notes)


def resources(results: Results) -> Table:
    """Start-up and peak memory of each role."""
    seen = dict.fromkeys(role for each in results.results if each.figures for role in each.figures.peak_bytes)
    roles = dict.fromkeys(["worker", *(each for each in _SERVICES if each in seen), *seen])

    def peak(role: str) -> Callable[[Figures], str]:
        return lambda own: memory(own.peak_bytes.get(role))

    columns: Columns = {
        "start-up, s (extremes)": lambda own: with_extremes(own.start_up_s),
        **{f"memory of a {role}": peak(role) for role in roles},
    }
    notes = [
        "Start-up: from the launch until the first step begins: starting processes, joining, data, network."
        " Memory: the most that a process of that role held at once in any launch."
    ]
    return _table("Start-up and memory", columns, results, notes)


def scaling(results: Results) -> Table | None:
    """None where nothing ran with more than one worker, or nothing with one."""
    several = [each for each in results.results if each.setting.workers > 1]
    if not any(each.figures and each.figures.scaling for each in several):
        return None
    columns: Columns = {
        "speed-up (quartiles)": _part(
            "scaling", lambda own: with_quartiles(own.speed_up), "no figure for one worker"
        ),
        "efficiency": _part("scaling", lambda own: percent(own.efficiency)),
    }
    notes = [
        "Tokens/s against one worker of the same backend, dtype and batch size a worker (weak scaling),"
        " within each repeat; efficiency is the speed-up by the number of workers, which other tables call"
        " expansion."
    ]
    return _table("Scaling", columns, replace(results, results=several), notes)


def to_finish(results: Results) -> Table:
    """Time and cost of both stages."""
    columns: dict[str, Callable[[Figures], str]] = {
        "steps": _STEPS,
        "stage 1": _planned(lambda plan: _time(plan.stages[0])),
        "stage 2": _planned(lambda plan: _time(plan.stages[1])),
        "both stages": _BOTH,
    }
    priced = results.facts.get("price_per_hour") is not None
    if priced:
        columns["cost"] = _planned(lambda plan: f"{'~' if plan.estimated else ''}{digits(plan.cost or 0.0)}")
    plans = [each.figures.finish for each in results.results if each.figures]
    notes = ["The plan of hparams.py for as many GPUs as workers, at the median rate with padding."]
    if any(each.estimated for each in plans):
        notes.append(
            "~ An estimate: the rate was measured at sequences of at most"
            f" {results.facts['max_seq_length']} tokens and converted by the floating-point operations of a"
            " token at the stage's length (bert/flops.py), the whole step with it."
        )
    notes += [f"{each}." for each in dict.fromkeys(each.reason for each in plans if each.reason)]
    if priced:
        notes.append(
            f"Cost: {results.facts['price_per_hour']:g} an hour for an instance of"
            f" {results.facts.get('gpus_per_instance') or 1} workers; whole instances are paid for."
        )
    return _table("Time to finish both stages", columns, results, notes)


def _time(time: Finish | StageTime) -> str:
    return ("~" if time.estimated else "") + duration(time.seconds)


def _planned(cell: Callable[[Finish], str]) -> Callable[[Figures], str]:
    """Cells that are empty where no plan is possible."""
    return lambda own: cell(own.finish) if own.finish.stages else EMPTY


_STEPS = _planned(lambda plan: f"{sum(stage.num_steps for stage in plan.stages):,}")
_BOTH = _planned(_time)


def throughput(results: Results) -> Table:
    """n GPUs x precision x batch size, examples/s, a column for each strategy."""
    backends = list(dict.fromkeys(each.setting.backend for each in results.results))
    head = ["GPUs", "precision", f"batch size ({results.unit})"]
    head += [results.title(each) for each in backends]
    rates: dict[Group, dict[str, str]] = {}
    for each in sorted(results.results, key=lambda each: each.setting.workers):
        cells, own = rates.setdefault(each.setting.group, dict.fromkeys(backends, EMPTY)), each.figures
        cells[each.setting.backend] = digits(own.sequences_per_s.median) if own else short_reason(each)
    rows = [
        Row([str(group.workers), group.dtype, f"{group.batch_size:,}", *cells.values()])
        for group, cells in rates.items()
    ]
    notes = ["Sequences/s of all workers together; a GPU is a worker here. The batch size is a worker's."]
    return Table("n GPUs × precision × batch size, examples/s", head, rows, 3, notes)


def training_time(results: Results) -> Table:
    """Instance, GPUs, steps, throughput, train time."""
    head = ["instance", "strategy", "precision", "batch size", "GPUs"]
    columns: Columns = {
        "steps": _STEPS,
        "sequences/s": lambda own: digits(own.sequences_per_s.median),
        "train time": _BOTH,
    }
    per_instance, instance = results.facts["gpus_per_instance"], results.facts["machine"]["cpu"]

    def names(setting: Setting) -> list[str]:
        count = -(-setting.workers // per_instance) if per_instance else 1
        workers, dtype, batch_size, backend = setting_cells(setting, results)
        return [f"{count} × {instance}" if count > 1 else instance, backend, dtype, batch_size, workers]

    notes = ["Steps and time of both stages by hparams.py; ~ is an estimate (see the time to finish)."]
    rows = _rows(results.results, names, columns)
    return Table("Instance, GPUs, steps, throughput, train time", [*head, *columns], rows, 4, notes)


def expansion(results: Results) -> Table:
    """Nodes, time per step, expansion, speed-up."""
    head = ["precision", "batch size", "strategy", "nodes"]
    columns: Columns = {
        "time per step, s": lambda own: digits(own.step_s.median),
        "expansion": _part("scaling", lambda own: f"{own.expansion.median:.3f}"),
        "speed-up": _part("scaling", lambda own: f"{own.speed_up.median:.2f}"),
    }

    def names(setting: Setting) -> list[str]:
        workers, *rest = setting_cells(setting, results)
        return [*rest, workers]

    # dtypes, batch sizes and backends as they were given; a backend's numbers of workers side by side.
    alike: dict[Setting, list[Result]] = {}
    for each in sorted(results.results, key=lambda each: each.setting.workers):
        alike.setdefault(each.setting._replace(workers=0), []).append(each)
    notes = [
        "A node is a worker here. Speed-up: tokens/s against one node, of the same backend, precision and"
        " batch size. Expansion: speed-up ÷ nodes, the scaling efficiency relative to one node, 1 where"
        " nothing is lost. Medians of the ratios within a repeat."
    ]
    rows = _rows([each for members in alike.values() for each in members], names, columns)
    return Table("Nodes, time per step, expansion, speed-up", [*head, *columns], rows, 3, notes)


AFTER_SPEED = (pairs, communication, resources, scaling, to_finish)  # the report's tables, in this order
USUAL = (throughput, training_time, expansion)  # the same as others print it
