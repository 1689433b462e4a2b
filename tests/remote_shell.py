"""A remote shell for hosts that are namespaces of this machine: a server on each "host" starts the commands.

    remote_shell.py serve SOCKET            # on the host
    remote_shell.py run SOCKET COMMAND...   # anywhere: the command, text for a shell, with this one's streams

As behind ssh, a command is no child of who asks for it: killing the client does not end it. Unlike there its
streams, environment and mounts are the client's own. Exits with the command's code.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading

STREAMS = (0, 1, 2)


def serve(path: str) -> None:
    """Starts commands for ever."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def run(path: str, command: str) -> int:
    """Has a command run on the host; returns its exit code."""
    request = {"command": command, "environ": dict(os.environ), "client": os.getpid()}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", STREAMS).tobytes())
        connection.sendmsg([b"+"], [rights])
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        for stream in STREAMS:  # only the command keeps them open
            os.close(stream)
        return (connection.recv(1) or b"\xff")[0]


def _answer(connection: socket.socket) -> None:
    with connection:
        _, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(len(STREAMS) * 4))
        streams = array.array("i", ancillary[0][2])
        with connection.makefile("rb") as file:
            request = json.loads(file.read())
        mounts = ["nsenter", "--target", str(request["client"]), "--mount", "--"]
        process = subprocess.Popen(
            [*mounts, "sh", "-c", request["command"]],
            **dict(zip(("stdin", "stdout", "stderr"), streams)),
            env=request["environ"],
            start_new_session=True,
        )
        for stream in streams:
            os.close(stream)
        code = process.wait()
        with contextlib.suppress(OSError):  # the client has been killed
            connection.sendall(bytes([code if code >= 0 else 128 - code]))


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(run(sys.argv[2], " ".join(sys.argv[3:])))
