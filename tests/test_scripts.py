"""The scripts at the top: executable, and run_pretraining_hvd.py and run_pretraining_byteps.py differ in the
backend and in nothing else."""

from __future__ import annotations

import ast
import os
import re
import sys

import pytest

from tests.processes import ROOT, run_command


def test_the_scripts_differ_only_in_the_backend():
    """And in their docstrings; comments are left out."""
    horovod, byteps = (
        ast.parse((ROOT / f"run_pretraining_{name}.py").read_text("utf-8")) for name in ("hvd", "byteps")
    )
    for script in (horovod, byteps):
        assert script.body.pop(0).value.value.startswith("Pretrain BERT")
    assert re.sub(r"\bHVD\b", "BYTEPS", ast.unparse(horovod)) == ast.unparse(byteps)


def test_every_script_is_executable():
    top = [path for path in ROOT.glob("*.py") if 'if __name__ == "__main__":' in path.read_text("utf-8")]
    hosts = [path for path in (ROOT / "hosts").glob("*.py") if path.read_text("utf-8").startswith("#!")]
    assert len(top) == 11 and len(hosts) == 7
    for path in [*top, *hosts]:
        assert path.read_text("utf-8").startswith("#!/usr/bin/env python3\n"), path.name
        assert os.access(path, os.X_OK), path.name


ALONE = ("hparams", "lamb_paper", "results", "run_sagemaker")  # they need nothing that is installed


@pytest.mark.parametrize("script", sorted({path.stem for path in ROOT.glob("*.py")} - {*ALONE}))
def test_another_python_is_named_in_one_line(script):
    """-S: without the folder of what is installed."""
    result = run_command([sys.executable, "-S", f"{script}.py", "--help"])
    assert (result.returncode, result.stdout) == (2, "") and result.stderr.count("\n") == 1, result.describe()
    assert f"error: {sys.executable} has no " in result.stderr and "make setup" in result.stderr
