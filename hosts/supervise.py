"""Runs one part of a run (a rank, a server, the scheduler) so that it cannot outlive the launcher.

    python hosts/supervise.py --token WORD -- COMMAND...

hosts/launch.py starts every part under this program, here and, through ssh, on other hosts. Standard
input is the launcher's line: each line is a signal's name for the part (TERM, INT, USR1, KILL), or END:
SIGTERM now and SIGKILL after `--grace` seconds. When standard input closes, because the launcher or the
connection is gone, that means END, too. If this program dies, the kernel kills the part.

The part has a session of its own (a Ctrl-C at the launcher's terminal does not reach it directly) and no
standard input; what it has started is killed when it ends, and each `--folder`, made for it, is removed; so
are those that killed supervisors have left in shared memory. A part that a signal has stopped (state T) for
`--stopped_timeout` seconds is killed: it would keep all others waiting.

With `--silence SECONDS`, for mpirun and its daemons, a part is also killed when a host to which it is
connected has acknowledged nothing for so long. They would wait 15 minutes, until the kernel gives the
connection up: keepalive only works where nothing that was sent is on its way. mpirun starts its daemons
without a line to the launcher: `--unattended`.

With `--wake`, for Open MPI 4's mpirun and its daemons, a part gets signals when the ranks that it has started
have ended: after a failure they sleep for a fixed time, one after the other, before they look at that. Then
half of `--silence` is enough, too.

On another host the connection may be cut without an end, and its ssh server notices that after hours, if
at all. So with `--line SECONDS` this program writes `alive` from time to time, looks in the kernel's table
whether the ssh client's machine acknowledges it (SSH_CONNECTION says which connection it is), and takes the
connection for gone when it has not for so long. A launcher that is only stopped or busy does not matter.

Reports for the launcher are lines on standard error that contain the token: `connected`, and at the end one
of `exit CODE`, `signal NUMBER`, `stopped SECONDS`, `silent ADDRESS`, `failed REASON` (it could not be
started); without a token there are none. Exits with the
part's code, 128 + the number of the signal that ended it. Linux only (/proc, prctl). Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import math
import os
import re
import select
import signal
import stat
import subprocess
import sys
import time
from functools import partial
from typing import Callable, Iterator, Sequence

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SIGNALS = {name: signal.Signals[f"SIG{name}"] for name in ("TERM", "INT", "USR1", "USR2", "KILL")}
CONTROL = 0  # the launcher's line
FOLDER = re.compile(r"launch\.[0-9a-f]{8}")  # names of hosts/launching/over_mpirun.py
LEFT_FOR = 60.0  # seconds without a lock and without a change, until which a folder may be another start's
LOOK_EVERY, WAKE_EVERY = 0.1, 0.01  # seconds between two looks at mpirun's ranks, and when they have ended
ALIVE_EVERY = 5.0  # seconds between two reports, without which nothing would have to be acknowledged


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command to its end; returns its exit code."""
    parser = argparse.ArgumentParser(description="Runs one part of a run for hosts/launch.py.")
    parser.add_argument("--token", default="")
    parser.add_argument("--stopped_timeout", type=float, default=60.0)
    parser.add_argument("--grace", type=float, default=5.0)
    parser.add_argument("--silence", type=float)
    parser.add_argument("--line", type=float)
    parser.add_argument("--unattended", action="store_true")
    parser.add_argument("--wake", action="store_true")
    parser.add_argument("--folder", action="append", default=[], metavar="DIR")
    parser.add_argument("command", nargs="+")
    args = parser.parse_args(argv)
    libc = ctypes.CDLL(None, use_errno=True)
    # Processes that the part leaves behind become children of this one, and can be identified.
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # A descriptor that becomes readable when a signal arrives, with its number as a byte.
    wakeup, writer = os.pipe()
    for end in (wakeup, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    report = partial(_report, args.token)
    report("connected")
    made: list[str] = []
    try:
        for folder in args.folder:
            _make(folder)
            made.append(folder)
        part = _start(args.command, libc)
    except OSError as error:
        _remove(made)
        report(f"failed {error.strerror}: {error.filename or args.command[0]}")
        return 127
    line = Line(not args.unattended, wakeup, args.line, report)
    reason = _watch(part, line, args)
    if reason is None and part.returncode < 0:
        _outlived(args.grace, line)
    _kill_descendants(part.pid)
    _remove(made)
    if reason:
        report(reason)
        return 128 + signal.SIGSTOP if reason.startswith("stopped") else 1
    if part.returncode < 0:
        report(f"signal {-part.returncode}")
        return 128 - part.returncode
    report(f"exit {part.returncode}")
    return part.returncode


def _make(folder: str) -> None:
    """Makes a folder for this user alone. Parts whose hosts are one machine share it; what somebody else has
    put there, or a link, is an error (FileExistsError). A lock, which ends with this process, says that the
    folder is in use; old ones without are removed from this host's memory, where each costs megabytes (other
    folders may be shared with hosts whose locks are not seen here)."""
    parent = os.path.dirname(folder)
    os.makedirs(parent, exist_ok=True)
    with contextlib.suppress(OSError):
        is_memory = os.stat(parent).st_dev == os.stat("/dev/shm").st_dev
        for name in filter(FOLDER.fullmatch, os.listdir(parent) if is_memory else ()):
            _remove_left(os.path.join(parent, name))
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        there = os.lstat(folder)
        if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid():
            raise
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_SH)


