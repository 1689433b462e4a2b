"""The same results in the three tables that this field prints, to be held beside published ones."""

from __future__ import annotations

from typing import Any, Mapping, Sequence

from comparison.reporting.results import Result, Results
from comparison.reporting.sections import setting_cells, short_reason
from comparison.reporting.tables import EMPTY, Row, Table
from comparison.reporting.wording import batch_unit, digits, duration, title_of
from comparison.settings import Setting


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
        found = each.figures.finish
        mark = "~" if any(stage.estimated for stage in found.stages) else ""
        steps = f"{sum(stage.num_steps for stage in found.stages):,}" if found.stages else EMPTY
        time = mark + duration(found.seconds) if found.stages else EMPTY
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
        found = each.figures.scaling
        ratios = [EMPTY, EMPTY]
        if found:
            ratios = [f"{found.expansion.median:.3f}", f"{found.speed_up.median:.2f}"]
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
