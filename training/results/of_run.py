"""The results of a run of `training.run`: its setting, and what metrics.jsonl and checkpoints say of it."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping

from base import machine
from base.errors import InputError
from base.files import sha256_of
from training.checkpoint import PARAMS, library_versions, list_steps, read_manifest, step_of
from training.exchange import gathered
from training.metrics import finite_or_none
from training.report import read_metrics
from training.results.record import (
    FINISHED,
    Result,
    Stage,
    has_result,
    held_out_scores,
    read_result,
    recorded,
    speed_of,
)
from training.run import Run

ROOT = Path(__file__).resolve().parents[2]
_HASH_BITS = 40  # as many as `gathered` carries exactly


@contextlib.contextmanager
def recording(run: Run) -> Iterator[Callable[[str], None]]:
    """Keeps the results.json of a run, or of one of its stages; every rank calls it, rank 0 writes.

    A block that ends in order calls what it is given with the run's status; what else ends it is recorded. A
    run that is called again after its end keeps the results it has.
    """
    kernel = hashlib.sha256(machine.running_kernel().encode()).hexdigest()
    hosts = len(set(gathered(int(kernel, 16) >> (256 - _HASH_BITS), run.communicator)))
    folder = run.config.checkpoint.ckpt_dir
    before = _before(run)
    last = None if run.plan.num_steps is None else run.start.begun + run.plan.num_steps
    ended = before is not None and before.status == FINISHED and before.steps == run.start.step == last
    if ended or run.communicator.rank != 0:
        yield lambda status: None
        return
    facts = machine.describe(ROOT)
    if run.model.device.device_type == "gpu":
        facts["gpu"] = machine.gpus()
    with recorded(folder, _setting(run, hosts, before, facts), lambda: figures_of(run)) as update:
        yield lambda status: update(**figures_of(run), status=status)


def figures_of(run: Run) -> dict[str, Any]:
    """The fields of a result that follow from what a run has done until now; rank 0 calls it."""
    folder, stage = run.config.checkpoint.ckpt_dir, run.start.stage
    metrics = [each for each in read_metrics(folder) if each.get("stage") == stage]
    taken = [each for each in metrics if "lr" in each]
    step = taken[-1]["step"] if taken else run.start.step
    speed = speed_of(metrics)
    loss = taken[-1].get(run.task.judged[0]) if taken else None
    scores = held_out_scores(metrics, step)
    figures = {
        "steps": step,
        "wall_s": finite_or_none(run.wall.total),
        "loss": loss,
        "scores": scores,
        "parameters": _sha256_of_step(folder, step),
        "speed": speed,
    }
    if stage is None:
        return figures
    this = Stage(
        stage=stage,
        max_seq_length=run.inputs.max_seq_length,
        batch_size=sequences_of_step(run),
        num_steps=run.plan.num_steps,
        steps=step - run.start.begun,
        speed=speed,
        loss=loss,
        scores=scores,
    )
    before = _before(run)
    stages = [each for each in (before.stages if before else ()) if each.stage < stage] + [this]
    seconds = [each.speed.train_s for each in stages]
    whole = None if None in seconds else sum(float(each or 0) for each in seconds)
    # Without stage 1's results, such as an older version's, the seconds of both are not known.
    known = run.start.begun == sum(each.steps for each in stages[:-1])
    return {**figures, "stages": stages, "speed": replace(speed, train_s=whole if known else None)}


def sequences_of_step(run: Run) -> float:
    """Sequences of a step of all processes; with --use_avg_len those of full length."""
    batch = run.config.batch
    sequences = batch.batch_size * batch.micro_batches
    if not batch.use_avg_len:
        return sequences
    whole, rest = divmod(sequences, run.inputs.max_seq_length)
    return sequences / run.inputs.max_seq_length if rest else whole


def _setting(run: Run, hosts: int, before: Result | None, facts: Mapping[str, Any]) -> Result:
    """The result of a run that begins, or goes on after `before`."""
    initial, about = run.start.initial, run.inputs.about
    named: dict[str, Any] = {"init_from": run.config.start.init_from}
    if initial is not None:
        named["began_with"] = _sha256_of_file(initial.source)
    elif before is not None:
        named = {"init_from": before.init_from, "began_with": before.began_with}
    return Result(
        task=run.task.name,
        model=run.config.model.bert.description,
        backend=run.communicator.name,
        world_size=run.communicator.size,
        hosts=hosts,
        device=run.model.device.device_type,
        dtype=run.model.dtype,
        operators=run.model.operators,
        machine=facts,
        versions=library_versions(),
        options={name: _plain(value) for name, value in run.config.given.items()},
        seed=run.seed,
        max_seq_length=run.inputs.max_seq_length,
        batch_size=sequences_of_step(run),
        num_steps=run.plan.num_steps,
        data=about.data,
        epochs=about.epochs,
        main_score=about.main_score or run.task.judged[0],
        higher_is_better=about.main_score is not None,
        steps=run.start.step,
        stages=before.stages if before else (),
        **named,
    )


def _before(run: Run) -> Result | None:
    """The results of the same run until now, where it goes on; None for a new one, and where they cannot be
    read."""
    folder = run.config.checkpoint.ckpt_dir
    if not run.start.step or not has_result(folder):
        return None
    with contextlib.suppress(InputError):
        return read_result(folder)
    return None


def _sha256_of_step(folder: str, step: int) -> str | None:
    """SHA-256 of the parameters' file of a step, as its manifest has it."""
    if step in list_steps(folder):
        with contextlib.suppress(InputError):
            return str(read_manifest(folder, step)["files"][PARAMS]["sha256"])
    return None


def _sha256_of_file(path: str) -> str | None:
    """SHA-256 of a file of parameters; None for a folder."""
    step = step_of(path)
    known = None if step is None else _sha256_of_step(os.path.dirname(path) or ".", step)
    if known is not None:
        return known
    return sha256_of(path) if os.path.isfile(path) else None


def _plain(value: Any) -> Any:
    """An option's value in a form that JSON has."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return [_plain(each) for each in value] if isinstance(value, tuple) else str(value)
