"""Did all backends compute the same? Asked before any time is looked at.

The backends of a group get the same batches, the same initial parameters and the same random numbers, and
`average` is the same mean whatever library forms it. So their losses agree at every step, up to the order in
which floating-point numbers are added; and so do the numbers of tokens and sequences, without which a backend
that leaves out work, or counts it twice, would look fast.
"""

from __future__ import annotations

import math
from typing import Iterable, Mapping, NamedTuple, Sequence

from comparison.record import Record

# Relative difference of two losses up to which they are the same, by dtype; see `tolerance`.
TOLERANCE = {"float32": 1e-4, "bfloat16": 1e-3, "float16": 1e-3}
STEADY_STEPS = 100  # so long the tolerance stays, then it grows with the steps
FLOOR_NATS = 0.1  # losses below this are compared as if they were this: near 0 a ratio says nothing
WORK_TOLERANCE = 1e-6  # tokens a step are whole numbers that went through one division

CONFIRMED = "confirmed"
UNCONFIRMED = "unconfirmed"
WRONG = "wrong"
UNDECIDED = "undecided"

# Step -> figure -> value. Losses in nats; tokens and sequences a step over all ranks.
Curve = Mapping[int, Mapping[str, "float | None"]]
_LOSSES = ("mlm_loss", "nsp_loss")
_WORK = ("tokens a step", "padded tokens a step", "sequences a step")


class Difference(NamedTuple):
    """Where two curves part first."""

    step: int
    name: str
    found: float | None
    expected: float | None

    def __str__(self) -> str:
        if self.found is None or self.expected is None:
            kind = "missing" if self.found is None else "there"
            return f"at step {self.step}: {self.name} is {kind}"
        found, expected = _telling(self.found, self.expected)
        return f"at step {self.step}: {self.name} {found} instead of {expected}"


class Judgement(NamedTuple):
    """Of one backend in a group.

    `kind`: CONFIRMED, a strict majority of the backends agrees with it; UNCONFIRMED, there is no other to
    compare with; WRONG; UNDECIDED, no strict majority. `reason`: one line, "" for the first two kinds.
    """

    kind: str
    reason: str


def tolerance(dtype: str, step: int = 0) -> float:
    """Greatest relative difference of two losses at a step that still counts as the same.

    With two workers a + b = b + a, so every backend forms the same mean, bit for bit, and on CPUs the losses
    are equal. With more, the libraries add in different orders, and GPUs add in another order every time: one
    rounding is 6e-8 of a float32. In bfloat16 (8 bits) and float16 (11 bits) a difference in the last bit of
    a weight may round an operand of a product up or down, by 4e-3 and 5e-4 of it, of which means over many
    operands leave little. Three workers of the embedded default differed in 60 steps by at most 6e-8 in
    float32 (MPI, Gloo and BytePS) and 5e-6 in bfloat16 (MPI and Gloo); the limits are 200 times that and
    more. As training amplifies whatever difference there is, a longer run is given more.
    """
    return TOLERANCE.get(dtype, max(TOLERANCE.values())) * max(1.0, step / STEADY_STEPS)


def curve(record: Record) -> Curve:
    """What a launch computed, at every line of its metrics, warm-up included."""
    found: dict[int, dict[str, float | None]] = {}
    for each in (*record.warm_up, *record.intervals):
        rates = (each.tokens_per_s, each.padded_tokens_per_s, each.sequences_per_s)
        work = {name: rate * each.step_s for name, rate in zip(_WORK, rates)}
        found[each.step] = {"mlm_loss": each.mlm_loss, "nsp_loss": each.nsp_loss, **work}
    return found


def not_finite(record: Record) -> str | None:
    """A line about the first figure of a launch that is not a finite number; None: there is none."""
    for step, figures in sorted(curve(record).items()):
        for name, value in figures.items():
            if value is None or not math.isfinite(value):
                return f"{name} is not finite at step {step}"
    return None


