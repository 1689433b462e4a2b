"""Agreement of the backends: whether all computed the same, judged before any time.

The backends of a group get the same batches, the same initial parameters and the same random numbers, and
`average` is the same mean whatever library forms it. So losses, gradient norms, learning rates and numbers of
tokens agree at every line of metrics, and the saved parameters at the end. Losses alone would not do: with
clipping, or with LAMB, a gradient that is a multiple of the right one leaves them as they are. Without the
numbers of tokens a backend that leaves out work, or counts it twice, would look fast. `Limits` has how far
two launches may be apart.
"""

from __future__ import annotations

from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from comparison.backends import RINGS
from comparison.runs.record import RATES, Record
from comparison.settings import Group, Setting

# Greatest relative difference of two losses, by dtype; see `limits_of`.
LOSS = {"float32": 1e-4, "bfloat16": 1e-3, "float16": 1e-3}
HALF = 1e-3  # for gradients that travel with fewer bits than they have, and for dtypes that are not listed
NORM_BY_LOSS = 10.0  # a gradient norm may differ by so many times as much: see `limits_of`
STEADY_STEPS = 100  # so long a limit stays, then it grows with the steps
NONE, DITHERING = "none", "dithering"  # of --compression
FEW_RANKS = 2  # so many have one sum only, in whatever order they are added


class Limits(NamedTuple):
    """`same_bits`: everything is equal to the last bit, the saved parameters too. Otherwise `loss` and
    `grad_norm` are the greatest relative differences, and saved parameters are not compared."""

    same_bits: bool
    loss: float
    grad_norm: float

    def at(self, step: int) -> Limits:
        """Those of a step: training amplifies whatever difference there is, so a longer run is given more."""
        factor = max(1.0, step / STEADY_STEPS)
        return Limits(self.same_bits, self.loss * factor, self.grad_norm * factor)


def limits_of(group: Group, facts: Mapping[str, Any], backend: str | None = None) -> Limits:
    """Limits for two backends that train the same, or for two launches of one.

    With two ranks a + b = b + a, and half of it is exact, so every backend forms the same mean, bit for bit;
    on CPUs all else repeats itself, too. With more ranks, the libraries add in different orders, GPUs add in
    another order every time, and what is rounded to fewer bits on its way may be rounded in different places:
    one rounding is 6e-8 of a float32. In bfloat16 (8 bits) and float16 (11 bits) a difference in the last bit
    of a weight may round an operand of a product up or down, by 4e-3 and 5e-4 of it, of which means over many
    operands leave little. Three workers of the default over MPI, Gloo and BytePS differed in 60 steps by at
    most 7e-8 (losses) and 1e-7 (gradient norms) in float32, 3e-5 and 4e-4 in bfloat16; with two, not in
    a single bit. A gradient norm is that of one step, where a loss is a mean over steps, so it is given more,
    and still far less than the factor of two by which the sum of two ranks differs from their mean.

    Launches of one setting have the same order of summation besides. It is fixed in Horovod, where it does
    not fuse arrays (comm/horovod.py), and in BytePS with two workers, or with --reproducible: else its
    servers add in the order of arrival. Dithering rounds at random.

    Args:
        facts: `gpus` (how many; 0 or None: CPUs), `compression` and `reproducible` (as the training scripts
            take them), and `fused`: whether Horovod fuses arrays.
        backend: the one of both launches; None: they are of different ones.
    """
    compression = facts.get("compression") or NONE
    same_sums = group.workers <= FEW_RANKS and compression == NONE
    if backend is not None:
        fixed = not facts.get("fused") if backend in RINGS else bool(facts.get("reproducible"))
        same_sums = (group.workers <= FEW_RANKS or fixed) and compression != DITHERING
    if same_sums and not facts.get("gpus"):
        return Limits(True, 0.0, 0.0)
    loss = LOSS.get(group.dtype, HALF)
    if compression != NONE:
        loss = max(loss, HALF)
    return Limits(False, loss, NORM_BY_LOSS * loss)


