"""The training script's part of a launch command, the same for every launcher. Standard library only."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Callable, Sequence

from hosts.hostfile import HostsError

if TYPE_CHECKING:
    from hparams import Stage

COMPUTED = (
    *("--num_steps", "--lr", "--warmup_ratio", "--batch_size", "--use_avg_len", "--accumulate"),
    *("--max_seq_length", "--max_predictions_per_seq", "--ckpt_dir"),
)
# Left unset, the shell refuses to run the command and says so; set, its globs reach the script unexpanded.
DATA = '"${DATA:?set it to your text files, for example /corpus/*.txt}"'


def quote(word: str) -> str:
    """`shlex.quote`, except that the caret of ^openib, which is plain text to sh and bash, stays bare."""
    return word if re.fullmatch(r"[\w@%+=:,./^-]+", word, re.ASCII) else shlex.quote(word)


def comment(stage: Stage) -> str:
    """What is trained, as lines of shell comment."""
    batch = f"{stage.sequences_per_step:.10g} sequences of {stage.max_seq_length}"
    lines = [f"# stage {stage.stage}: {stage.num_steps} steps of {batch}"]
    if stage.stage == 2:
        lines.append(
            "# It does not continue from stage 1's checkpoint yet: as it is, it trains from scratch."
        )
    return "\n".join(lines)


def script_lines(
    stage: Stage,
    own: Sequence[str],
    quote: Callable[[str], str] = quote,
    data: str = DATA,
    any_dtype: bool = False,
) -> list[str]:
    """The script's options as lines of shell text.

    Args:
        stage: what to train.
        own: the user's own options. They replace the defaults (BERT-large, float16, lamb, raw text from
            $DATA) but not what `stage` has computed.
        quote: makes a word of `own` safe for the shells that will read it.
        data: the value of --data, as shell text, where `own` has none.
        any_dtype: leave the precision to the script, which chooses float16 on GPUs and float32 without: for
            a machine that may have none, where MXNet has no float16.

    Raises:
        HostsError: `own` contradict the stage.
    """
    names = [word.split("=", 1)[0] for word in own if word.startswith("--")]
    for name in names:
        if name in COMPUTED:
            raise HostsError(f"{name} after --: computed for each stage; change it in the printed command")
    defaults = {"--model": "bert_24_1024_16", "--dtype": "float16", "--optimizer": "lamb"}
    if any_dtype:
        del defaults["--dtype"]
    lines = [" ".join(f"{name} {value}" for name, value in defaults.items() if name not in names)]
    schedule, batch = stage.options().split(" --batch_size ")
    lines += [schedule, f"--batch_size {batch}"]
    if "--dummy_data_len" not in names:
        raw = [] if "--raw" in names or _is_npz(own) else ["--raw"]
        lines.append(" ".join(raw + ([] if "--data" in names else [f"--data {data}"])))
    lines.append(" ".join(map(quote, own)))
    lines.append(f"--ckpt_dir ckpt_stage{stage.stage}")
    return [line for line in lines if line]


def needs_data(own: Sequence[str]) -> bool:
    """Whether `script_lines` adds --data."""
    names = {word.split("=", 1)[0] for word in own if word.startswith("--")}
    return not names & {"--data", "--dummy_data_len"}


def _is_npz(own: Sequence[str]) -> bool:
    """Whether the training data are npz files rather than text."""
    values = [word.split("=", 1)[1] for word in own if word.startswith("--data=")]
    values += [value for name, value in zip(own, own[1:]) if name == "--data"]
    return any(value.endswith(".npz") for value in values)
