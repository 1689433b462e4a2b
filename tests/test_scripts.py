"""The scripts at the top: executable, and run_pretraining_hvd.py and run_pretraining_byteps.py differ in the
backend and in nothing else."""

from __future__ import annotations

import difflib
import io
import os
import sys
import tokenize

import pytest

from tests.processes import ROOT, run_command


def words(script):
    """Everything Python reads of a script, comments left out, docstring included as one word."""
    text = (ROOT / script).read_text(encoding="utf-8")
    skipped = (tokenize.COMMENT, tokenize.NL)
    return [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in skipped
    ]


def test_the_scripts_differ_only_in_the_backend():
    horovod, byteps = words("run_pretraining_hvd.py"), words("run_pretraining_byteps.py")
    matcher = difflib.SequenceMatcher(None, horovod, byteps, autojunk=False)
    changes = [(horovod[a:b], byteps[c:d]) for kind, a, b, c, d in matcher.get_opcodes() if kind != "equal"]
    docstrings, *names = changes
    assert [len(side) for side in docstrings] == [1, 1] and docstrings[0][0].startswith('"""Pretrain BERT')
    assert {(tuple(old), tuple(new)) for old, new in names} == {(("HVD",), ("BYTEPS",))}


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