def compared(planned: Sequence[Setting], facts: Mapping[str, Any]) -> str:
    """Paragraph on what is compared between launches, and how close it has to be. `facts`: as for
    `limits_of`."""
    groups = list(dict.fromkeys(setting.group for setting in planned))
    limits = []
    exact = [each for each in groups if limits_of(each, facts).same_bits]
    if exact:
        workers = " and ".join(str(each) for each in sorted({each.workers for each in exact}))
        limits.append(
            f"With {workers} worker{'' if workers == '1' else 's'}, on CPUs and with gradients that travel"
            " uncompressed, there is only one right result: losses, gradient norms and the checksum of the"
            " final parameters must be equal to the last bit."
        )
    others = {each.dtype: limits_of(each, facts) for each in groups if each not in exact}
    if others:
        stated = "; ".join(
            f"in {dtype} {each.loss:g} and {each.grad_norm:g}" for dtype, each in others.items()
        )
        compression = facts.get("compression") or NONE
        why = ["with more than two workers"] if any(each.workers > FEW_RANKS for each in groups) else []
        why += ["on GPUs"] if facts.get("gpus") else []
        why += [f"with --compression {compression}"] if compression != NONE else []
        reasons = " and ".join(why)
        limits.append(
            f"{reasons[0].upper()}{reasons[1:]} sums are rounded in an order, or at a place, that is not"
            f" fixed: losses and gradient norms may differ by these relative amounts: {stated}; after step"
            f" {STEADY_STEPS} they grow with the steps. The final parameters of two backends are not compared"
            " there."
        )
    return (
        "Before any time is looked at, what the launches computed is compared: the repeats of a backend with"
        " its first launch, then the backends of a setting with each other. Compared are, for every log"
        " interval, warm-up included: masked-LM loss and next-sentence loss (means over the interval), the"
        " global norm of the averaged gradient before clipping and the learning rate (of the interval's last"
        " step), tokens without and with padding, and sequences a step; and the SHA-256 of the parameters"
        " that rank 0 has saved after the last step. Learning rates, tokens and sequences must be equal"
        f" everywhere. {' '.join(limits)} The repeats of a backend must have the same bits,"
        " parameters included, wherever its order of summation is fixed: with up to two workers, and with"
        " more over Horovod, unless it fuses arrays, and over BytePS with --reproducible; on CPUs, and unless"
        " gradients are dithered. Backends that agree with a strict majority are right; others are wrong and"
        " get no figure and no verdict. Without a majority all of them get none."
    )


FLOOR_NATS = 0.1  # losses below this are compared as if they were this: near 0 a ratio says nothing
# Tokens a step are whole numbers that went through a few divisions and products: 2e-16 each.
WORK_TOLERANCE = 1e-12

CONFIRMED = "confirmed"
UNCONFIRMED = "unconfirmed"
WRONG = "wrong"
UNDECIDED = "undecided"

# Step -> figure -> value. Losses in nats; tokens and sequences a step over all ranks.
Curve = Mapping[int, Mapping[str, "float | None"]]
_LOSSES = ("mlm_loss", "nsp_loss")
_WORK = ("tokens a step", "padded tokens a step", "sequences a step")
GRAD_NORM, LR, PARAMETERS = "gradient norm", "learning rate", "final parameters"
# Figure -> the kind of difference, as tables name it.
_KINDS = {
    **dict.fromkeys(_WORK[:2], "numbers of tokens"),
    _WORK[2]: "numbers of sequences",
    LR: "learning rates",
    **dict.fromkeys(_LOSSES, "losses"),
    GRAD_NORM: "gradient norms",
    PARAMETERS: "final parameters",
}
_DIGITS = 12  # of a checksum, where it is shown


class Difference(NamedTuple):
    """One figure of one step in which two launches are apart. Of `PARAMETERS` the values are checksums."""

    step: int
    name: str
    actual: float | str | None
    expected: float | str | None

    def __str__(self) -> str:
        if self.actual is None or self.expected is None:
            kind = "missing" if self.actual is None else "there"
            return f"at step {self.step}: {self.name} is {kind}"
        actual, expected = _telling(self.actual, self.expected)
        return f"at step {self.step}: {self.name} {actual} instead of {expected}"


class Judgement(NamedTuple):
    """Judgement of one backend in a group.

    `kind`: CONFIRMED, a strict majority of the backends agrees with it; UNCONFIRMED, there is no other to
    compare with; WRONG; UNDECIDED, no strict majority. `reason`: one line, and `short`: what differs, in a
    few words; "" for the first two kinds.
    """

    kind: str
    reason: str = ""
    short: str = ""


def curve_of(record: Record) -> Curve:
    """Results of a launch, at every line of its metrics, warm-up included."""
    curve: dict[int, dict[str, float | None]] = {}
    for each in (*record.warm_up, *record.intervals):
        curve[each.step] = {
            **{name: getattr(each, rate) * each.step_s for name, rate in zip(_WORK, RATES)},
            LR: each.lr,
            "mlm_loss": each.mlm_loss,
            "nsp_loss": each.nsp_loss,
            GRAD_NORM: each.grad_norm,
        }
    return curve


