"""Work done ahead in threads: batches, whose results are taken in order; results that belong to an epoch."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Generic, Hashable, Iterator, TypeVar

Made = TypeVar("Made")
Key = TypeVar("Key", bound=Hashable)


class Prefetcher(Generic[Made]):
    """Iterates over (position, result) of `tasks`, positions and functions without arguments, in their order.

    `num_workers` threads run at most `depth` tasks ahead of the consumer; with 0 workers (--num_data_workers
    0) each task runs when its result is taken. The results are the same for any number of workers. An
    exception of a task, or of the iterator of tasks, surfaces in the consumer in its place. `close` (or
    leaving a `with` block) ends the threads; results not taken are lost.
    """

    def __init__(self, tasks: Iterator[tuple[int, Callable[[], Made]]], depth: int, num_workers: int) -> None:
        self._tasks = tasks
        self._depth = max(depth, 1)
        self._ahead: deque[tuple[int, Future[Made]]] = deque()  # in the order of the tasks
        self._over = False  # no task is begun any more
        self._threads = ThreadPoolExecutor(num_workers, "prefetch") if num_workers else None
        self._begin()

    def __iter__(self) -> Prefetcher[Made]:
        return self

    def __next__(self) -> tuple[int, Made]:
        if self._threads is None and not self._over:
            position, make = next(self._tasks)
            return position, make()
        if not self._ahead:
            raise StopIteration
        position, future = self._ahead.popleft()
        self._begin()
        try:
            return position, future.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the threads and waits for them; to call again does nothing."""
        self._over = True
        self._ahead.clear()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def __enter__(self) -> Prefetcher[Made]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        """Hands tasks to the threads until there are `depth`."""
        while self._threads is not None and not self._over and len(self._ahead) < self._depth:
            try:
                position, make = next(self._tasks)
                self._ahead.append((position, self._threads.submit(make)))
            except StopIteration:
                self._over = True
            except Exception as error:  # raised in the consumer
                self._ahead.append((0, Future()))
                self._ahead[-1][1].set_exception(error)
                self._over = True


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
        self._sizes: dict[Key, int] = {}  # bytes of the results that are made

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
            while len(self._entries) >= _KEPT and sum(self._sizes.values()) > _SPARE_BYTES:
                oldest, _ = self._entries.popitem(last=False)
                self._sizes.pop(oldest, None)
            made = self._entries[key] = Future()
            return made, True

    def _fill(self, key: Key, entry: Future[Made]) -> None:
        try:
            result = self._make(key)
            # glibc keeps what was freed in the heap of each thread: for an epoch's plan as much as the plan
            # itself. This gives the pages back to the system.
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)
            with self._lock:
                if self._entries.get(key) is entry:
                    self._sizes[key] = self._size_of(result) + _OVERHEAD_BYTES
            entry.set_result(result)
        except BaseException as error:  # raised by every `get` of the result
            entry.set_exception(error)
