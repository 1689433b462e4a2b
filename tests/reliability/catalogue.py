"""All programs, in the order of the table."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from tests.reliability import (
    attacked_saving,
    backends_agree,
    bad_options,
    changed_ranks,
    damaged_files,
    disagreeing_ranks,
    flat_memory,
    hostile_files,
    killed_at_steps,
    known_sums,
    lost_hosts,
    missing_processes,
    not_finite,
    restarted_runs,
    signals,
    strangers_at_the_port,
)
from tests.reliability.figure import Program


def needs(module: str, program: Program) -> Program:
    """The program, or one that is not built where the module that it calls does not exist."""
    if importlib.util.find_spec(module) is not None:
        return program
    return replace(program, opened=None, damages={})


PROGRAMS = (
    killed_at_steps.PROGRAM,
    changed_ranks.PROGRAM,
    needs("tests.elastic", changed_ranks.FEEDS),
    needs("tests.saving_attacks", attacked_saving.KILLED),
    needs("tests.flipping", damaged_files.PROGRAM),
    hostile_files.PROGRAM,
    needs("tests.strangers", strangers_at_the_port.PROGRAM),
    needs("tests.poisoning", not_finite.PROGRAM),
    missing_processes.PROGRAM,
    signals.PROGRAM,
    needs("tests.saving_attacks", attacked_saving.DISKS),
    needs("tests.bad_values", bad_options.PROGRAM),
    needs("tests.disagreeing", disagreeing_ranks.PROGRAM),
    backends_agree.PROGRAM,
    known_sums.PROGRAM,
    needs("tests.memory", flat_memory.PROGRAM),
    needs("hosts.launch", restarted_runs.PROGRAM),
    lost_hosts.PROGRAM,
)
