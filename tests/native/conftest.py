"""Several processes at once."""

from __future__ import annotations

import contextlib
from typing import Callable, NamedTuple

import pytest

from tests.processes import start_command


class Ended(NamedTuple):
    """The end of a process: `code` is minus a signal's number if one killed it."""

    code: int
    output: str


@pytest.fixture
def together(tmp_path) -> Callable[..., dict[str, Ended]]:
    """Runs processes {name: (argv, env)} at the same time, in one folder; returns how each ended."""

    def run(processes) -> dict[str, Ended]:
        with contextlib.ExitStack() as stack:
            started = {
                name: stack.enter_context(start_command(argv, env=env, cwd=tmp_path))
                for name, (argv, env) in processes.items()
            }
            ended = {name: process.wait() for name, process in started.items()}
        return {name: Ended(end.returncode, end.stdout + end.stderr) for name, end in ended.items()}

    return run
