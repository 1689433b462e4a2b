"""Limits within which two launches have computed the same, and cases in which no bit may differ."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

from comparison.reporting.figures import RING
from comparison.settings import Group, Setting

# Greatest relative difference of two losses, by dtype; see `between_backends`.
LOSS = {"float32": 1e-4, "bfloat16": 1e-3, "float16": 1e-3}
HALF = 1e-3  # for gradients that travel with fewer bits than they have, and for dtypes that are not listed
GRAD_NORM = 10.0  # a gradient norm may differ by so many times as much: see `between_backends`
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


def between_backends(group: Group, facts: Mapping[str, Any]) -> Limits:
    """Limits for two backends that train the same.

    With two ranks a + b = b + a, and half of it is exact, so every backend forms the same mean, bit for bit;
    on CPUs all else repeats itself, too. With more ranks, the libraries add in different orders, GPUs add in
    another order every time, and what is rounded to fewer bits on its way may be rounded in different places:
    one rounding is 6e-8 of a float32. In bfloat16 (8 bits) and float16 (11 bits) a difference in the last bit
    of a weight may round an operand of a product up or down, by 4e-3 and 5e-4 of it, of which means over many
    operands leave little. Three workers of the default over MPI, Gloo and BytePS differed in 60 steps by at
    most 7e-8 (losses) and 1e-7 (gradient norms) in float32, 3e-5 and 4e-4 in bfloat16; with two, not in
    a single bit. A gradient norm is that of one step, where a loss is a mean over steps, so it is given more,
    and still far less than the factor of two by which the sum of two ranks differs from their mean.

    Args:
        facts: `gpus` (how many; 0 or None: CPUs) and `compression` (as the training scripts take it).
    """
    exact = group.workers <= FEW_RANKS and _on_cpus(facts) and _compression(facts) == NONE
    return _limits(exact, group, facts)


def between_repeats(backend: str, group: Group, facts: Mapping[str, Any]) -> Limits:
    """Limits for two launches of the same setting, which have the same order of summation besides.

    That order is fixed in Horovod, where it does not fuse arrays (comm/horovod.py), and in BytePS only with
    two workers: its servers add in the order of arrival. Dithering rounds at random.

    Args:
        facts: as for `between_backends`; `fused`: whether Horovod fuses arrays.
    """
    ordered = group.workers <= FEW_RANKS or (backend in RING and not facts.get("fused"))
    exact = ordered and _on_cpus(facts) and _compression(facts) != DITHERING
    return _limits(exact, group, facts)


def compared(planned: Sequence[Setting], facts: Mapping[str, Any]) -> str:
    """Paragraph on what is compared between launches, and how close it has to be. `facts`: as for
    `between_repeats`."""
    groups = list(dict.fromkeys(setting.group for setting in planned))
    return (
        "Before any time is looked at, what the launches computed is compared: the repeats of a backend with"
        " its first launch, then the backends of a setting with each other. Compared are, for every log"
        " interval, warm-up included: masked-LM loss and next-sentence loss (means over the interval), the"
        " global norm of the averaged gradient before clipping and the learning rate (of the interval's last"
        " step), tokens without and with padding, and sequences a step; and the SHA-256 of the parameters"
        " that rank 0 has saved after the last step. Learning rates, tokens and sequences must be equal"
        f" everywhere. {_limits_words(groups, facts)} The repeats of a backend must have the same bits,"
        " parameters included, wherever its order of summation is fixed: with up to two workers, and over"
        " Horovod with more, on CPUs, unless Horovod fuses arrays or gradients are dithered. Backends that"
        " agree with a strict majority are right; others are wrong and get no figure and no verdict. Without"
        " a majority all of them get none."
    )


def _limits_words(groups: Sequence[Group], facts: Mapping[str, Any]) -> str:
    """The limits between backends of these groups, for a report."""
    sentences = []
    exact = [each for each in groups if between_backends(each, facts).same_bits]
    if exact:
        workers = " and ".join(str(each) for each in sorted({each.workers for each in exact}))
        sentences.append(
            f"With {workers} worker{'' if workers == '1' else 's'}, on CPUs and with gradients that travel"
            " uncompressed, there is only one right result: losses, gradient norms and the checksum of the"
            " final parameters must be equal to the last bit."
        )
    others = {each.dtype: between_backends(each, facts) for each in groups if each not in exact}
    if others:
        stated = "; ".join(
            f"in {dtype} {limits.loss:g} and {limits.grad_norm:g}" for dtype, limits in others.items()
        )
        why = []
        if any(each.workers > FEW_RANKS for each in groups):
            why.append("with more than two workers")
        if not _on_cpus(facts):
            why.append("on GPUs")
        if _compression(facts) != NONE:
            why.append(f"with --compression {_compression(facts)}")
        reasons = " and ".join(why)
        sentences.append(
            f"{reasons[0].upper()}{reasons[1:]} sums are rounded in an order, or at a place, that is not"
            f" fixed: losses and gradient norms may differ by these relative amounts: {stated}; after step"
            f" {STEADY_STEPS} they grow with the steps. The final parameters of two backends are not compared"
            " there."
        )
    return " ".join(sentences)


def _limits(exact: bool, group: Group, facts: Mapping[str, Any]) -> Limits:
    if exact:
        return Limits(True, 0.0, 0.0)
    loss = LOSS.get(group.dtype, HALF)
    if _compression(facts) != NONE:
        loss = max(loss, HALF)
    return Limits(False, loss, GRAD_NORM * loss)


def _on_cpus(facts: Mapping[str, Any]) -> bool:
    return not facts.get("gpus")


def _compression(facts: Mapping[str, Any]) -> str:
    return str(facts.get("compression") or NONE)
