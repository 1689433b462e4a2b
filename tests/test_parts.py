"""The parts in which `make test` runs the tests: each test is of one, and what is launched once stays so."""

from __future__ import annotations

import re
import sys

from tests.parts import LONG, NAMES, WITHOUT_RANKS
from tests.processes import run_command

# Quickly imported, and of all parts.
FILES = ["tests/comm/byteps/test_race.py", "tests/native/test_byteps.py", "tests/test_scripts.py"]
FILES += ["tests/comparison/emulation/test_emulation.py"]  # some alone, of a folder without ranks
FILES += ["tests/comparison/messages/test_messages.py"]  # long
SHARING = """
import pytest

@pytest.fixture(scope="module")
def launched(tmp_path_factory, request):
    with open(request.config.rootpath / "launches", "a") as file:
        file.write("launched\\n")

@pytest.mark.parametrize("number", range(8))
def test_what_it_left(launched, number):
    pass

@pytest.mark.parametrize("number", range(8))
def test_of_its_own(number):
    pass
"""


def run(*words):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.parts"]
    return run_command([*command, *words])


def collected(*words):
    result = run("--collect-only", *words, *FILES)
    assert result.returncode in (0, 5), result.describe()
    return [line for line in result.stdout.splitlines() if "::" in line]


def test_every_test_is_of_one_part():
    parts = [collected("--part", name) for name in NAMES]
    assert all(parts) and any("test_one_flow_gets" in each for each in parts[2])
    everything = collected()
    assert sorted(sum(parts, [])) == sorted(everything)
    assert parts[1][0].startswith(FILES[-1]) and everything[0].startswith(FILES[0])  # long ones first


def test_what_is_named_exists():
    assert [path for path in (*WITHOUT_RANKS, *LONG) if not path.exists()] == []


def test_a_module_s_launch_is_shared_by_one_process(tmp_path):
    (tmp_path / "test_sharing.py").write_text(SHARING)
    words = ["-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)]
    result = run("--part", "ranks", "-n", "2", "--dist", "loadgroup", *words).check()
    assert "16 passed" in result.stdout
    assert (tmp_path / "launches").read_text() == "launched\n"


def test_make_runs_them_all():
    """A part of the set-up that is missing fails in each of them (test_no_vanishing.py)."""
    commands = run_command(["make", "-n", "test"], env={"MAKEFLAGS": None}).check().stdout
    assert re.findall(r"-m pytest .*-p tests\.no_vanishing .*--part (\S+)", commands) == list(NAMES)
