"""The exchange of BytePS's workers with its servers, and how links are shared.

Workers are alike, so one stands for all of them. A server has one connection to each worker, on which
partitions follow each other; it sends a sum when every worker's part has arrived. At any time all connections
that have something to send share a link equally, and the slowest of a partition's connections counts.
"""

from __future__ import annotations

import heapq
from typing import Iterator

import numpy as np

from comm.numbering import Servers

HALF_WAYS = (
    3  # latencies from the last byte of a push to the first of its sum: data, acknowledgement, request
)


class Exchange:
    """Pushes and pulls of a step; `advance` goes on to the next event.

    Args:
        servers: of two workers or more; those beside them are on their hosts in turn.
        bytes_s: of a host's link, in each direction. `latency_s`: of a message.
    """

    def __init__(self, servers: Servers, bytes_s: float, latency_s: float):
        workers, apart, beside, _ = servers
        self._workers, self._hosts = workers, workers + apart
        self._bytes_s, self._latency_s = bytes_s, latency_s
        count = apart + beside
        self._host = np.array([*range(workers, workers + apart), *(each % workers for each in range(beside))])
        # By direction, push and pull: partitions that wait at a server, and what is left of the first.
        self._waiting: list[list[list[tuple[int, int]]]] = [[[] for _ in range(count)] for _ in range(2)]
        self._left = np.zeros((2, count))
        self._rates = np.ones((2, count))  # bytes a second of each connection that has something to send
        self._coming: list[tuple[float, int, int, int, int]] = []  # when, direction, server, name, bytes
        self._now = 0.0

    def add(self, at: float, name: int, server: int, nbytes: int) -> None:
        """Has a partition pushed from `at` on, in seconds; later than all events so far."""
        heapq.heappush(self._coming, (at, 0, server, name, nbytes))

    @property
    def next_s(self) -> float:
        """Time of the next event; infinity without any."""
        return self._now + self._step(self._times())

    def _step(self, times: np.ndarray) -> float:
        coming = self._coming[0][0] - self._now if self._coming else float("inf")
        return max(0.0, min(coming, float(times.min())))

    def advance(self) -> Iterator[tuple[float, int]]:
        """Goes on to the next event. Yields the partitions that have arrived everywhere, and when."""
        times = self._times()
        step = self._step(times)
        ended = np.isfinite(times) & (times <= step * (1 + 1e-9))
        self._left = np.where(ended, 0.0, self._left - self._rates * step)
        self._left[~np.isfinite(times)] = 0.0
        self._now += step
        now = self._now
        for direction, server in zip(*np.nonzero(ended)):
            name, nbytes = self._waiting[direction][server].pop(0)
            if direction:
                yield now + self._latency_s, name
            else:
                begins = now + HALF_WAYS * self._latency_s
                heapq.heappush(self._coming, (begins, 1, int(server), name, nbytes))
        while self._coming and self._coming[0][0] <= now:
            _, direction, server, name, nbytes = heapq.heappop(self._coming)
            self._waiting[direction][server].append((name, nbytes))
        for direction, queues in enumerate(self._waiting):
            for server, queue in enumerate(queues):
                if queue and self._left[direction, server] == 0:
                    self._left[direction, server] = queue[0][1]
        self._share()

    def _times(self) -> np.ndarray:
        """Seconds that the partitions on their way still take; infinity where there is none."""
        return np.where(self._left > 0, self._left / self._rates, np.inf)

    def _share(self) -> None:
        """Max-min fair rates: all grow alike until a link is full, whose connections keep what they have."""
        free = self._left > 0
        self._rates = np.where(free, 0.0, 1.0)
        given = np.zeros_like(self._rates)
        while free.any():
            crowd, used = self._through(free.astype(float)), self._through(given)
            grown = float(((self._bytes_s - used)[crowd > 0] / crowd[crowd > 0]).min())
            given[free] += grown
            full = (crowd > 0) & (used + grown * crowd >= self._bytes_s * (1 - 1e-9))
            # A partition has a connection to each worker's host but that of its server.
            workers = full[:, : self._workers]
            for direction in (0, 1):
                elsewhere = workers[direction].sum() - np.where(
                    self._host < self._workers, workers[direction].take(self._host, mode="clip"), 0
                )
                free[direction] &= ~((elsewhere > 0) | full[1 - direction, self._host])
        self._rates += given

    def _through(self, rates: np.ndarray) -> np.ndarray:
        """Bytes a second that leave each host (0) and come to it (1), at the rates of connections given."""
        workers = self._workers
        own = np.array([np.bincount(self._host, each, self._hosts) for each in rates])
        moved = workers * own[::-1]  # of hosts without a worker
        moved[:, :workers] -= own[::-1, :workers]
        moved[:, :workers] += rates.sum(1, keepdims=True) - own[:, :workers]
        return moved
