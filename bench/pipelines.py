"""Throughput of pipelines against the bubble, memory of their stages, a model too large for one process.

    python -m bench.pipelines [--parts speed memory limit] [--repeats 5] [--json pipelines.json]
    python -m bench.pipelines --quick

Every launch is run_pretraining_hvd.py under mpirun on random tokens, one OpenMP thread a rank.

speed: two stages of one replica (and, with as many cores, four) against as many data-parallel ranks with the
same micro-batches in a step, or where there are fewer than ranks one each. The ideal is the share of the step
in which no stage waits, m / (m + p - 1), times what the split leaves even.

memory: the greatest resident memory of each stage by micro-batches, under both schedules. 1F1B's stops
growing at p - i micro-batches, GPipe's does not.

limit: the least limit to a rank's address space (`ulimit -v`) under which a model trains, in one process and
in two stages.
"""

from __future__ import annotations

import itertools
import json
import signal
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from base import machine
from base.command_line import at_least, positive_int
from base.errors import NO_MEMORY
from base.tables import Row, Table, terminal
from bench.harness import Measurement, end_at, finish, note, ratios, spread, take_rounds
from bench.launches import ROOT, step_seconds
from bench.launches import command as launch_command
from bench.launches import launch as run_command
from bench.work import VOCABULARY
from bert.configuration import named_config
from bert.memory import FUSED, Batch
from lamb_paper import default_max_predictions
from training.entry import exit_code
from training.pipeline.options import GPIPE, ONE_F_ONE_B, PipelineConfig
from training.pipeline.schedule import bubble
from training.pipeline.work import evenness, run_split

TIME_LIMIT = 600.0  # seconds for one launch
LENGTH = 128
LOG_INTERVAL = 3
SPEED, MEMORY, LIMIT = PARTS = ("speed", "memory", "limit")
_MIB = 1 << 20


class Work(NamedTuple):
    """The model and micro-batch of all launches of a part, and their steps."""

    model: str
    rows: int
    steps: int


class Launch(NamedTuple):
    """Ranks, stages of a pipeline among them, micro-batches of a rank's step."""

    ranks: int
    stages: int = 1
    accumulate: int = 1
    schedule: str = ONE_F_ONE_B

    @property
    def micro_batches(self) -> int:
        """Of a step, over all replicas."""
        return self.ranks // self.stages * self.accumulate


class Outcome(NamedTuple):
    """Seconds of a step, None where it failed; of each rank what bench.measured_rank has written; output."""

    step_s: float | None
    ranks: list[dict[str, int]]
    text: str


def command(launch: Launch, work: Work, folder: str, limit: int = 0) -> list[str]:
    """The words of a launch. `limit`: bytes of address space of each rank, 0 for none."""
    words = ["--model", work.model, "--dummy_data_len", str(LENGTH)]
    words += ["--batch_size", str(work.rows), "--accumulate", str(launch.accumulate)]
    words += ["--num_steps", str(work.steps), "--log_interval", str(LOG_INTERVAL), "--progress", "none"]
    words += ["--ckpt_interval", str(work.steps), "--dropout", "0.1", "--ckpt_dir", folder]
    if launch.stages > 1:
        words += ["--pipeline_stages", str(launch.stages), "--pipeline_schedule", launch.schedule]
    measured = [sys.executable, "-m", "bench.measured_rank", folder, str(limit)]
    return launch_command(launch.ranks, words, measured)


def run(launch: Launch, work: Work, part: str, limit: int | None = None) -> Outcome:
    """Runs it and says so, for `part`. With a `limit` a failure is an outcome too; else it is SystemExit with
    its last lines."""
    note(f"{part}: {launch}")
    with tempfile.TemporaryDirectory() as folder:
        words = command(launch, work, folder, limit or 0)
        code, text = run_command(words, TIME_LIMIT, {"OMP_NUM_THREADS": "1"})
        files = sorted(Path(folder).glob("[0-9]*.json"), key=lambda path: path.stem)
        memory = [json.loads(path.read_text("utf-8")) for path in files if path.stem.isdigit()]
        memory = [each for each in memory if "resident" in each]
        if code and limit is None:
            raise SystemExit(f"{launch} failed:\n{text[-2000:]}")
        return Outcome(None if code else step_seconds(Path(folder) / "metrics.jsonl"), memory, text)