def first_difference(found: Curve, expected: Curve, dtype: str) -> Difference | None:
    """The first step, and there the first figure, in which two curves are not the same."""
    for step in sorted(found.keys() | expected.keys()):
        ours, theirs = found.get(step, {}), expected.get(step, {})
        for name in (*_WORK, *_LOSSES):
            one, other = ours.get(name), theirs.get(name)
            if one is None and other is None:
                continue
            limit, floor = (tolerance(dtype, step), FLOOR_NATS) if name in _LOSSES else (WORK_TOLERANCE, 0.0)
            if one is None or other is None or not _close(one, other, limit, floor):
                return Difference(step, name, one, other)
    return None


def judge(records: Mapping[str, Sequence[Record]], dtype: str) -> dict[str, Judgement]:
    """The backends of a group against each other.

    Every launch of a backend must repeat its first. Of the backends that repeat themselves, those that agree
    with more than half of them are right.

    Args:
        records: backend -> its launches without failure, at least one.
    """
    judged: dict[str, Judgement] = {}
    curves: dict[str, Curve] = {}
    for backend, launches in records.items():
        curves[backend] = curve(launches[0])
        for other in launches[1:]:
            difference = first_difference(curve(other), curves[backend], dtype)
            if difference:
                reason = f"wrong: repeats of the same launch differ (repeat {other.repeat}, {difference})"
                judged[backend] = Judgement(WRONG, reason)
                break
    voters = [backend for backend in records if backend not in judged]
    agreeing = {
        backend: [other for other in voters if not first_difference(curves[backend], curves[other], dtype)]
        for backend in voters
    }
    right = [backend for backend in voters if 2 * len(agreeing[backend]) > len(voters)]
    for backend in voters:
        judged[backend] = _verdict(backend, voters, right, curves, dtype)
    return {backend: judged[backend] for backend in records}


def _verdict(
    backend: str, voters: Sequence[str], right: Sequence[str], curves: Mapping[str, Curve], dtype: str
) -> Judgement:
    if len(voters) == 1:
        return Judgement(UNCONFIRMED, "")
    if backend in right:
        return Judgement(CONFIRMED, "")
    others = [other for other in (right or voters) if other != backend]
    differences = [first_difference(curves[backend], curves[other], dtype) for other in others]
    first = min((each for each in differences if each), key=lambda each: each.step)
    what = "losses" if first.name in _LOSSES else "work"
    if right:
        return Judgement(WRONG, f"wrong: {what} differ{_s(what)} (first {first})")
    count = {2: "two", 3: "three", 4: "four"}.get(len(voters), str(len(voters)))
    return Judgement(
        UNDECIDED,
        f"{what} differ{_s(what)} (first {first}); which is right cannot be told from {count}",
    )


def greatest_difference(curves: Iterable[Curve]) -> float | None:
    """Of any loss at any step, relative to the greater; None for fewer than two curves."""
    known = list(curves)
    if len(known) < 2:
        return None
    worst = 0.0
    for step in set.intersection(*(set(each) for each in known)):
        for name in _LOSSES:
            values = [value for each in known if (value := each[step].get(name)) is not None]
            if len(values) > 1:
                worst = max(worst, (max(values) - min(values)) / max(FLOOR_NATS, max(map(abs, values))))
    return worst


def _close(one: float, other: float, limit: float, floor: float) -> bool:
    return abs(one - other) <= limit * max(abs(one), abs(other), floor)


def _telling(one: float, other: float) -> tuple[str, str]:
    """Both with as few digits as show that they differ."""
    for digits in range(4, 17):
        texts = f"{one:.{digits}g}", f"{other:.{digits}g}"
        if texts[0] != texts[1]:
            return f"{one:.{digits + 1}g}", f"{other:.{digits + 1}g}"
    return repr(one), repr(other)


def _s(what: str) -> str:
    return "s" if what == "work" else ""
