"""Options for a plan of the LAMB paper in commands that write a job for a cluster, and the script's options
checked. Standard library only."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Sequence

from base.command_line import positive_int
from base.errors import InputError, one_line
from hosts.pretraining import pretraining_job
from hosts.shell import Required
from lamb_paper import Recipe, plan

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = {"hvd": "run_pretraining_hvd.py", "byteps": "run_pretraining_byteps.py"}
STAGES = {"1": (1,), "2": (2,), "both": (1, 2)}
# In a process of its own: hosts/ knows nothing of training. It imports no MXNet.
_CHECK = "import sys; from training.options import parse_options; parse_options(sys.argv[2:], sys.argv[1])"


def add_plan_options(group: Any) -> None:
    """Adds --tokens_per_gpu, --accumulate and --stage to a parser or a group of one; the meanings are those
    of hparams.py."""
    pair = _pair(positive_int)
    text = (
        "plan both stages as hparams.py does: tokens a GPU takes in one pass; behind -- follow options only"
    )
    group.add_argument("--tokens_per_gpu", type=pair, metavar="N[,N]", help=text)
    text = "passes added up for one step (default 1)"
    group.add_argument("--accumulate", type=pair, metavar="N[,N]", help=text)
    group.add_argument("--stage", choices=sorted(STAGES), help="only this stage (default both)")


def script_and_options(
    args: argparse.Namespace, backend: str, ranks: int, own: Sequence[str]
) -> tuple[list[str], str]:
    """The script of every rank with its options, and a line about it.

    Args:
        args: parsed options of `add_plan_options`.
        ranks: of the whole run.
        own: words after `--`: with --tokens_per_gpu options, else a script and its options.

    Raises:
        InputError: they do not go together, or the script would not take its options.
    """
    if args.tokens_per_gpu is None:
        for flag, value in (("--accumulate", args.accumulate), ("--stage", args.stage)):
            if value is not None:
                raise InputError(f"{flag}: goes with --tokens_per_gpu only; or write it behind the script")
        if not own or not own[0].endswith(".py"):
            raise InputError(
                "after --: write a script and its options, or options only with --tokens_per_gpu"
            )
        words, line = list(own), f"{own[0]}, {ranks} ranks"
    else:
        recipe = Recipe(STAGES[args.stage or "both"])
        accumulate = 1 if args.accumulate is None else args.accumulate
        planned = plan(ranks, args.tokens_per_gpu, accumulate, recipe)
        job = pretraining_job(planned, SCRIPTS[backend], own, any_dtype=False)
        if any(isinstance(word, Required) for each in job.options for word in each):
            raise InputError(
                "--data is missing after --: the files to train on, by their path on the cluster"
            )
        words = [job.script, *(str(word) for each in job.options for word in each)]
        line = f"{job.title}, {ranks} ranks: {job.comment[0]}"
    check_script(words)
    if "--ckpt_dir" in {word.partition("=")[0] for word in words} and "--resume" not in words:
        words.append("--resume")  # a pod or host that starts again goes on; without a checkpoint it begins
    return words, line


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


def _pair(kind: Callable[[str], int]) -> Callable[[str], int | tuple[int, int]]:
    """Reads one value for both stages, or one for each."""

    def read(text: str) -> int | tuple[int, int]:
        pieces = text.split(",")
        if len(pieces) > 2:
            raise argparse.ArgumentTypeError(f"{text!r} has more than two values, one for each stage")
        values = [kind(piece) for piece in pieces]
        return values[0] if len(values) == 1 else (values[0], values[1])

    return read
