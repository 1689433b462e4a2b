"""Memory and numbers of bench/step.py: workers that run together, ratios, spread, the table."""

from __future__ import annotations

import statistics
from typing import Any, Mapping, NamedTuple, Sequence

from bench.contestants import CONTESTANTS, OURS, PRODUCTS
from bench.work import Work, memory_estimate

Round = Mapping[str, float]  # contestant -> seconds of its step in this round


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float


class Plan(NamedTuple):
    """`sessions`: contestants whose workers live at the same time. `repeats`: how often all sessions are run;
    more than 1 where every contestant is alone, so that a slow minute does not meet only one of them."""

    sessions: list[list[str]]
    repeats: int


def plan_sessions(keys: Sequence[str], work: Work, available: float) -> Plan:
    """As few sessions as the memory allows. Each has ours, if it takes part: ratios are taken within one.

    Raises:
        ValueError: not even one worker fits.
    """
    most = memory_estimate(work.size, work.batch)
    needs = {key: most * (1.0 if CONTESTANTS[key].trains else 0.5) for key in keys}
    if max(needs.values()) > available:
        raise ValueError(
            f"needs about {max(needs.values()) / 2**30:.0f} GiB, {available / 2**30:.0f} GiB are available"
        )
    base = OURS if OURS in keys else keys[0]
    sessions: list[list[str]] = []
    waiting = [key for key in keys if key != base]
    while waiting:
        session, left = [base], available - needs[base]
        for key in list(waiting):
            if needs[key] <= left:
                session.append(key)
                waiting.remove(key)
                left -= needs[key]
        if len(session) == 1:
            return Plan([[key] for key in keys], 2)
        sessions.append(session)
    return Plan(sessions or [[base]], 1)


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def ratios(rounds: Sequence[Round], key: str, base: str) -> list[float]:
    """Seconds of `key` for one of `base`, in every round that has both."""
    return [each[key] / each[base] for each in rounds if key in each and base in each]


def summarize(
    rounds: Sequence[Round], gflop_of: Mapping[str, float], peak_gflops: float | None, tokens: int
) -> dict[str, Any]:
    """The figures of a model and dtype by contestant, and "outside_products", the share of our step that is
    no product of a matrix by weights. Contestants without a single step are left out.

    Args:
        gflop_of: contestant -> 10^9 operations of its step's matrix products.
        peak_gflops: 10^9 operations a second that count as 100%, if that is known.
        tokens: of a step.
    """
    result: dict[str, Any] = {}
    for key, gflop in gflop_of.items():
        seconds = [each[key] for each in rounds if key in each]
        if not seconds:
            continue
        step = spread(seconds)
        figures: dict[str, Any] = {"step_s": step._asdict(), "gflop": gflop, "gflops": gflop / step.median}
        if peak_gflops:
            figures["of_peak"] = figures["gflops"] / peak_gflops
        if CONTESTANTS[key].trains:
            figures["tokens_per_s"] = tokens / step.median
        compared = ratios(rounds, key, OURS)
        if compared and key != OURS:
            figures["to_ours"] = spread(compared)._asdict()
            scale = gflop_of[OURS] / gflop
            figures["to_ours_per_flop"] = statistics.median(compared) * scale
        result[key] = figures
    outside = [1 - ratio for ratio in ratios(rounds, PRODUCTS, OURS)]
    return {"contestants": result, "outside_products": spread(outside)._asdict() if outside else None}


HEAD = ("", "s/step (quartiles)", "tokens/s", "to ours (quartiles)", "per FLOP", "GFLOP", "GFLOP/s", "GiB")


def table(result: Mapping[str, Any]) -> str:
    """A result of bench/step.py for people; `result` as in the JSON file."""
    rows = [HEAD]
    for key, figures in result["contestants"].items():
        if "step_s" not in figures:
            continue
        ratio = figures.get("to_ours")
        of_peak = f" ({figures['of_peak']:.0%})" if "of_peak" in figures else ""
        trains = CONTESTANTS[key].trains
        rows.append(
            (
                CONTESTANTS[key].title,
                _with_quartiles(figures["step_s"], 3),
                f"{figures['tokens_per_s']:.0f}" if trains else "",
                _with_quartiles(ratio, 2) if ratio else "1" if key == OURS else "",
                f"{figures['to_ours_per_flop']:.2f}" if ratio and trains else "",
                f"{figures['gflop']:.0f}",
                f"{figures['gflops']:.0f}{of_peak}",
                f"{figures['peak_bytes'] / 2**30:.1f}" if figures.get("peak_bytes") else "",
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [result["work"]]
    for name, *cells in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:])]
        lines.append("  ".join([name.ljust(widths[0]), *padded]).rstrip())
    if result.get("outside_products"):
        share = Spread(**{name: 100 * value for name, value in result["outside_products"].items()})
        lines.append(
            f"outside products of a matrix by weights: {share.median:.0f}% of our step"
            f" ({share.low:.0f} to {share.high:.0f})"
        )
    if result.get("peak_gflops"):
        lines.append(
            f"100% of the matrix peak: {result['peak_gflops']:.0f} GFLOP/s, the fastest square product"
        )
    lines.append(
        f"{result['rounds']} rounds; other programs took {result['others']:.1%} of the machine,"
        f" its host {result['stolen']:.1%}; waiting workers {result['idle']:.1%} of a core"
    )
    for key, why in result["left_out"].items():
        said = why.splitlines()
        lines.append(f"{CONTESTANTS[key].title}: " + " ".join(dict.fromkeys([said[0], said[-1]])))
    return "\n".join(lines)


def _with_quartiles(values: Mapping[str, float], digits: int) -> str:
    median, low, high = (f"{values[name]:.{digits}f}" for name in ("median", "low", "high"))
    return f"{median} ({low} to {high})"
