"""One pod's part of a run over Horovod, in the container that hosts/kubernetes.py describes.

    python3 hosts/mpi_pod.py worker --keys DIR
    python3 hosts/mpi_pod.py launcher --keys DIR -- python run_pretraining_hvd.py OPTIONS...

A worker runs an ssh server for the pod's user, with a configuration of its own, and waits; mpirun's daemon
and the ranks come through it. SIGTERM, by which Kubernetes announces that the pod will be removed, goes to
the ranks in the pod: one signal makes all ranks of the run save a checkpoint and end.

The launcher waits until the ssh server of each pod in the operator's host file answers, for --patience
seconds at most, and runs hosts/launch.py, with the restarts, signals and exit codes that this has. Bad input
is noted in --notes: a container that Kubernetes starts again then ends with the same line at once.

DIR has the run's key, as Kubeflow's MPI operator mounts it: id_rsa, id_rsa.pub (of any kind) and
authorized_keys. Host and user have the same key, so the client knows each server by it. Standard library
only.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Mapping, Sequence

if __name__ == "__main__" and not __package__:
    # Run as a script, Python looks for modules in hosts/ instead of one folder up.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from base.command_line import CommandParser, path_name, split_at_dashes, whole
from base.command_line import seconds as limited
from base.errors import InputError, one_line
from base.files import replacing
from hosts.hostfile import read_hostfile
from hosts.launching.parts import check_command
from hosts.launching.signals import FORWARDED, Signals

HOSTFILE = "OMPI_MCA_orte_default_hostfile"  # where the operator says that the host file is
# Of the operator's variables: hosts/launch.py gives mpirun hosts, slots and remote shell itself.
REPLACED = (HOSTFILE, "OMPI_MCA_orte_set_default_slots", "OMPI_MCA_plm_rsh_args")
RANK = b"OMPI_COMM_WORLD_RANK="
KEY = "id_rsa"
SSHD = "/usr/sbin/sshd"
PRIVILEGE_SEPARATION = "/run/sshd"  # a folder without which sshd does not run as root
BAD_INPUT = 2  # exit code
LAST_LINES = 10.0  # seconds for what still writes to standard error when the launcher has ended
STEP = 0.5  # seconds between looks at what is waited for


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        "mpi_pod",
        prog="hosts/mpi_pod.py",
        usage="%(prog)s {launcher,worker} --keys DIR [options] [-- PYTHON SCRIPT OPTIONS...]",
        description=__doc__,
    )
    parser.add_argument("role", choices=("launcher", "worker"))
    text = "folder with the run's key (sshAuthMountPath)"
    parser.add_argument("--keys", type=path_name, required=True, metavar="DIR", help=text)
    port = whole(1, 65535, "the last port")
    text = "of the pods' ssh servers (default 2222: below 1024 only root may listen)"
    parser.add_argument("--port", type=port, default=2222, metavar="PORT", help=text)
    text = (
        "launcher: wait so long for the workers (default 600). Rule of thumb: what the cluster takes to add "
        "a node"
    )
    parser.add_argument("--patience", type=limited, default=600.0, metavar="SECONDS", help=text)
    text = "how long ranks may take to save and end after a signal (default 90)"
    parser.add_argument("--grace", type=limited, default=90.0, metavar="SECONDS", help=text)
    text = "launcher: folder that outlives its container (default: none; bad input is not noted)"
    parser.add_argument("--notes", type=path_name, metavar="DIR", help=text)
    parser.add_argument("--network", metavar="KIND", help="launcher: see hosts/launch.py")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code (2 on bad input)."""
    words, command = split_at_dashes(sys.argv[1:] if argv is None else argv)
    args = _parser().parse_args(words)
    try:
        if args.role == "worker":
            return _serve(args)
        return _launch_once(args, command)
    except InputError as error:
        print(f"mpi_pod: {error}", file=sys.stderr)
        return BAD_INPUT


def private_keys(keys: str) -> Path:
    """Copies a run's key into a new folder that only this user can read, and returns it: `id_rsa`,
    `authorized_keys`, and `known_hosts`, in which every host has this key.

    Raises:
        InputError: a file is missing or cannot be read.
    """
    folder = Path(tempfile.mkdtemp(prefix="ssh-"))
    try:
        for name in (KEY, f"{KEY}.pub", "authorized_keys"):
            content = Path(keys, name).read_bytes()
            with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
        kind, key = (folder / f"{KEY}.pub").read_text("ascii").split()[:2]
    except OSError as error:
        shutil.rmtree(folder)
        raise InputError(
            f"--keys {keys}: {error.filename}: {error.strerror}; the MPI operator puts the run's key there"
        ) from None
    except ValueError:
        shutil.rmtree(folder)
        raise InputError(f"--keys {keys}: {KEY}.pub is not a public key of OpenSSH's") from None
    (folder / "known_hosts").write_text(f"* {kind} {key}\n", "ascii")
    return folder


