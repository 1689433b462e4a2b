"""Batches that a real run trains on: samples, masks and dropout seed of each micro-batch, written down by its
ranks as they take them; and their comparison with those of an undisturbed run.

A script that is started behind `patch(folder)` (tests/faults/jobs.py) writes them. A killed run has lost
some of its steps, and a resumed one takes them again: what counts is what a step was taken with last.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

FIGURES = ("mlm_loss", "nsp_loss", "lr", "grad_norm", "eval_mlm_loss", "eval_nsp_loss", "eval_sequences")
Lines = Sequence[Mapping[str, Any]]  # of metrics.jsonl


class Step(NamedTuple):
    """A step as it was taken last: the number of ranks, and in the order of micro-batches over all ranks the
    samples of each, as (epoch, index), a digest of all that the network gets, and the seed of its dropout."""

    ranks: int
    samples: tuple[tuple[tuple[int, int], ...], ...]
    digests: tuple[str, ...]
    seeds: tuple[int, ...]


def patch(folder: Path) -> str:
    """Python that makes a rank write down what it takes, into a folder that exists."""
    return f"import tests.faults.taken\ntests.faults.taken.record({str(folder)!r})"


def record(folder: str) -> None:
    """Makes this process write a line for each micro-batch before it is computed. A SIGKILL loses none."""
    from data.pretraining.sources import TextSource
    from training.step import TrainStep

    made: dict[str, tuple[list[list[int]], int]] = {}
    collate, take = TextSource.collate, TrainStep.__call__
    name = os.path.join(folder, f"{time.time_ns()}-{os.getpid()}.jsonl")
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def collated(self: Any, seed: int, epoch: int, indices: Any, padded: int) -> Any:
        batch = collate(self, seed, epoch, indices, padded)
        samples = [[epoch, int(index)] for index in indices]
        made[_digest(batch)] = samples, len(self.lengths(seed, epoch))
        return batch

    def taken(self: Any, step: int, batches: Sequence[Any], *rest: Any) -> Any:
        size, rank = self._communicator.size, self._communicator.rank
        lines = []
        for number, batch in enumerate(batches):
            digest = _digest(batch)
            samples, of = made.pop(digest)
            facts = {
                **{"step": step, "number": rank + size * number, "ranks": size, "time": time.time_ns()},
                **{"samples": samples, "of": of, "digest": digest},
                "seed": self._settings.random_seed_of(step, number),
            }
            lines.append(json.dumps(facts) + "\n")
        os.write(file, "".join(lines).encode())
        return take(self, step, batches, *rest)

    TextSource.collate = collated  # type: ignore[method-assign]
    TrainStep.__call__ = taken  # type: ignore[method-assign]


def steps_in(folder: Path) -> tuple[dict[int, Step], dict[int, int]]:
    """The steps that were written down in a folder, by number, and the samples that each epoch has.

    Raises:
        AssertionError: a step lacks a micro-batch, or its last one was taken by ranks that did not start
            together.
    """
    newest: dict[tuple[int, int], dict[str, Any]] = {}
    epochs: dict[int, int] = {}
    for path in folder.glob("*.jsonl"):
        for line in path.read_text(encoding="ascii").splitlines():
            facts = json.loads(line)
            epochs[facts["samples"][0][0]] = facts["of"]
            place = facts["step"], facts["number"]
            if place not in newest or newest[place]["time"] < facts["time"]:
                newest[place] = facts
    steps = {}
    for step in sorted({step for step, _ in newest}):
        found = [newest[place] for place in sorted(newest) if place[0] == step]
        assert [each["number"] for each in found] == list(range(len(found))), (
            f"step {step}: a part is lacking"
        )
        ranks = {each["ranks"] for each in found}
        assert len(ranks) == 1, f"step {step} was taken by {ranks} ranks"
        samples = tuple(tuple((epoch, index) for epoch, index in each["samples"]) for each in found)
        digests, seeds = (tuple(each[name] for each in found) for name in ("digest", "seed"))
        steps[step] = Step(ranks.pop(), samples, digests, seeds)
    return steps, epochs


def unlike_steps(found: Mapping[int, Step], expected: Mapping[int, Step]) -> Iterator[str]:
    """Differences between the steps of two runs; the number of ranks may."""
    if list(found) != list(expected):
        yield f"steps {list(found)} were taken, not {list(expected)}"
    for step in sorted({*found} & {*expected}):
        one, other = found[step], expected[step]
        if one.samples != other.samples:
            yield f"step {step} has other samples"
        elif one.digests != other.digests:
            yield f"step {step} has other masks"
        elif one.seeds != other.seeds:
            yield f"step {step} has other dropout"


def uncounted(steps: Mapping[int, Step], epochs: Mapping[int, int]) -> Iterator[str]:
    """Epochs of which a sample did not come exactly once; in the last one, unfinished, at most once."""
    counts = Counter(sample for step in steps.values() for batch in step.samples for sample in batch)
    for epoch in range(max(epochs)):
        here = [counts[epoch, index] for index in range(epochs[epoch])]
        if set(here) != {1}:
            yield f"epoch {epoch}: samples come {min(here)} to {max(here)} times"
    if max(counts.values()) > 1:
        yield "a sample comes twice in an epoch"


def unlike_metrics(found: Lines, expected: Lines, limit: float) -> Iterator[str]:
    """Differences between the metrics of two runs: lines that are missing or come twice, and figures by more
    than `limit`, relative."""
    places = [[(each["step"], "lr" in each) for each in lines] for lines in (found, expected)]
    if places[0] != places[1]:
        yield f"metrics of steps {places[0]}, not {places[1]}"
        return
    worst, where = 0.0, ""
    for one, other in zip(found, expected):
        for name in FIGURES:
            if name in other:
                difference = abs(one[name] - other[name]) / max(abs(other[name]), 1e-6)
                if math.isnan(difference) or difference > worst:
                    worst, where = difference, f"{name} of step {other['step']}"
    if not worst <= limit:
        yield f"the losses differ by {worst:.1e}, relative ({where})"


def _digest(batch: Any) -> str:
    return hashlib.sha1(b"".join(array.tobytes() for array in batch)).hexdigest()
