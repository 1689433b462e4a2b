"""Runs one part of a run (a rank, a server, the scheduler) so that it cannot outlive the launcher.

    python hosts/supervise.py --token WORD -- COMMAND...

hosts/launch.py starts every part under this program, here and, through ssh, on other hosts. Standard
input is the launcher's line: each line is a signal's name for the part (TERM, INT, USR1, KILL), or END:
SIGTERM now and SIGKILL after `--grace` seconds. When standard input closes, because the launcher or the
connection is gone, that means END, too. If this program dies, the kernel kills the part.

The part has a session of its own (a Ctrl-C at the launcher's terminal does not reach it directly) and no
standard input; what it has started is killed when it ends, and each `--folder`, made for it, is removed. A
part that a signal has stopped (state T) for `--stopped_timeout` seconds is killed: it would keep all others
waiting.

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
import math
import os
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
    reason = _watch(part, [wakeup] if args.unattended else [CONTROL, wakeup], args, report)
    if reason is None and part.returncode < 0:
        _outlived(args.grace)
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
    put there, or a link, is an error (FileExistsError)."""
    os.makedirs(os.path.dirname(folder), exist_ok=True)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        there = os.lstat(folder)
        if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid():
            raise


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


def _watch(
    part: subprocess.Popen[bytes],
    watched: Sequence[int],
    limits: argparse.Namespace,
    report: Callable[[str], None],
) -> str | None:
    """Passes signals on until the part has ended.

    Args:
        watched: CONTROL if there is a launcher's line, and behind it what becomes readable by a signal.
        limits: the options, those in seconds above all.
        report: to the launcher.

    Returns:
        None for an end of its own, else why it was killed: the report where it was stopped or a host is
        silent, empty where it had to end.
    """
    interval = min(2.0, max(0.1, limits.stopped_timeout / 10), (limits.silence or math.inf) / 10)
    interval = min(interval, LOOK_EVERY) if limits.wake else interval
    had_ranks = has_ranks = False
    *control, wakeup = watched
    silence = None if limits.silence is None else Silence(partial(_repetitions, part.pid), limits.silence)
    # Empty under a remote shell that is not ssh; then a cut is not noticed.
    ends = os.environ.get("SSH_CONNECTION", "").split() if limits.line is not None else []
    line = Silence(partial(_repetitions_between, *ends), limits.line or 0.0) if len(ends) == 4 else None
    alive_at = 0.0
    stopped_since: float | None = None
    kill_at: float | None = None
    begun = ""
    while part.poll() is None:
        until_kill = interval if kill_at is None else max(0.0, kill_at - time.monotonic())
        pause = WAKE_EVERY if had_ranks and not has_ranks else interval
        ready, _, _ = select.select([*control, wakeup], [], [], min(pause, until_kill))
        if part.poll() is not None:
            break
        has_ranks = limits.wake and any(map(_is_rank, _children(part.pid)))
        if had_ranks and not has_ranks:
            os.kill(part.pid, signal.SIGCHLD)  # `sleep` then leaves out what is left of a second
            if silence:
                silence.seconds = min(silence.seconds, limits.silence / 2)  # the run is over in any case
        had_ranks |= has_ranks
        orders = []
        if wakeup in ready and any(byte != signal.SIGCHLD for byte in os.read(wakeup, 512)):
            orders.append("END")
        if CONTROL in ready:
            text = os.read(CONTROL, 4096).decode("ascii", "replace")
            if text:
                *lines, begun = (begun + text).split("\n")
                orders += lines
            else:
                control.clear()
                orders.append("END")
        now = time.monotonic()
        if line is not None and now >= alive_at:
            alive_at = now + ALIVE_EVERY
            report("alive")
        if line is not None and line.peer() is not None:
            control.clear()
            orders.append("END")
        if not any(_is_stopped(pid) for pid in [part.pid, *_descendants(part.pid)]):
            stopped_since = None
        elif stopped_since is None:
            stopped_since = now
        for order in orders:
            if order in SIGNALS and order != "KILL":
                os.kill(part.pid, SIGNALS[order])
            elif order == "END" and kill_at is None:
                os.kill(part.pid, signal.SIGTERM)
                kill_at = now + limits.grace
            elif order == "KILL":
                kill_at = now
        stopped = None if stopped_since is None else now - stopped_since
        # A stopped process acts on no signal but SIGKILL: when it is to end, there is nothing to wait for.
        limit = limits.stopped_timeout if kill_at is None else 0.0
        address = silence.peer() if silence else None
        if address or (stopped is not None and stopped >= limit) or (kill_at is not None and now >= kill_at):
            _kill_group(part.pid)
            part.wait()
            return f"silent {address}" if address else "" if stopped is None else f"stopped {stopped:.1f}"
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


def _outlived(seconds: float) -> None:
    """Waits so long at most for what a part that was killed has left: ranks may save."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(_descendants(os.getpid())):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.05)


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
