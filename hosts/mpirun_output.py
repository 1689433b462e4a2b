"""Output of `mpirun --tag-output`: whose each piece is, and which rank failed first. Standard library only.

mpirun puts `[1,3]<stderr>:` before whatever rank 3 wrote at a time, also in the middle of a line, and lines
of its own between them. Its exit code is that of the first rank that did not exit with 0, 128 + the number of
the signal if one killed it (Open MPI 4.1.4, measured); which rank that was stands in its own lines.
"""

from __future__ import annotations

import re
import signal

_TAG = re.compile(rb"\[\d+,(\d+)\]<std(?:out|err|diag)>:")
_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")
_NAME = re.compile(r"Process name: \[\[\d+,\d+\],(\d+)\]")
# A daemon that is gone is noticed by its connection, or by the end of the remote shell that started it.
_LOST = re.compile(r"ORTE has lost communication with a remote|ORTE was unable to reliably start one or more")
_DAEMON = re.compile(r"Remote daemon: .* on node (\S+)")
_CODE = re.compile(r"Exit code: +(\d+)")
# What it says at every failure, which the launcher says in one line, and of signals that it passes on.
_KNOWN = re.compile(
    r"mpirun: Forwarding signal|-{20,}$|Primary job +terminated normally|a non-zero exit code\. Per user|"
    r"mpirun detected that one or more|the job to be terminated\. The first|  Process name:|  Exit code:|"
    r"mpirun noticed that process rank|\[\S+\] (Set MCA parameter \"orte_base_help|\d+ more process)|\s*$"
)
OWN = "mpirun"


class MpirunOutput:
    """Cuts what mpirun writes into its ranks' lines.

    Attributes:
        culprit: the rank that failed first, as far as mpirun has said; None before that.
        end: that rank's end, "exited with 2" or "was killed by SIGKILL"; without a culprit mpirun's own, "has
            lost a host".
        lost: the host that is gone, as in mpirun's command; empty where it does not say which, None where
            none is.
    """

    def __init__(self) -> None:
        self.culprit: int | None = None
        self.end = ""
        self.lost: str | None = None
        self._rests: dict[tuple[int, str], bytes] = {}  # text of a part whose line has not ended
        self._continued: dict[int, str] = {}  # who wrote the state of a progress bar last, by stream

    def split(self, which: int, line: bytes) -> list[tuple[str, bytes]]:
        """Takes a line of mpirun's standard output (`which` 0) or standard error (1), with its end.

        Returns:
            The lines that it completes: the name of their part ("rank 3", "mpirun") and their bytes. Those
            of mpirun's own which say what `culprit` and `end` say are left out.
        """
        own, *pieces = _TAG.split(line)
        if own and which in self._continued and not pieces:
            pieces = [self._continued[which][len("rank ") :].encode(), own]
            own = b""
        self._continued.pop(which, None)
        if not pieces:
            text = own.decode("utf-8", "replace")
            self._understand(text)
            return [] if _KNOWN.match(text) else [(OWN, own)]
        complete = [(OWN, own + b"\n")] if own else []
        for rank, text in zip(pieces[::2], pieces[1::2]):
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
        daemon = _DAEMON.search(text)
        if killed and not self.end:
            self.culprit, self.end = int(killed[1]), f"was killed by {_signal_name(int(killed[2]))}"
        elif name and self.culprit is None and self.lost is None:
            self.culprit = int(name[1])
        elif _LOST.search(text) and not self.end:
            self.lost, self.end = "", "has lost a host"
        elif daemon and self.lost == "":
            self.lost, self.end = daemon[1], f"has lost the host {daemon[1]}"
        elif code and self.culprit is not None and not self.end:
            self.end = f"exited with {code[1]}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
