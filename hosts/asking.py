"""Conversations with hosts/answer.py on several hosts at once. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Any, Iterable, Mapping

from hosts.addresses import is_here
from hosts.reach import HERE, Fault, Question


@dataclass(frozen=True)
class Asked:
    """A host's answer, or why there is none. `apart`: seconds by which its clock must be ahead (negative:
    behind), if its answer has the time."""

    answer: Mapping[str, Any] | Fault
    apart: float = 0.0


@dataclass
class _Host:
    process: subprocess.Popen[bytes]
    err: IO[bytes]
    buffer: bytes = b""
    replies: list[str] = field(default_factory=list)
    ended: bool = False


class Conversation:
    """One hosts/answer.py on each host, for as long as the `with` block lasts."""

    def __init__(self, hosts: Iterable[str], question: Question):
        """Prepares; nothing is started."""
        self._names, self._question = list(hosts), question
        self._token = f"answer-{secrets.token_hex(8)}"
        self._hosts: dict[str, _Host] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> Conversation:
        for name in self._names:
            err = tempfile.TemporaryFile()  # noqa: SIM115 (closed at the end)
            process = subprocess.Popen(
                self._question.command(HERE if is_here(name) else name, self._token),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
            )
            assert process.stdout is not None
            self._hosts[name] = _Host(process, err)
            self._selector.register(process.stdout, selectors.EVENT_READ, name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for host in self._hosts.values():
            for stream in (host.process.stdin, host.process.stdout):
                with contextlib.suppress(OSError):
                    if stream is not None:
                        stream.close()
        for host in self._hosts.values():
            try:
                host.process.wait(2.0)
            except subprocess.TimeoutExpired:
                host.process.kill()
                host.process.wait()
            host.err.close()
        self._selector.close()

    def ask(self, questions: Mapping[str, Mapping[str, Any]], seconds: float) -> dict[str, Asked]:
        """Asks hosts, and waits until all have answered or ended, at most so long."""
        begun, deadline = time.time(), time.monotonic() + seconds
        for name, question in questions.items():
            host = self._hosts[name]
            assert host.process.stdin is not None
            host.replies.clear()
            with contextlib.suppress(OSError):  # it has ended; its words say why
                host.process.stdin.write(json.dumps(question).encode() + b"\n")
                host.process.stdin.flush()
        answers: dict[str, Asked] = {}
        while len(answers) < len(questions):
            for name in questions:
                if name not in answers and (self._hosts[name].replies or self._hosts[name].ended):
                    answers[name] = self._answer(name, begun)
            left = deadline - time.monotonic()
            if left <= 0:
                break
            if len(answers) < len(questions):
                for key, _ in self._selector.select(left):
                    self._read(key.data)
        late = Asked(Fault(f"does not answer within {seconds:g} s; look whether it is overloaded"))
        return {name: answers.get(name, late) for name in questions}

    def _read(self, name: str) -> None:
        host = self._hosts[name]
        assert host.process.stdout is not None
        data = os.read(host.process.stdout.fileno(), 1 << 16)
        if not data:
            host.ended = True
            self._selector.unregister(host.process.stdout)
        *lines, host.buffer = (host.buffer + data).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace")
            if text.startswith(f"{self._token} "):
                host.replies.append(text.partition(" ")[2])

    def _answer(self, name: str, begun: float) -> Asked:
        host = self._hosts[name]
        reply = host.replies[0] if host.replies else ""
        if not reply.startswith("{"):
            code = host.process.wait()
            host.err.seek(0)
            return Asked(self._question.broken(name, reply, host.err.read().decode("utf-8", "replace"), code))
        answer: dict[str, Any] = json.loads(reply)
        if "error" in answer and len(answer) == 1:
            return Asked(Fault(f"cannot be looked at: {answer['error']}"))
        shown = answer.get("time", begun)
        return Asked(answer, min(shown - begun, 0.0) + max(shown - time.time(), 0.0))
