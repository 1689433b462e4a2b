"""The exception for a run that cannot go on although its input was right."""

from __future__ import annotations


class TrainingError(Exception):
    """Training cannot continue: gradients that stay non-finite, a disk that is full.

    The message is one line that says what happened at which step and what is left intact. The scripts print
    it and exit with code 1 (bad input is `data.errors.InputError`, exit code 2).
    """
