"""The exceptions that end a program of this project in an orderly way: one line each, and an exit code."""

from __future__ import annotations

import re
import sys
from types import TracebackType

RUN_AGAIN = 75  # exit code (EX_TEMPFAIL of sysexits.h): saved and left in good order; run me again

# How the kernel, the loader, the C++ library, NumPy, MXNet and CUDA say it. (A full "static TLS block" is the
# loader's own and small: no memory of the machine's would help.)
NO_MEMORY = re.compile(
    r"out[ _]of[ _]memory|cannot allocate memory(?! in static TLS)|failed to map segment|bad_alloc|"
    r"failed to allocate|unable to allocate|MemoryError",
    re.IGNORECASE,
)

_LONGEST = 2000  # characters of a message; names of files and their content may be as long as they like


def one_line(text: str) -> str:
    """The text as one line that any terminal can show: what is not printable is written as its code, a long
    one loses its middle."""
    flat = "".join(
        each if each.isprintable() else " " if each in "\n\t" else ascii(each)[1:-1] for each in text
    )
    if len(flat) > _LONGEST:
        flat = f"{flat[: _LONGEST * 3 // 4]} ... {flat[-_LONGEST // 5 :]}"
    return flat


class InputError(Exception):
    """Bad input by the user: a flag, a file or their content.

    The message names the flag or the file and says what to do; as text it is one line, whatever was given.
    The scripts print it and exit with code 2.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())


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


def lack_of_memory(error: BaseException) -> str:
    """The line of a message, perhaps with a stack trace of a library's, that says that memory was not to be
    had; empty for another error."""
    if not is_out_of_memory(error):
        return ""
    lines = (line.strip() for line in str(error).splitlines())
    return one_line(next((line for line in lines if NO_MEMORY.search(line)), "") or type(error).__name__)


def explain_missing() -> None:
    """Has the imports of a script that follow end with one line and code 2 where a library is not installed,
    as with another Python than that of `make setup`."""

    def say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if not isinstance(error, ModuleNotFoundError):
            return sys.__excepthook__(kind, error, trace)
        print(f"error: {missing(error)}", file=sys.stderr)
        sys.exit(2)

    sys.excepthook = say


def missing(error: ModuleNotFoundError) -> str:
    """A message for a library that is not installed."""
    return f"{sys.executable} has no {error.name}; run `make setup` once, then .venv/bin/python in its place"


def not_loaded(library: str, error: BaseException) -> InputError:
    """The error for a library that cannot be loaded, for want of memory or because it is not there."""
    lacks = lack_of_memory(error)
    if lacks:
        return InputError(f"{library} cannot be loaded for want of memory ({lacks}); raise ulimit -v")
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return InputError(f"{library} cannot be loaded ({reason}); run `make setup`")
