#!/usr/bin/env python3
"""Answers questions about the host that it runs on; hosts/reach.py and hosts/check.py start it on every host.

    python hosts/answer.py TOKEN

Each line of standard input is a question, a JSON object whose "ask" names one of ANSWERS; each answer is a
line of JSON behind the token, so that nothing else that a login shell writes is taken for one. It ends with
standard input. A script by itself: on another host nothing else may be there. Standard library only.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PACKAGES = ("mxnet", "numpy", "gluonnlp", "horovod", "byteps")
SAMPLE = 1 << 20  # bytes of a file that are read at its beginning, in its middle and at its end
STREAMS = 4  # one connection does not fill a fast network
PIECE = 1 << 20
GREETING = 32
LISTEN_SECONDS = 60.0
CONNECT_SECONDS = 5.0


def facts(question: dict[str, Any]) -> dict[str, Any]:
    """Versions, the clock, network interfaces, and where the programs of `question["programs"]` are."""
    from importlib.metadata import PackageNotFoundError, version

    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        versions[name] = None
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    programs = {name: shutil.which(name) for name in question.get("programs", [])}
    python = platform.python_version()
    found = {"python": python, "versions": versions, "programs": programs, "interfaces": interfaces()}
    return {**found, "time": time.time()}


def interfaces() -> list[str]:
    """Names of this machine's network interfaces."""
    return [name for _, name in socket.if_nameindex()]


def state(question: dict[str, Any]) -> dict[str, Any]:
    """Code, data, memory, cores, GPUs, open files, and ports of `question["ports"]` that are in use."""
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    root = Path(__file__).resolve().parent.parent
    patterns = question.get("data", [])
    return {
        "host": socket.gethostname(),
        # Empty where there is no git, or no commit.
        "commit": _first_line(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]),
        "code": _code(root),
        "data": {pattern: _data(pattern) for pattern in patterns},
        "memory": available,  # bytes that can be had without swapping
        "shared_memory": shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0,
        "cores": len(os.sched_getaffinity(0)),
        "gpus": len(glob.glob("/dev/nvidia[0-9]*")),
        "mpirun": _first_line(["mpirun", "--version"]),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "taken": [port for port in question.get("ports", []) if not _is_free(port)],
    }


def listen(question: dict[str, Any]) -> dict[str, Any]:
    """Opens a port at which the answers of `send` elsewhere arrive; it is closed when they have, or after a
    minute."""
    listener = socket.create_server(("0.0.0.0", 0), backlog=64)
    listener.settimeout(LISTEN_SECONDS)
    secret = bytes.fromhex(question["secret"])
    threading.Thread(target=_receive, args=(listener, secret), daemon=True).start()
    return {"port": listener.getsockname()[1]}


def send(question: dict[str, Any]) -> dict[str, Any]:
    """Sends to `address` and `port` for so many `seconds`.

    Returns:
        bytes_per_s, over STREAMS connections together, as the other end has received them; or the error.
    """
    from concurrent.futures import ThreadPoolExecutor  # other questions need it not, and it takes time

    secret, seconds = bytes.fromhex(question["secret"]), float(question["seconds"])

    def arrived(_: int) -> int:
        with socket.create_connection((question["address"], question["port"]), CONNECT_SECONDS) as connection:
            connection.settimeout(CONNECT_SECONDS + seconds)
            connection.sendall(secret)
            piece, end = bytes(PIECE), time.monotonic() + seconds
            while time.monotonic() < end:
                connection.sendall(piece)
            connection.shutdown(socket.SHUT_WR)
            return int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")

    begun = time.monotonic()
    try:
        with ThreadPoolExecutor(STREAMS) as pool:
            total = sum(pool.map(arrived, range(STREAMS)))
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"bytes_per_s": total / (time.monotonic() - begun)}


def _receive(listener: socket.socket, secret: bytes) -> None:
    """Takes connections that begin with the secret, and returns to each the number of bytes behind it."""
    with listener, contextlib.suppress(OSError):
        served = 0
        while served < STREAMS:
            connection, _ = listener.accept()
            connection.settimeout(CONNECT_SECONDS)
            with contextlib.suppress(OSError):
                if connection.recv(GREETING, socket.MSG_WAITALL) == secret:
                    served += 1
                    threading.Thread(target=_count, args=(connection,), daemon=True).start()
                    continue
            connection.close()


def _count(connection: socket.socket) -> None:
    total, buffer = 0, bytearray(PIECE)
    with connection, contextlib.suppress(OSError):
        while True:
            size = connection.recv_into(buffer)
            if not size:
                break
            total += size
        connection.sendall(total.to_bytes(8, "big"))


def _first_line(command: list[str]) -> str:
    try:
        result = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (result.stdout.splitlines() or [""])[0] if result.returncode == 0 else ""


def _code(root: Path) -> str:
    """A digest of every source file, whatever is committed: modules that a run may import."""
    packages = [each.parent for each in root.glob("*/__init__.py") if each.parent.name != "tests"]
    sources = [*root.glob("*.py"), *(path for package in packages for path in package.rglob("*.py"))]
    digest = hashlib.sha256()
    for path in sorted(sources):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _data(pattern: str) -> dict[str, Any]:
    """Number and bytes of the files, and a digest of names, sizes and samples of the first, the middle and
    the last."""
    # Regular files only: a pipe would keep its reader waiting.
    paths = sorted(filter(os.path.isfile, glob.glob(pattern, recursive=True)))
    sizes = [os.path.getsize(path) for path in paths]
    digest = hashlib.sha256(json.dumps([[os.path.basename(path) for path in paths], sizes]).encode())
    for index in sorted({0, (len(paths) - 1) // 2, len(paths) - 1}) if paths else ():
        with open(paths[index], "rb") as file:
            for start in (0, sizes[index] // 2, max(0, sizes[index] - SAMPLE)):
                file.seek(start)
                digest.update(file.read(SAMPLE))
    return {"files": len(paths), "bytes": sum(sizes), "digest": digest.hexdigest()[:16]}


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("0.0.0.0", port)).close()
    except OSError:
        return False
    return True


ANSWERS = {"facts": facts, "state": state, "listen": listen, "send": send}


def main() -> int:
    """Answers until standard input ends."""
    token = sys.argv[1]
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = ANSWERS[question["ask"]](question)
        except OSError as error:
            answer = {"error": f"{error.filename or question['ask']}: {error.strerror}"}
        print(token, json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
