"""Hosts of an emulated cluster: network namespaces joined by a bridge, each behind a link of a given rate,
with the processes that run on them. Linux, as root, with iproute2 and util-linux. Standard library only.

    unshare --pid --mount --net --uts python comparison/emulation/network.py PLAN

PLAN is a JSON file, see `Layout`; `command` has the words. The program, with a network, host names and mounts
of its own, forks the first process of its namespace of processes. Everything is started from there, so with
its end the kernel ends every process, and with them go the hosts, their links and the bridge; what is mounted
or written to /dev/shm, the hosts' namespaces among it, goes with the mounts. That process ends when the
program does, however that happens, by the end of a pipe.

A host is at 10.77.0.1, 10.77.0.2, ..., named by `host_name`, and has the interface `wire0`. A token bucket on
it limits what the host sends, one on its port of the bridge what it receives, each to the rate of the link: a
full-duplex link to a switch that never is the bottleneck. The queue of a port is longer than all that the
senders' windows let travel, so nothing is lost, as on the lossless networks of clusters; the windows keep it
short.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Mapping, NamedTuple, Sequence

INTERFACE = "wire0"
TOOLS = {
    **{"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"},
    **{"mount": "mount", "cc": "gcc"},  # which compiles yield.c
}
MTU = 9000  # bytes of a packet, as large as clusters have them
# Share of a link's rate that TCP's payload gets: a frame has 14 bytes more than the packet, a packet 20 of
# IP's and 32 of TCP's, time stamps included.
PAYLOAD = (MTU - 52) / (MTU + 14)
BURST_BYTES, BURST_S = 32_768, 0.004  # bytes that may go at once: the larger; a late timer must not cost rate
# Bytes of a connection on their way at most: more only wait in the receiver's port, before what others send.
# With 256 KiB from each of 8 hosts a server's port held a sixth of what came in an exchange of 256 MB by 20.
WINDOW = 32 << 10
QUEUE = 64 << 20  # bytes that wait at a port
PRIVATE = "/dev/shm"  # a file system of the cluster's own


class Process(NamedTuple):
    """A process on a host. `environ`: variables beside those of this program. `main`: the run ends with the
    last of these; the others are ended then."""

    host: int
    command: Sequence[str]
    environ: Mapping[str, str]
    main: bool = True


@dataclass(frozen=True)
class Layout:
    """A cluster and its processes. `bits_per_s`: the rate of each host's link, in each direction."""

    hosts: int
    bits_per_s: float
    processes: Sequence[Process]


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def host_name(host: int) -> str:
    return f"emulated{host + 1}"


def command(plan: Path) -> list[str]:
    """The words that run a plan."""
    return ["unshare", "--pid", "--mount", "--net", "--uts", sys.executable, "-I", "-S", __file__, str(plan)]