def server_configuration(folder: Path, port: int, user: str) -> str:
    """Configuration of sshd for one user with one key. It asks clients for signs of life: of a pod that is
    gone, mpirun's daemon ends within 30 seconds."""
    lines = {
        "Port": port,
        "HostKey": folder / KEY,
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PidFile": "none",
        "StrictModes": "no",  # the folders above may be anybody's in a container
        "AllowUsers": user,
        "PermitRootLogin": "prohibit-password",
        "PubkeyAuthentication": "yes",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "UsePAM": "no",
        "DisableForwarding": "yes",
        "PermitUserEnvironment": "no",
        "PrintMotd": "no",
        "MaxStartups": 100,
        "ClientAliveInterval": 10,
        "ClientAliveCountMax": 3,
        "LogLevel": "FATAL",  # ERROR has a line for every look that readinessProbe takes
    }
    return "".join(f"{name} {value}\n" for name, value in lines.items())


def client_command(folder: Path, port: int) -> list[str]:
    """ssh with the run's key, which accepts no other server; it reads no configuration."""
    options = {
        "IdentityFile": folder / KEY,
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": folder / "known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "LogLevel": "ERROR",
        "ConnectionAttempts": 10,
    }
    words = ["ssh", "-F", "/dev/null", "-p", str(port)]
    return words + [word for name, value in options.items() for word in ("-o", f"{name}={value}")]


def answers(host: str, port: int, seconds: float) -> str:
    """Asks for an ssh server; returns an empty text if it is one, else what happened instead."""
    try:
        with socket.create_connection((host, port), timeout=seconds) as connection:
            connection.settimeout(seconds)
            return "" if connection.recv(4) == b"SSH-" else "is no ssh server"
    except socket.timeout:
        return "does not answer"
    except OSError as error:
        return one_line(str(error.strerror or error))


def ranks_below(root: int, proc: Path = Path("/proc")) -> list[int]:
    """Process ids of the ranks among the descendants of process `root`, in a container its process 1.

    They have mpirun's variable, and their parents, mpirun's daemon, have not. What a rank has started is left
    to it, and so are other runs on a machine that is no container.
    """
    parents: dict[int, int] = {}
    marked = set()
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                parents[int(entry.name)] = int(stat[1])
                variables = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended, or is not this user's
            if any(each.startswith(RANK) for each in variables) and stat[0] not in "ZX":
                marked.add(int(entry.name))

    def is_below(pid: int) -> bool:
        while pid in parents and pid != root:
            pid = parents[pid]
        return pid == root

    return sorted(pid for pid in marked if parents[pid] not in marked and is_below(pid))


def _serve(args: argparse.Namespace) -> int:
    """Runs sshd until it ends or SIGTERM comes; then has the ranks save. Returns its code, 143 after
    SIGTERM."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    folder = private_keys(args.keys)
    try:
        if not os.access(SSHD, os.X_OK):
            raise InputError(f"there is no {SSHD} in this image; install openssh-server")
        if os.geteuid() == 0:
            os.makedirs(PRIVILEGE_SEPARATION, mode=0o755, exist_ok=True)
        configuration = folder / "sshd_config"
        user = pwd.getpwuid(os.geteuid()).pw_name
        configuration.write_text(server_configuration(folder, args.port, user), "utf-8")
        server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(configuration)], stdin=subprocess.DEVNULL)
        while server.poll() is None and not asked:
            time.sleep(STEP / 5)
        if asked:
            _let_ranks_save(args.grace)
            server.terminate()
            server.wait()
            return 128 + signal.SIGTERM
        return server.returncode
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _let_ranks_save(grace: float) -> None:
    """Sends SIGTERM to the ranks in this pod and waits for their ends, at most so many seconds."""
    ranks = ranks_below(os.getpid())
    if ranks:
        print(f"mpi_pod: SIGTERM; {len(ranks)} ranks save and end", file=sys.stderr, flush=True)
    for pid in ranks:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while ranks_below(os.getpid()) and time.monotonic() < deadline:
        time.sleep(STEP)


def _launch_once(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Launches, unless an earlier container of this pod has noted bad input; returns the exit code."""
    note = Path(args.notes, "bad-input") if args.notes else None
    if note is not None and note.exists():
        said = one_line(note.read_text("utf-8", "replace"))
        print(
            f"mpi_pod: bad input, not started again; mend it and make the MPIJob anew: {said}",
            file=sys.stderr,
        )
        return BAD_INPUT
    try:
        check_command(command)
        code, said = _launch(args, command)
    except InputError as error:
        code, said = BAD_INPUT, str(error)
        print(f"mpi_pod: {error}", file=sys.stderr)
    if code == BAD_INPUT and note is not None:
        with replacing(str(note)) as file:
            file.write(said.encode())
    return code


