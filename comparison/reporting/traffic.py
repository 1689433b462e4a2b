"""How many bytes of a step's gradients travel, by the algorithm of each backend."""

from __future__ import annotations

from typing import NamedTuple

RING = ("hvd_mpi", "hvd_gloo")
SERVERS = ("byteps",)


class Traffic(NamedTuple):
    """Bytes a step. `handed`: what a rank gives to its library. `worker`: what a rank sends over a link, and
    receives as much; `servers`: what all servers together send, and receive as much; None where there
    are none, or no formula is known. These follow from `handed`; nothing has counted them on the wire."""

    handed: int
    worker: float | None
    servers: float | None


def traffic(backend: str, workers: int, handed: int | None) -> Traffic | None:
    """None where the bytes handed over are not known.

    An all-reduce in a ring sends each of n workers' S bytes in n parts round twice, less one stop each time:
    2 (n - 1) / n x S from every worker (P. Patarasuk and X. Yuan, 2009), which is also the least that any
    all-reduce can do. With parameter servers a worker pushes S and pulls S, so it sends S and receives S; the
    servers together receive n S and send n S. A single worker sends nothing: BytePS starts no server for it.
    Ranks of one BytePS worker add up in the host's memory, which is no link.
    """
    if handed is None:
        return None
    if backend in RING:
        return Traffic(handed, 2 * (workers - 1) / workers * handed, None)
    if backend in SERVERS:
        distributed = workers > 1
        return Traffic(handed, handed if distributed else 0, workers * handed if distributed else 0)
    return Traffic(handed, None, None)
