"""Results that belong to an epoch: made once, kept while they are of use, made ahead in the background."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import Callable, Generic, Hashable, TypeVar

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")

_KEPT = 2  # one epoch in use, and the next
_SPARE_BYTES = 1 << 18  # small data: a step of many ranks can span many epochs
_OVERHEAD_BYTES = 4096  # of Python objects, so that tiny results do not pile up without end


class EpochCache(Generic[Key, Result]):
    """The results of `make(key)`, each made by one thread while the others that want it wait.

    The two keys requested last are kept, and more as long as all of them together hold at most 256 KiB by
    `size_of`. An older one is given up before a new one is made, so that memory never holds a third. A result
    requested again after that is made again: `make` must be a pure function.
    """

    def __init__(self, make: Callable[[Key], Result], size_of: Callable[[Result], int]) -> None:
        self._make = make
        self._size_of = size_of
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, Future[Result]] = OrderedDict()
        self._sizes: dict[Key, int] = {}  # bytes of the results that are made

    def get(self, key: Key) -> Result:
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

    def _entry(self, key: Key) -> tuple[Future[Result], bool]:
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

    def _fill(self, key: Key, entry: Future[Result]) -> None:
        try:
            result = self._make(key)
            _return_free_memory()
            with self._lock:
                if self._entries.get(key) is entry:
                    self._sizes[key] = self._size_of(result) + _OVERHEAD_BYTES
            entry.set_result(result)
        except BaseException as error:  # raised by every `get` of the result
            entry.set_exception(error)


def _return_free_memory() -> None:
    """Gives the pages that making a result has used and freed back to the system.

    glibc keeps what was freed in the heap of each thread: for an epoch's plan as much as the plan itself.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
