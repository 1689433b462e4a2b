"""Record of one launch of a training script: its figures, or the reason why there are none."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.json_files import read_json_lines
from comparison.launch import Launched, reason_of_exit
from comparison.settings import Setting, Turn
from training.checkpoint import PARAMS, read_manifest
from training.profiling.breakdown import break_down
from training.profiling.trace import read_trace

TIMED = "timed"
PROFILED = "profiled"  # with --profile: for the breakdown of a step, never for its time
RATES = ("tokens_per_s", "padded_tokens_per_s", "sequences_per_s")  # of a line of metrics
LOG, METRICS, TRACE = "run.log", "metrics.jsonl", "trace.json"


class Steps(NamedTuple):
    """Steps of a launch: all of them, those of the warm-up, and those to a line of metrics."""

    total: int
    warm_up: int
    interval: int


class Interval(NamedTuple):
    """A line of metrics.jsonl: means over the steps since the line before.

    Losses are in nats; None: not finite. `grad_norm`, of the last of these steps: the global norm of the
    averaged gradient before clipping, None: not finite. `lr`: of the last step; None: of a record that was
    made before the learning rate was kept.
    """

    step: int
    step_s: float
    tokens_per_s: float
    padded_tokens_per_s: float
    sequences_per_s: float
    mlm_loss: float | None
    nsp_loss: float | None
    grad_norm: float | None = None
    lr: float | None = None


@dataclass(frozen=True)
class Record:
    """One launch.

    Attributes:
        kind: TIMED or PROFILED.
        repeat: of the launches of its kind, from 0.
        failure: one line that says why there is no result; None for a launch that did what it should.
        out_of_memory: whether that was the reason.
        intervals: those after the warm-up steps; empty after a failure.
        warm_up: the intervals before them (what they computed is compared, too).
        params_sha256: of the file of parameters that the run has saved after its last step, as its manifest
            has it; None after a failure.
        start_up_s: from the launch to the first step.
        seconds: of the whole launch.
        peak_bytes: greatest resident memory of one process of each role on this host: "worker", "server",
            "scheduler".
        exchanged_bytes: bytes that a rank hands to its library in a step; None without a profile.
        others: share of this machine's CPU time that other programs took meanwhile; None: it was not kept.
        breakdown: `training.profiling.breakdown.break_down` of rank 0, for a profiled launch.
        command: as given to the system.
        begun: UTC, ISO 8601.
    """

    setting: Setting
    kind: str
    repeat: int
    failure: str | None = None
    out_of_memory: bool = False
    warm_up: tuple[Interval, ...] = ()
    intervals: tuple[Interval, ...] = ()
    params_sha256: str | None = None
    start_up_s: float | None = None
    seconds: float = 0.0
    peak_bytes: Mapping[str, int] = field(default_factory=dict)
    exchanged_bytes: int | None = None
    others: float | None = None
    breakdown: Mapping[str, Any] | None = None
    command: tuple[str, ...] = ()
    begun: str = ""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Record:
        """A record from what `comparison.report.plain` makes of one. Raises KeyError or TypeError."""
        return cls(
            **{
                **values,
                "setting": Setting(**values["setting"]),
                "warm_up": tuple(Interval(**each) for each in values["warm_up"]),
                "intervals": tuple(Interval(**each) for each in values["intervals"]),
                "command": tuple(values["command"]),
            }
        )


def read_run(work: Turn, steps: Steps, launched: Launched, directory: Path, command: Sequence[str]) -> Record:
    """The record of a launch that has ended, with figures or with the reason why there are none."""
    record = Record(
        **work._asdict(),
        seconds=launched.seconds,
        peak_bytes=dict(launched.peak_bytes),
        others=launched.others,
        command=tuple(command),
        begun=datetime.fromtimestamp(launched.begun, timezone.utc).isoformat(timespec="seconds"),
    )
    # Of the lines those about training; a last one that was cut off is left out.
    lines: list[dict[str, Any]] = []
    with contextlib.suppress(FileNotFoundError):
        lines = [values for values in read_json_lines(str(directory / METRICS)) if "mlm_loss" in values]
    failure, out_of_memory = _failure(steps, launched, directory, lines)
    if failure is not None:
        return replace(record, failure=failure, out_of_memory=out_of_memory)
    try:
        checksum = read_manifest(str(directory), steps.total)["files"][PARAMS]["sha256"]
    except InputError as error:
        return replace(record, failure=f"exit code 0, but {error}")
    intervals = [Interval(**{name: line[name] for name in Interval._fields}) for line in lines]
    warm = sum(interval.step <= steps.warm_up for interval in intervals)
    first = lines[0]
    record = replace(
        record,
        warm_up=tuple(intervals[:warm]),
        intervals=tuple(intervals[warm:]),
        params_sha256=checksum,
        start_up_s=first["time"] - first["step"] * first["step_s"] - launched.begun,
    )
    if work.kind != PROFILED:
        return record
    try:
        trace = read_trace(str(directory / TRACE))
    except (InputError, OSError) as error:
        return replace(record, failure=f"no profile: {error}", warm_up=(), intervals=())
    return replace(record, breakdown=break_down(trace), exchanged_bytes=int(trace.facts["exchanged_bytes"]))


def _failure(
    steps: Steps, launched: Launched, directory: Path, lines: Sequence[dict[str, Any]]
) -> tuple[str | None, bool]:
    """Reason why there is no result, None if there is one, and whether memory ran out."""
    done = lines[-1]["step"] if lines else 0
    if launched.timed_out:
        limit = f"no end within {launched.seconds:.0f} s (--time_limit)"
        return f"{limit}; {done} of {steps.total} steps were reported", False
    if launched.returncode:
        return reason_of_exit(launched, (directory / LOG).read_text(encoding="utf-8", errors="replace"))
    if not lines:
        return f"exit code 0, but no metrics in {METRICS}", False
    expected = list(range(steps.interval, steps.total + 1, steps.interval))
    if [line["step"] for line in lines] != expected:
        return f"too short: {done} of {steps.total} steps, {len(lines)} of {len(expected)} lines", False
    for line in lines:
        # Single sentences (--single_sentences) have no next one.
        losses = ("mlm_loss", "nsp_loss")[: 1 if line.get("nsp_acc", "") is None else 2]
        for name in (*losses, "step_s", *RATES):
            finite = isinstance(line[name], (int, float)) and math.isfinite(line[name])
            if name != "step_s" and not finite:
                skipped = f"; {line['skipped_steps']} steps were skipped" if line["skipped_steps"] else ""
                return f"{name} is not finite at step {line['step']}{skipped}", False
            if name == "step_s" and not (finite and line[name] > 0):
                return f"step_s is {line['step_s']} at step {line['step']}", False
    return None, False
