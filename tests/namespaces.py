"""Two hosts on one machine, and a spare one: network namespaces with their own host names, joined by pairs of
virtual interfaces.

    with two_hosts(tmp_path, slots=1) as hosts:
        run_ranks(script, 2, prefix=hosts.prefix, launcher_args=hosts.mpirun_args, ...)

mpirun runs on the first host (`prefix` enters it), starts its daemon on the second through a remote shell
agent of ours, and all its traffic crosses the virtual wire. Each namespace exists for as long as one sleeping
process; that ends with the `with` block or with this process, and the kernel then removes the namespace and
its interface: nothing has a name that could be left behind.

A host can be lost (`lose`): its processes are killed, and the agent does not reach it until `give_back`.

Needs root, iproute2 and util-linux; `Unavailable` says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

NAMES = ("alpha", "beta")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
SPARE, SPARE_ADDRESS = "gamma", "10.77.0.3"
INTERFACE = "wire0"
SUBNET = "10.77.0.0/24"


class Unavailable(Exception):
    """This machine cannot make network namespaces; the message says why."""


@dataclass(frozen=True)
class TwoHosts:
    """`hostfile`: both addresses with their slots. `prefix`: words that run a command on the first host.
    `mpirun_args`: arguments that make mpirun use both. `agent`: a remote shell for all, `agent HOST TEXT`.
    `holders`: the process that keeps each namespace. A spare host is the third of them."""

    hostfile: Path
    agent: Path
    prefix: list[str]
    mpirun_args: list[str]
    holders: tuple[int, ...]

    def cut(self) -> None:
        """Takes the wire out: nothing arrives any more, and nobody is notified."""
        _run(*_enter(str(self.holders[1])), "ip", "link", "set", INTERFACE, "down")

    def lose(self, host: int) -> None:
        """Kills all processes of a host, and lets the agent fail for it."""
        self._down(host).touch()
        own = os.stat(f"/proc/{self.holders[host]}/ns/net").st_ino
        for _ in range(2):  # what was being started when the first round came
            for entry in os.listdir("/proc"):
                if not entry.isdigit() or int(entry) == self.holders[host]:
                    continue
                with contextlib.suppress(OSError):  # it has ended
                    if os.stat(f"/proc/{entry}/ns/net").st_ino == own:
                        os.kill(int(entry), signal.SIGKILL)

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


@contextlib.contextmanager
def two_hosts(directory: Path, slots: int = 1, spare: bool = False) -> Iterator[TwoHosts]:
    """Make two hosts with `slots` slots each, and a spare one that the host file does not have; host file and
    agent are written into `directory`."""
    if os.geteuid() != 0:
        raise Unavailable("network namespaces need root")
    for tool in ("ip", "unshare", "nsenter", "setpriv", "mpirun"):
        if shutil.which(tool) is None:
            raise Unavailable(f"network namespaces need the command {tool}")
    with contextlib.ExitStack() as stack:
        holders = [_start_holder(stack, name) for name in (*NAMES, *([SPARE] if spare else []))]
        if spare:
            _join(holders)
        else:
            _run("ip", "link", "add", INTERFACE, "netns", holders[0], "type", "veth",
                 "peer", "name", INTERFACE, "netns", holders[1])  # fmt: skip
        for holder, address in zip(holders, (*ADDRESSES, SPARE_ADDRESS)):
            enter = _enter(holder)
            _run(*enter, "ip", "address", "add", f"{address}/24", "dev", INTERFACE)
            _run(*enter, "ip", "link", "set", INTERFACE, "up")
            _run(*enter, "ip", "link", "set", "lo", "up")
        hostfile = directory / "hostfile"
        hostfile.write_text("".join(f"{address} slots={slots}\n" for address in ADDRESSES), encoding="ascii")
        agent = directory / "agent"
        agent.write_text(_agent(holders), encoding="ascii")
        agent.chmod(0o755)
        yield TwoHosts(
            hostfile=hostfile,
            agent=agent,
            prefix=_enter(holders[0]),
            mpirun_args=[
                *("--hostfile", str(hostfile)),
                *("-mca", "plm_rsh_agent", str(agent)),
                *("-mca", "pml", "ob1", "-mca", "btl", "tcp,self"),
                *("-mca", "btl_tcp_if_include", SUBNET, "-mca", "oob_tcp_if_include", SUBNET),
            ],
            holders=tuple(map(int, holders)),
        )


def _start_holder(stack: contextlib.ExitStack, name: str) -> str:
    process = subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--uts", "sh", "-c"]
        + ['hostname "$0" && exec sleep infinity', name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )

    def stop() -> None:
        process.kill()
        process.communicate()

    stack.callback(stop)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{process.pid}/comm").read_text(encoding="ascii").strip() != "sleep":
        if process.poll() is not None:
            assert process.stderr is not None
            raise Unavailable(process.stderr.read().decode(errors="replace").strip())
        if time.monotonic() > deadline:
            raise Unavailable(f"the namespace for {name} did not start within 10 s")
        time.sleep(0.01)
    return str(process.pid)


def _enter(holder: str) -> list[str]:
    return ["nsenter", "--target", holder, "--net", "--uts", "--"]


def _join(holders: list[str]) -> None:
    """Joins the hosts by a bridge in the first one."""
    first = _enter(holders[0])
    _run(*first, "ip", "link", "add", INTERFACE, "type", "bridge")
    for number, holder in enumerate(holders[1:]):
        port = f"port{number}"
        _run("ip", "link", "add", port, "netns", holders[0], "type", "veth",
             "peer", "name", INTERFACE, "netns", holder)  # fmt: skip
        _run(*first, "ip", "link", "set", port, "master", INTERFACE, "up")


def _agent(holders: list[str]) -> str:
    """A remote shell: `agent HOST COMMAND...`, the command being text for a shell. A file `down.HOST` beside
    it makes it fail as ssh does where there is no connection."""
    cases = "\n".join(
        f'    {address}) exec {" ".join(_enter(holder))} sh -c "$*" ;;'
        for address, holder in zip((*ADDRESSES, SPARE_ADDRESS), holders)
    )
    down = '[ -e "${0%/*}/down.$host" ] && exit 255\n'
    unknown = 'echo "unknown host $host" >&2\nexit 1\n'
    return f"#!/bin/sh\nhost=$1\nshift\n{down}case $host in\n{cases}\nesac\n{unknown}"


def _run(*words: str) -> None:
    result = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10)
    if result.returncode != 0:
        raise Unavailable(f"{' '.join(words)}: {result.stderr.strip()}")
