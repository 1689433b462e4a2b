"""Tables of a report; the last three hold the same results as this field prints them, for comparison with
published ones.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from base.quantities import digits, duration, percent
from base.tables import EMPTY, Row, Table
from comparison.campaign import Setting
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
)
from comparison.verdicts import Pair, Spread
from comparison.wording import (
    batch_unit,
    memory,
    ratio_with_interval,
    share_with_extremes,
    size,
    title_of,
    verdict,
    with_extremes,
    with_quartiles,
)

_SERVICES = ("server", "scheduler")  # the order of their columns
NAMES = 4  # columns that say which setting a row is about


def setting_head(facts: Mapping[str, Any]) -> list[str]:
    return ["workers", "dtype", f"{batch_unit(facts)} a worker", "backend"]


def setting_cells(setting: Setting, facts: Mapping[str, Any]) -> list[str]:
    return [
        str(setting.workers),
        setting.dtype,
        f"{setting.batch_size:,}",
        title_of(setting.backend, facts),
    ]


def short_reason(result: Result) -> str:
    """For tables after the first, which has the whole reason."""
    if result.kind in (FAILED, OUT_OF_MEMORY, NOT_RUN):
        return result.kind
    return result.differs


def _rows(
    results: Sequence[Result],
    facts: Mapping[str, Any],
    cells: Callable[[Result, Figures], Sequence[str]],
    reason: Callable[[Result], str] = short_reason,
) -> list[Row]:
    """A row for each setting: `cells` of its figures, or the reason why it has none."""
    rows = []
    for each in results:
        names = setting_cells(each.setting, facts)
        if each.figures is None:
            rows.append(Row(names, reason(each)))
        else:
            rows.append(Row([*names, *cells(each, each.figures)]))
    return rows


def _table(
    title: str, head: Sequence[str], rows: Sequence[Row], facts: Mapping[str, Any], notes: Sequence[str]
) -> Table:
    return Table(title, [*setting_head(facts), *head], rows, NAMES, notes)


def speed(results: Results, facts: Mapping[str, Any], repeats: int) -> Table:
    head = ["s/step (quartiles)", "tokens/s", "with padding", "sequences/s", "launches"]

    def cells(result: Result, figures: Figures) -> list[str]:
        return [
            with_quartiles(figures.step_s),
            digits(figures.tokens_per_s.median),
            digits(figures.padded_tokens_per_s.median),
            digits(figures.sequences_per_s.median),
            f"{result.launches} of {repeats}",
        ]

    notes = ["Medians over the launches; rates are of all workers together."]
    unchecked = [each for each in results.results if each.kind == OK and not each.confirmed]
    if unchecked:
        names = ", ".join(each.setting.name for each in unchecked)
        notes.append(f"No second backend to compare with: {names}.")
    rows = _rows(results.results, facts, cells, reason=lambda result: result.reason)
    return _table("Speed", head, rows, facts, notes)


def pairs(results: Results, facts: Mapping[str, Any]) -> Table | None:
    """None where no group has two backends with figures."""
    if not results.pairs:
        return None
    head = [*setting_head(facts)[:-1], "A", "B", "B's time / A's", "p", "repeats", "verdict"]
    rows = [Row([*_pair_cells(each, facts)]) for each in results.pairs]
    confidence = 100 * facts["confidence"]
    note = f"Geometric mean over the repeats with its {confidence:g}% interval; p after Holm's adjustment."
    return Table("Which is faster", head, rows, NAMES + 1, [note])


def _pair_cells(pair: Pair, facts: Mapping[str, Any]) -> list[str]:
    first, second = (Setting(name, *pair.group) for name in (pair.first, pair.second))  # type: ignore[misc]
    p = EMPTY if pair.adjusted is None else "< 0.0001" if pair.adjusted < 1e-4 else f"{pair.adjusted:.4f}"
    ratio = ratio_with_interval(pair) if pair.repeats else EMPTY
    return [
        *setting_cells(first, facts),
        title_of(second.backend, facts),
        ratio,
        p,
        str(pair.repeats),
        verdict(pair, facts),
    ]


def communication(results: Results, facts: Mapping[str, Any]) -> Table | None:
    """None without a profile."""
    known = [each for each in results.results if each.figures and (each.figures.breakdown or each.notes)]
    if not known:
        return None
    head = ["under way, ms", "hidden, ms", "exposed, ms", "exposed share", "profiles", "a rank hands over"]
    head += ["a worker sends", "servers send"]

    def cells(result: Result, figures: Figures) -> list[str]:
        breakdown, bytes_ = figures.breakdown, figures.traffic
        times = [EMPTY] * 5
        if breakdown:
            parts = (breakdown.under_way_ms, breakdown.hidden_ms, breakdown.exposed_ms)
            times = [*map(_milliseconds, parts), _share(breakdown), str(breakdown.launches)]
        if bytes_ is None:
            return [*times, EMPTY, EMPTY, EMPTY]
        return [*times, size(bytes_.handed), size(bytes_.worker), size(bytes_.servers)]

    notes = [
        "A step of rank 0 in launches of their own with --profile, which slows it: medians over so many"
        " profiles, in brackets least and greatest. Hidden: while operators compute; exposed: while none"
        " does, waiting for slower ranks included.",
        "Bytes of one step. What is sent follows from the algorithm (a ring, or pushes to servers and pulls"
        " from them) and is received likewise; nothing counted it on a wire.",
        *(f"{each.setting.name}: {note}." for each in results.results for note in each.notes),
    ]
    return _table("Communication", head, _rows(results.results, facts, cells), facts, notes)


def resources(results: Results, facts: Mapping[str, Any]) -> Table:
    """Start-up and peak memory of each role."""
    with_figures = [each.figures for each in results.results if each.figures]
    seen = dict.fromkeys(role for each in with_figures for role in each.peak_bytes)
    roles = ["worker", *(each for each in _SERVICES if each in seen)]
    roles += [each for each in seen if each not in roles]
    head = ["start-up, s (extremes)", *(f"memory of a {role}" for role in roles)]

    def cells(result: Result, figures: Figures) -> list[str]:
        begun = figures.start_up_s
        return [
            with_extremes(begun) if begun else EMPTY,
            *(memory(figures.peak_bytes.get(role)) for role in roles),
        ]

    notes = [
        "Start-up: from the launch until the first step begins: starting processes, joining, data, network."
        " Memory: the most that a process of that role held at once in any launch."
    ]
    return _table("Start-up and memory", head, _rows(results.results, facts, cells), facts, notes)


def scaling(results: Results, facts: Mapping[str, Any]) -> Table | None:
    """None where nothing ran with more than one worker, or nothing with one."""
    several = [each for each in results.results if each.setting.workers > 1]
    if not any(each.figures and each.figures.scaling for each in several):
        return None
    head = ["speed-up (quartiles)", "efficiency"]

    def cells(result: Result, figures: Figures) -> list[str]:
        if figures.scaling is None:
            return ["no figure for one worker", EMPTY]
        return [with_quartiles(figures.scaling.speed_up), percent(figures.scaling.efficiency)]

    notes = [
        "Tokens/s against one worker of the same backend, dtype and batch size a worker (weak scaling),"
        " within each repeat; efficiency is the speed-up by the number of workers, which other tables call"
        " expansion."
    ]
    return _table("Scaling", head, _rows(several, facts, cells), facts, notes)


def to_finish(results: Results, facts: Mapping[str, Any]) -> Table:
    """Time and cost of both stages."""
    priced = facts.get("price_per_hour") is not None
    head = ["steps", "stage 1", "stage 2", "both stages", *(["cost"] if priced else [])]

    def cells(result: Result, figures: Figures) -> list[str]:
        assert figures.finish is not None  # every setting with figures has it
        return finish_cells(figures.finish, priced)

    finishes = [each.figures.finish for each in results.results if each.figures and each.figures.finish]
    notes = ["The plan of hparams.py for as many GPUs as workers, at the median rate with padding."]
    if any(stage.estimated for each in finishes for stage in each.stages):
        notes.append(
            "~ An estimate: the rate was measured at sequences of at most"
            f" {facts['max_seq_length']} tokens and converted by the floating-point operations of a token at"
            " the stage's length (bert/flops.py), the whole step with it."
        )
    notes += [f"{each}." for each in dict.fromkeys(each.reason for each in finishes if each.reason)]
    if priced:
        notes.append(
            f"Cost: {facts['price_per_hour']:g} an hour for an instance of"
            f" {facts.get('gpus_per_instance') or 1} workers; whole instances are paid for."
        )
    return _table("Time to finish both stages", head, _rows(results.results, facts, cells), facts, notes)


def finish_cells(finish: Finish, priced: bool) -> list[str]:
    if not finish.stages:
        return [EMPTY] * (5 if priced else 4)
    times = [("~" if each.estimated else "") + duration(each.seconds) for each in finish.stages]
    mark = "~" if any(each.estimated for each in finish.stages) else ""
    cells = [f"{sum(each.num_steps for each in finish.stages):,}", *times, mark + duration(finish.seconds)]
    return [*cells, f"{mark}{digits(finish.cost or 0.0)}"] if priced else cells


def _milliseconds(values: Spread) -> str:
    return with_extremes(values) if values.most >= 0.0005 else "0"


def _share(breakdown: Breakdown) -> str:
    return share_with_extremes(breakdown.exposed_share) if breakdown.exposed_ms.most >= 0.0005 else "0%"


def throughput(results: Results, facts: Mapping[str, Any], planned: Sequence[Setting]) -> Table:
    """n GPUs x precision x batch size, examples/s, a column for each strategy."""
    backends = list(dict.fromkeys(each.backend for each in planned))
    head = ["GPUs", "precision", f"batch size ({batch_unit(facts)})"]
    head += [title_of(each, facts) for each in backends]
    rows = []
    for group, members in sorted(results.groups().items(), key=lambda item: item[0].workers):
        by_backend = {each.setting.backend: each for each in members}
        names = [str(group.workers), group.dtype, f"{group.batch_size:,}"]
        rows.append(Row([*names, *(_examples(by_backend.get(backend)) for backend in backends)]))
    notes = ["Sequences/s of all workers together; a GPU is a worker here. The batch size is a worker's."]
    return Table("n GPUs × precision × batch size, examples/s", head, rows, 3, notes)


def training_time(results: Results, facts: Mapping[str, Any]) -> Table:
    """Instance, GPUs, steps, throughput, train time."""
    head = ["instance", "strategy", "precision", "batch size", "GPUs", "steps", "sequences/s", "train time"]
    per_instance = facts.get("gpus_per_instance")
    instance = str((facts.get("machine") or {}).get("cpu") or "this machine")
    rows = []
    for each in results.results:
        setting = each.setting
        count = -(-setting.workers // per_instance) if per_instance else 1
        names = [
            f"{count} × {instance}" if count > 1 else instance,
            title_of(setting.backend, facts),
            setting.dtype,
            f"{setting.batch_size:,}",
        ]
        if each.figures is None or each.figures.finish is None:
            rows.append(Row([*names, str(setting.workers)], short_reason(each)))
            continue
        finish = each.figures.finish
        mark = "~" if any(stage.estimated for stage in finish.stages) else ""
        steps = f"{sum(stage.num_steps for stage in finish.stages):,}" if finish.stages else EMPTY
        time = mark + duration(finish.seconds) if finish.stages else EMPTY
        rate = digits(each.figures.sequences_per_s.median)
        rows.append(Row([*names, str(setting.workers), steps, rate, time]))
    notes = ["Steps and time of both stages by hparams.py; ~ is an estimate (see the time to finish)."]
    return Table("Instance, GPUs, steps, throughput, train time", head, rows, 4, notes)


def expansion(results: Results, facts: Mapping[str, Any]) -> Table:
    """Nodes, time per step, expansion, speed-up."""
    head = ["precision", "batch size", "strategy", "nodes", "time per step, s", "expansion", "speed-up"]
    rows = []
    order = sorted(results.results, key=lambda each: _by_nodes(each.setting, results))
    for each in order:
        _, dtype, batch_size, backend = setting_cells(each.setting, facts)
        names = [dtype, batch_size, backend]
        if each.figures is None:
            rows.append(Row([*names, str(each.setting.workers)], short_reason(each)))
            continue
        relative = each.figures.scaling
        ratios = [EMPTY, EMPTY]
        if relative:
            ratios = [f"{relative.expansion.median:.3f}", f"{relative.speed_up.median:.2f}"]
        rows.append(Row([*names, str(each.setting.workers), digits(each.figures.step_s.median), *ratios]))
    notes = [
        "A node is a worker here. Speed-up: tokens/s against one node, of the same backend, precision and"
        " batch size. Expansion: speed-up ÷ nodes, the scaling efficiency relative to one node, 1 where"
        " nothing is lost. Medians of the ratios within a repeat."
    ]
    return Table("Nodes, time per step, expansion, speed-up", head, rows, 3, notes)


def _by_nodes(setting: Setting, results: Results) -> tuple[int, int, int, int]:
    """dtype, batch size and backend as they were given; a backend's numbers of workers side by side."""
    known = [each.setting for each in results.results]

    def place(name: str) -> int:
        values = list(dict.fromkeys(getattr(each, name) for each in known))
        return values.index(getattr(setting, name))

    return place("dtype"), place("batch_size"), place("backend"), setting.workers


def _examples(result: Result | None) -> str:
    if result is None:
        return EMPTY
    if result.figures is None:
        return short_reason(result)
    return digits(result.figures.sequences_per_s.median)
