"""The compute time of this machine, from the report.json of a comparison that ran on it."""

from __future__ import annotations

import statistics
from typing import Any, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.json_files import read_json_object
from bert.configuration import BertConfig, recorded_config
from comparison.runs.record import PROFILED, TIMED, Record
from training.profiling.kinds import OPTIMIZER

MOST_BYTES = 1 << 30  # of a report.json that is read


class Measured(NamedTuple):
    """One worker's step. `compute_s`: of one pass, without the update; `sequences` and `length`: of one pass,
    means. `what`: which launches it was taken from, for people."""

    bert: BertConfig
    vocab_size: int
    compute_s: float
    optimizer_s: float
    sequences: float
    length: float
    accumulate: int
    dtype: str
    what: str


def read_measured(path: str) -> Measured:
    """The largest batch that one worker ran in float32, or else in the first dtype there is.

    With one worker nothing is exchanged, so all backends count alike: the median over their launches.

    Raises:
        InputError: a file that is no report, or one without a good launch of one worker.
    """
    report = _read(path)
    try:
        records = [Record.from_json(each) for each in report["launches"]]
        facts = report["facts"]
        vocab_size = int(facts["vocab_size"])
        accumulate = int(facts.get("accumulate") or 1)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"--measured {path}: not the report.json of a comparison ({error!r})") from error
    bert = recorded_config(facts, f"--measured {path}")
    alone = [each for each in records if each.setting.workers == 1 and not each.failure]
    timed = [each for each in alone if each.kind == TIMED and each.intervals]
    if not timed:
        raise InputError(
            f"--measured {path}: no finished launch of one worker in it; compare --workers 1 first"
        )
    dtypes = [each.setting.dtype for each in timed]
    dtype = "float32" if "float32" in dtypes else dtypes[0]
    batch = max(each.setting.batch_size for each in timed if each.setting.dtype == dtype)
    chosen = [each for each in timed if (each.setting.dtype, each.setting.batch_size) == (dtype, batch)]
    step_s = _median(chosen, lambda line: line.step_s)
    sequences = _median(chosen, lambda line: line.sequences_per_s * line.step_s)
    tokens = _median(chosen, lambda line: line.padded_tokens_per_s * line.step_s)
    if not (step_s > 0 and sequences > 0 and tokens > 0):
        raise InputError(f"--measured {path}: its steps of one worker have no time or no sequences")
    optimizer_s = _optimizer(alone, dtype, batch, step_s)
    return Measured(
        bert=bert,
        vocab_size=vocab_size,
        compute_s=(step_s - optimizer_s) / accumulate,
        optimizer_s=optimizer_s,
        sequences=sequences / accumulate,
        length=tokens / sequences,
        accumulate=accumulate,
        dtype=dtype,
        what=f"{path}: {bert.description}, one worker, {dtype}, batch size {batch}, {len(chosen)} launches",
    )


def _read(path: str) -> Mapping[str, Any]:
    return read_json_object(path, MOST_BYTES, f"--measured {path}")


def _median(launches: Sequence[Record], value: Any) -> float:
    """Over the launches, of each launch's median."""
    return statistics.median(statistics.median(value(line) for line in each.intervals) for each in launches)


def _optimizer(records: Sequence[Record], dtype: str, batch: int, step_s: float) -> float:
    """Its share of a profiled step, of the time of a step that was not profiled; 0 without a profile."""
    for each in records:
        if each.kind == PROFILED and (each.setting.dtype, each.setting.batch_size) == (dtype, batch):
            part = ((each.breakdown or {}).get("parts") or {}).get(OPTIMIZER) or {}
            share = part.get("share")
            if isinstance(share, (int, float)) and 0 <= share < 1:
                return step_s * share
    return 0.0
