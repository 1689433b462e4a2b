"""Two hosts on one machine, and a spare one: network namespaces with their own host names, joined by a bridge
and virtual interfaces (`joined`, which tests/ssh_hosts.py and tests/slurm_cluster.py use, too).

    with two_hosts(tmp_path, slots=1) as hosts:
        run_ranks(script, 2, prefix=hosts.prefix, launcher_args=hosts.mpirun_args, ...)

mpirun runs on the first host (`prefix` enters it), starts its daemon on the second through a remote shell
(tests/remote_shell.py), and all its traffic crosses the virtual wire. Each namespace exists for as long as
one sleeping process; that ends with the `with` block or with this process, and the kernel then removes the
namespace and its interface: nothing has a name that could be left behind.

A host can be lost (`lose`): its processes are killed, and the agent does not reach it until `give_back`.

Needs root, iproute2 and util-linux; `Unavailable` says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, ContextManager, Iterator, Sequence, TypeVar

from tests.processes import LIMIT, executable

Made = TypeVar("Made")
NAMES = ("alpha", "beta")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
SPARE, SPARE_ADDRESS = "gamma", "10.77.0.3"
INTERFACE = "wire0"
SUBNET = "10.77.0.0/24"
REMOTE_SHELL = str(Path(__file__).with_name("remote_shell.py"))


# horovodrun has options on both sides of the host's name.
_SSH = """#!/bin/bash
skip() {{ while [ "${{1:0:1}}" = - ]; do case $1 in -[opi]) shift 2;; *) shift;; esac; done; rest=("$@"); }}
skip "$@"; host=${{rest[0]}}; skip "${{rest[@]:1}}"
exec {agent} "$host" "${{rest[@]}}"
"""


class Unavailable(Exception):
    """This machine cannot make network namespaces; the message says why."""


@contextlib.contextmanager
def or_skip(made: ContextManager[Made], what: str) -> Iterator[Made]:
    """A context of hosts; where they are unavailable, the test is skipped."""
    import pytest  # this module also serves a command

    try:
        with made as hosts:
            yield hosts
    except Unavailable as reason:
        pytest.skip(f"no {what}: {reason}")


@dataclass(frozen=True)
class TwoHosts:
    """`hostfile`: both addresses with their slots. `prefix`: words that run a command on the first host.
    `mpirun_args`: arguments that make mpirun use both. `agent`: a remote shell for all, `agent HOST TEXT`; a
    folder for PATH beside it, `ssh`, has it under that name. `holders`: the process that keeps each
    namespace; a spare host is the third of them. `shells`: the server of each host's remote shell."""

    hostfile: Path
    agent: Path
    prefix: list[str]
    mpirun_args: list[str]
    holders: tuple[int, ...]
    shells: tuple[int, ...]

    def cut(self, host: int = 1) -> None:
        """Takes a host's wire out: nothing arrives any more, nobody is notified. The agent cannot reach the
        host; what it has started there goes on hearing it."""
        self._down(host).touch()
        set_wire(self.holders[host], "down")

    def mend(self, host: int = 1) -> None:
        """Puts the wire back."""
        set_wire(self.holders[host], "up")
        self._down(host).unlink()

    def lose(self, host: int) -> None:
        """Kills all processes of a host, and lets the agent fail for it."""
        self._down(host).touch()
        for _ in range(2):  # what was being started when the first round came
            kill_on(self.holders[host], self.shells[host])

    def give_back(self, host: int) -> None:
        """Lets the agent reach a lost host again."""
        self._down(host).unlink()

    def _down(self, host: int) -> Path:
        return self.agent.with_name(f"down.{[*ADDRESSES, SPARE_ADDRESS][host]}")

    def received(self, host: int) -> int:
        """Packets that have arrived at the host's interface."""
        for line in Path(f"/proc/{self.holders[host]}/net/dev").read_text(encoding="ascii").splitlines():
            name, colon, counters = line.partition(":")
            if colon and name.strip() == INTERFACE:
                return int(counters.split()[1])
        raise AssertionError(f"{NAMES[host]} has no {INTERFACE}")


def bound(path: Path, place: str) -> list[str]:
    """Words that run a command, and what it starts, with a file or folder shown at another place."""
    script = f'mount --bind {shlex.quote(str(path))} {place} && exec "$0" "$@"'
    return ["unshare", "--mount", "sh", "-c", script]


def commands_on(holder: int, *but: int) -> Iterator[tuple[int, list[str]]]:
    """Process id and words of each process on the host that `holder` keeps, but for that and some others."""
    own = os.stat(f"/proc/{holder}/ns/net").st_ino
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            if int(entry) not in (holder, os.getpid(), *but):
                words = Path(f"/proc/{entry}/cmdline").read_bytes().decode(errors="replace").split("\0")
                if os.stat(f"/proc/{entry}/ns/net").st_ino == own:
                    yield int(entry), words


