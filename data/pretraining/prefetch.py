"""Work done ahead by threads, its results taken in order."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Generic, Iterator, TypeVar

Made = TypeVar("Made")


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
