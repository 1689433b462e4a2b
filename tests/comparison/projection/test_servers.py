"""The exchange of workers and servers, against a simulation of every single connection."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from comm.numbering import Servers
from comparison.projection.model import Exchange

B = 1000.0  # bytes a second of a link


def simulate(workers, hosts, pieces):
    """Seconds until the last piece has arrived everywhere, and each piece's. A connection for each worker,
    server and direction; max-min fair rates by filling, connection by connection, in exact fractions.

    Args:
        hosts: of each server. pieces: (ready, server, bytes) in order.
    """
    queues = {(worker, server, way): [] for worker in range(workers) for server in range(len(hosts))
              for way in ("push", "pull")}  # fmt: skip
    for number, (ready, server, nbytes) in enumerate(pieces):
        for worker in range(workers):
            queues[worker, server, "push"].append([Fraction(ready), number, Fraction(nbytes)])
    arrived = [0] * len(pieces)
    ends, pulled = [Fraction(0)] * len(pieces), [0] * len(pieces)
    now = Fraction(0)

    def links(flow):
        worker, server, way = flow
        ends = (worker, hosts[server]) if way == "push" else (hosts[server], worker)
        return [] if hosts[server] == worker else [("out", ends[0]), ("in", ends[1])]

    while any(queues.values()):
        active = [flow for flow, queue in queues.items() if queue and queue[0][0] <= now]
        rates, free, left = {}, {flow for flow in active if links(flow)}, {}
        for flow in free:
            for link in links(flow):
                left[link] = Fraction(B)
        while free:
            crowd = {link: sum(link in links(flow) for flow in free) for link in left}
            link = min((each for each in left if crowd[each]), key=lambda each: left[each] / crowd[each])
            share = left[link] / crowd[link]
            for flow in [each for each in free if link in links(each)]:
                rates[flow] = share
                free.remove(flow)
                for each in links(flow):
                    left[each] -= share
        waits = [queue[0][0] - now for queue in queues.values() if queue and queue[0][0] > now]
        times = [queues[flow][0][2] / rates[flow] if flow in rates else Fraction(0) for flow in active]
        step = min([*times, *waits])
        now += step
        for flow, time in zip(active, times):
            if flow in rates:
                queues[flow][0][2] -= rates[flow] * step
            if time <= step:
                _, number, _ = queues[flow].pop(0)
                if flow[2] == "push":
                    arrived[number] += 1
                    if arrived[number] == workers:
                        for worker in range(workers):
                            size = Fraction(pieces[number][2])
                            queues[worker, flow[1], "pull"].append([now, number, size])
                else:
                    pulled[number] += 1
                    ends[number] = now if pulled[number] == workers else ends[number]
    return [float(each) for each in ends]


def exchange(workers, apart, beside, pieces):
    """The same by the model."""
    found = Exchange(Servers(workers, apart, beside, 4096), B, 0.0)
    for number, (ready, server, nbytes) in enumerate(pieces):
        found.add(ready, number, server, nbytes)
    ends = {}
    while found.next_s < float("inf"):
        ends.update({number: done for done, number in found.advance()})
    return [ends[number] for number in range(len(pieces))]


APART = [(2, 1, 0), (2, 2, 0), (3, 2, 0), (4, 6, 0)]
BESIDE = [(2, 0, 1), (3, 0, 1), (2, 0, 2), (3, 0, 3), (3, 0, 6), (2, 1, 2), (3, 2, 3)]


@pytest.mark.parametrize("workers, apart, beside", [*APART, *BESIDE])
def test_it_agrees_with_every_single_connection(workers, apart, beside):
    """Piece by piece where the workers are alike, which they are without servers beside them; else one stands
    for all, the slowest."""
    generator = random.Random(workers * 100 + apart * 10 + beside)
    hosts = [*range(workers, workers + apart), *(each % workers for each in range(beside))]
    for _ in range(5):
        pieces = sorted(
            (generator.choice([0, 0, 1, 5]), generator.randrange(len(hosts)), generator.randrange(50, 200))
            for _ in range(24)
        )
        found = exchange(workers, apart, beside, pieces)
        expected = simulate(workers, hosts, pieces)
        if beside:
            assert max(found) == pytest.approx(max(expected), rel=0.12)
        else:
            assert found == pytest.approx(expected, rel=1e-6)


def test_latencies_delay_and_keep_nothing_busy():
    """A piece takes a latency for its data, the answer, the request, and the sum's data."""
    found = Exchange(Servers(2, 1, 0, 4096), B, 0.25)
    found.add(1.0, 7, 0, 100)
    ends = []
    while found.next_s < float("inf"):
        ends += found.advance()
    assert ends == [
        (pytest.approx(1.0 + 2 * 2 * 100 / B + 4 * 0.25), 7)
    ]  # two workers share the server's link
