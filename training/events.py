"""TensorBoard's events of a run. tensorboardX's own writer is left out: its thread ends for good when it
cannot write, and its queue, full some steps later, then keeps the run waiting for ever."""

from __future__ import annotations

import os
import time
from typing import Mapping

TENSORBOARD_DIR = "tensorboard"


class EventFile:
    """A file of events below a run's directory. Every method writes to the file before it returns, and raises
    OSError where it cannot."""

    def __init__(self, directory: str, first: int, suffix: str = ""):
        """Opens a new file, in which `first` is the first step: TensorBoard withdraws it and later ones of
        earlier files. `suffix`: of its name, which has the time in seconds."""
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder = os.path.join(directory, TENSORBOARD_DIR)
        os.makedirs(folder, exist_ok=True)
        self._writer = EventsWriter(os.path.join(folder, "events"), suffix)
        begin = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(step=first, wall_time=time.time(), session_log=begin))
        self._writer.flush()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds the scalars of a step, by their tags."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._writer.write_event(Event(step=step, wall_time=time.time(), summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()