def _remove_left(folder: str) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            facts = os.fstat(descriptor)
            if facts.st_uid == os.geteuid() and time.time() - facts.st_mtime > LEFT_FOR:
                _remove([folder])
        finally:
            os.close(descriptor)


def _remove(folders: Sequence[str]) -> None:
    if folders:
        from shutil import rmtree  # a seldom need; every rank of BytePS starts this program

        for folder in folders:
            rmtree(folder, ignore_errors=True)


def _start(command: Sequence[str], libc: ctypes.CDLL) -> subprocess.Popen[bytes]:
    parent = os.getpid()

    def die_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    # This process has one thread, so that a function between fork and exec is safe.
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_parent
    )


class Line:
    """The launcher's line, whose end is an order, too, and the signals to this program. `seconds`: for which
    the launcher's machine may acknowledge nothing."""

    def __init__(self, is_open: bool, wakeup: int, seconds: float | None, report: Callable[[str], None]):
        # Empty under a remote shell that is not ssh; then a cut is not noticed.
        ends = os.environ.get("SSH_CONNECTION", "").split() if seconds is not None else []
        self._cut = Silence(partial(_repetitions_between, *ends), seconds or 0.0) if len(ends) == 4 else None
        self._control, self._wakeup, self._report = [CONTROL] if is_open else [], wakeup, report
        self._begun, self._alive_at = "", 0.0

    def orders(self, seconds: float) -> list[str]:
        """Those that come within so many seconds."""
        ready, _, _ = select.select([*self._control, self._wakeup], [], [], seconds)
        orders, is_gone = [], False
        if self._wakeup in ready and any(byte != signal.SIGCHLD for byte in os.read(self._wakeup, 512)):
            orders.append("END")
        if CONTROL in ready:
            text = os.read(CONTROL, 4096).decode("ascii", "replace")
            *lines, self._begun = (self._begun + text).split("\n")
            orders, is_gone = orders + lines, not text
        if self._cut is not None:
            if time.monotonic() >= self._alive_at:
                self._alive_at = time.monotonic() + ALIVE_EVERY
                self._report("alive")
            is_gone |= self._cut.peer() is not None
        if is_gone:
            self._control.clear()
            orders.append("END")
        return orders


def _watch(part: subprocess.Popen[bytes], line: Line, limits: argparse.Namespace) -> str | None:
    """Passes signals on until the part has ended. `limits`: the options.

    Returns:
        None for an end of its own, else why it was killed: the report where it was stopped or a host is
        silent, empty where it had to end.
    """
    interval = min(2.0, max(0.1, limits.stopped_timeout / 10), (limits.silence or math.inf) / 10)
    interval = min(interval, LOOK_EVERY) if limits.wake else interval
    silence = None if limits.silence is None else Silence(partial(_repetitions, part.pid), limits.silence)
    had_ranks = has_ranks = False
    stopped_since = kill_at = math.inf
    while part.poll() is None:
        pause = WAKE_EVERY if had_ranks and not has_ranks else interval
        orders = line.orders(min(pause, max(0.0, kill_at - time.monotonic())))
        if part.poll() is not None:
            break
        has_ranks = limits.wake and any(map(_is_rank, _children(part.pid)))
        if had_ranks and not has_ranks:
            os.kill(part.pid, signal.SIGCHLD)  # `sleep` then leaves out what is left of a second
            if silence:
                silence.seconds = min(silence.seconds, limits.silence / 2)  # the run is over in any case
        had_ranks |= has_ranks
        now = time.monotonic()
        for order in orders:
            if order in SIGNALS and order != "KILL":
                os.kill(part.pid, SIGNALS[order])
            elif order == "END" and kill_at == math.inf:
                os.kill(part.pid, signal.SIGTERM)
                kill_at = now + limits.grace
            elif order == "KILL":
                kill_at = now
        is_stopped = any(_is_stopped(pid) for pid in [part.pid, *_descendants(part.pid)])
        stopped_since = min(stopped_since, now) if is_stopped else math.inf
        # A stopped process acts on no signal but SIGKILL: when it is to end, there is nothing to wait for.
        limit = limits.stopped_timeout if kill_at == math.inf else 0.0
        address = silence.peer() if silence else None
        if address or now - stopped_since >= limit or now >= kill_at:
            _kill_group(part.pid)
            part.wait()
            if address:
                return f"silent {address}"
            return f"stopped {now - stopped_since:.1f}" if is_stopped else ""
    return None