def beside(launch: Launch) -> Launch:
    """Data-parallel ranks with as many micro-batches in a step, one for each rank at least."""
    return Launch(launch.ranks, 1, max(1, launch.accumulate // launch.ranks))


def measure_speed(
    work: Work, stages: Sequence[int], micro_batches: Sequence[int], repeats: int
) -> list[dict[str, Any]]:
    """For each pipeline of one replica the seconds of a micro-batch, and of the ranks beside it, in every
    repeat; each repeat runs all of them once."""
    pipelines = [Launch(each, each, count) for each in stages for count in micro_batches]
    every = list(dict.fromkeys([*pipelines, *map(beside, pipelines)]))

    def take(launch: Launch, number: int) -> float:
        step_s = run(launch, work, f"{SPEED} {number + 1}/{repeats}").step_s
        assert step_s is not None  # else it would have ended
        return step_s / launch.micro_batches

    rounds = take_rounds(every, repeats, take)
    found = []
    for launch in pipelines:
        named = [{"pipeline": one[launch], "ranks": one[beside(launch)]} for one in rounds]
        found.append({**launch._asdict(), "rounds": named, "ideal": ideal(launch, work)})
    return found


def ideal(launch: Launch, work: Work) -> float:
    """Throughput of a pipeline over that of as many ranks, as far as the bubble and the split go."""
    batch = Batch(work.rows, LENGTH, default_max_predictions(LENGTH))
    config = PipelineConfig(launch.stages)
    split, costs = run_split(config.split, config.stages, named_config(work.model), VOCABULARY, batch, FUSED)
    return (1 - bubble(launch.stages, launch.accumulate)) * evenness(split, costs)


def speed_table(figures: Sequence[Mapping[str, Any]], work: Work) -> Table:
    """Throughput by stages and micro-batches, against data-parallel ranks and the ideal."""
    rows = []
    for each in figures:
        shares = [1 / ratio for ratio in ratios(each["rounds"], "pipeline", "ranks")]
        share = spread(shares)
        per_second = [
            work.rows / statistics.median(one[name] for one in each["rounds"])
            for name in ("pipeline", "ranks")
        ]
        step = statistics.median(one["pipeline"] for one in each["rounds"]) * each["accumulate"]
        cells = [str(each["stages"]), str(each["accumulate"]), f"{step:.3f}"]
        cells += [f"{value:.2f}" for value in per_second]
        cells += [f"{share.shown(2)}", f"{each['ideal']:.2f}"]
        cells.append(f"{100 * bubble(each['stages'], each['accumulate']):.0f}%")
        rows.append(Row(cells))
    head = ("stages", "micro-batches", "s/step", "sequences/s", "of ranks", "share (quartiles)", "ideal")
    title = f"speed: {work.model}, {work.rows} x {LENGTH} tokens a micro-batch, one thread a rank"
    return Table(title, (*head, "bubble"), rows, names=2)


def measure_memory(work: Work, stages: int, micro_batches: Sequence[int]) -> list[dict[str, Any]]:
    """The greatest resident bytes of each stage, by schedule and micro-batches."""
    found = []
    schedules = (ONE_F_ONE_B, GPIPE)
    for schedule, count in itertools.product(schedules, micro_batches):
        ranks = run(Launch(stages, stages, count, schedule), work, MEMORY).ranks
        resident = [rank["resident"] for rank in ranks]
        found.append({"schedule": schedule, "micro_batches": count, "resident": resident})
    return found


def memory_table(figures: Sequence[Mapping[str, Any]], work: Work) -> Table:
    """Resident memory of the stages."""
    stages = max(len(each["resident"]) for each in figures)
    rows = [
        Row(
            [each["schedule"], str(each["micro_batches"])]
            + [f"{size / _MIB:,.0f} MiB" for size in each["resident"]]
        )
        for each in figures
    ]
    head = ("schedule", "micro-batches", *(f"stage {stage}" for stage in range(stages)))
    title = f"memory: {work.model}, {work.rows} x {LENGTH} tokens a micro-batch"
    return Table(title, head, rows, names=2)


def measure_limit(work: Work) -> list[dict[str, Any]]:
    """The address space that a model reserves in one process and in two stages where nothing limits it, the
    least limit to that of each rank under which it trains, to 2%, and why it fails under less."""
    found = []
    for name, launch in (("one process", Launch(1, 1, 2)), ("two stages", Launch(2, 2, 2))):
        outcome = run(launch, work, LIMIT)
        reserved = [rank["address_space"] for rank in outcome.ranks]
        failing, limit = 0, max(reserved)
        step_s, reason = outcome.step_s, ""
        while limit - failing > 0.02 * limit:
            between = (failing + limit) // 2 if failing else 3 * limit // 4
            under = run(launch, work, f"{LIMIT} {between // _MIB:,} MiB", between)
            if under.step_s is None:
                failing, reason = between, _reason(under.text)
            else:
                limit, step_s = between, under.step_s
        needed = {"limit": limit, "step_s": step_s, "reason": reason}
        found.append({"launch": name, "address_space": reserved, **needed})
    return found


def limit_table(figures: Sequence[Mapping[str, Any]], work: Work) -> Table:
    """The address space that both reserve and need."""
    rows = []
    for each in figures:
        reserved = " and ".join(f"{size / _MIB:,.0f} MiB" for size in each["address_space"])
        needed = [f"{each['limit'] / _MIB:,.0f} MiB", f"{each['step_s']:.3f}"]
        rows.append(Row([each["launch"], reserved, *needed, each["reason"]]))
    title = f"limit: {work.model}, {work.rows} x {LENGTH} tokens, address space of a rank (ulimit -v)"
    return Table(title, ("", "reserved without a limit", "least limit", "s/step", "below it"), rows, names=2)


def _reason(text: str) -> str:
    """The line that says why, of the output of a launch that failed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith("warning: ")]  # it went on
    why = [line for line in lines if NO_MEMORY.search(line)] or [line for line in lines if "rror" in line]
    return (why or lines or ["no output"])[0][:100]


def main(arguments: Sequence[str] | None = None) -> int:
    text = "micro-batches 1 and 4, 1 repeat, bert_2_128_2 and bert_12_512_8, 6 steps"
    parser = Measurement("pipelines", __doc__, text)
    add = parser.option
    add("--parts", list(PARTS), nargs="+", choices=PARTS)
    add("--stages", [2], None, "of speed; memory: the greatest", type=at_least(2), nargs="+", metavar="S")
    several = {"type": positive_int, "nargs": "+", "metavar": "M"}
    add("--micro_batches", [1, 2, 4, 8, 16], [1, 4], "of a step", **several)
    add("--repeats", 5, 1, "launches of each, for speed", type=positive_int, metavar="N")
    add("--model", "bert_8_512_8", "bert_2_128_2", "of speed and memory")
    add("--batch_size", 4, None, "sequences of a micro-batch", type=positive_int, metavar="B")
    add("--steps", 12, 6, "of a launch", type=at_least(LOG_INTERVAL), metavar="N")
    add("--large_model", "bert_12_768_12", "bert_12_512_8", "of limit")
    options = parser.settle(parser.parse_args(arguments))
    for name in (options.model, options.large_model):
        named_config(name)
    end_at(signal.SIGINT, signal.SIGTERM)  # with the launch
    here = machine.describe(ROOT)
    print(machine.line(here), flush=True)
    work = Work(options.model, options.batch_size, options.steps)
    large = work._replace(model=options.large_model)
    figures: dict[str, Any] = {"machine": here, "work": work._asdict()}
    if SPEED in options.parts:
        figures[SPEED] = measure_speed(work, options.stages, options.micro_batches, options.repeats)
        print(f"\n{terminal(speed_table(figures[SPEED], work))}", flush=True)
    if MEMORY in options.parts:
        figures[MEMORY] = measure_memory(work, max(options.stages), options.micro_batches)
        print(f"\n{terminal(memory_table(figures[MEMORY], work))}", flush=True)
    if LIMIT in options.parts:
        figures[LIMIT] = measure_limit(large)
        print(f"\n{terminal(limit_table(figures[LIMIT], large))}", flush=True)
    finish(options, figures)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
