"""compare.py: the comparison that the options choose, and its exit code."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Callable, Mapping, Sequence

from comparison.backends import BACKENDS, Backend
from comparison.campaign import code_of
from comparison.emulation.command import emulate
from comparison.merge import merge
from comparison.messages.command import compare_messages
from comparison.options import EmulationOptions, MergeOptions, MessagesOptions, RunsOptions, parse_options
from comparison.projection.command import ProjectionOptions, project
from comparison.runs.command import compare_runs

_COMPARISONS: Mapping[type, Callable[[Any], int]] = {
    RunsOptions: compare_runs,
    MessagesOptions: compare_messages,
    ProjectionOptions: project,
    EmulationOptions: emulate,
    MergeOptions: merge,
}


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

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)  # SIGTERM: the meaning of Ctrl-C, with another exit code

    before = signal.signal(signal.SIGTERM, end)
    try:
        return _COMPARISONS[type(options)](options)
    except KeyboardInterrupt as interrupt:
        return code_of(interrupt)
    finally:
        signal.signal(signal.SIGTERM, before)
