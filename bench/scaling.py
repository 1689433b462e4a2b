"""Time and memory of a training step by its size, against the operations that it needs.

    python -m bench.scaling [--model bert_4_512_8] [--dtypes float32 bfloat16] [--repeats 2] [--json FILE]
        [--plot docs/scaling.png --page docs/scaling.md]
    python -m bench.scaling --quick

The step of the training scripts, update included, on random tokens without padding: 8 sequences of 128 tokens
and a vocabulary of 30,522, and from there one size at a time, the length, the batch, the layers or the
vocabulary. Operations are counted as in bert/flops.py, from the shapes alone. Each size is a process of its
own, which is visited once in a repeat: two steps to warm up, then --steps of them, and as many updates alone.
Memory is the most that the process held, less what it held before it had a model.

Below the tables stand the growths that are faster than what has to be done by over 10%: forward and backward
against the operations, the update against the parameters, the memory against those of the two that grew more
(a larger vocabulary is held, and for few positions multiplied). Beside a growth stand the arrays that a cache
of this machine holds at the smaller size and not at the larger one.

On two cores at 2.8 GHz it takes about 6 minutes for a dtype, --quick 10 seconds.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import Any, Mapping, Sequence

from base import machine
from base.command_line import OptionParser, at_least, path_name, positive_int
from base.threads import set_threads
from bench.contestants import ROOT
from bench.quick import NOTICE, add_quick, settle, with_progress, write_figures
from bench.scaling_report import (
    Measured,
    as_markdown,
    as_text,
    cells,
    draw,
    faster_than_operations,
    write_page,
)
from bench.scaling_work import AXES, QUICK_AXES, Axis, Point, cache_bytes
from bench.work import DTYPES, VOCABULARY, native_dtypes, size_of
from bench.workers import Worker, WorkerError, end_at
from training.entry import exit_code

WARM_UPS = 2  # steps: the first plans memory, the second finds it planned
LENGTH, BATCH = 128, 8
USUAL = {"model": "bert_4_512_8", "repeats": 2, "steps": 5}
QUICK = {"model": "bert_1_64_1", "dtypes": ["float32"], "repeats": 1, "steps": 2}


def visit(point: Point, steps: int) -> dict[str, Any]:
    """Seconds of `steps` steps and as many updates, and the memory, in a process of its own.

    Raises:
        WorkerError: it failed.
    """
    command = [sys.executable, "-m", "bench.scaling_worker", *point.words]
    with Worker(" ".join(point.words), command, str(ROOT), os.environ) as worker:
        facts = worker.wait_until_ready()
        for _ in range(WARM_UPS):
            worker.step(name="step")
        seconds = [worker.step(name="step")["seconds"] for _ in range(steps)]
        updates = [worker.step(name="update")["seconds"] for _ in range(steps + 1)][1:]
        cpu = worker.cpu_seconds()
        memory = worker.end()["peak_bytes"] - facts["imported_bytes"]
    if facts["parameters"] != point.parameters:
        raise WorkerError(f"{point}: {facts['parameters']} parameters, counted are {point.parameters}")
    return {"steps": seconds, "updates": updates, "memory": memory, "cpu": cpu}


def measure(points: Sequence[Point], repeats: int, steps: int) -> tuple[dict[Point, Measured], float]:
    """The figures of each point, and the CPU seconds of all processes. Every other repeat goes backwards, so
    that a slow minute does not meet only large sizes."""
    found: dict[Point, list[dict[str, Any]]] = {point: [] for point in points}
    order = [p for repeat in range(repeats) for p in (points if repeat % 2 == 0 else points[::-1])]
    for point in with_progress(order):
        found[point].append(visit(point, steps))
    measured = {
        point: Measured(
            point,
            [second for each in visits for second in each["steps"]],
            [second for each in visits for second in each["updates"]],
            max(each["memory"] for each in visits),
        )
        for point, visits in found.items()
    }
    return measured, sum(each["cpu"] for visits in found.values() for each in visits)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    options = _options(arguments)
    end_at(signal.SIGTERM)  # with the worker
    here, others, caches = machine.describe(ROOT), machine.Others(), cache_bytes()
    axes = QUICK_AXES if options.quick else AXES
    layers, units, heads = size_of(options.model)
    results: dict[str, list[list[Measured]]] = {}
    cpu = 0.0
    for dtype in options.dtypes or native_dtypes(here):
        base = Point(layers, units, heads, VOCABULARY, LENGTH, BATCH, dtype)
        points = {axis: axis.points(base) for axis in axes}
        measured, used = measure(
            list(dict.fromkeys(sum(points.values(), []))), options.repeats, options.steps
        )
        results[dtype] = [[measured[point] for point in points[axis]] for axis in axes]
        cpu += used
    load = others.shares(cpu + sum(os.times()[:2]))
    shown = " ".join(f"{level} {size / 2**20:,.1f} MiB" for level, size in caches.items())
    heading = f"{machine.line(here)}\n{options.threads} threads; caches {shown or 'unknown'}; "
    heading += f"other programs took {load['others']:.1%} of the machine, its host {load['stolen']:.1%}"
    print(f"{heading}\n{_report(options, axes, results, caches, as_text)}")
    if options.quick:
        print(NOTICE)
    if options.plot:
        draw(options.plot, axes, results)
    if options.page:
        report = _report(options, axes, results, caches, as_markdown)
        picture = ""
        if options.plot:
            place = os.path.relpath(options.plot, os.path.dirname(options.page) or ".")
            picture = f"![time and memory of a step by its operations]({place})\n\n"
        write_page(options.page, f"```text\n{heading}\n```\n\n{picture}{report}")
    if options.json:
        rows = [
            {**each._asdict(), "point": vars(each.point), "flops": each.point.flops, "axis": axis.field}
            for measured_axes in results.values()
            for axis, every in zip(axes, measured_axes)
            for each in every
        ]
        facts = {"machine": {**here, **load}, "threads": options.threads, "quick": options.quick}
        write_figures(options.json, {**facts, "caches": caches, "rows": rows})
    return 0


def _report(
    options: argparse.Namespace,
    axes: Sequence[Axis],
    results: Mapping[str, Sequence[Sequence[Measured]]],
    caches: Mapping[str, int],
    as_table: Any,
) -> str:
    """The tables of all dtypes and axes, each with what grew faster than it has to."""
    parts = []
    for dtype, measured in results.items():
        for axis, rows in zip(axes, measured):
            faster = faster_than_operations(axis, rows) or ["Nothing grew faster than its operations."]
            title = f"{options.model}, {dtype}, by {axis.field}"
            parts.append("\n\n".join([title, as_table(cells(axis, rows, caches)), "\n".join(faster)]))
    return "\n\n".join(parts)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OptionParser(
        prog="python -m bench.scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", help="bert_LAYERS_UNITS_HEADS (default: bert_4_512_8)")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, help="default: what the CPU multiplies")
    parser.add_argument("--repeats", type=positive_int, metavar="N", help="visits of each size (default: 2)")
    parser.add_argument("--steps", type=at_least(2), metavar="N", help="of a visit (default: 5)")
    parser.add_argument("--plot", type=path_name, metavar="FILE", help="draw a PNG there")
    parser.add_argument(
        "--page", type=path_name, metavar="FILE", help="rewrite the figures of this page (docs/scaling.md)"
    )
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write all figures there")
    add_quick(parser, "bert_1_64_1, float32, 3 sizes, 1 repeat")
    options = parser.parse_args(arguments)
    settle(options, USUAL, QUICK)
    try:
        size_of(options.model)
        options.threads = set_threads()
    except ValueError as error:
        parser.error(f"--model {error}")
    return options


if __name__ == "__main__":
    sys.exit(exit_code(main))
