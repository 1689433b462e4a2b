"""Inputs of a run: data checked before MXNet is imported, its plan, and its feeds, for training and for
evaluation."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import numpy as np

from comm.base import Communicator
from data.opening import DIGITS
from data.pretraining.prefetch import Feed
from data.store.tokens import loss_without_context
from data.tokenizing.vocab import Vocabulary
from tasks.base import Collector, Floors
from training.config import RunConfig
from training.plan import RunPlan
from training.report import Reporter
from training.start.start import Start


def floors_of(training: np.ndarray | None, held_out: np.ndarray | None) -> Floors:
    """Losses without context on two texts, from their `token_counts`."""
    return Floors(
        None if training is None else loss_without_context(training),
        None if held_out is None else loss_without_context(held_out),
        None if training is None or held_out is None else loss_without_context(held_out, training),
    )


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
        classes: names of a classifier's classes in their order, none for numbers; None for other heads.
    """

    data: str | None = None
    epochs: float | None = None
    main_score: str | None = None
    data_options: Sequence[str] = ()
    evaluation_options: Sequence[str] = ()
    classes: Sequence[str] | None = None


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
    def contents(self, config: RunConfig) -> dict[str, str]:
        """Fingerprints of what every rank reads, by a name for people, so that ranks can be compared: here of
        the vocabulary. Takes little time. Raises InputError for a file that cannot be read."""
        words = self.vocabulary
        return {} if words is None else {"the vocabulary": f"{len(words)} tokens, {words.sha256[:DIGITS]}"}

    @abstractmethod
    def plan(self, config: RunConfig, world_size: int) -> RunPlan:
        """Steps, learning rate and warmup for so many processes. Raises InputError."""

    @abstractmethod
    def open_training(
        self, config: RunConfig, plan: RunPlan, seed: int, communicator: Communicator, reporter: Reporter
    ) -> Feed[Any] | None:
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
