"""Options of GluonNLP's scripts that ours do not have: taken as ours, or rejected with what there is instead.
docs/migration.md lists them. Standard library only."""

from __future__ import annotations

import argparse
from typing import Any, Callable, Mapping

from base.command_line import MOST_PROCESSES, positive_int, whole
from base.errors import InputError
from data.options import MAX_POSITIONS

_BACKEND = "run_pretraining_hvd.py exchanges through Horovod, run_pretraining_byteps.py through BytePS"
_CACHE = "tokenized text is always kept, in --cache_dir"
_ORDER = "an epoch goes through the sequences of all files in one random order"
# Of 0.9's and 0.10's run_pretraining.py, and of 0.8.3's, with what to do instead.
NOT_HERE = {
    "total_batch_size": "--batch_size counts a process's sequences in a pass, total / processes / accumulate",
    "total_batch_size_eval": "--batch_size_eval counts a process's sequences in a pass",
    "comm_backend": _BACKEND,
    "kvstore": _BACKEND,
    "gpus": "each process takes one GPU; start one for each with mpirun -np, and see CUDA_VISIBLE_DEVICES",
    "no_compute_acc": "accuracies come with the losses, on the device; leave it out",
    "circle_length": _ORDER,
    "repeat": _ORDER,
    "dataset_cached": _CACHE,
    "num_max_dataset_cached": _CACHE,
}
TAKEN = ("num_dataset_workers", "num_batch_workers", "synthetic_data", "phase2", "phase1_num_steps")


def add_not_here(add: Callable[..., Any], not_here: Mapping[str, str]) -> None:
    """Adds options that are rejected, which --help does not show."""
    for name in not_here:
        add(f"--{name}", nargs="?", const="given", help=argparse.SUPPRESS)


def reject_not_here(options: argparse.Namespace, not_here: Mapping[str, str]) -> None:
    """Removes the options of `add_not_here`. Raises InputError, one line for all that were given."""
    given = [name for name in not_here if options.__dict__.pop(name) is not None]
    if given:
        raise InputError("; ".join(f"--{name} is not followed here: {not_here[name]}" for name in given))


def add_gluonnlp_options(add: Callable[..., Any]) -> None:
    """Adds the options of NOT_HERE and TAKEN, which --help does not show."""
    add_not_here(add, NOT_HERE)
    for name in ("--num_dataset_workers", "--num_batch_workers"):
        add(name, type=whole(0, MOST_PROCESSES // 2), help=argparse.SUPPRESS)
    add("--synthetic_data", action="store_true", help=argparse.SUPPRESS)
    add("--phase2", action="store_true", help=argparse.SUPPRESS)
    add("--phase1_num_steps", type=positive_int, help=argparse.SUPPRESS)


def take_gluonnlp_options(options: argparse.Namespace) -> None:
    """Puts our options in place of those of `add_gluonnlp_options`. Raises InputError for those of NOT_HERE,
    and for a phase 2 that does not follow a phase 1."""
    reject_not_here(options, NOT_HERE)
    *workers, synthetic, phase2, steps = (options.__dict__.pop(name) for name in TAKEN)
    if workers != [None, None]:  # the same workers do both here
        options.num_data_workers = sum(each or 0 for each in workers)
    if synthetic:
        options.dummy_data_len = options.dummy_data_len or options.max_seq_length or MAX_POSITIONS
    if phase2 != (steps is not None):
        raise InputError("--phase2 and --phase1_num_steps need each other; ours is --stages 2")
    if phase2:
        if options.stages:
            raise InputError(f"--phase2 and --stages {options.stages} exclude each other: both say the stage")
        if options.start_step not in (0, steps) and options.start_step < steps:
            raise InputError(
                f"--start_step {options.start_step}: phase 2 begins at --phase1_num_steps {steps}"
            )
        options.stages = "2"
        # GluonNLP's second phase goes on with the moments that --start_step restores.
        options.keep_optimizer_state |= bool(options.start_step and not options.init_from)
        options.start_step = options.start_step if options.start_step > steps else 0
