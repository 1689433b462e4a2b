"""Output of mpirun: whose each piece is, and which rank failed first. Standard library only.

mpirun puts `[1,3]<stderr>:` (Open MPI 4, --tag-output) or `[3]<stderr>: ` (5, --output rank:raw) before
whatever rank 3 wrote at a time, also in the middle of a line, and lines of its own between them. Its exit
code is that of the first rank that did not exit with 0, 128 + the number of the signal if one killed it
(4.1.4 and 5.0.7, measured), but 5.0.7's is 0 where it has lost a host; which rank that was stands in its own
lines. They come at its end; a rank of ours that fails leaves a note before (base/failures.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Sequence

from base.processes import signal_name
from hosts.addresses import is_here

_TAG = re.compile(rb"\[(\d+,)?(\d+)\]<std(?:out|err|diag)>:(?(1)| )")
_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on(?: signal (\d+))?")
_SIGNAL = re.compile(r"signal (\d+)")  # 5 begins a line before it
_NAME = re.compile(r"Process name: \[(?:\[\d+,\d+\]|\S+@\d+),(\d+)\]")
# A daemon that is gone is noticed by its connection, or by the end of the remote shell that started it.
_LOST = re.compile(
    r"(?:OR|PR)TE has lost communication with a remote|\w+ was unable to reliably start one or"
)
# Its number counts the other hosts from 1; on its node it has, in 5, another name than in mpirun's command.
_DAEMON = re.compile(r"Remote daemon: \[\S+,(\d+)\] on node (\S+)")
_CODE = re.compile(r"Exit code: +(\d+)")
# What it says at every failure, which the launcher says in one line, and of signals that it passes on.
_KNOWN = re.compile(
    r"(mpirun|PRTE): Forwarding signal|-{20,}$|Primary job +terminated normally|"
    r"a non-zero exit code\. Per user|(mpirun|prterun) (detected that one or more|noticed that process rank)|"
    r"(thus causing )?the job to be terminated\. The first| +Process name:| +Exit code:|signal \d+ \(.*\)\.$|"
    r"\[\S+\] (Set MCA parameter \"orte_base_help|\d+ more process|plm:ssh: Warning: setpgid)|\??\s*$"
)
OWN = "mpirun"


@dataclass(frozen=True)
class End:
    """End of a run, as far as mpirun has said. `rank`: the one that failed first, if one did. `how`: its end,
    "exited with 2"; without a rank mpirun's own. `host`: that rank's, or the one that is lost, as in the host
    file; None where it is not known."""

    rank: int | None = None
    how: str = ""
    host: str | None = None

    @property
    def is_of_host(self) -> bool:
        """Whether a host is lost."""
        return self.rank is None and bool(self.how)


_KILLED_BY, _HOST_LOST = "was killed", End(None, "has lost a host")  # the signal, the host are still to come


class MpirunOutput:
    """Cuts what mpirun writes into its ranks' lines. `ranks`: their hosts. `end`: what it says itself."""

    def __init__(self, ranks: Sequence[str] = ()) -> None:
        self.end = End()
        self._ranks = ranks
        self._rests: dict[tuple[int, str], bytes] = {}  # text of a part whose line has not ended
        self._continued: dict[int, str] = {}  # who wrote the state of a progress bar last, by stream

    def split(self, which: int, line: bytes) -> list[tuple[str, bytes]]:
        """Takes a line of mpirun's standard output (`which` 0) or standard error (1), with its end.

        Returns:
            The lines that it completes: the name of their part ("rank 3", "mpirun") and their bytes. Those
            of mpirun's own which say what `end` says are left out.
        """
        own, *pieces = _TAG.split(line)
        if own and which in self._continued and not pieces:
            pieces = [b"", self._continued[which][len("rank ") :].encode(), own]
            own = b""
        self._continued.pop(which, None)
        if not pieces:
            text = own.decode("utf-8", "replace")
            self._understand(text)
            return [] if _KNOWN.match(text) else [(OWN, own)]
        complete = [(OWN, own + b"\n")] if own else []
        for rank, text in zip(pieces[1::3], pieces[2::3]):
            name = f"rank {int(rank)}"
            text = self._rests.pop((which, name), b"") + text
            if text.endswith((b"\n", b"\r")):
                complete.append((name, text))
            else:
                self._rests[which, name] = text
        if line.endswith(b"\r"):
            self._continued[which] = name
        return complete

    def finish(self) -> list[tuple[int, str, bytes]]:
        """Returns the lines that never ended, with ends: stream, part, bytes."""
        rests, self._rests = self._rests, {}
        return [(which, name, text + b"\n") for (which, name), text in rests.items()]

    def _understand(self, text: str) -> None:
        killed, name, code = _KILLED.search(text), _NAME.search(text), _CODE.search(text)
        daemon, number = _DAEMON.search(text), _SIGNAL.match(text)
        rank, how = self.end.rank, self.end.how
        if killed and not how:
            self.end = self._end_of(killed[1], _killed_by(killed[2]) if killed[2] else _KILLED_BY)
        elif number and how == _KILLED_BY:
            self.end = replace(self.end, how=_killed_by(number[1]))
        elif name and rank is None and not how:
            self.end = self._end_of(name[1], "")
        elif _LOST.search(text) and not how:
            self.end = _HOST_LOST
        elif daemon and self.end == _HOST_LOST:
            # By mpirun's number its name in the host file; mpirun's own name for it where it is not there.
            others, host = [each for each in dict.fromkeys(self._ranks) if not is_here(each)], daemon[2]
            if host not in self._ranks and 0 < int(daemon[1]) <= len(others):
                host = others[int(daemon[1]) - 1]
            self.end = End(None, f"has lost the host {host}", host)
        elif code and rank is not None and not how:
            self.end = replace(self.end, how=f"exited with {code[1]}")

    def _end_of(self, rank: str, how: str) -> End:
        number = int(rank)
        return End(number, how, self._ranks[number] if number < len(self._ranks) else None)


def _killed_by(number: str) -> str:
    return f"{_KILLED_BY} by {signal_name(int(number))}"
