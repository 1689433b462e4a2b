"""ssh between the pods of a run over Horovod: servers and client of one user, with the run's key. Standard
library only.

Kubeflow's MPI operator makes the key, and mounts it as id_rsa, id_rsa.pub (of any kind) and authorized_keys.
Host and user have the same one, so the client knows each server by it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import tempfile
import time
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from base.errors import InputError, one_line

KEY = "id_rsa"
SSHD = "/usr/sbin/sshd"
PRIVILEGE_SEPARATION = "/run/sshd"  # a folder without which sshd does not run as root
STEP = 0.5  # seconds between looks at what is waited for


@contextlib.contextmanager
def private_keys(keys: str) -> Iterator[Path]:
    """A copy of a run's key, for as long as the block lasts, in a new folder that only this user can read:
    `id_rsa`, `authorized_keys`, and `known_hosts`, in which every host has this key.

    Raises:
        InputError: a file is missing or cannot be read.
    """
    folder = Path(tempfile.mkdtemp(prefix="ssh-"))
    try:
        try:
            for name in (KEY, f"{KEY}.pub", "authorized_keys"):
                content = Path(keys, name).read_bytes()
                with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(content)
            kind, key = (folder / f"{KEY}.pub").read_text("ascii").split()[:2]
        except OSError as error:
            why = f"{error.filename}: {error.strerror}; the MPI operator puts the run's key there"
            raise InputError(f"--keys {keys}: {why}") from None
        except ValueError:
            raise InputError(f"--keys {keys}: {KEY}.pub is not a public key of OpenSSH's") from None
        (folder / "known_hosts").write_text(f"* {kind} {key}\n", "ascii")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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


def server_command(folder: Path, port: int) -> list[str]:
    """Words that start sshd for this user, with a configuration that is written into `folder`.

    Raises:
        InputError: there is no sshd, or this user has no name.
    """
    if not os.access(SSHD, os.X_OK):
        raise InputError(f"there is no {SSHD} in this image; install openssh-server")
    if os.geteuid() == 0:
        os.makedirs(PRIVILEGE_SEPARATION, mode=0o755, exist_ok=True)
    configuration = folder / "sshd_config"
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise InputError(
            f"user {os.geteuid()} has no name in this image, and ssh needs one; add it to the image, or name "
            "another (--user of hosts/kubernetes.py)"
        ) from None
    configuration.write_text(server_configuration(folder, port, user), "utf-8")
    return [SSHD, "-D", "-e", "-f", str(configuration)]


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
