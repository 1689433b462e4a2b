"""The exceptions that end a program of this project in an orderly way: one line each, and an exit code."""

from __future__ import annotations


class InputError(Exception):
    """Bad input by the user: a flag, a file or their content.

    The message is one line that names the flag or the file and says what to do. The scripts print it and exit
    with code 2.
    """


class TrainingError(Exception):
    """Training cannot continue: gradients that stay non-finite, a disk that is full.

    The message is one line that says what happened at which step and what is left intact. The scripts print
    it and exit with code 1.
    """
