"""Hosts with real ssh servers on one machine: network namespaces, as in tests/namespaces.py, with OpenSSH's
sshd in each.

    with ssh_hosts(tmp_path, number=3) as hosts:
        start_command([*hosts.prefix, python, "hosts/launch.py", "--ssh", hosts.ssh, ...])

Keys of hosts and user, known_hosts, and the configurations of clients and servers lie in the given folder;
the machine's own are not looked at. A server has mounts of its own, which its sessions share: `hide` takes a
folder away on one host only. Servers, sessions and namespaces end with the block or with this process.

Needs root and the Debian package openssh-server; `Unavailable` says what is missing.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

from tests.namespaces import Unavailable, _run, bound, commands_on, enter, joined, kill_on, set_wire, started
from tests.processes import executable, until

NAMES = ("alpha", "beta", "gamma", "delta")
SSHD = "/usr/sbin/sshd"
_SERVER = """
HostKey {folder}/host.{name}
AuthorizedKeysFile {folder}/authorized.{name}
ListenAddress {address}
PidFile none
UsePAM no
StrictModes no
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
LogLevel ERROR
"""
_CLIENT = """
IdentityFile {folder}/user
IdentitiesOnly yes
UserKnownHostsFile {folder}/known_hosts
GlobalKnownHostsFile /dev/null
"""


@dataclass(frozen=True)
class SshHosts:
    """`folder`: keys and configurations. `hostfile`: a line a host. `prefix`: words that run a command on the
    first host. `ssh`: the value of --ssh. `holders`: the process that keeps each namespace. `servers`: each
    host's sshd."""

    folder: Path
    hostfile: Path
    prefix: list[str]
    ssh: str
    holders: tuple[int, ...]
    servers: tuple[int, ...]

    @property
    def path(self) -> str:
        """PATH on which `ssh` is that of these hosts."""
        return os.pathsep.join([str(self.folder / "bin"), os.environ["PATH"]])

    def cut(self, host: int) -> None:
        """Takes a host's wire out: nothing arrives any more, nobody is notified."""
        set_wire(self.holders[host], "down")

    def mend(self, host: int) -> None:
        """Puts the wire back."""
        set_wire(self.holders[host], "up")

    def hide(self, host: int, folder: str | Path) -> contextlib.AbstractContextManager[None]:
        """A host on which a folder is empty, but for what its ssh server needs, as long as the block
        lasts."""
        words = ["-t", "tmpfs", "tmpfs", str(folder)]
        return self.mounted(host, words, folder, keep=Path(folder) in self.folder.parents)

    @contextlib.contextmanager
    def mounted(self, host: int, words: list[str], place: str | Path, keep: bool = False) -> Iterator[None]:
        """Something mounted on one host only: `words` of the command mount, which put it at `place`; with
        `keep` these hosts' own folder, which is below it, stays."""
        enter = ["nsenter", "--target", str(self.servers[host]), "--mount", "--"]
        own, aside = str(self.folder), "/mnt"
        if keep:
            _run(*enter, "mount", "--bind", own, aside)
        _run(*enter, "mount", *words)
        if keep:
            _run(*enter, "mkdir", "-p", own)
            _run(*enter, "mount", "--move", aside, own)
        try:
            yield
        finally:
            _run(*enter, "umount", "--recursive", str(place))

    def processes(self, host: int) -> list[str]:
        """Command lines of what runs on a host, but for its ssh server and what the tests need."""
        found = commands_on(self.holders[host], self.servers[host])
        return [" ".join(words) for _, words in found if words[0]]

    def wait_until_empty(self) -> None:
        """Waits until no process is left on any host."""
        until(lambda: not any(map(self.processes, range(len(self.holders)))), pause=0.1)


@contextlib.contextmanager
def ssh_hosts(folder: Path, number: int) -> Iterator[SshHosts]:
    """Makes hosts with a slot each.

    Args:
        folder: for keys and configurations.
        number: hosts, up to four.
    """
    if not os.access(SSHD, os.X_OK):
        raise Unavailable("no ssh server: apt-get install openssh-server")
    folder = folder.absolute()
    names = NAMES[:number]
    addresses = [f"10.77.0.{index + 1}" for index in range(number)]
    keys = {name: _key(folder / f"host.{name}") for name in names}
    user = _key(folder / "user")
    known = "".join(f"{place} {keys[name]}\n" for name, place in zip(names, addresses))
    _write(folder / "known_hosts", known)
    _write(folder / "client", _CLIENT.format(folder=folder))
    _write(folder / "hostfile", "".join(f"{place} slots=1\n" for place in addresses))
    lines = ["127.0.0.1 localhost", *map(" ".join, zip(addresses, names))]
    _write(folder / "hosts", "".join(f"{line}\n" for line in lines))
    client = f"ssh -F {shlex.quote(str(folder / 'client'))}"
    executable(folder / "bin" / "ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/client "$@"\n')
    with joined(names) as holders, contextlib.ExitStack() as stack:
        servers = []
        for holder, place, name in zip(holders, addresses, names):
            _write(folder / f"authorized.{name}", f"{user}\n")
            _write(folder / f"server.{name}", _SERVER.format(folder=folder, name=name, address=place))
            servers.append(_start_server(stack, holder, folder, name))
        yield SshHosts(
            folder=folder,
            hostfile=folder / "hostfile",
            prefix=[*enter(holders[0]), *bound(folder / "hosts", "/etc/hosts")],
            ssh=client,
            holders=tuple(holders),
            servers=tuple(servers),
        )


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")


def _key(path: Path) -> str:
    """A new key pair; returns the public one."""
    for each in (path, path.with_name(f"{path.name}.pub")):
        each.unlink(missing_ok=True)
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", str(path))
    return path.with_name(f"{path.name}.pub").read_text(encoding="ascii").strip()


def _start_server(stack: contextlib.ExitStack, holder: int, folder: Path, name: str) -> int:
    """Starts a host's sshd, with mounts of its own; returns its process id."""
    # sshd wants /run/sshd; a temporary file system at /run leaves the machine's own as it is.
    script = (
        "mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && "
        f'mount --bind {shlex.quote(str(folder / "hosts"))} /etc/hosts && exec "$0" "$@"'
    )
    server = [SSHD, "-D", "-e", "-f", str(folder / f"server.{name}")]
    words = [*enter(holder), "unshare", "--mount", "sh", "-c", script, *server]
    stack.callback(kill_on, holder)  # sessions are no children of the server
    return started(stack, words, lambda pid: _listens(holder))


def _listens(holder: int) -> bool:
    """Whether port 22 of a host is open."""
    table = Path(f"/proc/{holder}/net/tcp").read_text(encoding="ascii")
    return any(":0016 " in line and " 0A " in line for line in table.splitlines()[1:])
