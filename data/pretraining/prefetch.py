"""Work done ahead by threads, its results taken in order."""

from __future__ import annotations

import threading
from typing import Callable, Generic, Iterator, TypeVar

Result = TypeVar("Result")


class Prefetcher(Generic[Result]):
    """Iterates over the results of `tasks`, functions without arguments, in their order.

    `num_workers` threads run at most `depth` tasks ahead of the consumer; with 0 workers each task runs when
    its result is taken. An exception of a task, or of the iterator of tasks, surfaces in the consumer in
    its place. `close` (or leaving a `with` block) ends the threads; results not taken are lost.
    """

    def __init__(self, tasks: Iterator[Callable[[], Result]], depth: int, num_workers: int) -> None:
        self._tasks = tasks
        self._depth = max(depth, 1)
        self._source = threading.Lock()  # held while the next task is taken
        self._changed = threading.Condition()  # guards everything below
        self._ready: dict[int, tuple[Result | None, BaseException | None]] = {}
        self._taken = 0  # results given to the consumer
        self._issued = 0  # tasks given to workers
        self._end: int | None = None  # number of tasks, once known
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"prefetch-{index}", daemon=True)
            for index in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Prefetcher[Result]:
        return self

    def __next__(self) -> Result:
        if not self._threads:
            if self._closed:
                raise StopIteration
            return next(self._tasks)()
        with self._changed:
            while self._taken not in self._ready:
                if self._closed or self._taken == self._end:
                    raise StopIteration
                self._changed.wait()
            result, error = self._ready.pop(self._taken)
            self._taken += 1
            self._changed.notify_all()
        if error is not None:
            self.close()
            raise error
        return result  # type: ignore[return-value]

    def close(self) -> None:
        """Ends the threads and waits for them; to call again does nothing."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Prefetcher[Result]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            result: Result | None = None
            error: BaseException | None = None
            with self._source:
                with self._changed:
                    while self._issued - self._taken >= self._depth and not self._closed:
                        self._changed.wait()
                    if self._closed or self._end is not None:
                        return
                    number = self._issued
                    self._issued += 1
                task: Callable[[], Result] | None = None
                try:
                    task = next(self._tasks)
                except StopIteration:
                    with self._changed:
                        self._end = number
                        self._changed.notify_all()
                    return
                except BaseException as caught:  # raised in the consumer
                    error = caught
                    with self._changed:
                        self._end = number + 1
            if task is not None:
                try:
                    result = task()
                except BaseException as caught:  # raised in the consumer
                    error = caught
            with self._changed:
                if not self._closed:
                    self._ready[number] = (result, error)
                    self._changed.notify_all()