def differences(actual: Record, expected: Record, limits: Limits) -> list[Difference]:
    """All figures in which two launches are not the same, in the order of steps.

    Learning rates must be equal: every backend's ranks compute them from the same options.
    """
    apart: list[Difference] = []
    curves = curve_of(actual), curve_of(expected)
    steps = sorted({*curves[0], *curves[1]})
    for step in steps:
        close = limits.at(step)
        allowed = {
            **dict.fromkeys(_WORK, WORK_TOLERANCE),
            LR: 0.0,
            **dict.fromkeys(_LOSSES, close.loss),
            GRAD_NORM: close.grad_norm,
        }
        for name, limit in allowed.items():
            one, other = (curve.get(step, {}).get(name) for curve in curves)
            if one is None or other is None:
                same = one is other
            else:  # NaN is close to nothing
                floor = FLOOR_NATS if name in _LOSSES else 0.0
                same = abs(one - other) <= limit * max(abs(one), abs(other), floor)
            if not same:
                apart.append(Difference(step, name, one, other))
    if limits.same_bits and actual.params_sha256 != expected.params_sha256:
        last = max(steps, default=0)
        apart.append(Difference(last, PARAMETERS, actual.params_sha256, expected.params_sha256))
    return apart


def judge(
    records: Mapping[str, Sequence[Record]], group: Group, facts: Mapping[str, Any]
) -> dict[str, Judgement]:
    """The backends of a group against each other.

    Every launch of a backend must repeat its first. Of the backends that repeat themselves, those that agree
    with more than half of them are right.

    Args:
        records: backend -> its launches without failure, at least one.
        facts: as for `comparison.runs.agreement.limits_of`.
    """
    # Repeats of a backend with its first launch; those that differ are wrong and have no vote.
    judged: dict[str, Judgement] = {}
    for backend, (first, *others) in records.items():
        limits = limits_of(group, facts, backend)
        for other in others:
            apart = differences(other, first, limits)
            if apart and backend not in judged:
                where = f"(repeat {other.repeat + 1}, first {apart[0]})"
                short = f"repeats differ in {_kinds(apart)}"
                judged[backend] = Judgement(WRONG, f"wrong: {short} {where}", short)
    # Then the backends with each other: whoever agrees with a strict majority is right.
    voters = {backend: launches[0] for backend, launches in records.items() if backend not in judged}
    limits = limits_of(group, facts)
    apart_from = {
        backend: {name: differences(own, other, limits) for name, other in voters.items()}
        for backend, own in voters.items()
    }
    right = [name for name, others in apart_from.items() if 2 * [*others.values()].count([]) > len(voters)]
    for backend, against in apart_from.items():
        if backend in right or len(voters) == 1:
            judged[backend] = Judgement(UNCONFIRMED if len(voters) == 1 else CONFIRMED)
            continue
        # The earliest difference, from those that are right if any are.
        apart = min(
            (against[name] for name in right or voters if against[name]), key=lambda each: each[0].step
        )
        short = f"{_kinds(apart)} differ"
        reason = f"wrong: {short} (first {apart[0]})"
        if not right:
            count = {2: "two", 3: "three", 4: "four"}.get(len(voters), str(len(voters)))
            reason = f"{short} (first {apart[0]}); which is right cannot be told from {count}"
        judged[backend] = Judgement(WRONG if right else UNDECIDED, reason, short)
    return {backend: judged[backend] for backend in records}


def greatest_difference(launches: Iterable[Record]) -> dict[str, float]:
    """Greatest difference of any loss and of any gradient norm at any step, relative to the greater, by kind
    of difference."""
    known = [curve_of(each) for each in launches]
    worst = {_KINDS[name]: 0.0 for name in (*_LOSSES, GRAD_NORM)}
    for step in set.intersection(*(set(each) for each in known)):
        for name in (*_LOSSES, GRAD_NORM):
            values = [value for each in known if (value := each[step].get(name)) is not None]
            if len(values) > 1 and max(values) > min(values):
                floor = FLOOR_NATS if name in _LOSSES else 0.0
                relative = (max(values) - min(values)) / max(floor, max(map(abs, values)))
                worst[_KINDS[name]] = max(worst[_KINDS[name]], relative)
    return worst


def _kinds(apart: Sequence[Difference]) -> str:
    """`losses, gradient norms and final parameters`."""
    found = {_KINDS[each.name] for each in apart}
    kinds = [kind for kind in dict.fromkeys(_KINDS.values()) if kind in found]
    return " and ".join(filter(None, [", ".join(kinds[:-1]), kinds[-1]]))


def _telling(one: float | str, other: float | str) -> tuple[str, str]:
    """Both with as few digits as show that they differ; checksums with their first ones."""
    if isinstance(one, str) or isinstance(other, str):
        return str(one)[:_DIGITS], str(other)[:_DIGITS]
    for digits in range(4, 17):
        texts = f"{one:.{digits}g}", f"{other:.{digits}g}"
        if texts[0] != texts[1]:
            return f"{one:.{digits + 1}g}", f"{other:.{digits + 1}g}"
    return repr(one), repr(other)
