"""All programs, in the order of the table."""

from __future__ import annotations

from tests.faults import (
    attack_pipelines,
    bad_values,
    change_ranks,
    compare_backends,
    disagree,
    fail_and_restart,
    flip_bytes,
    hostile,
    kill_at_steps,
    kill_pause_cut,
    kill_saving,
    lose_hosts,
    memory,
    pause_in_sums,
    poison,
    send_signals,
    slurm_runs,
    ssh_runs,
    strangers_at_the_port,
)

PROGRAMS = (
    kill_at_steps.PROGRAM,
    change_ranks.PROGRAM,
    change_ranks.FEEDS,
    kill_saving.PROGRAM,
    flip_bytes.PROGRAM,
    hostile.PROGRAM,
    strangers_at_the_port.PROGRAM,
    poison.PROGRAM,
    kill_pause_cut.PROGRAM,
    send_signals.PROGRAM,
    kill_saving.DISKS,
    bad_values.PROGRAM,
    disagree.PROGRAM,
    compare_backends.PROGRAM,
    pause_in_sums.PROGRAM,
    memory.PROGRAM,
    fail_and_restart.PROGRAM,
    attack_pipelines.PROGRAM,
    lose_hosts.PROGRAM,
    slurm_runs.PROGRAM,
    ssh_runs.PROGRAM,
)
