"""A trace of a few steps of a training run, for --profile and training.profile."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.json_files import read_json_file
from training.profiling.trace import BEGINS, END, ENDS, MOST_BYTES, STEP, from_mxnet, write_trace

FIRST, LAST = 10, 14  # steps of the run: past the first ones, which plan memory


class TraceComplete(Exception):
    """The steps that were asked for have been traced, and no more are wanted."""


class TracePlan(NamedTuple):
    """Steps to trace, for those who want something else than --profile FILE.

    `path`: the file. `first`, `last`: steps, counted from the start of this run. `stop`: whether to raise
    TraceComplete after the last one. `facts`: about the run, to be kept in the trace.
    """

    path: str
    first: int = FIRST
    last: int = LAST
    stop: bool = False
    facts: Mapping[str, Any] = {}


def separate_operators() -> None:
    """Has MXNet run each operator of a graph by itself; to be called before mxnet is imported.

    By default MXNet hands up to 15 operators of a graph to its engine as one, and its profiler then sees one
    event for all of them. (The first of the two variables is about graphs as they are planned, the second
    about what a backward pass runs besides.)

    Raises:
        RuntimeError: mxnet has been imported.
    """
    if "mxnet" in sys.modules:
        raise RuntimeError("separate_operators must be called before mxnet is imported")
    os.environ["MXNET_EXEC_BULK_EXEC_TRAIN"] = "0"
    os.environ["MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN"] = "0"


class TraceOfSteps:
    """Writes a trace of some steps of this run, which `python -m training.profile` and Chrome's viewers read.

    Without a path it does nothing. Rank r > 0 writes to `path`.r. A run that ends before the last of the
    steps leaves a trace of those it has come to.

    Args:
        what: the value of --profile (steps FIRST to LAST), or a TracePlan.
        facts: about the run: model, vocab_size and dtype give the rates of matrix products.

    Raises:
        InputError: the file cannot be written.
    """

    def __init__(self, what: str | TracePlan | None, rank: int, facts: Mapping[str, Any]):
        self._plan = TracePlan(what) if isinstance(what, str) and what else what or None
        self._step = 0
        self._running = False
        if self._plan is None:
            return
        path = os.path.abspath(os.path.expanduser(self._plan.path))
        self._path = f"{path}.{rank}" if rank else path
        if os.path.isdir(self._path) or not os.path.isdir(os.path.dirname(path)):
            raise InputError(f"--profile {self._plan.path}: name a file, in a folder that is there")
        self._facts = {**facts, **self._plan.facts, "rank": rank}
        self._batches: list[list[tuple[int, int, int]]] = []  # of each step: rows, length, predictions
        atexit.register(self._at_exit)

    def before_step(self) -> None:
        """Before the step's batches are taken."""
        self._step += 1
        if self._plan is None or not self._plan.first <= self._step <= self._plan.last:
            return
        import mxnet as mx

        if self._step == self._plan.first:
            mx.nd.waitall()
            self._raw = f"{self._path}.raw-{os.getpid()}"
            mx.profiler.set_config(
                profile_symbolic=True, profile_imperative=True, profile_api=True, filename=self._raw
            )
            self._bulk_size = mx.engine.set_bulk_size(0)
            mx.profiler.set_state("run")
            self._running = True
        self._mark(f"{STEP}{self._step}")

    def after_step(self, batches: Sequence[Any]) -> None:
        """After the step has been queued.

        `batches`: those of the step, of which the shapes are noted where they are pretraining's.

        Raises:
            TraceComplete: after the last step of a TracePlan with `stop`.
        """
        if not self._running or self._plan is None:
            return
        if hasattr(batches[0], "masked_ids"):  # of other tasks breakdown.step_flops counts nothing
            self._batches.append([(*batch.input_ids.shape, batch.masked_ids.shape[1]) for batch in batches])
        if self._step == self._plan.last:
            self._finish()
            if self._plan.stop:
                raise TraceComplete

    @contextlib.contextmanager
    def stage_wait(self) -> Iterator[None]:
        """Notes that Python waits for a message of another stage meanwhile."""
        if self._running:
            self._mark(BEGINS)
        yield
        if self._running:
            self._mark(ENDS)

    def _finish(self) -> None:
        import mxnet as mx

        mx.nd.waitall()
        self._mark(END)
        mx.profiler.set_state("stop")
        self._running = False
        mx.engine.set_bulk_size(self._bulk_size)
        try:
            mx.profiler.dump()
            facts = {"batches": self._batches, **self._facts} if self._batches else self._facts
            write_trace(self._path, from_mxnet(read_json_file(self._raw, MOST_BYTES)["traceEvents"], facts))
        finally:
            if os.path.exists(self._raw):
                os.unlink(self._raw)

    def _mark(self, name: str) -> None:
        import mxnet as mx

        mx.profiler.Domain("bert").new_marker(name).mark("process")

    def _at_exit(self) -> None:
        if self._plan is None or self._step >= self._plan.last:
            return
        if self._running:
            self._finish()
        elif not self._facts["rank"]:
            print(
                f"warning: no profile: the run took {self._step} steps, and tracing begins with step"
                f" {self._plan.first}",
                file=sys.stderr,
            )
