"""hosts/reach.py: readings of ssh's words, and hosts that answer through a remote shell on this machine. Real
ssh is in test_ssh.py."""

from __future__ import annotations

import os
import re
import sys
import time

import pytest

from base.errors import InputError
from hosts.reach import Conversation, Fault, Question, check, explained, faults_of, summed_up
from tests.processes import LIMIT, executable

# As OpenSSH 9.2's client has written them.
WORDS = {
    "root@10.77.0.2: Permission denied (publickey).": ("rejects this user's key", True),
    "Received disconnect from 10.77.0.2 port 22:2: Too many authentication failures": ("rejects", True),
    "No ED25519 host key is known for 10.77.0.2 and you have requested strict checking.\r\n"
    "Host key verification failed.": ("is not known here", True),
    "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n"
    "Host key verification failed.": ("has another host key than known_hosts says", True),
    "ssh: Could not resolve hostname node-2: Name or service not known": ("has no address here", True),
    "ssh: connect to host 10.77.0.2 port 2222: Connection refused": ("no ssh server at that port", False),
    "ssh: connect to host 10.77.0.2 port 22: No route to host": ("does not answer", False),
    "ssh: connect to host 10.77.0.2 port 22: Connection timed out": ("does not answer", False),
    "Timeout, server 10.77.0.2 not responding.": ("does not answer", False),
    "kex_exchange_identification: Connection closed by remote host\n"
    "Connection closed by 10.77.0.2 port 22": ("closed the connection", False),
}  # fmt: skip


@pytest.mark.parametrize("words", WORDS)
def test_words_of_ssh(words):
    said, lasting = WORDS[words]
    fault = explained("me@10.77.0.2", words)
    assert fault is not None and said in fault.why and fault.lasting is lasting
    assert explained("x", "something else") is None


def test_the_cures_have_the_host_as_it_was_written():
    fault = explained("me@node-2", "Permission denied (publickey).")
    assert fault is not None and "ssh-copy-id me@node-2" in fault.why
    changed = explained("me@node-2", "REMOTE HOST IDENTIFICATION HAS CHANGED!")
    assert changed is not None and "ssh-keygen -R node-2" in changed.why


def test_several_faults_are_one_line():
    faults = {"a": Fault("does not answer"), "me@b": Fault("has no folder /x", True), "c": Fault("is slow")}
    assert summed_up(faults) == "b has no folder /x (the same or another fault: a, c)"
    with pytest.raises(InputError, match="b has no folder"):
        check(faults)
    check({"a": faults["a"]})


@pytest.fixture
def asked(tmp_path):
    """Answers of a host behind a remote shell with a text of its own, and the lines about clocks."""

    def ask(text, python=sys.executable, programs=(), interfaces=()):
        shell = executable(tmp_path / "shell", f"#!/bin/sh\nshift\n{text}\n")
        question = Question((str(shell),), os.getcwd(), python, os.environ["PATH"], programs, interfaces)
        lines: list[str] = []
        return dict(faults_of(["node-2"], question, time.sleep, lines.append)), lines

    return ask


def test_a_host_in_order(asked):
    noisy = 'echo welcome; echo "no mail" >&2; exec sh -c "$*"'
    assert asked(noisy, programs=("sh",), interfaces=("lo",)) == ({}, [])


def test_a_host_without_the_interface(asked):
    faults, _ = asked('exec sh -c "$*"', interfaces=("lo", "ens5x"))
    assert faults["node-2"].lasting and faults["node-2"].why.startswith(
        "has no network interface ens5x (it has lo"
    )


@pytest.mark.parametrize(("shift", "said"), [("+3600", "ahead of"), ("-3600", "behind")])
def test_clocks_that_are_apart(asked, shift, said):
    """A warning, no fault."""
    shift_it = f"""sh -c "$*" | {sys.executable} -c '
import re, sys
for line in sys.stdin:
    line = re.sub(r"(?<=time.: )[0-9.]+", lambda found: str(float(found[0]) {shift}), line)
    print(line, end="", flush=True)'"""
    faults, lines = asked(shift_it)
    assert not faults and len(lines) == 1
    seconds = re.match(
        rf"node-2's clock is (\d+) s {said} this machine's; the run does not depend on it", lines[0]
    )
    assert abs(int(seconds[1]) - 3600) < 300  # a busy machine answers late


def test_what_is_no_answer(asked):
    faults, _ = asked("exit 0")
    assert faults["node-2"].why == "does not answer: the remote shell exited with 0"
    faults, _ = asked('exec sh -c "$*"', programs=("no-such-program",))
    assert faults["node-2"].why.startswith("has no no-such-program on the PATH") and faults["node-2"].lasting
    faults, _ = asked('exec sh -c "$*"', python="no-such-python")
    assert set(faults) == {"this machine", "node-2"} and faults["node-2"].lasting


def test_a_shell_that_stays_open_after_its_reply(tmp_path):
    """A start-up file may leave a program behind that keeps ssh's streams."""
    shell = executable(tmp_path / "shell", '#!/bin/sh\nshift\nsh -c "$*"\nexec sleep 3600\n')
    question = Question((str(shell),), "/no/such/folder", sys.executable, os.environ["PATH"])
    with Conversation(["node-2"], question) as conversation:
        _, faults = conversation.ask({"node-2": {}}, LIMIT)
        assert faults["node-2"].why.startswith("has no folder")
