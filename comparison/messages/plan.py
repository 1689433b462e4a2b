"""Messages that are sent, the memory that they need, and their figures, reasons and verdicts."""

from __future__ import annotations

import itertools
import re
import statistics
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from bert.configuration import named_config
from comparison.backends import BYTEPS, BYTEPS_LOCAL, Backend
from comparison.projection.workload import bert_parts
from comparison.verdicts import Pair, Spread, compare, spread

UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
ITEM_BYTES = {"float32": 4, "float16": 2}
BERT_BASE = "bert-base"
# From 4 KB in powers of 4, the largest that BERT's layers have and more; then many small ones at once, as
# gradients come.
DEFAULT_SIZES = (
    *("4KB", "16KB", "64KB", "256KB", "1MB", "4MB", "16MB", "64MB", "256MB", "512MB"),
    "200x64KB",
)
LEAST_ROUNDS, MOST_ROUNDS = 2, 200
SLOWEST = 5e6  # bytes a second: an average that is slower than this counts as hanging
PATIENCE = 60.0  # seconds more, for the start and for busy machines
PROCESS_BYTES = 250e6  # a rank with its libraries
ELEMENTS = 2**31 - 1  # of one array, in MXNet as its wheels are built


class Message(NamedTuple):
    """Arrays that are averaged in one call. `array_bytes`: of each of them."""

    name: str
    array_bytes: tuple[int, ...]

    @property
    def tensors(self) -> int:
        return len(self.array_bytes)

    @property
    def nbytes(self) -> int:
        return sum(self.array_bytes)


def parse_message(text: str, dtype: str = "float32") -> Message:
    """ "64KB", "512MB", "200x64KB" for 200 arrays of 64 KB (a KB is 1024 bytes), or "bert-base" for all
    gradients of BERT-base. Raises ValueError."""
    if text == BERT_BASE:
        elements = [size for part in bert_parts(named_config("bert_12_768_12")) for size in part.gradients]
        return Message(text, tuple(size * ITEM_BYTES[dtype] for size in elements))
    match = re.fullmatch(r"(?:(\d+)x)?(\d+)(B|KB|MB|GB)", text)
    if not match:
        raise ValueError(f"{text}: write it like 64KB, 512MB, 200x64KB (units B, KB, MB, GB) or {BERT_BASE}")
    tensors, number, unit = int(match[1] or 1), int(match[2]), match[3]
    nbytes = number * UNITS[unit]
    if not tensors or not nbytes or nbytes % max(ITEM_BYTES.values()):
        raise ValueError(f"{text}: a message has at least one array, of a positive multiple of 4 bytes")
    name = f"{tensors}x{number}{unit}" if match[1] else f"{number}{unit}"
    return Message(name, (nbytes,) * tensors)


def parse_messages(texts: Iterable[str], dtype: str) -> list[Message]:
    """Single ones in the order of their size, then those of several arrays. Raises ValueError."""
    messages = [parse_message(text, dtype) for text in texts]
    for place, message in enumerate(messages):
        if message[1:] in [other[1:] for other in messages[:place]]:
            raise ValueError(f"{message.name} is given twice")
        if max(message.array_bytes) // ITEM_BYTES[dtype] > ELEMENTS:
            raise ValueError(f"{message.name}: MXNet's arrays have at most {ELEMENTS} elements")
    return sorted(messages, key=lambda message: (message.tensors > 1, message.nbytes))


def timeout_s(messages: Sequence[Message]) -> float:
    """After which a wait inside the library counts as hanging, in seconds."""
    return PATIENCE + max(message.nbytes for message in messages) / SLOWEST


def bytes_needed(backend: Backend, ranks: int, sent: Sequence[int]) -> float:
    """Memory of a host whose `ranks` ranks send messages of so many bytes one after the other.

    Seen with two ranks: over Horovod a rank holds up to 2.3 times the message of the moment. A BytePS worker
    keeps a copy of every message it has ever sent, and the servers keep their sums. Together with the message
    itself and what is on its way, a worker came to 2.2 and the server to 2.6 times the bytes of a single
    message, and both to 2.3 times the sum of ten that doubled or quadrupled.
    """
    if backend.launcher not in (BYTEPS, BYTEPS_LOCAL):
        return ranks * (PROCESS_BYTES + 2.5 * max(sent))
    workers = ranks * (PROCESS_BYTES + max(sent) + 1.75 * sum(sent))
    # One worker of several local ranks has no servers.
    return workers if backend.launcher == BYTEPS_LOCAL else workers + PROCESS_BYTES + 3 * sum(sent)


