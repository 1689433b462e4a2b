"""The results.json of a run: setting, speed and scores, for tables of many runs. MXNet is not imported.

It is there from a run's first step on, as `unfinished`, and is written anew at its end: what a kill leaves
says so. A value that is not known is null.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

from base.errors import InputError, NotFiniteError, TrainingError, is_out_of_memory
from base.files import is_temporary, replacing
from base.json_files import read_json_object

RESULTS_FILE = "results.json"
FORMAT = 1
_MOST = 1e100  # of a number in it
FINISHED, UNFINISHED, NO_MEMORY, NOT_FINITE, FAILED = STATUSES = (
    *("finished", "unfinished", "out of memory", "not finite", "failed"),
)
_LONGEST_REASON = 300  # characters


@dataclass(frozen=True)
class Speed:
    """Medians over the log intervals of a run or stage, of all ranks, and seconds of training.

    Sequences and tokens (without padding) a second; `step_s` in seconds; `train_s` without start-up,
    checkpoints and evaluations, resumed launches included.
    """

    sequences_per_s: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    train_s: float | None = None


@dataclass(frozen=True)
class Stage:
    """One of the two stages of pretraining; the fields mean what they mean in `Result`."""

    stage: int
    max_seq_length: int | None = None
    batch_size: float | None = None
    num_steps: int | None = None
    steps: int = 0
    speed: Speed = Speed()
    loss: float | None = None
    scores: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """A run. The first fields are known when it starts, those from `status` on when it ends.

    Attributes:
        task: "pretraining", "squad", "classification", ...
        model: such as bert_12_768_12.
        backend: "horovod", "byteps", or "local" for one process without a launcher.
        world_size: processes that train; hosts: machines that they run on.
        device: "cpu" or "gpu"; dtype: "float32", "float16", "bfloat16" or "bfloat16x3".
        data: the benchmark's name in tables, such as "SQuAD 1.1" or "MRPC".
        machine: rank 0's, as base.machine.describe has it, and `gpu`, where it has some.
        versions, options: by name.
        batch_size: sequences of a step, of all processes, as planned; of the last stage.
        epochs: passes over the training data; null where steps are given instead.
        num_steps: planned; null where hours end the run. Of the last stage.
        init_from: name of the parameters at its beginning, and `began_with`, the SHA-256 of their file.
        main_score: the one that decides, and whether more of it is better.
        status: one of STATUSES; reason: of a failure, in a line.
        steps: taken, of all stages.
        speed: of the last stage, but `train_s` of all stages.
        wall_s: seconds from opening the run to its end, with data, checkpoints and evaluations; of all
            launches that saved a checkpoint or ended in order.
        loss: in training, mean over the last log interval.
        scores: on held-out data, by name; shares and correlations from 0 (or -1) to 1, F1 and exact match of
            SQuAD from 0 to 100, as the official scorers have them.
        parameters: SHA-256 of the file of the final parameters, the `began_with` of runs that begin with it.
        stages: of pretraining with --stages, in order.
    """

    task: str
    model: str
    backend: str
    world_size: int
    hosts: int | None
    device: str
    dtype: str
    operators: str | None = None
    data: str | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    max_seq_length: int | None = None
    batch_size: float | None = None
    epochs: float | None = None
    num_steps: int | None = None
    init_from: str | None = None
    began_with: str | None = None
    main_score: str | None = None
    higher_is_better: bool = True
    status: str = UNFINISHED
    reason: str | None = None
    steps: int = 0
    speed: Speed = Speed()
    wall_s: float | None = None
    loss: float | None = None
    scores: Mapping[str, float | None] = field(default_factory=dict)
    parameters: str | None = None
    stages: Sequence[Stage] = ()

    @property
    def score(self) -> float | None:
        """The score that decides."""
        return self.scores.get(self.main_score or "")


@contextlib.contextmanager
def recorded(
    folder: str, result: Result, figures: Callable[[], Mapping[str, Any]]
) -> Iterator[Callable[..., None]]:
    """Keeps the results.json of a run in `folder`, which exists; rank 0 calls it. Writes the result as
    unfinished, and what ends the block if that is an exception, which goes on.

    A block that ends in order calls what it is given with the fields that its outcome changes. `figures`:
    those that are known when an exception has ended it, besides status and reason.

    Raises:
        TrainingError: the disk does not take it.
    """

    def update(**changes: Any) -> None:
        nonlocal result
        result = replace(result, **changes)
        try:
            write_result(folder, result)
        except OSError as error:
            path = os.path.join(folder, RESULTS_FILE)
            raise TrainingError(f"{path} cannot be written: {error.strerror}") from error

    update(status=UNFINISHED, reason=None)
    try:
        yield update
    except BaseException as error:
        status, reason = outcome_of(error)
        known: Mapping[str, Any] = {}
        with contextlib.suppress(Exception):  # without memory, or a disk, this may fail as well
            known = figures()
        # The error that is on its way is the one to be read, not that its record could not be written.
        with contextlib.suppress(TrainingError):
            update(**known, status=status, reason=reason)
        raise


def outcome_of(error: BaseException) -> tuple[str, str | None]:
    """The status of a run that this exception has ended, and the reason in one line."""
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        return UNFINISHED, None
    lines = str(error).strip().splitlines() or [type(error).__name__]
    status = FAILED
    if is_out_of_memory(error):
        status = NO_MEMORY
        lines = [line for line in lines if is_out_of_memory(RuntimeError(line))] or lines
    elif isinstance(error, NotFiniteError):
        status = NOT_FINITE
    elif type(error).__name__ == "MXNetError":
        lines = lines[-1:]  # above it are the calls in C++
    return status, lines[0].strip()[:_LONGEST_REASON]


def speed_of(metrics: Sequence[Mapping[str, Any]]) -> Speed:
    """The speed that these lines of metrics.jsonl, of one run or one stage of it, show."""
    lines = [each for each in metrics if "step_s" in each]
    names = ("sequences_per_s", "tokens_per_s", "step_s")
    medians = {name: median_of(each.get(name) for each in lines) for name in names}
    return Speed(**medians, train_s=lines[-1].get("training_s") if lines else None)


def median_of(values: Iterable[float | None]) -> float | None:
    """The median of those that are known; None without any."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def held_out_scores(metrics: Sequence[Mapping[str, Any]], step: int) -> dict[str, float | None]:
    """The figures of the evaluation at this step, without eval_; empty without one."""
    found = [each for each in metrics if each["step"] == step and "eval_sequences" in each]
    left_out = ("eval_sequences", "eval_labelled", "eval_s", "eval_parts")
    return {
        name[len("eval_") :]: value
        for name, value in (found[-1] if found else {}).items()
        if name.startswith("eval_") and name not in left_out
    }