def kill_on(holder: int, *but: int) -> None:
    """Kills what runs on a host, but for some."""
    for pid, _ in commands_on(holder, *but):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def joined(names: Sequence[str]) -> Iterator[list[int]]:
    """Makes hosts with the addresses 10.77.0.1, 10.77.0.2, ...; gives the process that keeps each."""
    if os.geteuid() != 0:
        raise Unavailable("network namespaces need root")
    for tool in ("ip", "unshare", "nsenter", "setpriv"):
        if shutil.which(tool) is None:
            raise Unavailable(f"network namespaces need the command {tool}")
    with contextlib.ExitStack() as stack:
        holders = [_start_holder(stack, name) for name in names]
        first = enter(holders[0])
        _run(*first, "ip", "link", "add", INTERFACE, "type", "bridge")
        for number, holder in enumerate(holders):
            if number:
                port = f"port{number}"
                _run("ip", "link", "add", port, "netns", str(holders[0]), "type", "veth",
                     "peer", "name", INTERFACE, "netns", str(holder))  # fmt: skip
                _run(*first, "ip", "link", "set", port, "master", INTERFACE, "up")
            place = f"10.77.0.{number + 1}/24"
            _run(*enter(holder), "ip", "address", "add", place, "dev", INTERFACE)
            for name in (INTERFACE, "lo"):
                _run(*enter(holder), "ip", "link", "set", name, "up")
        yield holders


def set_wire(holder: int, state: str) -> None:
    """Takes a host's wire out ("down"): nothing arrives any more, nobody is notified; "up" puts it back."""
    _run(*enter(holder), "ip", "link", "set", INTERFACE, state)


@contextlib.contextmanager
def two_hosts(directory: Path, slots: int = 1, spare: bool = False) -> Iterator[TwoHosts]:
    """Make two hosts with `slots` slots each, and a spare one that the host file does not have; host file and
    agent are written into `directory`."""
    if shutil.which("mpirun") is None:
        raise Unavailable("there is no mpirun")
    with joined([*NAMES, *([SPARE] if spare else [])]) as holders, contextlib.ExitStack() as stack:
        hostfile = directory / "hostfile"
        hostfile.write_text("".join(f"{address} slots={slots}\n" for address in ADDRESSES), encoding="ascii")
        names = directory / "hosts"
        lines = ["127.0.0.1 localhost", *map(" ".join, zip((*ADDRESSES, SPARE_ADDRESS), (*NAMES, SPARE)))]
        names.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        sockets = [directory / f"shell.{holder}" for holder in holders]
        shells = [_start_shell(stack, holder, path) for holder, path in zip(holders, sockets)]
        agent = executable(directory / "agent", _agent(sockets))
        executable(directory / "ssh" / "ssh", _SSH.format(agent=shlex.quote(str(agent))))
        own = f"PRTE_MCA_plm_ssh_agent={agent}"
        yield TwoHosts(
            hostfile=hostfile,
            agent=agent,
            # Gloo looks for the address of its host's own name.
            prefix=[*enter(holders[0]), *bound(names, "/etc/hosts"), "env", own],
            mpirun_args=[
                *("--hostfile", str(hostfile)),
                *("-mca", "plm_rsh_agent", str(agent)),
                *("-mca", "pml", "ob1", "-mca", "btl", "tcp,self"),
                *("-mca", "btl_tcp_if_include", SUBNET, "-mca", "oob_tcp_if_include", SUBNET),
            ],
            holders=tuple(holders),
            shells=tuple(shells),
        )


def started(
    stack: contextlib.ExitStack,
    words: Sequence[str],
    is_ready: Callable[[int], bool] = lambda pid: True,
    **options: Any,
) -> int:
    """Starts a program that ends with `stack` and with this process, and waits until `is_ready` says so of
    its process id, which is returned. `options` are Popen's. Raises Unavailable with what it has said."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *words],
            **{"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said, **options},
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        deadline = time.monotonic() + LIMIT
        while not is_ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                said.seek(0)
                reason = said.read().decode(errors="replace").strip()
                raise Unavailable(f"{shlex.join(words)} did not start: {reason}")
            time.sleep(0.01)
    return process.pid


def _start_holder(stack: contextlib.ExitStack, name: str) -> int:
    def sleeps(pid: int) -> bool:
        return Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() == "sleep"

    script = 'hostname "$0" && exec sleep infinity'
    return started(stack, ["unshare", "--net", "--uts", "sh", "-c", script, name], sleeps)


def enter(holder: int) -> list[str]:
    """Words that run a command on a host."""
    return ["nsenter", "--target", str(holder), "--net", "--uts", "--"]


def _start_shell(stack: contextlib.ExitStack, holder: int, path: Path) -> int:
    """Starts the server of a host's remote shell at a socket; returns its process id."""
    serve = [sys.executable, "-I", "-S", REMOTE_SHELL, "serve", str(path)]
    return started(stack, [*enter(holder), *serve], lambda pid: path.exists())


def _agent(shells: list[Path]) -> str:
    """A remote shell: `agent HOST COMMAND...`, the command being text for a shell. A file `down.HOST` beside
    it makes it fail as ssh does where there is no connection."""
    client = shlex.join([sys.executable, "-I", "-S", REMOTE_SHELL, "run"])
    cases = "\n".join(
        f'    {address}) exec {client} {shlex.quote(str(shell))} "$@" ;;'
        for address, shell in zip((*ADDRESSES, SPARE_ADDRESS), shells)
    )
    down = '[ -e "${0%/*}/down.$host" ] && exit 255\n'
    unknown = 'echo "unknown host $host" >&2\nexit 1\n'
    return f"#!/bin/sh\nhost=$1\nshift\n{down}case $host in\n{cases}\nesac\n{unknown}"


def _run(*words: str) -> None:
    result = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT)
    if result.returncode != 0:
        raise Unavailable(f"{' '.join(words)}: {result.stderr.strip()}")