def that_fit(
    backend: Backend, ranks: int, messages: Sequence[Message], available: float
) -> tuple[list[Message], dict[str, str]]:
    """The messages that a host can hold, and why the others are left out, by name."""
    fitting: list[Message] = []
    left_out: dict[str, str] = {}
    for message in sorted(messages, key=lambda message: message.nbytes):
        needed = bytes_needed(backend, ranks, [*(each.nbytes for each in fitting), message.nbytes])
        if needed <= available:
            fitting.append(message)
        else:
            left_out[message.name] = (
                f"left out: needs about {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available"
            )
    return [message for message in messages if message in fitting], left_out


def worker_plan(
    messages: Sequence[Message], dtype: str, ranks: int, seconds: float, seed: int
) -> Mapping[str, object]:
    """The plan that comparison/messages/rank.py reads. `seconds`: of rounds with one message."""
    return {
        "dtype": dtype,
        "ranks": ranks,
        "seed": seed,
        "timeout_s": timeout_s(messages),
        "seconds": seconds,
        "least_rounds": LEAST_ROUNDS,
        "most_rounds": MOST_ROUNDS,
        "messages": [
            {
                "name": message.name,
                "elements": [nbytes // ITEM_BYTES[dtype] for nbytes in message.array_bytes],
            }
            for message in messages
        ],
    }


def bus_bandwidth(nbytes: int, seconds: float, ranks: int) -> float:
    """Bytes a second that every rank must send at least, and receive, in a ring all-reduce: 2 (n - 1) / n of
    the message in the same time (nccl-tests, doc/PERFORMANCE.md)."""
    return nbytes / seconds * 2 * (ranks - 1) / ranks


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
        launches: as `comparison.messages.command.send` returns them, with backend, workers and repeat.
        left_out: messages that were not sent at all, with the reason.
    """
    own = {cell: [each for each in launches if (each["backend"], each["workers"]) == cell] for cell in cells}
    reasons = {cell: dict(left_out.get(cell, {})) for cell in cells}
    samples: dict[Cell, dict[str, dict[int, float]]] = {}
    for cell in cells:
        for word, name in (("failed", "failures"), ("wrong", "wrong")):
            for launch in own[cell]:
                reasons[cell].update({message: f"{word}: {text}" for message, text in launch[name].items()})
        samples[cell] = {
            message.name: {
                launch["repeat"]: statistics.median(launch["results"][message.name]["rounds_s"])
                for launch in own[cell]
                if message.name in launch["results"] and message.name not in reasons[cell]
            }
            for message in messages
        }
    references = {}
    for cell in cells:
        backends = [each.backend for each in cells if each.workers == cell.workers]
        references[cell] = Cell(reference_of(backends), cell.workers)
    figures: dict[Cell, dict[str, Figures]] = {cell: {} for cell in cells}
    for cell, message in itertools.product(cells, messages):
        values, others = (samples[each][message.name] for each in (cell, references[cell]))
        if not values:
            continue
        latency = spread(list(values.values()))
        ratios = [value / others[repeat] for repeat, value in values.items() if repeat in others]
        first = [each["results"][message.name]["first_s"] for each in own[cell] if each["repeat"] in values]
        figures[cell][message.name] = Figures(
            latency_s=latency,
            samples=values,
            first_s=spread(first),
            algorithm=message.nbytes / latency.median,
            bus=bus_bandwidth(message.nbytes, latency.median, cell.workers),
            ratio=spread(ratios) if ratios and references[cell] != cell else None,
        )
    correct = [cell for cell in cells if not any(launch["wrong"] for launch in own[cell])]
    groups = {
        Place(cell.workers, message.name, cell.backend): {
            each.backend: samples[each][message.name] for each in (references[cell], cell)
        }
        for workers in dict.fromkeys(cell.workers for cell in cells)
        for message in messages
        for cell in correct
        if cell.workers == workers and references[cell] != cell and references[cell] in correct
    }
    notes = {
        cell: [f"repeat {launch['repeat'] + 1}: {text}" for launch in own[cell] for text in launch["notes"]]
        for cell in cells
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


def reference_of(backends: Sequence[str]) -> str:
    return REFERENCE if REFERENCE in backends else backends[0]
