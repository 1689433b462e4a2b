"""Runs in folders, and what they have in common. No MXNet."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from typing import Callable, Hashable, Iterable, NamedTuple, Sequence

from base.errors import InputError
from base.tables import EMPTY
from lamb_paper import STAGE_LENGTHS
from training.results.members import has_plan, read_plan
from training.results.record import FINISHED, Result, Stage, has_result, read_result

PRETRAINING = "pretraining"
CHECKPOINTS = "ckpt"  # `make pretrain` has its checkpoints there
# Options in which runs that are one row of a table may differ.
_OF_ONE_RUN = (
    "seed",
    "seeds",
    "search",
    "resume",
    "progress",
    "verbose",
    "ckpt_dir",
    "output_dir",
    "cache_dir",
    "options_file",
)


class Run(NamedTuple):
    """A run's folder and its results; None with --partial, where there are none."""

    folder: str
    result: Result | None


def find_runs(given: Sequence[str], partial: bool) -> list[Run]:
    """The runs that folders hold: one each, or all members of --seeds and --search.

    Raises:
        InputError: folders that are not there or, unless `partial`, have no results, all of them in one line;
            damaged results.
    """
    folders: list[str] = []
    for folder in given:
        if has_plan(folder):
            folders += [os.path.join(folder, member.name) for member in read_plan(folder).members]
        elif not has_result(folder) and has_result(os.path.join(folder, CHECKPOINTS)):
            folders.append(os.path.join(folder, CHECKPOINTS))
        else:
            folders.append(folder)
    folders = list(dict.fromkeys(folders))
    lacking = [folder for folder in folders if not has_result(folder)]
    absent = [folder for folder in given if not os.path.isdir(folder)]
    if absent:
        raise InputError(f"no such folder: {', '.join(absent)}; name folders of runs")
    if lacking and not partial:
        raise InputError(
            f"no results.json in {', '.join(lacking)}: not the folder of a run, or the run has not begun to "
            "train, or is of an older version; leave it out, or --partial shows it as dashes"
        )
    return [Run(folder, None if folder in lacking else read_result(folder)) for folder in folders]


def parts_of(result: Result) -> list[Result]:
    """A result for each stage, with the stage's figures; the result itself without stages.

    The status belongs to the last stage: those before it have ended.
    """
    if not result.stages:
        return [result]
    parts = []
    for stage in result.stages:
        figures = {each.name: getattr(stage, each.name) for each in fields(Stage) if each.name != "stage"}
        status = result.status if stage is result.stages[-1] else FINISHED
        parts.append(replace(result, **figures, stages=(), status=status))
    return parts


def stages_of(result: Result) -> list[Stage]:
    """The stages of a pretraining run; one that has none is of the stage that has its sequence length in the
    paper (training.plan takes the same)."""
    if result.stages:
        return list(result.stages)
    number = 1 if (result.max_seq_length or 0) <= STAGE_LENGTHS[0] else 2
    return [Stage(number, result.max_seq_length, steps=result.steps, speed=result.speed, loss=result.loss)]


def grouped(results: Iterable[Result], key: Callable[[Result], Hashable]) -> list[list[Result]]:
    """The results with equal keys together, in the order of the first of each."""
    groups: dict[Hashable, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return list(groups.values())


def machine_name(result: Result) -> str | None:
    """The GPUs of the run's machine, or its processor, cores and memory; None where they are not recorded."""
    facts = result.machine
    if result.device == "gpu":
        return facts.get("gpu")
    if not facts.get("cpu"):
        return None
    return f"{facts['cpu']}, {facts.get('cores', EMPTY)} cores, {facts.get('memory_gib', 0):.0f} GiB"


def but_for_the_seed(result: Result) -> Hashable:
    """All that two runs of one row have in common."""
    options = sorted((name, repr(value)) for name, value in result.options.items() if name not in _OF_ONE_RUN)
    machine = (machine_name(result), result.hosts, result.world_size, result.backend, result.dtype)
    return (result.task, result.data, result.model, result.began_with, *machine, tuple(options))
