"""All programs, in the order of the table."""

from __future__ import annotations

from tests.reliability import (
    attacked_saving,
    attacked_stages,
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

PROGRAMS = (
    killed_at_steps.PROGRAM,
    changed_ranks.PROGRAM,
    changed_ranks.FEEDS,
    attacked_saving.KILLED,
    damaged_files.PROGRAM,
    hostile_files.PROGRAM,
    strangers_at_the_port.PROGRAM,
    not_finite.PROGRAM,
    missing_processes.PROGRAM,
    signals.PROGRAM,
    attacked_saving.DISKS,
    bad_options.PROGRAM,
    disagreeing_ranks.PROGRAM,
    backends_agree.PROGRAM,
    known_sums.PROGRAM,
    flat_memory.PROGRAM,
    restarted_runs.PROGRAM,
    attacked_stages.PROGRAM,
    lost_hosts.PROGRAM,
)
