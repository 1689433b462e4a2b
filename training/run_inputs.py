"""The interface of what a run reads: data checked before MXNet is imported, its plan and its feeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, NamedTuple, Protocol, Sequence

from comm.base import Communicator
from data.tokenizing.vocab import Vocabulary
from training.config import RunConfig
from training.feed import EvaluationFeed, Feed
from training.plan import RunPlan
from training.report import Reporter
from training.start.start import Start


@dataclass(frozen=True)
class About:
    """The data's part in results (training.results.record.Result).

    data: the benchmark's name. epochs: passes over the data; None where steps are given. main_score: the
    score that decides, more of which is better; None: the loss. is_result: whether an evaluation without
    training has a results.json of its own.
    """

    data: str | None = None
    epochs: float | None = None
    main_score: str | None = None
    is_result: bool = False


class RunInputs(Protocol):
    """All that a run reads, known to exist and to be of the right form. A run knows its data by this alone.

    Attributes:
        vocabulary: None where it is not known, or not yet.
        vocab_size: rows of the model's word embedding.
        max_seq_length: tokens of the longest sequence.
        start: where the run begins, as it was decided before MXNet was imported; of its first stage.
        messages: warnings for people.
        trains: whether there is something to train on.
        data_options: names of the options that a position in the data depends on.
        evaluation_options: names of the options that say what is evaluated on; empty without evaluation.
        about: for results.
    """

    @property
    def vocabulary(self) -> Vocabulary | None: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_seq_length(self) -> int: ...

    @property
    def start(self) -> Start: ...

    @property
    def messages(self) -> tuple[str, ...]: ...

    @property
    def trains(self) -> bool: ...

    @property
    def data_options(self) -> Sequence[str]: ...

    @property
    def evaluation_options(self) -> Sequence[str]: ...

    @property
    def about(self) -> About: ...

    def completed(self, config: RunConfig, communicator: Communicator) -> RunInputs:
        """These with what must be downloaded first. Every rank calls it. Raises InputError."""

    def contents(self, config: RunConfig) -> Mapping[str, str]:
        """Fingerprints of what every rank reads, by a name for people, so that ranks can be compared. Takes
        little time. Raises InputError for a file that cannot be read."""

    def open_ahead(self, first: RunInputs, communicator: Communicator) -> None:
        """Finds errors in the data of a stage before `first`, the stage in front of it, is trained. Every
        rank calls it. Raises InputError."""

    def plan(self, config: RunConfig, world_size: int) -> RunPlan:
        """Steps, learning rate and warmup for so many processes. Raises InputError."""

    def open_training(
        self, config: RunConfig, plan: RunPlan, seed: int, communicator: Communicator, reporter: Reporter
    ) -> Feed | None:
        """This rank's share of the training data, None without any. Every rank calls it. Raises
        InputError for bad data."""

    def open_evaluation(self, config: RunConfig, communicator: Communicator) -> EvaluationFeed | None:
        """This rank's share of what is evaluated on, None without any. Every rank calls it. Raises
        InputError for bad data."""


class Part(NamedTuple):
    """A stage of a run, or a run without stages: its settings and its checked inputs."""

    config: RunConfig
    inputs: RunInputs
