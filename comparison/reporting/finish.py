"""How long both stages of the LAMB paper would take at a measured rate, and what that costs."""

from __future__ import annotations

import math
from typing import Any, Mapping, NamedTuple

import lamb_paper
from base.errors import InputError
from bert.configuration import parse_model
from comparison.settings import Setting
from training.profiling.flops import forward_flops


class StageTime(NamedTuple):
    """`estimated`: the rate was measured at another sequence length and converted."""

    stage: int
    max_seq_length: int
    num_steps: int
    tokens_per_s: float
    seconds: float
    estimated: bool


class Finish(NamedTuple):
    """Both stages; `reason` instead of them where the plan is impossible. `cost`: in the unit of
    --price_per_hour; None without a price."""

    stages: tuple[StageTime, ...]
    instances: int
    cost: float | None
    reason: str = ""

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.stages)


def finish(setting: Setting, rate: float, length: float, facts: Mapping[str, Any]) -> Finish:
    """The plan of hparams.py for as many GPUs as the setting has workers, at the setting's rate.

    The tokens of a stage, which count padding, divided by the rate with padding. A stage of the length that
    was measured takes the rate as it is. For another length it is converted by the floating-point operations
    of a token, as if a token of twice the operations took twice as long: the operations of attention grow
    with the length. Bytes exchanged and the update do not grow, so the time of the longer stage is
    overestimated where those are a large part of a step.

    Args:
        rate: padded tokens/s of all ranks.
        length: mean length with padding of the sequences that were measured.
    """
    per_gpu = setting.batch_size * (1 if facts["use_avg_len"] else facts["max_seq_length"])
    instances = math.ceil(setting.workers / (facts.get("gpus_per_instance") or 1))
    try:
        plan = lamb_paper.plan(setting.workers, per_gpu, facts.get("accumulate") or 1)
    except InputError:
        longest = max(lamb_paper.STAGE_LENGTHS)
        reason = f"{per_gpu} tokens a worker cannot hold one sequence of {longest}, which stage 2 has"
        return Finish((), instances, None, reason)
    stages = []
    for stage in plan.stages:
        measured = stage.max_seq_length == facts["max_seq_length"]
        factor = 1.0 if measured else _token_flops(length, facts) / _token_flops(stage.max_seq_length, facts)
        seconds = stage.tokens_seen / (rate * factor)
        stages.append(
            StageTime(
                stage.stage, stage.max_seq_length, stage.num_steps, rate * factor, seconds, not measured
            )
        )
    price = facts.get("price_per_hour")
    hours = sum(each.seconds for each in stages) / 3600
    return Finish(tuple(stages), instances, None if price is None else hours * price * instances)


def _token_flops(length: float, facts: Mapping[str, Any]) -> float:
    """Forward operations of one token in a sequence of this length, masked as the paper's runs are."""
    layers, units, _ = parse_model(facts["model"])
    whole = max(1, round(length))
    predictions = lamb_paper.default_max_predictions(whole)
    return forward_flops(layers, units, facts["vocab_size"], 1, whole, predictions).total / whole
