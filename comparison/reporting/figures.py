"""What a setting that ran as it should has to show for it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Mapping, NamedTuple, Sequence

from comparison.record import Record
from comparison.reporting.breakdown import Breakdown, breakdown_of
from comparison.reporting.finish import Finish
from comparison.reporting.traffic import Traffic, traffic
from comparison.settings import Setting
from comparison.statistics import Spread, spread

_RATES = ("tokens_per_s", "padded_tokens_per_s", "sequences_per_s")


class Scaling(NamedTuple):
    """Against one worker of the same backend, dtype and batch size a worker: medians and quartiles over the
    repeats. `speed_up`: ratio of tokens/s; `expansion`: the speed-up by the number of workers, 1 where
    nothing is lost."""

    speed_up: Spread
    expansion: Spread

    @property
    def efficiency(self) -> float:
        """The same by another name, its median."""
        return self.expansion.median


@dataclass(frozen=True)
class Figures:
    """Of a setting that ran as it should. Spreads are over the launches.

    `samples`: repeat -> seconds per step, the launch's median over its intervals. `tokens_per_s` leaves
    padding out; rates are of all ranks together. `padded_length`: tokens of a sequence with padding, mean.
    """

    samples: Mapping[int, float]
    rate_samples: Mapping[int, float]
    step_s: Spread
    tokens_per_s: Spread
    padded_tokens_per_s: Spread
    sequences_per_s: Spread
    padded_length: float
    start_up_s: Spread | None
    peak_bytes: Mapping[str, int]
    breakdown: Breakdown | None
    traffic: Traffic | None
    scaling: Scaling | None = None
    finish: Finish | None = None


def figures_of(setting: Setting, launches: Sequence[Record], profiles: Sequence[Record]) -> Figures:
    """All that the setting's own launches show.

    Args:
        launches: timed, none of them failed.
        profiles: profiled launches that have a breakdown.
    """
    medians = {
        name: [statistics.median(getattr(each, name) for each in launch.intervals) for launch in launches]
        for name in ("step_s", *_RATES)
    }
    rates = {name: spread(medians[name]) for name in _RATES}
    starts = [each.start_up_s for each in launches if each.start_up_s is not None]
    roles = dict.fromkeys(role for each in launches for role in each.peak_bytes)
    breakdowns = [each.breakdown for each in profiles if each.breakdown]
    handed = [each.exchanged_bytes for each in (*profiles, *launches) if each.exchanged_bytes]
    repeats = [each.repeat for each in launches]
    return Figures(
        samples=dict(zip(repeats, medians["step_s"])),
        rate_samples=dict(zip(repeats, medians["tokens_per_s"])),
        step_s=spread(medians["step_s"]),
        padded_length=_padded_length(launches),
        start_up_s=spread(starts) if starts else None,
        peak_bytes={role: max(each.peak_bytes.get(role, 0) for each in launches) for role in roles},
        breakdown=breakdown_of(breakdowns) if breakdowns else None,
        traffic=traffic(setting.backend, setting.workers, handed[0] if handed else None),
        tokens_per_s=rates["tokens_per_s"],
        padded_tokens_per_s=rates["padded_tokens_per_s"],
        sequences_per_s=rates["sequences_per_s"],
    )


def _padded_length(launches: Sequence[Record]) -> float:
    """Tokens of all sequences with padding, by sequences; rates times the same seconds are counts."""
    intervals = [each for launch in launches for each in launch.intervals]
    tokens = sum(each.padded_tokens_per_s * each.step_s for each in intervals)
    sequences = sum(each.sequences_per_s * each.step_s for each in intervals)
    return tokens / sequences if sequences else 0.0


def scaling(own: Figures, alone: Figures | None, workers: int) -> Scaling | None:
    """Against the figures of one worker; ratios are taken within a repeat, None without a common one."""
    common = sorted(own.samples.keys() & alone.samples.keys()) if alone else []
    if alone is None or not common:
        return None
    ratios = [own.rate_samples[each] / alone.rate_samples[each] for each in common]
    return Scaling(spread(ratios), spread([each / workers for each in ratios]))
