"""Results of every setting from the records of its launches: a reason, or figures of speed, memory,
breakdown, bytes, scaling and the time to finish."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import Any, Mapping, NamedTuple, Sequence

import lamb_paper
from base.errors import InputError
from bert.configuration import recorded_config
from bert.flops import forward_flops, size_of
from comparison.backends import RINGS, Cluster
from comparison.runs import agreement
from comparison.runs.record import PROFILED, RATES, TIMED, Record
from comparison.settings import Group, Setting
from comparison.verdicts import Pair, Spread, compare, spread
from training.profiling.breakdown import EXPOSED, PARTS


class Breakdown(NamedTuple):
    """Parts of a step of rank 0, in milliseconds; spreads are over so many `launches`. `exposed_ms`:
    communication while nothing computed, of which `exposed_share` is the part of the step's time;
    `hidden_ms`: while operators computed; `under_way_ms`: both. `parts`: those of
    `training.profiling.breakdown.PARTS`.

    Medians are taken of each figure for itself, so that a launch that stalled does not show in any; those of
    the parts need not add up to that of the step.
    """

    launches: int
    step_ms: Spread
    exposed_ms: Spread
    hidden_ms: Spread
    under_way_ms: Spread
    exposed_share: Spread
    parts: Mapping[str, Spread]


class Traffic(NamedTuple):
    """Bytes a step. `handed`: what a rank gives to its library. `worker`: what a rank sends over a link, and
    receives as much; `servers`: what all servers together send, and receive as much; None where there
    are none, or no formula is known. These follow from `handed`; nothing has counted them on the wire."""

    handed: int
    worker: float | None
    servers: float | None


def traffic(backend: str, workers: int, handed: int, local: int = 1) -> Traffic:
    """Bytes by the algorithm.

    An all-reduce in a ring sends each of n workers' S bytes in n parts round twice, less one stop each time:
    2 (n - 1) / n x S from every worker (P. Patarasuk and X. Yuan, 2009), which is also the least that any
    all-reduce can do. With parameter servers a worker pushes S and pulls S, so it sends S and receives S; the
    servers together receive n S and send n S. A single worker sends nothing: BytePS starts no server for it.
    The `local` ranks of one BytePS worker add up in the host's memory, which is no link.
    """
    if backend in RINGS:
        return Traffic(handed, 2 * (workers - 1) / workers * handed, None)
    if backend == "byteps" and local == 1:
        return Traffic(handed, handed, workers * handed) if workers > 1 else Traffic(handed, 0, 0)
    return Traffic(handed, None, None)


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
    --price_per_hour; None without a price. `seconds`: of both."""

    stages: tuple[StageTime, ...]
    instances: int
    cost: float | None
    reason: str = ""
    seconds: float = 0

    @property
    def estimated(self) -> bool:
        return any(each.estimated for each in self.stages)


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
    size = size_of(recorded_config(facts, "the comparison"), facts["vocab_size"])

    def token_flops(length: float) -> float:
        """Forward operations of one token in a sequence of this length, masked as the paper's runs are."""
        whole = max(1, round(length))
        predictions = lamb_paper.default_max_predictions(whole)
        return forward_flops(size, 1, whole, predictions).total / whole

    stages = []
    for stage in plan.stages:
        measured, own_rate = stage.max_seq_length == facts["max_seq_length"], rate
        if not measured:
            own_rate *= token_flops(length) / token_flops(stage.max_seq_length)
        seconds, steps = stage.tokens_seen / own_rate, stage.num_steps
        stages.append(StageTime(stage.stage, stage.max_seq_length, steps, own_rate, seconds, not measured))
    price, seconds = facts.get("price_per_hour"), sum(each.seconds for each in stages)
    cost = None if price is None else seconds / 3600 * price * instances
    return Finish(tuple(stages), instances, cost, seconds=seconds)


class Scaling(NamedTuple):
    """Against one worker of the same backend, dtype and batch size a worker: medians and quartiles over the
    repeats. `speed_up`: ratio of tokens/s; `expansion`: the speed-up by the number of workers, 1 where
    nothing is lost; `efficiency`: its median, by another name."""

    speed_up: Spread
    expansion: Spread
    efficiency: float


