"""Pairs of options, one value for each stage: `--num_steps 7038,1561`. Standard library only."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from base.command_line import Pair, pair_of, whole
from base.errors import InputError
from lamb_paper import STAGES

PAIRED = (  # options that may differ between the stages
    *("num_steps", "lr", "warmup_ratio", "end_lr", "decay_power", "cooldown_ratio", "budget_hours"),
    *("max_seq_length", "max_predictions_per_seq", "short_seq_prob", "masked_lm_prob", "num_buckets"),
    *("batch_size", "batch_size_eval", "accumulate", "dropout", "clip_norm"),
    *("log_interval", "ckpt_interval", "dummy_data_len"),
)
# Reads --accumulate. More passes than sequences in twice the LAMB paper's largest step are a slip of the pen,
# and a step that takes days can neither be logged nor stopped.
accumulation = whole(1, 65_536, "a sequence each in the LAMB paper's largest step")
_OF_STAGE_2 = {"data": "data_2", "data_eval": "data_eval_2"}  # what stage 2 has instead, where it is given


class StageOptions(NamedTuple):
    """The options of a stage, without pairs, and those of the whole run as they were `given`. `stage` is None
    for a run without --stages."""

    stage: int | None
    options: argparse.Namespace
    given: argparse.Namespace


def allow_pairs(parser: argparse.ArgumentParser) -> None:
    """Lets each option of PAIRED take two values with a comma between them."""
    for action in parser._actions:
        if action.dest in PAIRED:
            assert callable(action.type), action.dest
            action.type = pair_of(action.type)


def options_of_stages(options: argparse.Namespace) -> list[StageOptions]:
    """The options of each stage that a run has, in order; of a run without --stages the options themselves.

    Of a pair each stage has its own value, a single value counts for both; stage 2 reads --data_2 and
    --data_eval_2 where they are given.

    Raises:
        InputError: a pair, or data for stage 2, without --stages.
    """
    given = {name: getattr(options, name, None) for name in PAIRED}
    pairs = {name: value for name, value in given.items() if isinstance(value, Pair)}
    if options.stages is None:
        for name, pair in pairs.items():
            raise InputError(
                f"--{name} {pair}: two values are for two stages; add --stages, or give one value"
            )
        for name in _OF_STAGE_2.values():
            if getattr(options, name):
                raise InputError(
                    f"--{name} is for stage 2; add --stages, or name the data with --{name[:-2]}"
                )
        return [StageOptions(None, options, options)]
    found = []
    for stage in STAGES[options.stages]:
        values = {**vars(options), **{name: pair[stage - 1] for name, pair in pairs.items()}}
        if stage == 2:
            values.update({name: values[other] for name, other in _OF_STAGE_2.items() if values[other]})
        found.append(StageOptions(stage, argparse.Namespace(**values), options))
    return found
