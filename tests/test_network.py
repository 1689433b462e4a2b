"""Input from outside a process is never executed, and docs/network.md names every open port."""

from __future__ import annotations

import ast
import os
import re
import socket
from typing import Iterator

import pytest

from tests.sockets import Listening, listening
from tests.test_imports import PROJECT, ROOT, imported, tree_of

GUIDE = ROOT / "docs/network.md"
# They turn bytes into objects by running what the bytes say.
EXECUTING_MODULES = ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle")
EXECUTING_CALLS = {"eval", "exec", "compile", "allow_pickle"}
# Servers in the standard library, and multiprocessing's connections, which unpickle.
SERVERS = ("socketserver", "http.server", "xmlrpc", "asyncio", "multiprocessing.managers",
           "multiprocessing.connection.Listener")  # fmt: skip
OPENS_PORTS = {"comm.watch.heartbeat", "hosts.answer", "hosts.batch.gathering"}
# Their unpicklers have inert stand-ins for the names of NumPy's and PyTorch's pickles
# (tests/data/test_convert_npz.py, tests/bert/weights/test_pickled.py).
EXECUTES = {"data.convert_npz": ["pickle"], "bert.weights.pickle_data": ["pickle"]}


def calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield getattr(node.func, "attr", None) or getattr(node.func, "id", ""), node


def executing(tree: ast.AST) -> list[str]:
    """The places of a module where bytes could become code."""
    found = [name for name in imported(tree) if name.partition(".")[0] in EXECUTING_MODULES]
    for name, call in calls(tree):
        if isinstance(call.func, ast.Name) and name in EXECUTING_CALLS:
            found.append(f"{name}()")
        for keyword in call.keywords:
            if keyword.arg == "allow_pickle" and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                found.append("allow_pickle")
    return found


def opening(tree: ast.AST) -> list[str]:
    """The places of a module where a port could be opened."""
    found = [name for name in imported(tree) if name.startswith(SERVERS)]
    for name, call in calls(tree):
        is_socket_listen = name == "listen" and isinstance(call.func, ast.Attribute) and call.args
        if name in ("create_server", "start_server") or is_socket_listen:
            found.append(f"{name}()")
    return found


def test_nothing_of_ours_executes_what_it_reads():
    found = {module: executing(tree_of(path)) for module, path in PROJECT.items()}
    assert {module: places for module, places in found.items() if places} == EXECUTES


def test_three_modules_open_ports():
    assert {module for module, path in PROJECT.items() if opening(tree_of(path))} == OPENS_PORTS


@pytest.mark.parametrize(
    "text",
    ["import pickle", "from marshal import loads", "eval(text)", "np.load(path, allow_pickle=True)",
     "np.load(path, allow_pickle=flag)"],
)  # fmt: skip
def test_executing_is_found(text):
    assert executing(ast.parse(text))


@pytest.mark.parametrize(
    "text", ["import http.server", "socket.create_server(('', 0))", "server.listen(5)", "import asyncio"]
)
def test_opening_is_found(text):
    assert opening(ast.parse(text))


def test_listening_sockets_are_found():
    own = os.getpid()
    before = listening([own])
    with (
        socket.create_server(("127.0.0.1", 0)) as four,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        found = set(listening([own])) - set(before)
        places = (("127.0.0.1", four.getsockname()[1]), ("::1", six.getsockname()[1]))
        assert found == {Listening(own, *place) for place in places}
    assert listening([own]) == before


def test_the_guide_names_what_limits_a_port():
    """Variables that the guide names exist; of modules: tests/test_readme.py."""
    code = "".join(path.read_text("utf-8") for path in PROJECT.values())
    for name in re.findall(r"`((?:DMLC|HOROVOD|NCCL)_\w+)`", GUIDE.read_text("utf-8")):
        assert name in code, name
