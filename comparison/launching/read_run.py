"""From what a launch has left in its directory to a record."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Sequence

from base.errors import InputError
from comparison.launching.failure import reason_of_exit
from comparison.launching.launch import Launched
from comparison.record import PROFILED, Interval, Record
from comparison.settings import Setting
from training.checkpoint import PARAMS, read_manifest
from training.profiling.breakdown import break_down
from training.profiling.trace import read_trace

LOG, METRICS, TRACE = "run.log", "metrics.jsonl", "trace.json"


class Steps(NamedTuple):
    """Of a launch: how many, how many of them are warm-up, and how many to a line of metrics."""

    total: int
    warm_up: int
    interval: int


class Work(NamedTuple):
    """One launch to be made. `kind`: of comparison.record."""

    setting: Setting
    kind: str
    repeat: int

    def __str__(self) -> str:
        which = "profile" if self.kind == PROFILED else "repeat"
        return f"{self.setting.name} {which} {self.repeat + 1}"


def read_run(
    work: Work, steps: Steps, launched: Launched, directory: Path, command: Sequence[str], begun: str
) -> Record:
    """The record of a launch that has ended, with figures or with the reason why there are none."""
    record = Record(
        setting=work.setting,
        kind=work.kind,
        repeat=work.repeat,
        seconds=launched.seconds,
        peak_bytes=dict(launched.peak_bytes),
        command=tuple(command),
        begun=begun,
    )
    lines = read_lines(directory / METRICS)
    failure, out_of_memory = _failure(steps, launched, directory, lines)
    if failure is not None:
        return replace(record, failure=failure, out_of_memory=out_of_memory)
    try:
        checksum = params_sha256(directory, steps.total)
    except InputError as error:
        return replace(record, failure=f"exit code 0, but {error}")
    intervals = [_interval(line) for line in lines]
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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines about training; a last one that was cut off is left out, and so is a file that is missing."""
    found = []
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:
        return []
    for line in text.splitlines():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if "mlm_loss" in values:
            found.append(values)
    return found


def params_sha256(directory: Path, step: int) -> str:
    """The checksum of the parameters that a run has saved at `step`, from the manifest in `directory`.

    Raises:
        InputError: the manifest is missing or damaged.
    """
    files = read_manifest(str(directory), step).get("files")
    found = files.get(PARAMS, {}).get("sha256") if isinstance(files, dict) else None
    if not isinstance(found, str):
        raise InputError(f"the manifest of step {step} in {directory} has no checksum of the parameters")
    return found


def _failure(
    steps: Steps, launched: Launched, directory: Path, lines: Sequence[dict[str, Any]]
) -> tuple[str | None, bool]:
    """Why there is no result, None if there is one, and whether memory ran out."""
    done = lines[-1]["step"] if lines else 0
    if launched.timed_out:
        limit = f"no end within {launched.seconds:.0f} s (--time_limit)"
        return f"{limit}; {done} of {steps.total} steps were reported", False
    if launched.returncode:
        try:
            log = (directory / LOG).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            log = f"error: no {LOG}: {error.strerror}"
        return reason_of_exit(launched, log)
    if not lines:
        return f"exit code 0, but no metrics in {METRICS}", False
    expected = list(range(steps.interval, steps.total + 1, steps.interval))
    if [line["step"] for line in lines] != expected:
        return f"too short: {done} of {steps.total} steps, {len(lines)} of {len(expected)} lines", False
    for line in lines:
        for name in ("mlm_loss", "nsp_loss"):
            if not _is_finite(line[name]):
                skipped = f"; {line['skipped_steps']} steps were skipped" if line["skipped_steps"] else ""
                return f"{name} is not finite at step {line['step']}{skipped}", False
        if not (_is_finite(line["step_s"]) and line["step_s"] > 0):
            return f"step_s is {line['step_s']} at step {line['step']}", False
        missing = [name for name in Interval._fields if name not in line]
        if missing:
            return f"{METRICS} has no {missing[0]} at step {line['step']}", False
    return None, False


def _is_finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _interval(line: dict[str, Any]) -> Interval:
    return Interval(**{name: line[name] for name in Interval._fields})