@dataclass(frozen=True)
class Figures:
    """Figures of a setting that ran as it should. Spreads are over the launches.

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
    start_up_s: Spread
    peak_bytes: Mapping[str, int]
    breakdown: Breakdown | None
    traffic: Traffic | None
    scaling: Scaling | None
    finish: Finish


def figures_of(
    setting: Setting, launches: Sequence[Record], profiles: Sequence[Record], facts: Mapping[str, Any]
) -> Figures:
    """All that the setting's own launches show: everything but its scaling.

    Args:
        launches: timed, none of them failed.
        profiles: profiled launches; those that failed do not count.
    """
    repeats = [each.repeat for each in launches]
    medians = {
        name: [statistics.median(getattr(each, name) for each in launch.intervals) for launch in launches]
        for name in ("step_s", *RATES)
    }
    spreads = {name: spread(values) for name, values in medians.items()}
    roles = dict.fromkeys(role for each in launches for role in each.peak_bytes)
    broken_down = [each.breakdown for each in profiles if each.breakdown]
    breakdown = None
    if broken_down:
        exposed = [each["parts"][EXPOSED]["ms"] for each in broken_down]
        hidden = [each["hidden_ms"][EXPOSED] for each in broken_down]
        steps = [each["step_ms"] for each in broken_down]
        breakdown = Breakdown(
            launches=len(broken_down),
            step_ms=spread(steps),
            exposed_ms=spread(exposed),
            hidden_ms=spread(hidden),
            under_way_ms=spread([one + other for one, other in zip(exposed, hidden)]),
            exposed_share=spread([part / step if step else 0.0 for part, step in zip(exposed, steps)]),
            parts={part: spread([each["parts"][part]["ms"] for each in broken_down]) for part in PARTS},
        )
    handed = next(
        (each.exchanged_bytes for each in profiles if each.breakdown and each.exchanged_bytes), None
    )
    hosts = facts.get("hosts")
    local = Cluster(hosts).first(setting.workers)[0][1] if hosts else 1
    # Tokens of all sequences with padding, by sequences; rates times the same seconds are counts.
    intervals = [each for launch in launches for each in launch.intervals]
    tokens = sum(each.padded_tokens_per_s * each.step_s for each in intervals)
    sequences = sum(each.sequences_per_s * each.step_s for each in intervals)
    length = tokens / sequences if sequences else 0.0
    return Figures(
        samples=dict(zip(repeats, medians["step_s"])),
        rate_samples=dict(zip(repeats, medians["tokens_per_s"])),
        padded_length=length,
        start_up_s=spread([each.start_up_s or 0.0 for each in launches]),
        peak_bytes={role: max(each.peak_bytes.get(role, 0) for each in launches) for role in roles},
        breakdown=breakdown,
        traffic=traffic(setting.backend, setting.workers, handed, local) if handed else None,
        scaling=None,
        finish=finish(setting, spreads["padded_tokens_per_s"].median, length, facts),
        **spreads,
    )


OK = "ok"
FAILED = "failed"
OUT_OF_MEMORY = "out of memory"
NOT_RUN = "not run"
# The other kinds are those of a judgement about what was computed: agreement.WRONG, agreement.UNDECIDED.


@dataclass(frozen=True)
class Result:
    """One setting. `kind`: OK, FAILED, OUT_OF_MEMORY, NOT_RUN, agreement.WRONG or agreement.UNDECIDED; only
    OK has figures, all others have a `reason` of one line. `differs`: in what, where it is WRONG or
    UNDECIDED, in a few words. `confirmed`: another backend has computed the same. `command`: of its first
    launch."""

    setting: Setting
    kind: str
    reason: str
    launches: int
    confirmed: bool = False
    command: Sequence[str] = ()
    notes: tuple[str, ...] = ()
    differs: str = ""
    figures: Figures | None = None


@dataclass(frozen=True)
class Results:
    """All of them, in the order planned. `facts`: as for `comparison.runs.report.report_of`. `curves`: of
    each setting's first good launch, also where the setting is wrong. `greatest_difference`: of the losses
    and gradient norms of the backends that agree, by group and kind."""

    results: Sequence[Result]
    pairs: Sequence[Pair]
    facts: Mapping[str, Any]
    curves: Mapping[Setting, agreement.Curve]
    greatest_difference: Mapping[Group, Mapping[str, float]]

    @property
    def unit(self) -> str:
        """Of batch sizes."""
        return "tokens" if self.facts["use_avg_len"] else "sequences"

    def title(self, backend: str) -> str:
        return str(self.facts["titles"][backend])

    def words(self, group: Group) -> str:
        workers = f"{group.workers} worker{'s' if group.workers > 1 else ''}"
        return f"{workers}, {group.dtype}, {group.batch_size:,} {self.unit}"

    def of(self, setting: Setting) -> Result:
        return next(each for each in self.results if each.setting == setting)


def gather(facts: Mapping[str, Any], records: Sequence[Record], planned: Sequence[Setting]) -> Results:
    """Figures, reasons and verdicts. `facts`: as for `comparison.runs.report.report_of`. `records`: those of
    a setting in the order of their repeats."""
    timed, profiled = (
        {each: [own for own in records if (own.setting, own.kind) == (each, kind)] for each in planned}
        for kind in (TIMED, PROFILED)
    )
    found: dict[Setting, Result] = {}
    samples: dict[Group, dict[str, Mapping[int, float]]] = {}
    curves, differences = {}, {}
    for group in dict.fromkeys(setting.group for setting in planned):
        ran: dict[str, list[Record]] = {}
        for setting in (each for each in planned if each.group == group):
            launches = timed[setting]
            kind, reason = _ending(launches, profiled[setting])
            command = launches[0].command if launches else ()
            found[setting] = Result(setting, kind, reason, len(launches), command=command)
            if kind == OK:
                ran[setting.backend] = launches
        judged = agreement.judge(ran, group, facts)
        for backend, (kind, reason, differs) in judged.items():
            setting, launches = Setting(backend, *group), ran[backend]
            profiles, curves[setting] = profiled[setting], agreement.curve_of(launches[0])
            if kind in (agreement.WRONG, agreement.UNDECIDED):
                found[setting] = replace(found[setting], kind=kind, reason=reason, differs=differs)
                continue
            broken, which = _broken(profiles), "the profiled launch"
            if len(profiles) > 1:
                which = f"{len(broken)} of {len(profiles)} profiled launches"
            notes = (f"{which} gave no breakdown: {broken[0]}",) if broken else ()
            own = figures_of(setting, launches, profiles, facts)
            samples.setdefault(group, {})[backend] = own.samples
            confirmed = kind == agreement.CONFIRMED
            found[setting] = replace(found[setting], confirmed=confirmed, notes=notes, figures=own)
        agreeing = [launches[0] for name, launches in ran.items() if judged[name].kind == agreement.CONFIRMED]
        if len(agreeing) > 1:
            differences[group] = agreement.greatest_difference(agreeing)
    figures = {setting: each.figures for setting, each in found.items() if each.figures}
    for setting, own in figures.items():
        alone = figures.get(setting._replace(workers=1))
        common = sorted(own.samples.keys() & alone.samples.keys()) if alone else []
        if alone and common:  # ratios are taken within a repeat
            ratios = [own.rate_samples[each] / alone.rate_samples[each] for each in common]
            growth = spread([each / setting.workers for each in ratios])
            own = replace(own, scaling=Scaling(spread(ratios), growth, growth.median))
            found[setting] = replace(found[setting], figures=own)
    results = [found[setting] for setting in planned]
    return Results(results, compare(samples, facts["confidence"]), facts, curves, differences)


def _ending(launches: Sequence[Record], profiles: Sequence[Record]) -> tuple[str, str]:
    """Kind and reason, before results are compared. A single failed launch is enough: figures of those that
    survived would flatter."""
    if not launches:
        broken = next(iter(_broken(profiles)), None)
        return NOT_RUN, "not run yet" + (f"; its profiled launch failed: {broken}" if broken else "")
    failed = [each for each in launches if each.failure]
    if not failed:
        return OK, ""
    first = next((each for each in failed if each.out_of_memory), failed[0])
    reason = " ".join((first.failure or "").split())
    often = f" (in {len(failed)} of {len(launches)} launches)" if len(launches) > 1 else ""
    if not first.out_of_memory:
        return FAILED, f"failed: {reason}{often}"
    said = reason if OUT_OF_MEMORY in reason.lower() else f"{OUT_OF_MEMORY}: {reason}"
    return OUT_OF_MEMORY, said + often


def _broken(profiles: Sequence[Record]) -> list[str]:
    """Of the profiled launches without a breakdown, why."""
    reasons = [each.failure or "it left no breakdown" for each in profiles if not each.breakdown]
    return [" ".join(each.split()) for each in reasons]
