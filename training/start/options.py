"""Table of the options that say where a run starts, and the stages that it has (base.options)."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from base.command_line import path_name, path_names
from base.errors import InputError
from base.options import flag, option
from lamb_paper import STAGES

OPTIMIZER, SCHEDULE, DATA = RESETS = ("optimizer", "schedule", "data")
_NONE = "none"


def _resets(text: str) -> str:
    """The names in their own order, so that the same request is the same text."""
    names = {part.strip() for part in text.split(",")}
    if names == {_NONE}:
        return _NONE
    if not names <= set(RESETS):
        raise argparse.ArgumentTypeError(f"{text!r} is not of {', '.join(RESETS)}, with commas, or {_NONE}")
    return ",".join(name for name in RESETS if name in names)


@dataclass(frozen=True)
class StartConfig:
    """Parameters that a run begins with, what else begins anew, and the stages.

    `stage`: 1 or 2, the one that these settings are of; None for a run without stages.
    """

    stages: str | None = option(
        "the LAMB paper's two stages in one ckpt_dir, of 128 and of 512 tokens: one of them, or both in one "
        "launch. What may differ takes two values, as --num_steps 7038,1561; what is left out follows the "
        "paper for each stage's own batch",
        choices=sorted(STAGES),
    )
    data_2: str | None = option("what stage 2 trains on, where it is not --data", path_names, "DATA")
    data_eval_2: str | None = option(
        "what stage 2 evaluates on, where it is not --data_eval", path_names, "DATA"
    )
    keep_optimizer_state: bool = flag(
        "stage 2 goes on with stage 1's moments and loss scale; the paper's begins without"
    )
    init_from: str | None = option(
        "begin with the parameters of a checkpoint folder (its newest; FOLDER:STEP, FOLDER:best), a .params "
        "file, a Hugging Face folder, a TensorFlow checkpoint, NVIDIA's .pt; with --resume a checkpoint in "
        "ckpt_dir wins",
        path_name,
        "WEIGHTS",
    )
    init_partial: bool = flag(
        "with --init_from: take what fits this run's model and list what does not, which begins random"
    )
    init_vocab: bool = flag(
        "with --init_from: this run's --vocab is another one than that of the weights. Rows of tokens that "
        "both have are kept, the others drawn anew. The fewer are kept, the less is left of the pretraining"
    )
    reset: str | None = option(  # of RESETS, with commas, or "none"
        "what begins anew: of optimizer, schedule and data one or more, with commas, or none (default: all "
        "with --init_from, none with --start_step)",
        _resets,
        "LIST",
    )
    stage: int | None = None

    @property
    def resets(self) -> frozenset[str]:
        """Parts of the checkpoint that --init_from or --start_step names which are not taken over."""
        if self.reset is None:
            return frozenset(RESETS if self.init_from else ())
        return frozenset(self.reset.split(",")) - {_NONE}


def check_start_options(options: argparse.Namespace) -> None:
    """Checks the options of `StartConfig` against each other and against --resume and --start_step.

    Raises:
        InputError: they exclude each other, or one does nothing.
    """
    given, resets = options.init_from, (options.reset or "").split(",")
    if given and options.pretrained:
        raise InputError("--init_from and --pretrained exclude each other: both bring the parameters")
    if given and options.start_step:
        raise InputError(
            f"--init_from and --start_step exclude each other: --start_step {options.start_step} continues "
            "in --ckpt_dir; to begin from a step of another folder give --init_from "
            f"FOLDER:{options.start_step}"
        )
    if options.init_partial and not given:
        raise InputError("--init_partial needs --init_from: it is about the parameters that it names")
    if options.init_vocab and not given:
        raise InputError("--init_vocab needs --init_from: it is about the weights that it names")
    if options.init_vocab and options.reset is not None and OPTIMIZER not in resets:
        raise InputError(
            f"--init_vocab: the moments are of the other vocabulary's rows; give --reset "
            f"{','.join(name for name in RESETS if name in {*resets, OPTIMIZER})}"
        )
    if options.reset is not None and not given and not options.start_step:
        reason = (
            "--resume goes on as if there had been no interruption"
            if options.resume
            else "nothing is restored"
        )
        raise InputError(f"--reset {options.reset}: {reason}; it is for --init_from and --start_step")
    if options.start_step and SCHEDULE in resets:
        raise InputError(
            f"--reset {options.reset}: with --start_step a new schedule would write over the steps of "
            f"{options.ckpt_dir}; give --init_from {options.ckpt_dir}:{options.start_step} and another "
            "--ckpt_dir"
        )
    if options.keep_optimizer_state and options.stages not in ("2", "both"):
        raise InputError("--keep_optimizer_state is about stage 2: it needs --stages 2 or both")
    if options.keep_optimizer_state and options.stages == "2" and given:
        raise InputError("--keep_optimizer_state: with --init_from say --reset schedule,data instead")
    if options.stages and options.pretrained and options.stages == "2":
        raise InputError("--pretrained begins stage 1; with --stages 2 leave it out")
    if options.stages and not (options.data or options.dummy_data_len):
        raise InputError("--stages is about training: give --data, or leave it out to evaluate")
