"""The way to other hosts: whether they answer, and what to do where one does not. Standard library only.

Before a start every host is asked over the remote shell, with the folder, the interpreter and the PATH of the
run: each fault that would end it is one line with its cure, before anything has been started anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import selectors
import shlex
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Callable, Iterable, Mapping, Sequence

from base.errors import InputError
from hosts.addresses import bare, is_here

ANSWER = str(Path(__file__).resolve().with_name("answer.py"))
SECONDS = 45.0  # for an answer; ssh gives up a connection after 30 (hosts/launching/parts.py)
CLOSING = 1.0  # seconds for remote shells to end when nothing more is asked
APART = 5.0  # seconds between two clocks that are worth a line
HERE, OWN = "", "this machine"  # among the hosts that are asked, and in `faults_of`
# A login shell may be any, so sh does the rest. $0: folder, $1: interpreter, $2: hosts/answer.py, $3: token,
# $4: the PATH of the run.
_SCRIPT = (
    'cd "$0" 2>/dev/null || { echo "$3 folder"; exit 3; }; python=$(PATH=$4 command -v "$1") || '
    '{ echo "$3 python"; exit 3; }; [ -f "$2" ] || { echo "$3 project"; exit 3; }; '
    'exec "$python" -I "$2" "$3"'
)


@dataclass(frozen=True)
class Fault:
    """Reason why a host cannot be used, with its cure, as a sentence without its subject. `lasting`: it will
    be so until somebody changes something; else another attempt may find the host in order."""

    why: str
    lasting: bool = False


# Texts of OpenSSH 9.2's client, most of them unchanged for decades. {host}: with its user, {name}: without.
_SSH = (
    (
        r"IDENTIFICATION HAS CHANGED",
        "has another host key than known_hosts says; if it has been set up anew: ssh-keygen -R {name}, "
        "then once: ssh {host}",
        True,
    ),
    (
        r"host key verification failed|host key is known",
        "has a host key that is not known here; compare and accept it once: ssh {host}",
        True,
    ),
    (
        r"permission denied|too many authentication failures",
        "rejects this user's key; add it there: ssh-copy-id {host}, or name another: --ssh 'ssh -i FILE'",
        True,
    ),
    (r"could not resolve|name or service not known", "has no address here; correct the host file", True),
    (
        r"connection refused",
        "has no ssh server at that port; start it there (systemctl start ssh), or name its port: "
        "--ssh 'ssh -p PORT'",
        False,
    ),
    (
        r"timed out|no route to host|network is unreachable|not responding",
        "does not answer; look whether it is on, and whether a firewall lets port 22 through",
        False,
    ),
    (
        r"kex_exchange_identification|connection (closed|reset)|broken pipe",
        "closed the connection; look into its ssh server's log (MaxStartups, AllowUsers)",
        False,
    ),
)


def explained(host: str, words: str) -> Fault | None:
    """The fault that an ssh client's words on standard error speak of, if it is one of the known ones."""
    for pattern, text, lasting in _SSH:
        if re.search(pattern, words, re.IGNORECASE):
            return Fault(text.format(host=host, name=bare(host)), lasting)
    return None


