"""Time that a step waits for a checkpoint, against the time that writing the same state takes.

    python -m bench.saving [--model bert_12_768_12] [--repeats 7] [--folder DIR] [--output FILE]
    python -m bench.saving --quick

A repeat takes steps of this project without saving; one in which a checkpoint begins, as the training scripts
begin it; the steps that come while a thread writes; and then writes and syncs the same arrays while nothing
else is done. The pause of the step is the beginning of the thread, and the wait for what is left of the copy
when the gradient is there. Its share is taken within a repeat, and the goal is below 5%. The "copy" is the
pause of a step that takes no time, as if there were no computing to hide it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np

from base import machine
from base.command_line import OptionParser, at_least, path_name
from base.threads import set_threads
from bench.quick import NOTICE, add_quick, settle, write_figures
from bench.rounds import spread
from bench.work import BATCHES, VOCABULARY
from bert.configuration import named_config
from data.pretraining.batches import dummy_batch
from training.checkpoint import save
from training.entry import exit_code
from training.report import SilentReporter
from training.saving import Saver

if TYPE_CHECKING:
    from bench.step_ours import OurStep

ROOT = Path(__file__).resolve().parent.parent
USUAL, QUICK = {"model": "bert_12_768_12", "repeats": 7}, {"model": "bert_2_128_2", "repeats": 3}
PAUSE, COPY, WRITING = "pause of the step", "copy", "writing and syncing"
STEP, WITH_COPY, WHILE_WRITING = "step", "step with the copy", "step while it is written"


class Measured:
    """A model on the CPU, its steps, and its checkpoints in `folder`."""

    def __init__(self, made: OurStep, folder: Path):
        self._made, self._folder = made, folder
        self._parameters = {name: each.data() for name, each in made.parameters.items()}
        self._batch = dummy_batch(*BATCHES[128], VOCABULARY, np.random.default_rng(0))
        self._number = itertools.count(1)

    @property
    def bytes(self) -> int:
        """Of all that a checkpoint holds."""
        arrays = [*self._parameters.values(), *self._made.optimizer.state_arrays().values()]
        return sum(each.size * np.dtype(each.dtype).itemsize for each in arrays)

    def repeat(self, saver: Saver) -> dict[str, float]:
        """Seconds of each part, once."""
        found = {STEP: self._step()}
        pause = Watch()
        found[WITH_COPY] = self._step(lambda: self._begin(saver, pause), lambda: pause.time(saver.sound))
        found[PAUSE] = pause.seconds
        steps = [self._step()]
        while saver.busy:
            steps.append(self._step())
        found[WHILE_WRITING] = statistics.fmean(steps)
        saver.finish()
        copy = Watch()
        self._begin(saver, copy)
        copy.time(saver.sound)
        saver.finish()
        found[COPY] = copy.seconds
        writing = Watch()
        step, states = next(self._number), self._made.optimizer.state_views()
        writing.time(lambda: save(str(self._folder), step, self._parameters, states, {}, keep=1))
        return {**found, WRITING: writing.seconds}

    def _begin(self, saver: Saver, watch: Watch) -> None:
        self._made.wait()  # the update before: a step's, not the pause's
        step, states = next(self._number), self._made.optimizer.state_views()
        watch.time(lambda: saver.begin(step, self._parameters, states, {}))

    def _step(self, before: Callable[[], Any] = tuple, also: Callable[[], Any] = tuple) -> float:
        """A step's seconds, with what comes `before` it and what it asks for ahead of its update."""
        begun = time.perf_counter()
        before()
        self._made.take(next(self._number), [self._batch], 1e-5, True, lambda: [bool(also())])
        self._made.wait()
        return time.perf_counter() - begun


class Watch:
    """Seconds of several calls together."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def time(self, call: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        result = call()
        self.seconds += time.perf_counter() - begun
        return result


class Row(NamedTuple):
    """Seconds of a part in every repeat, and its shares of the writing in the same repeat."""

    name: str
    seconds: Sequence[float]
    shares: Sequence[float]


def rows_of(repeats: Sequence[Mapping[str, float]]) -> list[Row]:
    """The parts in the order of a repeat."""
    return [
        Row(name, [each[name] for each in repeats], [each[name] / each[WRITING] for each in repeats])
        for name in (PAUSE, COPY, WRITING, STEP, WITH_COPY, WHILE_WRITING)
    ]


def table(rows: Sequence[Row]) -> str:
    """Medians, with quartiles, for people."""
    lines = [f"{'':26} {'seconds (quartiles)':26}  of writing (quartiles)"]
    for row in rows:
        seconds, share = spread(row.seconds), spread(row.shares)
        time_s = f"{seconds.median:.3f} ({seconds.low:.3f} to {seconds.high:.3f})"
        lines.append(f"{row.name:26} {time_s:26}  {share.median:.1%} ({share.low:.1%} to {share.high:.1%})")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    return _measure(_options(arguments))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = OptionParser(
        prog="python -m bench.saving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--model", help="bert_LAYERS_UNITS_HEADS (default: bert_12_768_12)")
    parser.add_argument("--repeats", type=at_least(2), metavar="N", help="(default: 7)")
    parser.add_argument(
        "--folder", type=path_name, default=".", help="a folder on the disk to measure (default: this one)"
    )
    parser.add_argument("--output", type=path_name, metavar="FILE", help="write all figures there, as JSON")
    add_quick(parser, "bert_2_128_2, 3 repeats")
    options = parser.parse_args(arguments)
    settle(options, USUAL, QUICK)
    try:
        named_config(options.model)
    except ValueError as error:
        parser.error(f"--model: {error}")
    return options


def _measure(options: argparse.Namespace) -> int:
    set_threads()  # before mxnet is imported

    from bench.step_ours import make_step

    here, others, cpu = machine.describe(ROOT), machine.Others(), sum(os.times()[:2])
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        measured = Measured(make_step(options.model, "float32", "auto"), Path(folder))
        with Saver(folder, 1, SilentReporter()) as saver:
            measured.repeat(saver)  # memory is first touched, threads start
            repeats = [measured.repeat(saver) for _ in range(options.repeats)]
            saver.check(saver.finish(), saver.finite)
    load = others.shares(sum(os.times()[:2]) - cpu)
    rows = rows_of(repeats)
    print(f"{machine.line(here)}\n{options.model}, {measured.bytes / 1e6:,.0f} MB in a checkpoint")
    print(f"\n{table(rows)}\n")
    print(f"other programs took {load['others']:.1%} of the machine, its host {load['stolen']:.1%}")
    if options.quick:
        print(NOTICE)
    if options.output:
        result = {
            "machine": {**here, **load},
            "model": options.model,
            "quick": options.quick,
            "bytes": measured.bytes,
            "medians": {row.name: statistics.median(row.seconds) for row in rows},
            "shares": {row.name: statistics.median(row.shares) for row in rows},
            "repeats": repeats,
        }
        write_figures(options.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