class Silence:
    """Notices a TCP connection whose other end acknowledges nothing for so many seconds. `repetitions` gives
    those that send something again and again: socket, how often in vain, the other end's address."""

    def __init__(self, repetitions: Callable[[], Iterator[tuple[str, int, str]]], seconds: float):
        self._repetitions, self.seconds = repetitions, seconds
        self._repeated: dict[str, tuple[float, int]] = {}  # by socket: since when, and how often by now

    def peer(self) -> str | None:
        """The other end's address, None where all answer. To be called every few seconds."""
        now, before = time.monotonic(), self._repeated
        self._repeated, silent = {}, None
        for socket, count, address in self._repetitions():
            since, last = before.get(socket, (now, count))
            if count < last:  # something was acknowledged in between
                since = now
            self._repeated[socket] = (since, count)
            silent = address if now - since >= self.seconds else silent
        return silent


def _repetitions(pid: int) -> Iterator[tuple[str, int, str]]:
    """TCP connections of a process, for `Silence`."""
    with contextlib.suppress(OSError):  # it has ended
        program = os.readlink(f"/proc/{pid}/exe")
        own = set()
        # Open MPI 5's daemon goes on in a child; ranks are other programs.
        for each in (pid, *_children(pid)):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{each}/exe") == program:
                    for name in os.listdir(f"/proc/{each}/fd"):
                        with contextlib.suppress(OSError):
                            own.add(os.readlink(f"/proc/{each}/fd/{name}"))
        for _, remote, inode, count in _unacknowledged(pid):
            if f"socket:[{inode}]" in own:
                yield inode, count, address_in(remote.partition(":")[0])


def _repetitions_between(
    client: str, client_port: str, server: str, server_port: str
) -> Iterator[tuple[str, int, str]]:
    """One connection of this host's, by its ends as SSH_CONNECTION has them, for `Silence`."""
    ends = ((server.partition("%")[0], int(server_port)), (client.partition("%")[0], int(client_port)))
    for local, remote, inode, count in _unacknowledged(os.getpid()):
        pairs = (end.partition(":") for end in (local, remote))
        if ends == tuple((address_in(address), int(port, 16)) for address, _, port in pairs):
            yield inode, count, client


def _unacknowledged(pid: int) -> Iterator[tuple[str, str, str, int]]:
    """TCP connections of a process's host on which something waits for an acknowledgement: both ends as the
    kernel writes them, inode, how often it was sent again in vain."""
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
            for line in file.readlines()[1:]:
                _, local, remote, _, _, _, repeated, _, probes, inode, *_ = line.split()
                # Probes are sent where the interface here is down, or the other end's buffer full.
                count = int(repeated, 16) + int(probes)
                if count:
                    yield local, remote, inode, count


def address_in(text: str) -> str:
    """Reads an address as the kernel's tables have it: words of 32 bits in this machine's order."""
    import ipaddress  # a seldom need, too

    words = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address)


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] == "T"  # the name before may contain anything
    except (OSError, IndexError):
        return False


def _is_rank(pid: int) -> bool:
    """Whether a child of mpirun or its daemon is a living rank, not the remote shell of a daemon."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return b"\0OMPI_COMM_WORLD_RANK=" in b"\0" + file.read()
    return False


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                yield from map(int, file.read().split())


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def _outlived(seconds: float, line: Line) -> None:
    """Waits so long at most for what a part that was killed has left: ranks may save. KILL ends the wait: the
    launcher kills this program, too, a few seconds later."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(_descendants(os.getpid())):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        if "KILL" in line.orders(0.05):
            return


def _kill_descendants(leader: int) -> None:
    """Kills what the part has started: its process group, and processes that have left that."""
    _kill_group(leader)
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        remaining = list(_descendants(os.getpid()))
        if not remaining:
            return
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _report(token: str, text: str) -> None:
    """Writes a line for the launcher, in one piece, to the standard error that the part shares."""
    with contextlib.suppress(OSError):  # the launcher is gone
        if token:
            os.write(sys.stderr.fileno(), f"{token} {text}\n".encode())


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.exit(main())
