"""Command lines: a parser whose errors are one line, numbers in their ranges, paths and names. Standard
library only.

Every number has an upper bound too, and it is in the option's type: what is beyond it cannot work, and would
be noticed only where it overflows, or when memory or patience ends. A number is what its digits 0 to 9 say:
Python would also read 1_0, and the digits of other scripts.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import sys
from typing import Any, Callable, NamedTuple, NoReturn, Sequence, TypeVar

from base.errors import InputError, one_line

MOST = 2**31 - 1  # of whole numbers: MXNet's sizes, and integers in the libraries' own files, have 32 bits
LARGEST = 3.4028234e38  # of other numbers: float32, in which all of them are used
MOST_SECONDS = 2_000_000.0  # 23 days; the system's poll() counts milliseconds in 32 bits
MOST_PROCESSES = 1024  # worker processes and threads: a machine's cores, and far from its limit
MOST_RANKS = 65_536  # of a run, on all hosts together
MOST_SEED = (1 << 63) - 1
_MOST_DIGITS = 400  # of a number: the smallest float has 326 digits after its point
_SHOWN = 40  # characters of a value in a message
_PATH_BYTES, _NAME_BYTES = 4095, 255  # Linux: PATH_MAX without its final NUL, NAME_MAX
_TEMPORARY_BYTES = 30  # that base.files.replacing adds to a name
_TEXT_BYTES = 1 << 16

Kind = TypeVar("Kind", int, float)


class Pair(NamedTuple):
    """The values of an option in stage 1 and in stage 2."""

    first: Any
    second: Any

    def __str__(self) -> str:
        return f"{self.first},{self.second}"


class OptionParser(argparse.ArgumentParser):
    """Raises InputError instead of printing the whole usage. A value of an option without a type is text that
    is not empty. No option has "--" for a value: up to Python 3.12 argparse drops it from --NAME=--, and
    returns an empty list that no type has seen."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.register("type", None, not_empty)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        for word in split_at_dashes(words)[0]:
            name, _, value = word.partition("=")
            if name.startswith("-") and value == "--":
                self.error(
                    f"argument {name}: '--' is no value; it separates words only where it stands alone"
                )
        return super().parse_known_args(words, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        given, rest = self.parse_known_args(args, namespace)
        files = [word for word in rest if os.path.exists(word)]
        if files:
            self.error(
                f"no option takes {shown(files[0])}, a file: most likely a shell has expanded a pattern; "
                "quote it, twice under bpslaunch, which passes its command to a second shell: \"'*.txt'\""
            )
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return given

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{one_line(message)} (--help lists the options)")


class ScriptParser(OptionParser):
    """Keeps the lines of description and epilog; options are not abbreviated."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **keywords)


class CommandParser(ScriptParser):
    """Ends the process with exit code 2 and one line, which begins with `name`."""

    def __init__(self, name: str, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.name = name

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.name}: {one_line(message)}\n")


def show_anything() -> None:
    """Has standard output escape what its encoding lacks: names of tokens and files hold anything."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def code_of(command: Callable[[], int]) -> int:
    """Runs a command until its output is written; returns its exit code, SIGPIPE's where whoever reads the
    output, such as `head`, has seen enough."""
    try:
        try:
            return command()
        finally:
            if sys.stdout:  # None where the shell has closed it
                sys.stdout.flush()
    except BrokenPipeError:
        streams = select.poll()
        streams.register(1, 0)
        streams.register(2, 0)
        left = [number for number, event in streams.poll(0) if event & select.POLLERR]
        if not left:
            raise  # of another pipe
        for number in left:  # what is still buffered must not raise once more
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        return 128 + signal.SIGPIPE


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words before the first "--", and those behind it."""
    own = list(words)
    cut = own.index("--") if "--" in own else len(own)
    return own[:cut], own[cut + 1 :]


def shown(text: str) -> str:
    """A value as messages quote it: one line, shortened."""
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text):,} characters)")


def _number(kind: type[Kind], accepts: Callable[[Kind], bool], wanted: str) -> Callable[[str], Kind]:
    def convert(text: str) -> Kind:
        plain = len(text) <= _MOST_DIGITS and text.isascii() and "_" not in text
        try:
            value = kind(text) if plain else None
        except (ValueError, OverflowError):
            value = None
        if value is None or not accepts(value):  # a range; no comparison holds for a NaN
            raise argparse.ArgumentTypeError(f"{shown(text)} is not {wanted}")
        return value

    return convert


def whole(least: int, most: int, reason: str = "") -> Callable[[str], int]:
    """Reads whole numbers from `least` to `most`. `reason`: of the greatest one, for the message."""
    wanted = f"a whole number from {least} to {most:,}{f', {reason}' if reason else ''}"
    return _number(int, lambda value: least <= value <= most, wanted)


def at_least(least: int) -> Callable[[str], int]:
    """Reads whole numbers from `least` on."""
    return _number(
        int, lambda value: least <= value <= MOST, f"a whole number, {least} or more, at most {MOST:,}"
    )


def within(least: float, most: float, unit: str = "") -> Callable[[str], float]:
    """Reads numbers from `least` to `most`; `unit`: for the message."""
    wanted = f"a number from {least:g} to {most:g}{f' {unit}' if unit else ''}"
    return _number(float, lambda value: least <= value <= most, wanted)


positive_int = _number(int, lambda value: 0 < value <= MOST, f"a whole number above zero, at most {MOST:,}")
seed = whole(0, MOST_SEED)
count = _number(int, lambda value: 0 <= value <= MOST, f"a whole number, zero or more, at most {MOST:,}")
_LARGEST = f"at most {LARGEST:.2g}"
positive = _number(float, lambda value: 0 < value <= LARGEST, f"a number above zero, {_LARGEST}")
not_negative = _number(float, lambda value: 0 <= value <= LARGEST, f"a number, zero or more, {_LARGEST}")
finite = _number(float, lambda value: abs(value) <= LARGEST, f"a number, {_LARGEST} in size")
seconds = _number(
    float, lambda value: 0 < value <= MOST_SECONDS, f"above zero and at most {MOST_SECONDS:,.0f} s"
)
probability = within(0, 1)
rate = _number(float, lambda value: 0 <= value < 1, "a number from 0 to below 1")
share = _number(float, lambda value: 0 < value <= 1, "a number above 0 and at most 1")
num_processes = whole(1, MOST_PROCESSES, "more than any machine has cores")


def pair_of(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader of one value, as `convert` reads it, or of two as a `Pair`."""

    def read(text: str) -> Any:
        parts = [part.strip() for part in text.split(",")]
        if len(parts) == 1:
            return convert(text)
        if len(parts) != 2:
            raise argparse.ArgumentTypeError(
                f"{text!r} has {len(parts)} values; give one, or two with a comma between them (stage 1, "
                "stage 2)"
            )
        return Pair(convert(parts[0]), convert(parts[1]))

    return read


def not_empty(given: str) -> str:
    """Reads a name or other text that is not empty."""
    if not given:
        raise argparse.ArgumentTypeError("it is empty; leave the option out, or give it a value")
    if len(os.fsencode(given)) > _TEXT_BYTES:
        raise argparse.ArgumentTypeError(f"{shown(given)} is longer than {_TEXT_BYTES:,} bytes")
    return given


def matching(pattern: str, wanted: str) -> Callable[[str], str]:
    """Reads text that a regular expression matches as a whole. `wanted`: in words, for the message."""

    def read(given: str) -> str:
        if not re.fullmatch(pattern, given, re.ASCII):
            raise argparse.ArgumentTypeError(f"{shown(given)} is not {wanted}")
        return given

    return read


def path_name(given: str) -> str:
    """Reads a file's or folder's path that the system can have; it need not exist. Room is left for the
    temporary names of base.files."""
    not_empty(given)
    _check_path(given)
    return given


def path_names(given: str) -> str:
    """Reads paths and patterns with commas between them, as one text."""
    not_empty(given)
    for piece in given.split(","):
        _check_path(piece)
    return given


def _check_path(given: str) -> None:
    if "\0" in given:
        raise argparse.ArgumentTypeError(f"{shown(given)} has a NUL character, which no path has")
    try:
        whole_path = os.fsencode(os.path.expanduser(given))
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{shown(given)} has half a character, which no path has") from None
    longest = max(map(len, whole_path.split(b"/")))
    if len(whole_path) + _TEMPORARY_BYTES > _PATH_BYTES or longest + _TEMPORARY_BYTES > _NAME_BYTES:
        raise argparse.ArgumentTypeError(
            f"{shown(given)} is too long for a path: at most {_PATH_BYTES - _TEMPORARY_BYTES:,} bytes, and "
            f"{_NAME_BYTES - _TEMPORARY_BYTES} a name"
        )