@dataclass(frozen=True)
class Question:
    """Everything that a host is asked about. `ssh`: words of the remote shell. `directory`, `python`, `path`:
    working folder, interpreter and PATH of the run. `programs`: names that a login shell there must have on
    its own PATH. `interfaces`: names of network interfaces that it must have."""

    ssh: tuple[str, ...]
    directory: str
    python: str
    path: str
    programs: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()

    def command(self, host: str, token: str) -> list[str]:
        """Words that start hosts/answer.py on a host, or here."""
        words = ["sh", "-c", _SCRIPT, self.directory, self.python, ANSWER, token, self.path]
        return words if host == HERE else [*self.ssh, host, shlex.join(words)]

    def fault(self, answer: Mapping[str, Any], own: Mapping[str, Any], whose: str = OWN) -> Fault | None:
        """Compares a host's facts with `own`, which are this machine's or another host's."""
        missing = [program for program, path in answer["programs"].items() if path is None]
        if missing:
            return Fault(
                f"has no {missing[0]} on the PATH of its login shell; make setup there installs Open MPI",
                True,
            )
        lacking = self.lacking(answer["interfaces"])
        if lacking is not None:
            return lacking
        if _minor(answer["python"]) != _minor(own["python"]):
            return Fault(
                f"has Python {answer['python']} as {self.python}, {whose} {own['python']}; make both "
                f"with the same: make setup PYTHON=python{_minor(own['python'])}",
                True,
            )
        for package, here in own["versions"].items():
            there = answer["versions"].get(package)
            if there != here:
                return Fault(
                    f"has {there or 'no'} {package} under {self.python}, {whose} {here or 'none'}; "
                    "run make setup there",
                    True,
                )
        return None

    def lacking(self, there: Sequence[str]) -> Fault | None:
        """The fault of a host with these network interfaces, if one is missing."""
        missing = [name for name in self.interfaces if name not in there]
        if not missing:
            return None
        return Fault(
            f"has no network interface {missing[0]} (it has {', '.join(there)}), and MPI would go on without "
            "it; name one that all hosts have (--interface, --network, btl_tcp_if_include)",
            True,
        )

    def broken(self, host: str, reply: str, words: str, code: int) -> Fault:
        """The fault of a host that has not answered: `reply` is what the script has said, `words` and `code`
        the remote shell's."""
        missing = {
            "folder": f"has no folder {self.directory}; copy this one there, or mount it at the same path",
            "python": f"has no {self.python}; run make setup there, in {self.directory}",
            "project": f"has no {ANSWER}; copy this project there, to the same path",
        }
        known = Fault(missing[reply], True) if reply in missing else explained(host, words)
        if known is not None:
            return known
        last = next((line.strip() for line in reversed(words.splitlines()) if line.strip()), "")
        said = f" ({last[:200]})" if last else ""
        return Fault(f"does not answer: the remote shell exited with {code}{said}")


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


@dataclass
class _Host:
    """A process that asks one host. `asked`, `answered`: this machine's times, seconds since 1970."""

    process: subprocess.Popen[bytes]
    err: IO[bytes]
    buffer: bytes = b""
    reply: str | None = None
    asked: float = 0.0
    answered: float = 0.0


