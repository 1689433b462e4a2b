"""`make pretrain` by backend: what would be run, from `make -n`."""

from __future__ import annotations

import pytest

from tests.processes import run_command

# Variables that `make test` passes to its commands are not for this make.
ENV = dict.fromkeys(("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "BACKEND", "NP", "RUN_DIR"))


def dry_make(*words):
    return run_command(["make", "-n", "pretrain", *words], env=ENV)


@pytest.mark.parametrize(
    ("words", "launcher", "script", "directory"),
    [
        ([], "mpirun -np 2 ", "run_pretraining_hvd.py", "runs/embedded/"),
        (["NP=3"], "mpirun -np 3 ", "run_pretraining_hvd.py", "runs/embedded/"),
        (
            ["BACKEND=byteps"],
            ".venv/bin/python hosts/launch.py --backend byteps --hostfile hosts/2x_local -- ",
            "run_pretraining_byteps.py",
            "runs/embedded_byteps/",
        ),
    ],
)
def test_backends(words, launcher, script, directory):
    lines = dry_make(*words).check().stdout.splitlines()
    (command,) = [line for line in lines if script in line]
    assert f"predict.py {directory}ckpt --examples {directory}corpus/eval.txt" in lines[-2]
    assert f"{launcher}" in command and f"--ckpt_dir {directory}ckpt" in command
    assert f".venv/bin/python {script} --resume" in command


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["BACKEND=nccl"], "BACKEND=nccl: choose hvd (Horovod) or byteps (BytePS)"),
        (["BACKEND="], "BACKEND=: choose"),
        (["BACKEND=byteps", "NP=4"], "NP=4: is for BACKEND=hvd"),
    ],
)
def test_bad_input_is_one_line(words, named):
    result = dry_make(*words)
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr.count("\n") == 1 and named in result.stderr
