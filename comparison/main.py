"""compare.py: the comparison that the options choose, and its exit code."""

from __future__ import annotations

import contextlib
import signal
from types import FrameType
from typing import Iterator, Mapping, Sequence

from comparison.backends import BACKENDS, Backend
from comparison.messages.command import compare_messages
from comparison.options import MessagesOptions, ProjectionOptions, parse_options
from comparison.projection.command import project
from comparison.runs.command import compare_runs


class Terminated(KeyboardInterrupt):
    """SIGTERM: the meaning of Ctrl-C, with another exit code."""


def main(
    arguments: Sequence[str], backends: Mapping[str, Backend] = BACKENDS, description: str | None = None
) -> int:
    """`python compare.py`; returns its exit code, see --help.

    Args:
        backends: those that --backends can name.

    Raises:
        InputError: before any work.
    """
    options = parse_options(arguments, backends, description)
    with _terminated_by_signal():
        try:
            if isinstance(options, ProjectionOptions):
                return project(options)
            if isinstance(options, MessagesOptions):
                return compare_messages(options)
            return compare_runs(options)
        except KeyboardInterrupt as interrupt:
            return 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)


@contextlib.contextmanager
def _terminated_by_signal() -> Iterator[None]:
    """In the block SIGTERM raises Terminated."""

    def handle(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
