"""A plan of the LAMB paper as a job: one run of a training script, of both stages or of one. Standard library
only."""

from __future__ import annotations

import shlex
from typing import Sequence

from base.errors import InputError
from hosts.shell import Job, Required, Word
from lamb_paper import Plan

COMPUTED = (  # options of the training scripts that follow from the plan
    *("--stages", "--num_steps", "--lr", "--warmup_ratio", "--batch_size", "--use_avg_len", "--accumulate"),
    *("--max_seq_length", "--max_predictions_per_seq"),
)
BEFORE = "--pipeline_stages"  # the plan follows from it
DATA = Required("DATA", "set it to your text files, for example /corpus/*.txt")
DEFAULTS = {"--model": "bert_24_1024_16", "--dtype": "float16", "--optimizer": "lamb"}
CKPT_DIR = "ckpt_dir"  # both stages', also where each is a run of its own: stage 2 begins with stage 1's end


def pretraining_job(plan: Plan, script: str, own: Sequence[str], any_dtype: bool) -> Job:
    """A plan as a job of a training script.

    Args:
        plan: both stages, which become one run, or one of them.
        script: the training script.
        own: the user's own options. They replace the defaults (BERT-large, float16, lamb, raw text from
            $DATA, the checkpoints' folder) but not what `plan` has computed.
        any_dtype: leave the precision to the script, which chooses float16 on GPUs and float32 without: for
            a machine that may have none, where MXNet has no float16.

    Raises:
        InputError: `own` contradict the plan.
    """
    names = [word.split("=", 1)[0] for word in own if word.startswith("--")]
    for name in names:
        if name == BEFORE:
            raise InputError(f"{name} after --: the sequences of a step depend on it; give it before --")
        if name in COMPUTED:
            raise InputError(f"{name} after --: computed from the plan; change it in the printed command")
    left_out = {*names, "--dtype"} if any_dtype else names
    defaults = [word for pair in DEFAULTS.items() if pair[0] not in left_out for word in pair]
    computed = shlex.split(plan.options())
    cut = computed.index("--batch_size")
    data: list[Word] = []
    if "--dummy_data_len" not in names:
        data += [] if "--raw" in names or _is_npz(own) else ["--raw"]
        data += [] if "--data" in names else ["--data", DATA]
    place = [] if "--ckpt_dir" in names else ["--ckpt_dir", CKPT_DIR]
    lines: list[Sequence[Word]] = [defaults, computed[:cut], computed[cut:], data, own, place]
    title = "both stages" if len(plan.stages) > 1 else f"stage {plan.stages[0].stage}"
    comment = [_batches(plan)]
    if [stage.stage for stage in plan.stages] == [2] and "--init_from" not in names:
        comment.append("It begins with the parameters of stage 1's last checkpoint in --ckpt_dir.")
    return Job(title, tuple(comment), script, tuple(map(tuple, lines)))


def _batches(plan: Plan) -> str:
    """A line about the steps of each stage."""
    batches: list[str] = []
    for stage in plan.stages:
        sequences = f"{stage.sequences_per_step:.10g} sequences of {stage.max_seq_length}"
        batches.append(f"{stage.num_steps} {'of' if batches else 'steps of'} {sequences}")
    return ", then ".join(batches)


def _is_npz(own: Sequence[str]) -> bool:
    """Tests whether the training data are npz files rather than text."""
    values = [word.split("=", 1)[1] for word in own if word.startswith("--data=")]
    values += [value for name, value in zip(own, own[1:]) if name == "--data"]
    return any(value.endswith(".npz") for value in values)
