"""Checkpoints that a failure has left elsewhere than in --ckpt_dir, for the next --resume. Does not import
mxnet.

    /dev/shm/checkpoint-...         a checkpoint that the disk did not take, in the memory of this host
    CKPT_DIR/rescue/stage-1-of-2    the part of a checkpoint that the ranks of a pipeline's stage hold
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections import ChainMap
from typing import Any, Callable, Mapping, Sequence

from base.errors import InputError, TrainingError
from base.failures import kept_in_memory, memory_of
from bert.weights.params_file import read_index
from training.checkpoint import OWN, Checkpoint, list_steps, save, verified

PARTS = "rescue"
ORDER = "order"  # in a part's manifest: names of all parameters, in the order of a checkpoint's files
_PART = re.compile(r"stage-(\d+)-of-(\d+)")


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
    memory, place = kept_in_memory(ckpt_dir), os.path.join(ckpt_dir, PARTS)
    if memory is not None:
        _take(ckpt_dir, memory, [memory], f"back from this host's memory, {memory}", report)
    if os.path.isdir(place) and not os.path.islink(place):
        found = [os.path.join(place, name) for name in os.listdir(place) if _PART.fullmatch(name)]
        stages = [folder_of_part(ckpt_dir, stage, len(found)) for stage in range(len(found))]
        folders = stages if set(stages) == set(found) else []
        _take(ckpt_dir, place, folders, f"joined from the parts of {len(found)} stages", report)


def _take(
    ckpt_dir: str, place: str, folders: Sequence[str], said: str, report: Callable[[str], None]
) -> None:
    """Makes one checkpoint of what lies in folders of `place`, if all of it is of one step; then it goes."""
    steps = {max(list_steps(folder), default=0) for folder in folders}
    step = steps.pop() if len(steps) == 1 else 0
    try:
        if step > max(list_steps(ckpt_dir), default=0):
            _join(ckpt_dir, [verified(folder, step) for folder in folders])
            report(f"the checkpoint of step {step} is {said}")
    except InputError as error:
        report(f"{error}: passed over")
    except TrainingError as error:
        where = f"this host's memory, {place}" if place == memory_of(ckpt_dir) else place
        raise InputError(
            f"--ckpt_dir: {error}; the checkpoint of step {step} waits in {where}, for room on the disk"
        ) from error
    shutil.rmtree(place, ignore_errors=True)


def _join(ckpt_dir: str, parts: list[Checkpoint]) -> None:
    """Saves one checkpoint of its parts, read one array at a time, to the bytes of one that never had any."""
    found: dict[str, Any] = {}
    for part in parts:
        found.update(read_index(part.params_path))
    facts = {name: value for name, value in (parts[0].manifest or {}).items() if name not in OWN}
    place = {name: index for index, name in enumerate(facts.pop(ORDER, found))}
    parameters = {name: found[name] for name in sorted(found, key=lambda name: place.get(name, len(place)))}
    with contextlib.ExitStack() as stack:
        opened: list[Any] = [stack.enter_context(part.open_states()) for part in parts]
        # Their names are a parameter's and one word more; the count of updates comes before all.
        every = dict.fromkeys(name for each in opened for name in each)
        names = sorted(every, key=lambda name: place.get(name.rpartition(".")[0], -1))
        states = ChainMap(*opened, dict.fromkeys(names))  # whose order is that of the last
        save(ckpt_dir, parts[0].step, parameters, states, facts)
