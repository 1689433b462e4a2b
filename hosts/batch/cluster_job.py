"""The script of every rank of a cluster's job, with the options of a plan of the LAMB paper or as given,
checked before anything is written. Standard library only."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Sequence

from base.errors import InputError, one_line
from hosts.plan_options import PlanOptions, add_plan_options
from hosts.pretraining import pretraining_job
from hosts.shell import Required

ROOT = Path(__file__).resolve().parents[2]
HVD, BYTEPS = BACKENDS = ("hvd", "byteps")
SCRIPTS = {HVD: "run_pretraining_hvd.py", BYTEPS: "run_pretraining_byteps.py"}
# In a process of its own: hosts/ knows nothing of training. It imports no MXNet.
_CHECK = "import sys; from training.options import parse_options; parse_options(sys.argv[2:], sys.argv[1])"


def add_plan_group(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a plan, with the meanings of hparams.py, to a parser."""
    text = "with --tokens_per_gpu, as in hparams.py; behind -- follow options only then"
    group = parser.add_argument_group("the plan", text)
    add_plan_options(group, group, group)


def script_and_options(
    args: argparse.Namespace, backend: str, ranks: int, own: Sequence[str]
) -> tuple[list[str], list[str]]:
    """The script of every rank with its options, and lines about it: one about the run, and warnings.

    Args:
        args: parsed options of `add_plan_group`.
        ranks: of the whole run.
        own: words after `--`: with --tokens_per_gpu options, else a script and its options.

    Raises:
        InputError: they do not go together, or the script would not take its options.
    """
    names = [each.name for each in fields(PlanOptions) if each.name != "num_gpus"]
    options = PlanOptions(ranks, **{name: getattr(args, name) for name in names})
    if options.tokens_per_gpu is None:
        for name in options.given()[1:]:
            raise InputError(f"--{name}: goes with --tokens_per_gpu only; or write it behind the script")
        if not own or not own[0].endswith(".py"):
            raise InputError(
                "after --: write a script and its options, or options only with --tokens_per_gpu"
            )
        words, lines = list(own), [f"{own[0]}, {ranks} ranks"]
    else:
        words, lines = _planned(options, backend, own)
    check_script(words)
    if "--ckpt_dir" in {word.partition("=")[0] for word in words} and "--resume" not in words:
        words.append("--resume")  # a pod or host that starts again goes on; without a checkpoint it begins
    return words, lines


def _planned(options: PlanOptions, backend: str, own: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of a plan's run, and lines about it."""
    options.check_together()
    if options.pipeline_stages > 1 and backend == BYTEPS:
        raise InputError(
            f"--pipeline_stages {options.pipeline_stages}: goes with --backend hvd; BytePS has neither "
            "groups of ranks nor messages between two ranks"
        )
    options.check_replicas(f"{options.num_gpus} ranks")
    plan = options.plan()
    job = pretraining_job(plan, SCRIPTS[backend], own, any_dtype=False)
    if any(isinstance(word, Required) for each in job.options for word in each):
        raise InputError("--data is missing after --: the files to train on, by their path on the cluster")
    lines = [f"{job.title}, {options.num_gpus} ranks: {job.comment[0]}", *job.comment[1:]]
    lines += [f"warning: {text}" for stage in plan.stages for text in stage.warnings]
    return [job.script, *(str(word) for each in job.options for word in each)], lines


def check_script(words: Sequence[str]) -> None:
    """Raises InputError where a script is not one of this project, or a pretraining script would reject its
    options. Files that they name are not looked at: they are on the cluster."""
    script = words[0]
    if not (ROOT / script).is_file():
        raise InputError(f"{script}: there is no such script in this project")
    if script not in SCRIPTS.values():
        return
    command = [sys.executable, "-c", _CHECK, *words]
    result = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if result.returncode != 0:
        last = one_line((result.stderr.strip().splitlines() or ["rejected"])[-1])
        raise InputError(f"after --: {last.partition('InputError: ')[2] or last}")
