"""The exceptions that end a program of this project in an orderly way: one line each, and an exit code."""

from __future__ import annotations

import re

RUN_AGAIN = 75  # exit code (EX_TEMPFAIL of sysexits.h): saved and left in good order; run me again

# How the kernel, the C++ library, NumPy, MXNet and CUDA say it.
NO_MEMORY = re.compile(
    r"out[ _]of[ _]memory|cannot allocate memory|bad_alloc|failed to allocate|unable to allocate|MemoryError",
    re.IGNORECASE,
)


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


class NotFiniteError(TrainingError):
    """Training cannot continue because gradients or parameters are no longer finite. Every rank raises it at
    the same step: they have the same ones."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception, of whatever library, says that memory was not to be had."""
    return isinstance(error, MemoryError) or bool(NO_MEMORY.search(str(error)))
