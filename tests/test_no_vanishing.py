"""Under `make test` a part of the set-up that is missing is a failure, not a skip."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.no_vanishing import NOT_OF_THE_SET_UP
from tests.processes import ROOT, run_command

TESTS = """
import pytest

@pytest.fixture
def operators():
    pytest.skip("the fused operators have not been built")

def test_through_a_fixture(operators):
    pass

@pytest.mark.skipif(True, reason="needs BytePS")
def test_through_a_mark():
    pass

def test_in_its_body():
    pytest.importorskip("no_such_package")

@pytest.mark.skipif(True, reason="this processor has no amx_bf16")
def test_of_another_processor():
    pass

@pytest.mark.xfail(reason="is known", strict=True)
def test_known():
    assert False

def test_that_runs():
    pass
"""
MODULE = 'import pytest\npytest.skip("the operators are not built", allow_module_level=True)\n'


def run(folder, *options):
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-c", "/dev/null", "-p", "no:cacheprovider"]
    return run_command([*command, *options, "--rootdir", folder, folder])


def test_what_the_set_up_provides_may_not_be_missing(tmp_path):
    (tmp_path / "test_parts.py").write_text(TESTS)
    strict = ("-p", "tests.no_vanishing")
    assert run(tmp_path).returncode == 0
    result = run(tmp_path, *strict)
    counts = result.stdout.splitlines()[-1]
    assert result.returncode == 1 and "1 passed, 1 skipped, 1 xfailed" in counts, result.describe()
    assert "1 failed" in counts and "2 errors" in counts
    for reason in ("the fused operators have not been built", "needs BytePS", "no_such_package"):
        assert re.search(rf"skipped \(.*{reason}.*\), which counts as a failure", result.stdout)

    (tmp_path / "test_parts.py").write_text(MODULE)
    assert run(tmp_path).returncode == 5  # no test at all
    for options in (strict, (*strict, "-n", "1")):
        result = run(tmp_path, *options)
        assert result.returncode not in (0, 5), result.describe()
        assert "skipped (the operators are not built)" in result.stdout


def test_every_reason_in_these_tests_is_decided_on():
    """Some need a machine that lacks something: one without sshd found a reason that no list had."""
    provided = r"the (fused )?operators |there is no make|needs Open MPI|make setup has|these tests do not"
    decided = re.compile(rf"{NOT_OF_THE_SET_UP.pattern}|{provided}|is a variant|the same in every variant")
    for path in sorted({*ROOT.glob("tests/**/*.py")} - {Path(__file__)}):
        for reason in re.findall(r"(?:\.skip\(|skipif\(.*reason=)\"([^\"]*)", path.read_text("utf-8")):
            assert decided.match(reason), f"{path.name}: {reason}"
