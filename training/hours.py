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

MASKED = (
    0.4  # of the tokens: with 15% a run of an hour sees too few of them (arXiv:2202.08005 masks 40%, too)
)
EVALUATIONS = 20  # and checkpoints of a run, about


class Recipe(NamedTuple):
    """Settings of a run from so many hours on.

    tokens: of a process and step. step_s: seconds that a step takes about, for the interval of checkpoints.
    """

    hours: float
    model: str
    max_seq_length: int
    tokens: int
    lr: float
    step_s: float


# The first three rows are measured, for 10 and 30 minutes and an hour. The fourth is the next size, from
# where it sees about 20 tokens for each weight of its layers (Hoffmann et al. 2022, arXiv:2203.15556).
RECIPES = (
    Recipe(0.0, "bert_4_256_4", 64, 1024, 0.001, 0.08),
    Recipe(0.5, "bert_4_256_4", 64, 2048, 0.0014, 0.13),
    Recipe(1.0, "bert_4_256_4", 64, 2048, 0.0007, 0.13),
    Recipe(2.0, "bert_8_256_4", 64, 2048, 0.001, 0.25),
)


def recipe(hours: float) -> Recipe:
    """The last row of the table that begins at so many hours or fewer."""
    return [each for each in RECIPES if each.hours <= hours][-1]


def options(hours: float, bfloat16: bool) -> list[str]:
    """The options of the pretraining scripts for a run of so many hours, data and folders left out.

    bfloat16: whether the processor multiplies it.
    """
    chosen = recipe(hours)
    steps = hours * 3600 / chosen.step_s
    return [
        *("--model", chosen.model, "--dtype", "bfloat16" if bfloat16 else "float32", "--dropout", "0"),
        *("--max_seq_length", str(chosen.max_seq_length), "--masked_lm_prob", f"{MASKED:g}"),
        *("--max_predictions_per_seq", str(round(MASKED * chosen.max_seq_length))),
        # Pairs took 8 million tokens to leave the first plateau, single sentences one.
        *("--single_sentences", "--batch_size", str(chosen.tokens), "--use_avg_len"),
        # A linear decay: at a constant 0.001 a pilot stayed on the first plateau (docs/notebook/hours.md).
        *("--optimizer", "adamw", "--lr", f"{chosen.lr:g}", "--warmup_ratio", "0.05"),
        *("--budget_hours", f"{hours:g}"),
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
