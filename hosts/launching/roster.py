"""Hosts of a run that is started again and again: in use, spare, left out. Standard library only."""

from __future__ import annotations

from typing import Iterable, Sequence


class Roster:
    """Choice of the hosts that the next start takes. The order is the host file's, spare hosts behind it.

    Args:
        lines, spares: host and slots of each line of the host file, where a host may have several.
        tries: a host is left out when it has failed so many times without progress in between.

    Attributes:
        left_out: hosts that failed too often in a row, with the number of times that this has happened.
    """

    def __init__(self, lines: Sequence[tuple[str, int]], spares: Sequence[tuple[str, int]], tries: int):
        self._lines, self._tries = [*lines, *spares], tries
        self._names = list(dict.fromkeys(name for name, _ in self._lines))
        self.wanted = len({name for name, _ in lines})
        self._slots = sum(slots for _, slots in lines)
        self._strikes: dict[str, int] = {}
        self.left_out: dict[str, int] = {}
        self._times: dict[str, int] = {}

    def in_use(self) -> list[str]:
        """Names of the hosts that the next start takes, as many as the host file has if so many are left."""
        return [name for name in self._names if name not in self.left_out][: self.wanted]

    def lines(self) -> list[tuple[str, int]]:
        """Host and slots of each line of those in use. Where a spare host has more slots than the host that
        it replaces, not all are taken: a run cannot have more ranks than a step has micro-batches, and has
        at least one for each slot of the host file."""
        used, left, lines = self.in_use(), self._slots, []
        for name, slots in self._lines:
            taken = min(slots, left) if name in used else 0
            if taken:
                lines.append((name, taken))
                left -= taken
        return lines

    @property
    def available(self) -> int:
        """Number of hosts that are not left out, spare ones included."""
        return len(self._names) - len(self.left_out)

    def is_short(self) -> bool:
        """Whether fewer hosts are in use than the host file has."""
        return len(self.in_use()) < self.wanted

    def strike(self, host: str) -> bool:
        """Notes a failure of a host; returns whether it is left out from now on."""
        self._strikes[host] = self._strikes.get(host, 0) + 1
        if self._strikes[host] < self._tries:
            return False
        self._times[host] = self.left_out[host] = self._times.get(host, 0) + 1
        del self._strikes[host]
        return True

    def strikes(self, host: str) -> str:
        """A host's failures in a row, as `1 of 2`."""
        return f"{self._strikes.get(host, 0)} of {self._tries}"

    def forgive(self) -> None:
        """Forgets the failures of hosts in use: the run has made progress."""
        self._strikes.clear()

    def take_back(self, hosts: Iterable[str]) -> None:
        """Ends the exclusion of hosts."""
        for host in hosts:
            self.left_out.pop(host, None)
