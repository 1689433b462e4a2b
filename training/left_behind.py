"""Checkpoints that a failure has left elsewhere than in --ckpt_dir, for the next --resume. Does not import
mxnet.

    /dev/shm/checkpoint-...         a checkpoint that the disk did not take, in the memory of this host
    CKPT_DIR/rescue/stage-1-of-2    the part of a checkpoint that the ranks of a pipeline's stage hold
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
from collections import ChainMap
from typing import Any, Callable, Mapping

from base.errors import InputError, TrainingError
from base.files import replacing
from bert.weights.params_file import read_index
from training.checkpoint import (
    MANIFEST,
    OWN,
    PARAMS,
    STATES,
    Checkpoint,
    list_steps,
    save,
    step_path,
    verified,
)

MEMORY = "/dev/shm"
PARTS = "rescue"
_PART = re.compile(r"stage-(\d+)-of-(\d+)")


def memory_of(ckpt_dir: str) -> str:
    """The folder in this host's memory for a checkpoint that the disk did not take."""
    name = hashlib.sha256(os.path.realpath(ckpt_dir).encode()).hexdigest()[:16]
    return os.path.join(MEMORY, f"checkpoint-{os.geteuid()}-{name}")


def keep_in_memory(
    ckpt_dir: str,
    step: int,
    parameters: Mapping[str, Any],
    states: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> str | None:
    """Saves a checkpoint in memory; arguments as for `training.checkpoint.save`. Returns the folder, None
    where there is no room for it either."""
    folder = memory_of(ckpt_dir)
    try:
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder, 0o700)
        save(folder, step, parameters, states, facts)
    except (OSError, TrainingError):
        shutil.rmtree(folder, ignore_errors=True)
        return None
    return folder


def folder_of_part(ckpt_dir: str, stage: int, stages: int) -> str:
    """The folder for a stage's part, the first being 0."""
    return os.path.join(ckpt_dir, PARTS, f"stage-{stage + 1}-of-{stages}")


def bring_back(ckpt_dir: str, report: Callable[[str], None]) -> None:
    """Makes checkpoints in the folder of what was left elsewhere, if that is newer; then it goes.

    Raises:
        InputError: the disk still does not take it.
    """
    try:
        _copy_from_memory(ckpt_dir, report)
        _join_parts(ckpt_dir, report)
    except TrainingError as error:
        raise InputError(str(error)) from error


def _join_parts(ckpt_dir: str, report: Callable[[str], None]) -> None:
    """Joins the parts of all stages, if they are of one step."""
    place = os.path.join(ckpt_dir, PARTS)
    if not os.path.isdir(place) or os.path.islink(place):
        return
    parts: list[Checkpoint] = []
    try:
        names = sorted(filter(_PART.fullmatch, os.listdir(place)))
        for name in names:
            folder = os.path.join(place, name)
            parts.append(verified(folder, max(list_steps(folder), default=0)))
        steps = {each.step for each in parts}
        expected = {folder_of_part(ckpt_dir, stage, len(names)) for stage in range(len(names))}
        are_all = {os.path.join(place, name) for name in names} == expected and len(steps) == 1
        if are_all and min(steps) > max(list_steps(ckpt_dir), default=0):
            _join(ckpt_dir, parts)
            report(f"the checkpoint of step {parts[0].step} is joined from the parts of {len(names)} stages")
    except InputError as error:
        report(f"{error}: passed over")
    shutil.rmtree(place, ignore_errors=True)


def _copy_from_memory(ckpt_dir: str, report: Callable[[str], None]) -> None:
    folder = memory_of(ckpt_dir)
    try:
        there = os.lstat(folder)
    except OSError:
        return
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid() or there.st_mode & 0o077:
        return  # somebody else's, who may write there what they like
    steps = list_steps(folder)
    if steps and steps[-1] > max(list_steps(ckpt_dir), default=0):
        try:
            verified(folder, steps[-1])
            for extension in (PARAMS, STATES, MANIFEST):  # which makes the others count
                source, target = (step_path(each, steps[-1], extension) for each in (folder, ckpt_dir))
                with open(source, "rb") as kept, replacing(target) as file:
                    shutil.copyfileobj(kept, file)
            report(f"the checkpoint of step {steps[-1]} is back from this host's memory, {folder}")
        except InputError as error:
            report(f"{error}: passed over")
        except OSError as error:
            raise InputError(
                f"--ckpt_dir {ckpt_dir}: {error.strerror or error}; the checkpoint of step {steps[-1]} waits "
                f"in this host's memory, {folder}, for room on the disk"
            ) from error
    shutil.rmtree(folder, ignore_errors=True)


def _join(ckpt_dir: str, parts: list[Checkpoint]) -> None:
    """Saves one checkpoint of the stages' parts, which are read one array at a time."""
    parameters = {name: each for part in parts for name, each in read_index(part.params_path).items()}
    facts = {name: value for name, value in (parts[0].manifest or {}).items() if name not in OWN}
    with contextlib.ExitStack() as stack:
        states: Any = ChainMap(*(stack.enter_context(part.open_states()) for part in parts))  # type: ignore[arg-type]
        save(ckpt_dir, parts[0].step, parameters, states, facts)
