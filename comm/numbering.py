"""Numbers of arrays with which BytePS's servers get equal shares. Standard library only.

BytePS cuts an array into partitions and gives each to a server by a hash of the numbers of both. Its default
hash multiplies by 33, which is 1 modulo 32: of 2, 4, ... 32 servers the sum of a number's digits decides.
With numbers in the order in which arrays are declared, the fullest of 16 servers gets twice the mean of
BERT's gradients, and the exchange takes twice the time. An array's number is the count of those declared
before it; declaring names that are never used leaves numbers out, so each array can have one that suits.
"""

from __future__ import annotations

from typing import NamedTuple, Sequence

# Numbers that are tried for an array; with 32 the fullest of 16 servers had 12% too much in place of 3.
CANDIDATES = 128
# An array is cut into partitions, which the stages of BytePS's pipeline work on at the same time.
# Each costs workers and servers some 0.4 ms of processor time together, so they are not smaller than need be.
LEAST_PARTITION_BYTES, MOST_PARTITION_BYTES = 512 << 10, 4 << 20
_SPREAD_BYTES = 16 << 20
MIXED_BOUND = 101  # BYTEPS_MIXED_MODE_BOUND's default


class Servers(NamedTuple):
    """Servers of a run with `workers` worker hosts: `apart` and `beside` are those on hosts of their own and
    those beside workers in BytePS's mixed mode, which wants one beside each; in any other mode one of the two
    is 0. `partition_bytes`: as BytePS rounds them."""

    workers: int
    apart: int
    beside: int
    partition_bytes: int


def hash_of(key: int) -> int:
    """BytePS's default hash, djb2 of the decimal digits, in 64 bits (byteps/common/global.cc)."""
    value = 5381
    for digit in str(key).encode("ascii"):
        value = 33 * value + digit
    return value % 2**64


def partition_bytes_of(servers: int) -> int:
    """Bytes of a partition with so many servers: the more they are, the more partitions it takes to give each
    the same share."""
    return min(MOST_PARTITION_BYTES, max(LEAST_PARTITION_BYTES, _SPREAD_BYTES // servers))


def share_apart(servers: Servers) -> float:
    """Share of the gradients that the servers apart get in the mixed mode (Jiang et al., A Unified
    Architecture for Accelerating Distributed DNN Training, OSDI 2020, section 4.1)."""
    workers, apart = servers.workers, servers.apart
    return 2 * apart * (workers - 1) / (workers * (workers + apart) - 2 * apart)


def server_of(array: int, partition: int, servers: Servers) -> int:
    """The server of a partition: 0 to apart - 1 on hosts of their own, then those beside the workers."""
    hashed = hash_of((array << 16) + partition)
    if not servers.apart or not servers.beside:
        return hashed % (servers.apart + servers.beside)
    place = hashed % MIXED_BOUND
    if place < share_apart(servers) * MIXED_BOUND:
        return hash_of(place) % servers.apart
    return servers.apart + hash_of(place) % servers.beside


def even_numbers(
    sizes: Sequence[int], servers: Servers, first: int, loads: list[float] | None = None
) -> list[int]:
    """A number from `first` on for each array. `sizes`: their bytes. `loads`: of the servers by earlier
    arrays; those of these are added.

    The largest first, each gets the number whose partitions leave the least sum of the servers' squared
    loads, over what each is to have.
    """
    loads = [0.0] * (servers.apart + servers.beside) if loads is None else loads
    if len(loads) == 1:
        return list(range(first, first + len(sizes)))
    shares = [1.0] * len(loads)
    if servers.apart and servers.beside:
        own = share_apart(servers)
        shares = [own / servers.apart] * servers.apart
        shares += [max(1 - own, 1e-9) / servers.beside] * servers.beside
    numbers = dict.fromkeys(range(len(sizes)), 0)
    taken: set[int] = set()
    for index in sorted(numbers, key=lambda index: -sizes[index]):
        nbytes, size = sizes[index], servers.partition_bytes
        parts = [min(size, nbytes - begin) for begin in range(0, nbytes, size)]
        free = (number for number in range(first, first + len(sizes) + CANDIDATES) if number not in taken)
        best: tuple[float, int, dict[int, float]] | None = None
        for _, number in zip(range(CANDIDATES), free):
            after: dict[int, float] = {}
            for part, part_bytes in enumerate(parts):
                server = server_of(number, part, servers)
                after[server] = after.get(server, loads[server]) + part_bytes
            cost = sum((load**2 - loads[each] ** 2) / shares[each] for each, load in after.items())
            if best is None or cost < best[0]:
                best = (cost, number, after)
        assert best is not None  # fewer are taken than there are
        _, numbers[index], after = best
        taken.add(numbers[index])
        for server, load in after.items():
            loads[server] = load
    return list(numbers.values())
