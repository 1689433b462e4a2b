"""All programs, in the order of the table."""

from __future__ import annotations

from tests.reliability import backends_agree, killed_at_steps, known_sums, missing_processes, signals

PROGRAMS = (
    killed_at_steps.PROGRAM,
    missing_processes.PROGRAM,
    signals.PROGRAM,
    backends_agree.PROGRAM,
    known_sums.PROGRAM,
)
