"""A checkpoint that the disk did not take, in the memory of this host: a folder of /dev/shm for each
--ckpt_dir, until the next --resume here. Does not import mxnet."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from typing import Any, Callable, Mapping

from base.errors import InputError, TrainingError
from base.files import replacing
from training.checkpoint import MANIFEST, PARAMS, STATES, list_steps, save, step_path, verified

MEMORY = "/dev/shm"


def memory_of(ckpt_dir: str) -> str:
    """The folder in this host's memory for a checkpoint that the disk did not take."""
    name = hashlib.sha256(os.path.realpath(ckpt_dir).encode()).hexdigest()[:16]
    return os.path.join(MEMORY, f"checkpoint-{os.getuid()}-{name}")


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


def bring_back(ckpt_dir: str, report: Callable[[str], None]) -> None:
    """Moves a checkpoint that is in this host's memory to its folder; one that is not newer goes.

    Raises:
        InputError: the disk still does not take it.
    """
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
