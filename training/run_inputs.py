"""Inputs of a run: data checked before MXNet is imported, its plan, and its feeds: micro-batches of this
rank, made ahead from the run's files, or one of random tokens."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Protocol, Sequence

import numpy as np

from comm.base import Communicator
from data.pretraining.prefetch import Prefetcher
from data.store.tokens import loss_without_context
from data.tokenizing.vocab import Vocabulary
from tasks.base import Collector, Floors
from training.config import RunConfig
from training.plan import RunPlan
from training.report import Reporter
from training.start.start import Start

BATCHES_AHEAD = 8  # a few steps' worth: enough to hide the making of batches, little memory


def floors_of(training: np.ndarray | None, held_out: np.ndarray | None) -> Floors:
    """Losses without context on two texts, from their `token_counts`."""
    return Floors(
        None if training is None else loss_without_context(training),
        None if held_out is None else loss_without_context(held_out),
        None if training is None or held_out is None else loss_without_context(held_out, training),
    )


class Batches(Protocol):
    """Batches without end, from any position on; `micro_batches` of this rank in a step."""

    @property
    def micro_batches(self) -> int: ...

    def tasks(self, position: int) -> Iterator[tuple[int, Callable[[], Any]]]:
        """Tasks from a position on: the position after each batch, and its maker."""


class Repeated(NamedTuple):
    """One batch again and again: for speed and memory, without any data."""

    batch: Any
    micro_batches: int

    def tasks(self, position: int) -> Iterator[tuple[int, Callable[[], Any]]]:
        """As `Batches`."""
        return ((after, lambda: self.batch) for after in itertools.count(position + 1))


class Feed:
    """This rank's micro-batches, for ever, made ahead in background threads.

    Attributes:
        token_counts: of the training text (data.store.tokens); on rank 0, where it is known.
        content: fingerprint of all that is read, the same on every rank; empty where that is known before.
        micro_batches: of this rank in a step.
        position: after the step whose batches were taken last, for a checkpoint.
        waited: seconds that __next__ has taken so far: the loop stood still for want of data.
    """

    def __init__(
        self, batches: Batches, num_workers: int = 0, counts: np.ndarray | None = None, content: str = ""
    ):
        self._batches = batches
        self._num_workers = num_workers
        self.token_counts = counts
        self.content = content
        self.micro_batches = batches.micro_batches
        self.position = 0
        self.waited = 0.0
        self._ahead: Prefetcher[Any] | None = None

    def seek(self, position: int) -> None:
        """Goes on from a `position`; called once, before the first batch."""
        self.position = position
        self._ahead = Prefetcher(self._batches.tasks(position), BATCHES_AHEAD, self._num_workers)

    def __next__(self) -> Any:
        assert self._ahead is not None, "seek comes first"
        begun = time.monotonic()
        self.position, batch = next(self._ahead)
        self.waited += time.monotonic() - begun
        return batch

    def close(self) -> None:
        """Ends the background work."""
        if self._ahead is not None:
            self._ahead.close()


@dataclass(frozen=True, eq=False)
class EvaluationFeed:
    """Each call starts one pass over this rank's part of what is evaluated on. Every pass has the same
    batches, whatever the seed of the run.

    Attributes:
        begin: begins a pass.
        collector: makes a new collector for a pass; None where the figures say everything.
        controls: begins a pass over the batches' controls, one for each (data.pretraining.batches); None
            where the task has none.
        token_counts, content: as a `Feed` has them.
    """

    begin: Callable[[], Iterator[Any]]
    collector: Callable[[], Collector] | None = None
    controls: Callable[[], Iterator[Any]] | None = None
    token_counts: np.ndarray | None = None
    content: str = ""

    def __call__(self) -> Iterator[Any]:
        """A pass over the batches, each followed by its control if there are controls."""
        if self.controls is None:
            return self.begin()
        return itertools.chain.from_iterable(zip(self.begin(), self.controls()))


@dataclass(frozen=True)
class About:
    """The data's part in results (training.results.record.Result), and in comparisons with a checkpoint.

    Attributes:
        data: the benchmark's name.
        epochs: passes over the data; None where steps are given.
        main_score: the score that decides, more of which is better; None: the loss. With one an evaluation
            without training has a results.json of its own.
        data_options: names of the options that a position in the data depends on.
        evaluation_options: names of the options that say what is evaluated on; empty without evaluation.
    """

    data: str | None = None
    epochs: float | None = None
    main_score: str | None = None
    data_options: Sequence[str] = ()
    evaluation_options: Sequence[str] = ()


@dataclass(frozen=True)
class RunInputs(ABC):
    """All that a run reads, known to exist and to be of the right form. A run knows its data by this alone;
    each kind of run has a class that adds the data.

    Attributes:
        vocabulary: None where it is not known, or not yet.
        vocab_size: rows of the model's word embedding.
        max_seq_length: tokens of the longest sequence.
        start: where the run begins, as it was decided before MXNet was imported; of its first stage.
        messages: warnings for people.
        about: for results.
    """

    vocabulary: Vocabulary | None
    vocab_size: int
    max_seq_length: int
    start: Start = Start()
    messages: tuple[str, ...] = ()
    about: About = About()

    @property
    @abstractmethod
    def trains(self) -> bool:
        """Whether there is something to train on."""

    @abstractmethod
    def contents(self, config: RunConfig) -> Mapping[str, str]:
        """Fingerprints of what every rank reads, by a name for people, so that ranks can be compared. Takes
        little time. Raises InputError for a file that cannot be read."""

    @abstractmethod
    def plan(self, config: RunConfig, world_size: int) -> RunPlan:
        """Steps, learning rate and warmup for so many processes. Raises InputError."""

    @abstractmethod
    def open_training(
        self, config: RunConfig, plan: RunPlan, seed: int, communicator: Communicator, reporter: Reporter
    ) -> Feed | None:
        """This rank's part of the training data, None without any. Every rank calls it. Raises InputError for
        bad data."""

    @abstractmethod
    def open_evaluation(self, config: RunConfig, communicator: Communicator) -> EvaluationFeed | None:
        """This rank's part of what is evaluated on, None without any. Every rank calls it. Raises InputError
        for bad data."""

    def num_steps(self, config: RunConfig, seed: int, communicator: Communicator) -> int | None:
        """Steps as given, also as passes over the data; None where neither is. Every rank calls it, with what
        is `completed`. Raises InputError for bad data."""
        return config.optimization.num_steps

    def completed(self, config: RunConfig, communicator: Communicator) -> RunInputs:
        """These with what must be downloaded first. Every rank calls it. Raises InputError."""
        return self

    def open_ahead(self, first: RunInputs, communicator: Communicator) -> None:  # noqa: B027 - not every kind
        """Finds errors in the data of a stage before `first`, the stage in front of it, is trained. Every
        rank calls it. Raises InputError."""


class Part(NamedTuple):
    """A stage of a run, or a run without stages: its settings and its checked inputs."""

    config: RunConfig
    inputs: RunInputs