def write_result(folder: str, result: Result) -> None:
    """Writes `folder`/results.json whole or not at all; one rank does it. NaN and infinities become null.

    Raises:
        OSError: it cannot be written.
        ValueError: a status that is none, or a value that JSON has no form for.
    """
    if result.status not in STATUSES:
        raise ValueError(f"{result.status!r} is none of {', '.join(STATUSES)}")
    for name in os.listdir(folder):  # of a run that was killed in between
        if name.startswith(RESULTS_FILE) and is_temporary(name):
            os.remove(os.path.join(folder, name))
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    try:
        text = json.dumps(_finite({"format": FORMAT, "time": now, **asdict(result)}), indent=1)
    except TypeError as error:
        raise ValueError(f"{RESULTS_FILE} cannot hold this: {error}") from error
    with replacing(os.path.join(folder, RESULTS_FILE)) as file:
        file.write(text.encode() + b"\n")


def has_result(folder: str) -> bool:
    """Whether the folder has a results.json, whatever it holds."""
    return os.path.isfile(os.path.join(folder, RESULTS_FILE))


def read_result(folder: str) -> Result:
    """The results.json of a run's folder.

    Raises:
        InputError: there is none, or it is damaged or of another version.
    """
    path = os.path.join(folder, RESULTS_FILE)
    content = read_json_object(path)
    if content.pop("format", None) != FORMAT:
        raise InputError(f"{path} is not of format {FORMAT}, which this version reads; run again")
    content.pop("time", None)
    try:
        content["speed"] = Speed(**(content.get("speed") or {}))
        stages = content.get("stages") or ()
        content["stages"] = tuple(Stage(**{**each, "speed": Speed(**each["speed"])}) for each in stages)
        result = Result(**content)
        _check(result)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}); run again") from error
    return result


_TYPES: Mapping[str, Any] = {
    **{"str": str, "bool": bool, "int": int, "float": (int, float)},
    **{"Mapping": dict, "Sequence": tuple, "Speed": Speed},
}


def _check(result: Result) -> None:
    """Raises ValueError for values that tables cannot show."""
    if result.status not in STATUSES:
        raise ValueError(f"status {result.status!r}")
    parts: list[Any] = [result, *result.stages]
    for part in parts:
        for record in (part, part.speed):
            for each in fields(record):
                _check_value(each.name, getattr(record, each.name), str(each.type))
        for name, value in part.scores.items():
            _check_value(f"score {name}", value, "float | None")
    _check_value("memory_gib", result.machine.get("memory_gib", 0), "float")
    _check_value("gpu", result.machine.get("gpu"), "str | None")
    if result.world_size < 1:
        raise ValueError(f"world_size {result.world_size!r}")


def _check_value(name: str, value: Any, annotation: str) -> None:
    """Raises ValueError for a value of another type than a field's `annotation`, and for large numbers."""
    if value is None and annotation.endswith("None"):
        return
    kind = annotation.partition("[")[0].partition(" ")[0]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not isinstance(value, _TYPES[kind]) or (kind in ("int", "float")) != is_number:
        raise ValueError(f"{name} {value!r}")
    if is_number and not abs(value) < _MOST:
        raise ValueError(f"{name} {value!r}")


def _finite(value: Any) -> Any:
    """The value with null in place of what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value
