"""Batches as a feed has them, without threads."""

from __future__ import annotations


class Stream:
    """Iterates over batches from a position on; `position` is that after the last one."""

    def __init__(self, batches, position=0):
        self.batches, self.position = batches, position
        self._tasks = batches.tasks(position)

    def __getattr__(self, name):
        return getattr(self.batches, name)

    def __iter__(self):
        return self

    def __next__(self):
        position, make = next(self._tasks)
        batch = make()
        self.position = position
        return batch
