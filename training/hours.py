"""The options with which `make pretrain HOURS=…` trains: a table from hours to a model and its batches.

    python -m training.hours 3

prints them. The hours are of two cores that multiply bfloat16; docs/notebook/hours.md has what each row was
chosen by, docs/quality.md what they bring. Standard library only.
"""

from __future__ import annotations

import sys
from typing import NamedTuple, Sequence

from base.command_line import OptionParser, code_of, within
from base.errors import InputError
from base.machine import multiplies_bfloat16

# Shares of the tokens in a first and a second stage, through which the learning rate decays as in one:
# 40% teaches more at first (arXiv:2202.08005), 15% is nearer to how sentences are judged and filled in.
# Ankner et al. (arXiv:2305.15096) lower the share step by step; docs/notebook/hours.md has what was tried.
MASKED = (0.4, 0.15)
FIRST = 0.7  # of the hours
LENGTH = 64  # tokens of a sequence at most
EVALUATIONS = 20  # and checkpoints of a run, about


class Recipe(NamedTuple):
    """Settings of a run from so many hours on.

    tokens: of a process and step. step_s: seconds that a step takes about, for the interval of checkpoints.
    """

    hours: float
    model: str
    tokens: int
    lr: float
    step_s: float


# Each row is measured (docs/quality.md). The third is the next size, from where it sees about 20 tokens for
# each weight of its layers (Hoffmann et al. 2022, arXiv:2203.15556).
RECIPES = (
    Recipe(0.0, "bert_4_256_4", 1024, 0.001, 0.08),
    Recipe(0.5, "bert_4_256_4", 2048, 0.0014, 0.13),
    Recipe(2.0, "bert_8_256_4", 2048, 0.001, 0.25),
)


def recipe(hours: float) -> Recipe:
    """The last row of the table that begins at so many hours or fewer."""
    return [each for each in RECIPES if each.hours <= hours][-1]


def options(hours: float, bfloat16: bool) -> list[str]:
    """The options of the pretraining scripts for a run of so many hours, data and folders left out.

    bfloat16: whether the processor multiplies it.
    """
    chosen = recipe(hours)
    steps, between = hours * 3600 / chosen.step_s, (1 - FIRST) * chosen.lr
    predictions = ",".join(str(round(share * LENGTH)) for share in MASKED)
    return [
        *("--model", chosen.model, "--dtype", "bfloat16" if bfloat16 else "float32", "--dropout", "0"),
        *("--stages", "both", "--keep_optimizer_state", "--max_seq_length", f"{LENGTH},{LENGTH}"),
        *("--masked_lm_prob", ",".join(map(str, MASKED)), "--max_predictions_per_seq", predictions),
        # Pairs took 8 million tokens to leave the first plateau, single sentences one.
        *("--single_sentences", "--batch_size", str(chosen.tokens), "--use_avg_len"),
        # A linear decay: at a constant 0.001 a pilot stayed on the first plateau (docs/notebook/hours.md).
        *("--optimizer", "adamw", "--lr", f"{chosen.lr:g},{between:g}", "--end_lr", f"{between:g},0"),
        *("--warmup_ratio", "0.05,0", "--budget_hours", f"{FIRST * hours:g},{(1 - FIRST) * hours:g}"),
        *("--log_interval", "100", "--ckpt_interval", str(max(1, round(steps / EVALUATIONS / 100)) * 100)),
        *("--keep_checkpoints", "3"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = OptionParser(description="Print the options of a pretraining run of so many hours.")
    parser.add_argument("hours", type=within(0.01, 1000, "hours"), metavar="HOURS")
    try:
        hours = parser.parse_args(arguments).hours
    except InputError as error:
        print(f"error: {error}".replace("argument HOURS", "HOURS"), file=sys.stderr)
        return 2
    print(" ".join(options(hours, multiplies_bfloat16())))
    return 0


if __name__ == "__main__":
    sys.exit(code_of(main))
