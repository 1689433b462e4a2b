"""Output of mpirun: whose each piece is, and which rank failed first. Standard library only.

mpirun puts `[1,3]<stderr>:` (Open MPI 4, --tag-output) or `[3]<stderr>: ` (5, --output rank:raw) before
whatever rank 3 wrote at a time, also in the middle of a line, and lines of its own between them. Its exit
code is that of the first rank that did not exit with 0, 128 + the number of the signal if one killed it
(4.1.4 and 5.0.7, measured), but 5.0.7's is 0 where it has lost a host; which rank that was stands in its own
lines. They come at its end; a rank of ours that fails leaves a note before (base/failures.py).
"""

from __future__ import annotations

import re
import signal

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


class MpirunOutput:
    """Cuts what mpirun writes into its ranks' lines.

    Attributes:
        culprit: the rank that failed first, as far as mpirun has said; None before that.
        end: that rank's end, "exited with 2" or "was killed by SIGKILL"; without a culprit mpirun's own, "has
            lost a host".
        lost: the host that is gone, by mpirun's name for it; empty where it does not say which, None where
            none is.
        lost_number: its number among the hosts that are not mpirun's own, from 1; 0 where it is not said.
    """

    def __init__(self) -> None:
        self.culprit: int | None = None
        self.end = ""
        self.lost: str | None = None
        self.lost_number = 0
        self._is_killed = False  # its signal is still to come
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
        if killed and not self.end:
            self.culprit, self._is_killed = int(killed[1]), not killed[2]
            self.end = f"was killed by {_signal_name(int(killed[2]))}" if killed[2] else "was killed"
        elif number and self._is_killed:
            self.end, self._is_killed = f"was killed by {_signal_name(int(number[1]))}", False
        elif name and self.culprit is None and self.lost is None:
            self.culprit = int(name[1])
        elif _LOST.search(text) and not self.end:
            self.lost, self.end = "", "has lost a host"
        elif daemon and self.lost == "":
            self.lost_number, self.lost = int(daemon[1]), daemon[2]
        elif code and self.culprit is not None and not self.end:
            self.end = f"exited with {code[1]}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
