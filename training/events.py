"""Figures of a run as TensorBoard's events."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Mapping


class Events:
    """A file of events, written by whoever calls: the thread that tensorboardX's SummaryWriter has for it
    ends when a disk is full, and then training would wait for it for ever.

    Args:
        folder: for the file; it is created.
        first: step from which on events of earlier files do not count.
        suffix: of the file's name, which has the time in seconds.

    Raises:
        OSError: the disk does not take it; `add` too.
    """

    def __init__(self, folder: str, first: int, suffix: str = ""):
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        os.makedirs(folder, exist_ok=True)
        self._writer = EventsWriter(os.path.join(folder, "events"), suffix)
        for entry in (
            {"file_version": "brain.Event:2"},
            {"session_log": SessionLog(status=SessionLog.START)},
        ):
            self._writer.write_event(Event(step=first, wall_time=time.time(), **entry))
        self._writer.flush()

    def add(self, values: Mapping[str, Any], step: int) -> None:
        """Writes numbers by their names."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.summary import scalar

        for name, value in values.items():
            self._writer.write_event(Event(step=step, wall_time=time.time(), summary=scalar(name, value)))
        self._writer.flush()

    def close(self) -> None:
        """Closes the file; what a disk has not taken has been an error before."""
        with contextlib.suppress(OSError):
            self._writer.close()
