"""Comparing a run's options with the recipe of hparams.py. Standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Mapping

from hparams import MIXED, PAPER, ROWS, STAGE_LENGTHS, Stage, number, scaled_lr, scaled_warmup_ratio

SCHEDULE = ("num_steps", "lr", "warmup_ratio")  # in the order of MIXED
CHECKED = (*SCHEDULE, "max_predictions_per_seq")  # what `disagreements` looks at
TOLERANCE = 0.005  # a value rounded to three digits, as published ones are, is off by no more
MANY_TOKENS = 65536  # eight times what a V100 with 16 GB takes of BERT-large in one pass


@dataclass(frozen=True)
class Disagreement:
    """One option of a run that is not the paper's value; `ratio` is given / paper."""

    option: str
    given: float
    paper: float
    ratio: float
    sentence: str


def disagreements(given: Mapping[str, Any], stage: Stage) -> list[Disagreement]:
    """The options of a run that differ by more than 0.5% (rounding to three digits) from the paper's.

    A run whose schedule is that of the paper's mixed batch (`follows_mixed_run`) is compared with that.

    Args:
        given: the run's options, by their names without dashes. Names outside CHECKED and values of None
            are passed over, so `vars(args)` will do.
        stage: from `stage_for_run`.
    """
    found = []
    mixed = follows_mixed_run(given, stage)
    for option in CHECKED:
        value, paper = given.get(option), getattr(stage, option)
        if value is None or _near(value, paper) or (mixed and option in SCHEDULE):
            continue
        shown = f"{paper:.5g}" if isinstance(paper, float) else str(paper)
        sentence = f"--{option} {value} is {value / paper:.3g} times the paper's {shown}"
        if option != "max_predictions_per_seq":
            where = _fitting_row(option, value, stage)
            sentence += f" for {number(stage.sequences_per_step)} sequences a step; {where}"
        found.append(Disagreement(option, value, paper, value / paper, sentence))
    return found


def follows_mixed_run(given: Mapping[str, Any], stage: Stage) -> bool:
    """Whether steps, learning rate and warmup, as far as `given` has them, are all those of the paper's mixed
    64K/32K run, which are other values than the formula's; it is the same batch and stage."""
    sequences, *published = MIXED[stage.stage - 1]
    baseline = PAPER.batch_size * PAPER.steps[stage.stage - 1]
    length = STAGE_LENGTHS[stage.stage - 1]
    here = (stage.sequences_per_step, stage.max_seq_length, stage.baseline_sequences)
    pairs = [(given.get(option), value) for option, value in zip(SCHEDULE, published)]
    chosen = [(value, paper) for value, paper in pairs if value is not None]
    return here == (sequences, length, baseline) and bool(chosen) and all(_near(*pair) for pair in chosen)


def batch_size_hint(batch_size: int, use_avg_len: bool, max_seq_length: int) -> str | None:
    """One sentence where `batch_size`, of the training scripts, has probably been meant in tokens, else None:
    read as sequences it is more than MANY_TOKENS tokens, read as tokens it holds a sequence."""
    tokens = batch_size * max_seq_length
    if use_avg_len or tokens <= MANY_TOKENS or batch_size < max_seq_length:
        return None
    return (
        f"--batch_size {batch_size} without --use_avg_len is {batch_size} sequences of {max_seq_length}, "
        f"{tokens} tokens, in one pass of a GPU or process; if it counts tokens, add --use_avg_len"
    )


def _near(value: float, paper: float) -> bool:
    return abs(value / paper - 1) <= TOLERANCE


def _fitting_row(option: str, value: float, stage: Stage) -> str:
    """The place where `value` is published: it tells a misread row from a typing error."""
    sequences, *published = MIXED[stage.stage - 1]
    if sequences == stage.sequences_per_step and value in published:
        return "it is the published mixed 64K/32K run's"
    for row in ROWS:
        steps = math.ceil(stage.baseline_sequences / row)
        paper = {"num_steps": steps, "lr": scaled_lr(row), "warmup_ratio": scaled_warmup_ratio(row)}[option]
        if _near(value, paper):
            return f"it is the value for {row}"
    return "it fits no row of the paper's table"
