"""All programs, in the order of the table."""

from __future__ import annotations

from tests.faults import (
    attack_pipelines,
    attack_saving,
    bad_options,
    change_ranks,
    compare_backends,
    damage_files,
    disagree,
    fail_and_restart,
    hostile,
    kill_at_steps,
    kill_pause_cut,
    lose_hosts,
    memory,
    pause_in_sums,
    poison,
    send_signals,
    strangers_at_the_port,
)

PROGRAMS = (
    kill_at_steps.PROGRAM,
    change_ranks.PROGRAM,
    change_ranks.FEEDS,
    attack_saving.KILLED,
    damage_files.PROGRAM,
    hostile.PROGRAM,
    strangers_at_the_port.PROGRAM,
    poison.PROGRAM,
    kill_pause_cut.PROGRAM,
    send_signals.PROGRAM,
    attack_saving.DISKS,
    bad_options.PROGRAM,
    disagree.PROGRAM,
    compare_backends.PROGRAM,
    pause_in_sums.PROGRAM,
    memory.PROGRAM,
    fail_and_restart.PROGRAM,
    attack_pipelines.PROGRAM,
    lose_hosts.PROGRAM,
)
