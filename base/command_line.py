"""Command lines: a parser whose errors are one line, and numbers in their ranges. Standard library only."""

from __future__ import annotations

import argparse
import math
from typing import Any, Callable, NoReturn

from base.errors import InputError


class OptionParser(argparse.ArgumentParser):
    """Raises InputError instead of printing the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{message} (--help lists the options)")


def _number(kind: type, accepts: Callable[[Any], bool], wanted: str) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not accepts(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
        return value

    return convert


def at_least(least: int) -> Callable[[str], int]:
    """Reads whole numbers from `least` on."""
    return _number(int, lambda value: value >= least, f"a whole number, {least} or more")


positive_int = _number(int, lambda value: value > 0, "a whole number above zero")
count = _number(int, lambda value: value >= 0, "a whole number, zero or more")
positive = _number(float, lambda value: 0 < value < math.inf, "a number above zero")
not_negative = _number(float, lambda value: 0 <= value < math.inf, "a number, zero or more")
probability = _number(float, lambda value: 0 <= value <= 1, "a number from 0 to 1")
rate = _number(float, lambda value: 0 <= value < 1, "a number from 0 to below 1")
share = _number(float, lambda value: 0 < value <= 1, "a number above 0 and at most 1")