def lacking() -> str | None:
    """Names what this machine lacks for emulated hosts, in one line; None where nothing is missing. A child
    process tries it, so that nothing is left."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    for tool, package in TOOLS.items():
        if shutil.which(tool) is None:
            return f"needs the command {tool}: install {package}"
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        plan.write_text(json.dumps(vars(Layout(2, 1e8, []))), encoding="ascii")
        tried = subprocess.run(command(plan), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = tried.stderr.strip().splitlines()
    return f"does not work on this machine: {(said or ['it said nothing'])[-1]}" if tried.returncode else None


def main(path: str) -> int:
    """Runs the plan to its end; returns the exit code of the first process that failed, or 0."""
    plan = json.loads(Path(path).read_text(encoding="utf-8"))
    layout = Layout(plan["hosts"], plan["bits_per_s"], [Process(**each) for each in plan["processes"]])
    reader, writer = os.pipe()
    first = os.fork()
    if first == 0:
        code = 1
        try:
            os.close(writer)
            threading.Thread(target=_end_with, args=(reader,), daemon=True).start()
            code = _run(layout, _make_hosts(layout))
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            print(f"emulated hosts: {said.strip()}", file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(code)  # the kernel kills all that is left in the namespace
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os.kill(first, signal.SIGKILL))
    return _code_of(os.waitpid(first, 0)[1])


def _end_with(pipe: int) -> None:
    """Ends this process when the last one that could write to the pipe has ended."""
    os.read(pipe, 1)
    os._exit(1)


def _code_of(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _make_hosts(layout: Layout) -> list[list[str]]:
    """Makes the bridge, the hosts, their links and names; the words that run a command on each. This process
    stays in the bridge's namespaces; those of the hosts are kept by files."""
    _call("mount", "-t", "proc", "proc", "/proc")  # of these processes
    _call("mount", "-t", "tmpfs", "tmpfs", PRIVATE)
    _call("ip", "link", "add", "bridge", "mtu", str(MTU), "type", "bridge")
    _call("ip", "link", "set", "bridge", "up")
    burst = max(BURST_BYTES, round(layout.bits_per_s / 8 * BURST_S))
    bucket = ["tbf", "rate", f"{round(layout.bits_per_s)}bit", "burst", str(burst), "limit", str(QUEUE)]
    enter = []
    for host in range(layout.hosts):
        spaces = []
        for kind in ("net", "uts"):
            space = Path(PRIVATE) / f"{kind}{host + 1}"
            space.touch()
            spaces.append(f"--{kind}={space}")
        _call("unshare", *spaces, "true")
        own, port = ["nsenter", *spaces, "--"], f"port{host + 1}"
        words = ["ip", "link", "add", INTERFACE, "mtu", str(MTU), "type", "veth", "peer", "name", port]
        _call(*own, *words, "mtu", str(MTU), "netns", "1")
        _call("ip", "link", "set", port, "master", "bridge", "up")
        _call(*own, "ip", "address", "add", f"{address(host)}/24", "dev", INTERFACE)
        for name in ("lo", INTERFACE):
            _call(*own, "ip", "link", "set", name, "up")
        _call(*own, "tc", "qdisc", "add", "dev", INTERFACE, "root", *bucket)
        _call("tc", "qdisc", "add", "dev", port, "root", *bucket)
        settings = {
            "kernel/hostname": host_name(host),
            "net/ipv4/tcp_rmem": f"4096 {WINDOW} {WINDOW}",
            "net/ipv4/tcp_congestion_control": "reno",
        }
        text = "; ".join(f"echo {value} > /proc/sys/{name}" for name, value in settings.items())
        _call(*own, "sh", "-c", text)
        enter.append(own)
    names = [f"{address(each)} {host_name(each)}" for each in range(layout.hosts)]
    path = Path(PRIVATE) / "hosts"
    path.write_text("".join(f"{line}\n" for line in ("127.0.0.1 localhost", *names)), encoding="ascii")
    _call("mount", "--bind", str(path), "/etc/hosts")
    # A remote shell for mpirun and horovodrun, `ssh [options] HOST COMMAND...`.
    cases = "\n".join(
        f'    {address(host)}|{host_name(host)}) exec {shlex.join(own)} sh -c "$*" ;;'
        for host, own in enumerate(enter)
    )
    options = "while :; do case $1 in -[opi]) shift 2 ;; -*) shift ;; *) break ;; esac; done"
    text = f"#!/bin/sh\n{options}\nhost=$1\nshift\n{options}\ncase $host in\n{cases}\nesac\nexit 255\n"
    path = Path(PRIVATE) / "bin" / "ssh"
    path.parent.mkdir()
    path.write_text(text, encoding="ascii")
    path.chmod(0o755)
    return enter


def _run(layout: Layout, enter: Sequence[Sequence[str]]) -> int:
    """Starts the processes and waits for them."""
    processes: dict[int, Process] = {}
    kept = []  # a Popen that is let go of reaps its process itself
    path = {"PATH": f"{PRIVATE}/bin:{os.environ.get('PATH', os.defpath)}"}  # with the remote shell
    for each in layout.processes:
        words, environ = [*enter[each.host], *each.command], {**os.environ, **path, **each.environ}
        kept.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, env=environ))
        processes[kept[-1].pid] = each
    while any(each.main for each in processes.values()):
        pid, status = os.wait()  # other orphans of the namespace become this process's children, too
        ended, code = processes.pop(pid, None), _code_of(status)
        if ended is not None and code:
            what = " ".join(ended.command[:3])
            print(f"{what} ... on host {ended.host + 1} ended with code {code}", file=sys.stderr)
            return code
    return 0


def _call(*words: str) -> None:
    """Raises CalledProcessError, whose standard error is text."""
    subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1]))
