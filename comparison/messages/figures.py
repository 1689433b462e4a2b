"""Figures, reasons and verdicts from launches that sent messages."""

from __future__ import annotations

import itertools
import statistics
from typing import Any, Mapping, NamedTuple, Sequence

from comparison.messages.plan import Message, bus_bandwidth
from comparison.verdicts import Pair, Spread, compare, spread

REFERENCE = "hvd_mpi"  # whom the others are compared with, where it takes part


class Cell(NamedTuple):
    """A backend with so many ranks."""

    backend: str
    workers: int


class Place(NamedTuple):
    """Comparison of the reference with another backend: the group of a `comparison.verdicts.Pair`."""

    workers: int
    message: str
    backend: str


def place_of(pair: Pair) -> Place:
    assert isinstance(pair.group, Place)
    return pair.group


class Figures(NamedTuple):
    """Figures of one message over one backend.

    `latency_s`: over the launches, of each launch's median over its rounds; `samples`: the same by repeat.
    `first_s`: of the first call of a launch. Bandwidths in bytes a second, from the median latency; `bus` is
    None for a single rank. `ratio`: seconds for one of the reference's, over the repeats that both have.
    """

    latency_s: Spread
    samples: Mapping[int, float]
    first_s: Spread
    algorithm: float
    bus: float
    ratio: Spread | None


class Start(NamedTuple):
    """Over the launches of a backend. `start_up_s`: from the launch until all ranks had the first average.
    `agreement_s`: of one agreement, as after the exchange of every training step."""

    start_up_s: Spread
    agreement_s: Spread


class Outcome(NamedTuple):
    """`reasons`: why a message has no figures. `pairs`: of the reference with each of the others. `starts`:
    of the backends that were right everywhere and have come to an end."""

    figures: dict[Cell, dict[str, Figures]]
    reasons: dict[Cell, dict[str, str]]
    notes: dict[Cell, list[str]]
    pairs: list[Pair]
    starts: dict[Cell, Start]


def evaluate(
    cells: Sequence[Cell],
    messages: Sequence[Message],
    launches: Sequence[Mapping[str, Any]],
    left_out: Mapping[Cell, Mapping[str, str]],
    confidence: float,
) -> Outcome:
    """A message that failed, or held a wrong element, in any launch has a reason and no figures; a backend
    with a wrong element has no verdicts at all.

    Args:
        launches: as `comparison.messages.launches.send` returns them, with backend, workers and repeat.
        left_out: messages that were not sent at all, with the reason.
    """
    own = {cell: [each for each in launches if (each["backend"], each["workers"]) == cell] for cell in cells}
    reasons: dict[Cell, dict[str, str]] = {}
    notes: dict[Cell, list[str]] = {}
    samples: dict[Cell, dict[str, dict[int, float]]] = {}
    for cell in cells:
        reasons[cell] = dict(left_out.get(cell, {}))
        notes[cell] = []
        for launch in own[cell]:
            reasons[cell].update(
                {name: f"failed: {text}" for name, text in launch["failures"].items()},
            )
            notes[cell] += [f"repeat {launch['repeat'] + 1}: {text}" for text in launch["notes"]]
        for launch in own[cell]:
            reasons[cell].update({name: f"wrong: {text}" for name, text in launch["wrong"].items()})
        samples[cell] = {
            message.name: {
                launch["repeat"]: statistics.median(launch["results"][message.name]["rounds_s"])
                for launch in own[cell]
                if message.name in launch["results"] and message.name not in reasons[cell]
            }
            for message in messages
        }
    figures = {
        cell: {
            message.name: _figures(cell, message, own[cell], samples)
            for message in messages
            if samples[cell][message.name]
        }
        for cell in cells
    }
    correct = [cell for cell in cells if not any(launch["wrong"] for launch in own[cell])]
    groups = {}
    for workers in dict.fromkeys(cell.workers for cell in cells):
        reference = Cell(reference_of([cell.backend for cell in cells if cell.workers == workers]), workers)
        others = [cell for cell in correct if cell.workers == workers and cell != reference]
        for message, other in itertools.product(messages, others if reference in correct else ()):
            groups[Place(workers, message.name, other.backend)] = {
                cell.backend: samples[cell][message.name] for cell in (reference, other)
            }
    starts = {cell: start for cell in correct if (start := _start(own[cell]))}
    return Outcome(figures, reasons, notes, compare(groups, confidence), starts)


def _start(launches: Sequence[Mapping[str, Any]]) -> Start | None:
    """None without a launch whose first start came to its end."""
    first = [launch["attempts"][0] for launch in launches if launch["attempts"]]
    ups, agreements = (
        [each[name] for each in first if each.get(name) is not None] for name in ("start_up_s", "agreement_s")
    )
    return Start(spread(ups), spread(agreements)) if ups and agreements else None


def _figures(
    cell: Cell,
    message: Message,
    launches: Sequence[Mapping[str, Any]],
    samples: Mapping[Cell, Mapping[str, Mapping[int, float]]],
) -> Figures:
    own = samples[cell][message.name]
    latency = spread(list(own.values()))
    reference = Cell(
        reference_of([each.backend for each in samples if each.workers == cell.workers]), cell.workers
    )
    others = samples[reference][message.name]
    common = [repeat for repeat in own if repeat in others]
    first = [launch["results"][message.name]["first_s"] for launch in launches if launch["repeat"] in own]
    return Figures(
        latency_s=latency,
        samples=own,
        first_s=spread(first),
        algorithm=message.nbytes / latency.median,
        bus=bus_bandwidth(message.nbytes, latency.median, cell.workers),
        ratio=spread([own[each] / others[each] for each in common]) if common and reference != cell else None,
    )


def reference_of(backends: Sequence[str]) -> str:
    return REFERENCE if REFERENCE in backends else backends[0]