class Conversation:
    """One hosts/answer.py on each host, for as long as the `with` block lasts."""

    def __init__(self, hosts: Iterable[str], question: Question):
        """Starts a remote shell for each host, and none for this machine, which HERE names too."""
        self._question, self._token = question, f"answer-{secrets.token_hex(8)}"
        self._hosts: dict[str, _Host] = {}
        self._selector = selectors.DefaultSelector()
        for name in hosts:
            err = tempfile.TemporaryFile()  # noqa: SIM115 (closed at the end)
            process = subprocess.Popen(
                question.command(HERE if is_here(name) else name, self._token),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                start_new_session=True,  # a Ctrl-C at the terminal is for the command that asks
            )
            assert process.stdout is not None
            self._hosts[name] = _Host(process, err)
            self._selector.register(process.stdout, selectors.EVENT_READ, name)

    def __enter__(self) -> Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends it; kills remote shells that do not end by themselves."""
        self._selector.close()
        for host in self._hosts.values():
            for stream in (host.process.stdin, host.process.stdout):
                with contextlib.suppress(OSError):
                    if stream is not None:
                        stream.close()
        deadline = time.monotonic() + CLOSING
        for host in self._hosts.values():
            try:
                host.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                host.process.kill()
                host.process.wait()
            host.err.close()

    def ask(
        self,
        questions: Mapping[str, Mapping[str, Any]],
        seconds: float,
        wait: Callable[[float], None] = time.sleep,
    ) -> tuple[dict[str, Mapping[str, Any]], dict[str, Fault]]:
        """Asks hosts, and waits until all have answered or ended, at most so long. `wait` is called with
        short times; it may raise.

        Returns:
            Answers by host, with `clock`, the seconds by which the host's clock must be ahead (negative:
            behind); and the faults of those that have not answered.
        """
        for name, question in questions.items():
            host = self._hosts[name]
            host.reply, host.asked = None, time.time()
            assert host.process.stdin is not None
            with contextlib.suppress(OSError):  # it has ended; its words say why
                host.process.stdin.write(json.dumps(question).encode() + b"\n")
                host.process.stdin.flush()
        deadline = time.monotonic() + seconds
        while True:
            hosts = {name: self._hosts[name] for name in questions}
            # Whatever a process has written is in its pipe when it has ended.
            ended = [name for name, host in hosts.items() if host.process.poll() is not None]
            for key, _ in self._selector.select(0):
                self._read(key.data)
            open_yet = [name for name, host in hosts.items() if host.reply is None and name not in ended]
            if not open_yet or time.monotonic() >= deadline:
                break
            wait(0.05)
        late = Fault(f"does not answer within {seconds:g} s; look whether it is overloaded")
        answers, faults = {}, {}
        for name in questions:
            answer = late if name in open_yet else self._answer(name)
            if isinstance(answer, Fault):
                faults[name] = answer
            else:
                answers[name] = answer
        return answers, faults

    def _read(self, name: str) -> None:
        host = self._hosts[name]
        assert host.process.stdout is not None
        data = os.read(host.process.stdout.fileno(), 1 << 16)
        if not data:
            self._selector.unregister(host.process.stdout)
        *lines, host.buffer = (host.buffer + data).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace")
            if text.startswith(f"{self._token} ") and host.reply is None:
                host.reply, host.answered = text.partition(" ")[2], time.time()

    def _answer(self, name: str) -> Mapping[str, Any] | Fault:
        host = self._hosts[name]
        if not (host.reply or "").startswith("{"):
            host.err.seek(0)
            words = host.err.read().decode("utf-8", "replace")
            code = host.process.poll() or 0  # a remote shell may stay open after its reply
            return self._question.broken(name, host.reply or "", words, code)
        answer: dict[str, Any] = json.loads(host.reply or "")
        if "error" in answer and len(answer) == 1:
            return Fault(f"cannot be looked at: {answer['error']}")
        shown = answer.get("time", host.asked)
        return {**answer, "clock": min(shown - host.asked, 0.0) + max(shown - host.answered, 0.0)}


def apart(answer: Mapping[str, Any]) -> str:
    """Distance of a host's clock from this machine's, `9 s behind this machine's`; empty if it is little."""
    seconds = answer["clock"]
    direction = "ahead of" if seconds > 0 else "behind"
    return f"{abs(seconds):.0f} s {direction} this machine's" if abs(seconds) > APART else ""


def summed_up(faults: Mapping[str, Fault]) -> str:
    """The faults of several hosts as one line: the first, lasting ones before others, and the other hosts."""
    (host, fault), *more = sorted(faults.items(), key=lambda each: not each[1].lasting)
    others = f" (the same or another fault: {', '.join(bare(name) for name, _ in more)})" if more else ""
    return f"{bare(host)} {fault.why}{others}"


def faults_of(
    hosts: Iterable[str], question: Question, wait: Callable[[float], None], say: Callable[[str], None]
) -> Mapping[str, Fault]:
    """Faults of some hosts that cannot be used, and of "this machine", with which they are compared; a line
    for each clock that is wrong. `wait` is called with short times until all have answered; it may raise."""
    asked = [*dict.fromkeys(hosts), HERE]
    if asked == [HERE]:
        return {}
    with Conversation(asked, question) as conversation:
        about = {"ask": "facts", "programs": question.programs}
        answers, silent = conversation.ask(dict.fromkeys(asked, about), SECONDS, wait)
    own = answers.get(HERE)
    faults = {OWN: silent[HERE]} if own is None else {}
    for host in asked[:-1]:
        answer = answers.get(host)
        fault = silent.get(host) if answer is None or own is None else question.fault(answer, own)
        if fault is not None:
            faults[host] = fault
        if answer is not None and apart(answer):  # ranks wait by their own clocks, and compare no times
            say(
                f"{bare(host)}'s clock is {apart(answer)}; the run does not depend on it, but times in its "
                "log files and of its files do: timedatectl set-ntp true there"
            )
    return faults


def check(faults: Mapping[str, Fault]) -> None:
    """Raises InputError if a fault will not pass by itself."""
    if any(fault.lasting for fault in faults.values()):
        raise InputError(summed_up(faults))
