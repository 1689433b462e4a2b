"""Results of every setting from the records of its launches: figures, or a reason."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Mapping, Sequence

from comparison.campaign import Group, Setting
from comparison.runs import agreement
from comparison.runs.figures import Figures, figures_of, finish, scaling
from comparison.runs.record import PROFILED, TIMED, Record
from comparison.verdicts import Pair, compare

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
    figures: Figures | None = None
    confirmed: bool = False
    command: Sequence[str] = ()
    notes: tuple[str, ...] = ()
    differs: str = ""


@dataclass(frozen=True)
class Results:
    """All of them, in the order planned. `curves`: of each setting's first good launch, also where the
    setting is wrong. `greatest_difference`: of the losses and gradient norms of the backends that agree, by
    group and kind."""

    results: Sequence[Result]
    pairs: Sequence[Pair]
    curves: Mapping[Setting, agreement.Curve] = field(default_factory=dict)
    greatest_difference: Mapping[Group, Mapping[str, float]] = field(default_factory=dict)

    def of(self, setting: Setting) -> Result | None:
        return next((each for each in self.results if each.setting == setting), None)

    def groups(self) -> dict[Group, list[Result]]:
        groups: dict[Group, list[Result]] = {}
        for each in self.results:
            groups.setdefault(each.setting.group, []).append(each)
        return groups


def gather(facts: Mapping[str, Any], records: Sequence[Record], planned: Sequence[Setting]) -> Results:
    """Figures, reasons and verdicts. `facts`: as for `comparison.runs.report.write_report`."""
    timed = {setting: _of(records, setting, TIMED) for setting in planned}
    profiled = {setting: _of(records, setting, PROFILED) for setting in planned}
    failures = {
        setting: failure for setting in planned if (failure := _failure(timed[setting], profiled[setting]))
    }
    judgements: dict[Setting, agreement.Judgement] = {}
    curves, differences = {}, {}
    for group in dict.fromkeys(setting.group for setting in planned):
        ran = {s.backend: timed[s] for s in planned if s.group == group and s not in failures}
        judged = agreement.judge(ran, group, facts)
        for backend, launches in ran.items():
            setting = Setting(backend, *group)
            judgements[setting] = judged[backend]
            curves[setting] = agreement.outcome(launches[0]).curve
        agreeing = [launches[0] for name, launches in ran.items() if judged[name].kind == agreement.CONFIRMED]
        if len(agreeing) > 1:
            differences[group] = agreement.greatest_difference(map(agreement.outcome, agreeing))

    figures: dict[Setting, Figures] = {}
    for setting, judgement in judgements.items():
        if judgement.kind in (agreement.CONFIRMED, agreement.UNCONFIRMED):
            profiles = [each for each in profiled[setting] if not _profile_failure(each)]
            figures[setting] = figures_of(setting, timed[setting], profiles)
    results = [
        _result(setting, timed, profiled, failures, judgements, _completed(setting, figures, facts))
        for setting in planned
    ]
    samples: dict[Group, dict[str, Mapping[int, float]]] = {}
    for setting, each in figures.items():
        samples.setdefault(setting.group, {})[setting.backend] = each.samples
    return Results(results, compare(samples, facts["confidence"]), curves, differences)


def _of(records: Sequence[Record], setting: Setting, kind: str) -> list[Record]:
    """In the order of their repeats; of two with the same number the later one counts."""
    by_repeat = {each.repeat: each for each in records if each.setting == setting and each.kind == kind}
    return [by_repeat[repeat] for repeat in sorted(by_repeat)]


def _failure(launches: Sequence[Record], profiles: Sequence[Record]) -> tuple[str, str] | None:
    """Kind and reason. A single failed launch is enough: figures of those that survived would flatter."""
    if not launches:
        broken = next((why for each in profiles if (why := _profile_failure(each))), None)
        return NOT_RUN, "not run yet" + (f"; its profiled launch failed: {broken}" if broken else "")
    failed = [(each, why) for each in launches if (why := _reason(each))]
    if not failed:
        return None
    reason = failed[0][1]
    often = f" (in {len(failed)} of {len(launches)} launches)" if len(launches) > 1 else ""
    if any(each.out_of_memory for each, _ in failed):
        reason = next(why for each, why in failed if each.out_of_memory)
        said = reason if OUT_OF_MEMORY in reason.lower() else f"{OUT_OF_MEMORY}: {reason}"
        return OUT_OF_MEMORY, said + often
    return FAILED, f"failed: {reason}{often}"


def _reason(record: Record) -> str | None:
    if record.failure:
        return " ".join(record.failure.split())
    if record.out_of_memory:
        return OUT_OF_MEMORY
    if not record.intervals:
        return "no step after the warm-up"
    return agreement.not_finite(record)


def _profile_failure(record: Record) -> str | None:
    if record.failure:
        return " ".join(record.failure.split())
    return None if record.breakdown else "it left no breakdown"


def _completed(
    setting: Setting, figures: Mapping[Setting, Figures], facts: Mapping[str, Any]
) -> Figures | None:
    """Figures with those that depend on other settings, or on the command line."""
    own = figures.get(setting)
    if own is None:
        return None
    return replace(
        own,
        scaling=scaling(own, figures.get(setting._replace(workers=1)), setting.workers),
        finish=finish(setting, own.padded_tokens_per_s.median, own.padded_length, facts),
    )


def _result(
    setting: Setting,
    timed: Mapping[Setting, Sequence[Record]],
    profiled: Mapping[Setting, Sequence[Record]],
    failures: Mapping[Setting, tuple[str, str]],
    judgements: Mapping[Setting, agreement.Judgement],
    figures: Figures | None,
) -> Result:
    launches = timed[setting]
    command = launches[0].command if launches else ()
    if setting in failures:
        kind, reason = failures[setting]
        return Result(setting, kind, reason, len(launches), command=command)
    judgement = judgements[setting]
    if figures is None:
        return Result(
            setting,
            judgement.kind,
            judgement.reason,
            len(launches),
            command=command,
            differs=judgement.short,
        )
    broken = [why for each in profiled[setting] if (why := _profile_failure(each))]
    number = len(profiled[setting])
    which = "the profiled launch" if number == 1 else f"{len(broken)} of {number} profiled launches"
    notes = [f"{which} gave no breakdown: {broken[0]}"] if broken else []
    confirmed = judgement.kind == agreement.CONFIRMED
    return Result(setting, OK, "", len(launches), figures, confirmed, command, tuple(notes))
