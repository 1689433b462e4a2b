"""report.json: everything that was measured and what follows from it, for programs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Mapping, Sequence

from comparison.record import Record
from comparison.reporting.figures import Figures
from comparison.reporting.limits import compared
from comparison.reporting.results import Result, Results
from comparison.settings import Setting
from comparison.statistics import Pair, rule

SCHEMA = 2  # of report.json; it grows where the meaning of a field changes


def content(
    first: Sequence[str],
    results: Results,
    facts: Mapping[str, Any],
    records: Sequence[Record],
    planned: Sequence[Setting],
    repeats: int,
    complete: bool,
) -> dict[str, Any]:
    """What `json.dumps` takes, without NaN. `launches` are the raw samples; seconds, bytes, nats."""
    return _plain(
        {
            "schema": SCHEMA,
            "complete": complete,
            "repeats": repeats,
            "summary": list(first),
            "rule": rule(facts["confidence"]),
            "facts": dict(facts),
            "planned": list(planned),
            "results": [_result(each) for each in results.results],
            "pairs": [_pair(each) for each in results.pairs],
            "compared": compared(planned, facts),
            "greatest_relative_difference": [
                {**group._asdict(), **found} for group, found in results.greatest_difference.items()
            ],
            "launches": [each.to_json() for each in records],
        }
    )


def _result(result: Result) -> dict[str, Any]:
    fields = {name: value for name, value in vars(result).items() if name != "figures"}
    return {**fields, "figures": _figures(result.figures) if result.figures else None}


def _figures(figures: Figures) -> dict[str, Any]:
    """With what is a property there; each launch's own breakdown is in `launches`."""
    found = dict(vars(figures))
    if figures.scaling:
        found["scaling"] = {**figures.scaling._asdict(), "efficiency": figures.scaling.efficiency}
    if figures.finish:
        found["finish"] = {**figures.finish._asdict(), "seconds": figures.finish.seconds}
    return found


def _pair(pair: Pair) -> dict[str, Any]:
    return {**pair._asdict(), "faster": pair.faster}


def _plain(value: Any) -> Any:
    """Named tuples become objects; what is not finite, null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return _plain(vars(value))
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (str, int)) else str(value)  # a Path, say