def _launch(args: argparse.Namespace, command: Sequence[str]) -> tuple[int, str]:
    """Waits for the workers and runs hosts/launch.py. Returns its exit code and its last lines on standard
    error; 1 if the workers do not come."""
    # Process 1 has no default action.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    hostfile = os.environ.get(HOSTFILE)
    if not hostfile:
        raise InputError(f"{HOSTFILE} is not set; the MPI operator sets it for the launcher of an MPIJob")
    hosts = [name for name, _ in read_hostfile(hostfile)]
    late = wait_for(hosts, args.port, args.patience)
    if late:
        names = ", ".join(f"{name} ({why})" for name, why in late.items())
        said = f"no ssh server at port {args.port} after {args.patience:g} s: {names}"
        print(f"mpi_pod: {said}", file=sys.stderr)
        return 1, said
    keys = private_keys(args.keys)
    launcher = Path(__file__).resolve().with_name("launch.py")
    words = [sys.executable, str(launcher), "--backend", "hvd", "--hostfile", hostfile]
    words += [
        "--ssh",
        " ".join(client_command(keys, args.port)),
        "--grace",
        f"{args.grace:g}",
        "--host_patience",
        f"{args.patience:g}",
    ]
    words += ["--network", args.network] if args.network else []
    # In a container one process may not read another's memory, which Open MPI 4, and 5, try first.
    words += ["--mpirun", "mpirun -mca btl_vader_single_copy_mechanism none -mca smsc ^cma"]
    environment = {name: value for name, value in os.environ.items() if name not in REPLACED}
    try:
        return _follow([*words, "--", *command], environment)
    finally:
        shutil.rmtree(keys, ignore_errors=True)


def _follow(words: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
    """Runs a command to its end, and passes on signals; returns its exit code, 128 and the number of a signal
    that ended it, and its last lines on standard error. Its orphans, which process 1 inherits, are reaped."""
    with Signals() as signals:
        child = subprocess.Popen(words, env=dict(environment), stderr=subprocess.PIPE)
        # A rank's line, and the launcher's about it.
        last: collections.deque[str] = collections.deque(maxlen=2)
        copying = threading.Thread(target=_copy_errors, args=(child, last), daemon=True)
        copying.start()
        status = None
        while status is None:
            select.select([signals], [], [], STEP)
            for number in signals.read():
                if number in FORWARDED:
                    os.kill(child.pid, number)
            status = _reaped(child.pid)
        child.returncode = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
        copying.join(LAST_LINES)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode, "; ".join(last)


def _copy_errors(child: subprocess.Popen[bytes], last: collections.deque[str]) -> None:
    assert child.stderr is not None
    for line in child.stderr:
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()
        if line.strip():
            last.append(one_line(line.decode("utf-8", "replace")).strip())


def _reaped(wanted: int) -> int | None:
    """Takes note of processes that have ended; returns the status of one of them, None while it runs."""
    found = None
    with contextlib.suppress(ChildProcessError):  # there are none any more
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            found = status if pid == wanted else found
    return found


def wait_for(hosts: Sequence[str], port: int, patience: float) -> Mapping[str, str]:
    """Waits until the ssh servers of all hosts answer, at most so many seconds; returns those that do not,
    with what they do instead."""
    deadline = time.monotonic() + patience
    missing = dict.fromkeys(hosts, "")
    while True:
        missing = {host: answers(host, port, 5.0) for host in missing}
        missing = {host: why for host, why in missing.items() if why}
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(STEP)


if __name__ == "__main__":
    sys.exit(main())
