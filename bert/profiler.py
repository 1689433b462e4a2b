"""An MXNet trace of a few steps, as GluonNLP's --profile takes it."""

from __future__ import annotations

import mxnet as mx

FIRST, LAST = 10, 14  # steps of the run: past the first ones, which plan memory


class TraceOfSteps:
    """Writes a Chrome trace of steps FIRST to LAST (counted from the start of this run) to `path`.

    Without a path it does nothing. Rank r > 0 writes to `path`.r.
    """

    def __init__(self, path: str | None, rank: int):
        self._path = f"{path}.{rank}" if path and rank else path
        self._step = 0

    def before_step(self) -> None:
        self._step += 1
        if self._path and self._step == FIRST:
            mx.nd.waitall()
            mx.profiler.set_config(profile_all=True, aggregate_stats=True, filename=self._path)
            mx.profiler.set_state("run")

    def after_step(self) -> None:
        if self._path and self._step == LAST:
            mx.nd.waitall()
            mx.profiler.set_state("stop")
            mx.profiler.dump()
