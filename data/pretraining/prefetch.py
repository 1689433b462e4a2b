"""Work done ahead in threads: batches, which are taken in order; results that belong to an epoch."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Generic, Hashable, Iterator, TypeVar

import numpy as np

BATCHES_AHEAD = 8  # a few steps' worth: enough to hide the making of batches, little memory

Made = TypeVar("Made")
Key = TypeVar("Key", bound=Hashable)
Tasks = Iterator[tuple[int, Callable[[], Made]]]  # the position after each batch, and what makes it


class Feed(Generic[Made]):
    """Batches in order, for ever or as long as there are any, from the position on that `seek` is given.

    `tasks(position)` iterates over the position after each batch and a function that makes it. `num_workers`
    threads run at most `depth` of these ahead of the consumer; with 0 workers (--num_data_workers 0) each
    runs when its batch is taken. The batches are the same for any number of workers. An exception of a task,
    or of the iterator of tasks, surfaces in the consumer in its place. After `close` there are no more.

    Attributes:
        micro_batches: of this rank in a step.
        token_counts: of the training text (data.store.tokens); on rank 0, where it is known.
        content: fingerprint of all that is read, the same on every rank; empty where that is known before.
        position: after the step whose batches were taken last, for a checkpoint.
        waited: seconds that __next__ has taken so far: the loop stood still for want of data.
    """

    def __init__(
        self,
        tasks: Callable[[int], Tasks[Made]],
        micro_batches: int = 1,
        num_workers: int = 0,
        counts: np.ndarray | None = None,
        content: str = "",
        depth: int = BATCHES_AHEAD,
    ) -> None:
        self._tasks_from = tasks
        self.micro_batches = micro_batches
        self.token_counts = counts
        self.content = content
        self.position = 0
        self.waited = 0.0
        self._depth = depth if num_workers else 1
        self._threads = ThreadPoolExecutor(num_workers, "prefetch") if num_workers else None
        self._tasks: Tasks[Made] = iter(())
        self._ahead: deque[tuple[int, Callable[[], Made]]] = deque()  # positions, and what gives the batches

    def seek(self, position: int) -> None:
        """Goes on from a `position`; called once, before the first batch."""
        self.position = position
        self._tasks = self._tasks_from(position)
        self._begin()

    def __iter__(self) -> Feed[Made]:
        return self

    def __next__(self) -> Made:
        begun = time.monotonic()
        if not self._ahead:
            raise StopIteration
        position, result = self._ahead.popleft()
        self._begin()
        try:
            batch = result()
        except BaseException:
            self.close()
            raise
        self.position = position
        self.waited += time.monotonic() - begun
        return batch

    def close(self) -> None:
        """Ends the threads and waits for them; to call again does nothing."""
        self._tasks = iter(())
        self._ahead.clear()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        """Takes tasks until `depth` are ahead, and hands them to the threads."""
        while len(self._ahead) < self._depth:
            try:
                position, make = next(self._tasks)
                result = make if self._threads is None else self._threads.submit(make).result
            except StopIteration:
                return
            except Exception as error:  # raised in the consumer
                failed: Future[Made] = Future()
                failed.set_exception(error)
                self._tasks, position, result = iter(()), self.position, failed.result
            self._ahead.append((position, result))


_KEPT = 2  # one epoch in use, and the next
_SPARE_BYTES = 1 << 18  # small data: a step of many ranks can span many epochs
_OVERHEAD_BYTES = 4096  # of Python objects, so that tiny results do not pile up without end


class EpochCache(Generic[Key, Made]):
    """The results of `make(key)`, each made by one thread while the others that want it wait.

    The two keys requested last are kept, and more as long as all of them together hold at most 256 KiB by
    `size_of`. An older one is given up before a new one is made, so that memory never holds a third. A result
    requested again after that is made again: `make` must be a pure function.
    """

    def __init__(self, make: Callable[[Key], Made], size_of: Callable[[Made], int]) -> None:
        self._make = make
        self._size_of = size_of
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, Future[Made]] = OrderedDict()

    def get(self, key: Key) -> Made:
        """The result for `key`. What `make` raises is raised by every `get` that waits for it."""
        entry, is_new = self._entry(key)
        if is_new:
            self._fill(key, entry)
        try:
            return entry.result()
        except BaseException:
            # The next `get` tries again: the reason may be gone (a full disk).
            with self._lock:
                if self._entries.get(key) is entry:
                    del self._entries[key]
            raise

    def prepare(self, key: Key) -> None:
        """Starts to make the result for `key` in a background thread, unless it is there or being made.

        An exception waits for the `get` of the result. The thread is a daemon: it does not keep
        a process alive that wants to end.
        """
        entry, is_new = self._entry(key)
        if is_new:
            threading.Thread(target=self._fill, args=(key, entry), name=f"prepare-{key}", daemon=True).start()

    def _entry(self, key: Key) -> tuple[Future[Made], bool]:
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                return entry, False
            while len(self._entries) >= _KEPT and self._held() > _SPARE_BYTES:
                self._entries.popitem(last=False)
            made = self._entries[key] = Future()
            return made, True

    def _held(self) -> int:
        """Bytes of the results that are made."""
        made = (each for each in self._entries.values() if each.done() and each.exception() is None)
        return sum(self._size_of(each.result()) + _OVERHEAD_BYTES for each in made)

    def _fill(self, key: Key, entry: Future[Made]) -> None:
        try:
            result = self._make(key)
            # glibc keeps what was freed in the heap of each thread: for an epoch's plan as much as the plan
            # itself. This gives the pages back to the system.
            ctypes.CDLL(None).malloc_trim(0)
            entry.set_result(result)
        except BaseException as error:  # raised by every `get` of the result
            entry.set_exception(error)
