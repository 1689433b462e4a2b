"""Hosts of an emulated cluster: network namespaces joined by a bridge, each behind a link of a given rate,
with the processes that run on them. Linux, as root, with iproute2 and util-linux. Standard library only.

    python comparison/emulation/network.py PLAN

PLAN is a JSON file, see `Layout`. The program forks the first process of a new namespace of processes, with a
network, host names and mounts of its own. Everything is started from there, so with its end the kernel ends
every process, and with them go the hosts, their links and the bridge, which have no names; what is written to
/dev/shm goes with the mounts. That process ends when the program does, however that happens: by a signal of
the kernel and by the end of a pipe.

A host is at 10.77.0.1, 10.77.0.2, ..., named by `host_name`, and has the interface `wire0`. A token bucket on
it limits what the host sends, one on its port of the bridge what it receives, each to the rate of the link: a
full-duplex link to a switch that never is the bottleneck. The queue of a port is longer than all that the
senders' windows let travel, so nothing is lost, as on the lossless networks of clusters; the windows keep it
short.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Sequence

INTERFACE = "wire0"
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "mount": "mount"}
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
_NEWNS, _NEWUTS, _NEWNET, _NEWPID = 0x20000, 0x4000000, 0x40000000, 0x20000000
_PR_SET_PDEATHSIG = 1
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


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

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any]) -> Layout:
        """A layout from its JSON, an object of objects."""
        return cls(**{**plan, "processes": [Process(**each) for each in plan["processes"]]})


def address(host: int) -> str:
    return f"10.77.0.{host + 1}"


def host_name(host: int) -> str:
    return f"emulated{host + 1}"


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
        words = [sys.executable, "-I", "-S", __file__, str(plan)]
        tried = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    said = tried.stderr.strip().splitlines()
    return f"does not work on this machine: {(said or ['it said nothing'])[-1]}" if tried.returncode else None


def main(path: str) -> int:
    """Runs the plan to its end; returns the exit code of the first process that failed, or 0."""
    layout = Layout.of_plan(json.loads(Path(path).read_text(encoding="utf-8")))
    reader, writer = os.pipe()
    try:
        _call("unshare", _NEWPID | _NEWNS | _NEWNET | _NEWUTS)
    except OSError as error:
        print(f"namespaces: {error.strerror}", file=sys.stderr)
        return 1
    first = os.fork()
    if first == 0:
        code = 1
        try:
            _call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
            os.close(writer)
            code = _Cluster(layout).run(reader)
        except (OSError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            print(f"emulated hosts: {said.strip()}", file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(code)  # the kernel kills all that is left in the namespace
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: os.kill(first, signal.SIGKILL))
    _, status = os.waitpid(first, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


class _Cluster:
    """The namespaces, seen by the process in which everything runs. It stays in that of the bridge."""

    def __init__(self, layout: Layout):
        self._layout = layout
        self._mount(None, "/", None, _MS_REC | _MS_PRIVATE)  # nothing that follows is seen outside
        self._mount("proc", "/proc", "proc", 0)
        self._mount("tmpfs", PRIVATE, "tmpfs", 0)
        _run("ip", "link", "add", "bridge", "mtu", str(MTU), "type", "bridge")
        _run("ip", "link", "set", "bridge", "up")
        self._enter = [self._make(host) for host in range(layout.hosts)]
        lines = [
            "127.0.0.1 localhost",
            *(f"{address(each)} {host_name(each)}" for each in range(layout.hosts)),
        ]
        names = Path(PRIVATE) / "hosts"
        names.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        self._mount(str(names), "/etc/hosts", None, 0x1000)  # MS_BIND
        self._write_ssh()

    def run(self, gone: int) -> int:
        """Starts the processes and waits for them. `gone`: becomes readable when the program has ended."""
        processes: dict[int, Process] = {}
        kept = []  # a Popen that is let go of reaps its process itself
        path = {"PATH": f"{PRIVATE}/bin:{os.environ.get('PATH', os.defpath)}"}  # with the remote shell
        for each in self._layout.processes:
            words, environ = [*self._enter[each.host], *each.command], {**os.environ, **path, **each.environ}
            kept.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, env=environ))
            processes[kept[-1].pid] = each
        wakeup, alarm = os.pipe()
        for end in (wakeup, alarm):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(alarm)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while any(each.main for each in processes.values()):
            # Other orphans of the namespace become this process's children, too.
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                if gone in select.select([gone, wakeup], [], [])[0]:
                    return 1
                os.read(wakeup, 512)
                continue
            ended = processes.pop(pid, None)
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            if ended is not None and code:
                what = " ".join(ended.command[:3])
                print(f"{what} ... on host {ended.host + 1} ended with code {code}", file=sys.stderr)
                return code
        return 0

    def _make(self, host: int) -> list[str]:
        """Makes a host and its link; the words that run a command there. Its namespaces are kept by open
        files of this process, through which others enter them."""
        own = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("net", "uts")]
        _call("unshare", _NEWNET | _NEWUTS)
        socket.sethostname(host_name(host))
        kept = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("net", "uts")]
        for each in own:
            _call("setns", each, 0)
            os.close(each)
        enter = ["nsenter", f"--net=/proc/1/fd/{kept[0]}", f"--uts=/proc/1/fd/{kept[1]}", "--"]
        port = f"port{host + 1}"
        words = ["ip", "link", "add", INTERFACE, "mtu", str(MTU), "type", "veth", "peer", "name", port]
        _run(*enter, *words, "mtu", str(MTU), "netns", "1")
        _run("ip", "link", "set", port, "master", "bridge", "up")
        _run(*enter, "ip", "address", "add", f"{address(host)}/24", "dev", INTERFACE)
        for name in ("lo", INTERFACE):
            _run(*enter, "ip", "link", "set", name, "up")
        bits = self._layout.bits_per_s
        burst = max(BURST_BYTES, round(bits / 8 * BURST_S))
        for where, name in ((enter, INTERFACE), ([], port)):
            bucket = ["tbf", "rate", f"{round(bits)}bit", "burst", str(burst), "limit", str(QUEUE)]
            _run(*where, "tc", "qdisc", "add", "dev", name, "root", *bucket)
        settings = {"tcp_rmem": f"4096 {WINDOW} {WINDOW}", "tcp_congestion_control": "reno"}
        text = "; ".join(f"echo {value} > /proc/sys/net/ipv4/{name}" for name, value in settings.items())
        _run(*enter, "sh", "-c", text)
        return enter

    def _write_ssh(self) -> None:
        """A remote shell for mpirun and horovodrun, `ssh [options] HOST COMMAND...`."""
        cases = "\n".join(
            f'    {name}) exec {shlex.join(self._enter[host])} sh -c "$*" ;;'
            for host in range(self._layout.hosts)
            for name in (f"{address(host)}|{host_name(host)}",)
        )
        options = "while :; do case $1 in -[opi]) shift 2 ;; -*) shift ;; *) break ;; esac; done"
        text = f"#!/bin/sh\n{options}\nhost=$1\nshift\n{options}\ncase $host in\n{cases}\nesac\nexit 255\n"
        path = Path(PRIVATE) / "bin" / "ssh"
        path.parent.mkdir()
        path.write_text(text, encoding="ascii")
        path.chmod(0o755)

    @staticmethod
    def _mount(source: str | None, target: str, kind: str | None, flags: int) -> None:
        encoded = [None if text is None else text.encode() for text in (source, target, kind)]
        _call("mount", *encoded, flags, None)


def _call(name: str, *arguments: Any) -> None:
    """Calls a function of the C library. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    words = [
        ctypes.c_ulong(each) if isinstance(each, int) and name != "setns" else each for each in arguments
    ]
    if getattr(library, name)(*words):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _run(*words: str) -> None:
    """Raises CalledProcessError, whose standard error is text."""
    subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1]))
