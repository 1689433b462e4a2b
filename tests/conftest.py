from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import namespaces
from tests.embedded import built_once


def pytest_configure(config: pytest.Config) -> None:
    """Variables that all processes of the tests inherit, and no deadlines, which a busy machine misses."""
    if config.pluginmanager.hasplugin("hypothesispytest"):
        from hypothesis import settings

        settings.register_profile("busy", deadline=None)
        settings.load_profile("busy")
    # Started in a shell's background they would ignore the Ctrl-C that some tests send.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Under nohup they would ignore the hangup that some tests send; children start with the default action
    # for a signal that has a handler here.
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    # As in the Makefile: where ranks are as many as cores, Open MPI's would spin while they wait, each on the
    # core that the other's work and Horovod's threads need. It doubles the time that tests with mpirun take.
    os.environ.setdefault("OMPI_MCA_mpi_yield_when_idle", "1")


@pytest.fixture(scope="module", autouse=True)
def handlers():
    """Leaves handlers of signals as they were: a run in this process sets its own, and under those a later
    test's Ctrl-C would end nothing."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@dataclass(frozen=True)
class Corpus:
    """The embedded corpus with a small vocabulary."""

    train: str  # a glob
    held_out: str
    vocab: str


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Corpus:
    directory = built_once(tmp_path_factory, vocab_size=1024)
    texts = Path(directory) / "corpus"
    return Corpus(str(texts / "train-*.txt"), str(texts / "eval.txt"), str(directory / "vocab.txt"))


@pytest.fixture
def two_hosts(tmp_path):
    """Two network namespaces as two hosts (`tests.namespaces.TwoHosts`) with one slot each. Skips where
    namespaces cannot be made."""
    with namespaces.or_skip(namespaces.two_hosts(tmp_path), "network namespaces") as hosts:
        yield hosts
