"""The run.yaml of a run: every option with its value, for --options_file to repeat it."""

from __future__ import annotations

import os
import shlex
import sys

from base.files import is_temporary
from comm.base import Communicator
from training.checkpoint import library_versions
from training.config import RunConfig
from training.options_file import OPTION, RUN_FILE, write_options
from training.plan import RunPlan
from training.profiling.profiler import TracePlan


def write_run_file(config: RunConfig, communicator: Communicator, seed: int, plan: RunPlan) -> None:
    """Writes it into ckpt_dir, whole or not at all; one rank does it, at each start of training.

    An option that was left out is null where the run works its value out; the comments say what it came to.
    `seed` is the run's, also where it was left out and is a checkpoint's.

    Raises:
        InputError: it cannot be written.
    """
    options = {**config.given, "seed": seed}
    if isinstance(options["profile"], TracePlan):
        options["profile"] = options["profile"].path
    folder = config.checkpoint.ckpt_dir
    for name in os.listdir(folder):  # of a run that was killed in between
        if name.startswith(RUN_FILE) and is_temporary(name):
            os.remove(os.path.join(folder, name))
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    comments = [
        f"{OPTION} {RUN_FILE} --ckpt_dir ANOTHER repeats the run. Paths count from the folder it starts in.",
        f"command: {shlex.join(sys.argv)}",
        f"processes: {communicator.size}",
        f"versions: {versions}",
        plan.summary,
    ]
    write_options(os.path.join(folder, RUN_FILE), options, comments)
