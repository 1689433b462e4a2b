"""Work done ahead by threads, its results taken in order."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
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
        self._source = threading.Lock()  # held while the next task is taken
        self._changed = threading.Condition()  # guards what follows
        self._ahead: deque[Future[tuple[int, Made]]] = deque()  # in the order of the tasks
        self._over = False  # no task is begun any more
        self._threads = [
            threading.Thread(target=self._work, name=f"prefetch-{index}", daemon=True)
            for index in range(num_workers)
        ]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Prefetcher[Made]:
        return self

    def __next__(self) -> tuple[int, Made]:
        if not self._threads:
            if self._over:
                raise StopIteration
            position, make = next(self._tasks)
            return position, make()
        with self._changed:
            while not self._ahead and not self._over:
                self._changed.wait()
            if not self._ahead:
                raise StopIteration
            future = self._ahead.popleft()
            self._changed.notify_all()
        try:
            return future.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the threads and waits for them; to call again does nothing."""
        with self._changed:
            self._over = True
            self._ahead.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Prefetcher[Made]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            with self._source:
                with self._changed:
                    while len(self._ahead) >= self._depth and not self._over:
                        self._changed.wait()
                    if self._over:
                        return
                future: Future[tuple[int, Made]] = Future()
                make: Callable[[], Made] | None = None
                try:
                    position, make = next(self._tasks)
                except BaseException as error:  # raised in the consumer, but for the iterator's end
                    future.set_exception(error)
                    ended = isinstance(error, StopIteration)
                with self._changed:
                    if self._over:  # closed meanwhile
                        return
                    self._over = make is None
                    if make is not None or not ended:
                        self._ahead.append(future)
                    self._changed.notify_all()
            if make is None:
                return
            try:
                future.set_result((position, make()))
            except BaseException as error:  # raised in the consumer
                future.set_exception(error)
