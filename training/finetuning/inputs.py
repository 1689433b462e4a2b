"""The data of a fine-tuning run: examples to train on and to evaluate on, as batches by length."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, Callable, NamedTuple, Protocol

import numpy as np

from base.errors import InputError
from comm.base import Communicator
from data.finetuning.batching import EvaluationOrder, Grouping, OrderedBatches, TrainingOrder
from data.opening import DIGITS
from data.pretraining.prefetch import Feed
from data.sharing import Share
from tasks.base import Collector, Task
from training.config import RunConfig
from training.finetuning.beginning import TaskParameters
from training.optimizer.schedule import Schedule
from training.plan import RunPlan
from training.report import Reporter
from training.run_inputs import About, EvaluationFeed, RunInputs

_TOGETHER = 512  # examples of a batch whose digest is computed


class TrainingExamples(Protocol):
    """Examples with labels. `lengths`: tokens of each, whole numbers (N,)."""

    @property
    def lengths(self) -> np.ndarray: ...

    def collate(self, examples: np.ndarray, padded: int) -> Any:
        """The examples with these numbers, int64 (B,), as a batch of `padded` tokens each."""


class EvaluationExamples(TrainingExamples, Protocol):
    """Examples whose outputs are collected."""

    def collector(self) -> Collector:
        """A new collector of their outputs."""


class Read(NamedTuple):
    """Examples to train on and to evaluate on, None where there are none, and warnings for people."""

    training: TrainingExamples | None
    evaluation: EvaluationExamples | None
    messages: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskFiles:
    """The files of a task.

    Attributes:
        about: all but the passes.
        parameters: of the task's network.
        read: makes all of their examples; predictions are written into the folder that it is given. Raises
            InputError for a damaged file.
        task: makes the task, for which MXNet is imported.
    """

    about: About
    parameters: TaskParameters
    read: Callable[[str], Read]
    task: Callable[[], Task]


@dataclass(frozen=True)
class FinetuningInputs(RunInputs):
    """Examples to train and to evaluate on, None where there are none, and passes over the former."""

    training: TrainingExamples | None = None
    evaluation: EvaluationExamples | None = None
    epochs: float = 1.0

    @property
    def trains(self) -> bool:
        """Whether there is something to train on."""
        return self.training is not None

    def contents(self, config: RunConfig) -> dict[str, str]:
        """The vocabulary, and all examples as the network sees them."""
        found = super().contents(config)
        for name, examples in (("training", self.training), ("evaluation", self.evaluation)):
            if examples is not None:
                found[f"the {name} data"] = _fingerprint(examples)
        return found

    def plan(self, config: RunConfig, world_size: int) -> RunPlan:
        """Epochs to steps, with linear warmup and decay, as Google's run_squad.py and run_classifier.py have
        it: warmup has the share --warmup_ratio of the steps, rounded down, then the rate falls to its end at
        the last step. Without --ckpt_interval there is a checkpoint, and an evaluation, after each epoch.

        Raises InputError for fewer examples than a step has.
        """
        batch, given = replace(config.batch, processes=world_size), config.optimization
        size = batch.batch_size * batch.micro_batches
        product = f"{world_size} x {batch.batch_size} x {batch.accumulate}"
        count, steps = 0, 1
        if self.training is not None:
            count = len(self.training.lengths)
            order = self._order(replace(config, batch=batch), self.training, (0, 0, world_size))
            steps = order.num_steps(self.epochs)
            if count < size:
                raise InputError(
                    f"a step has {size} examples ({product}), but there are {count} to train on; lower "
                    "--batch_size"
                )
        assert given.lr is not None and given.warmup_ratio is not None, "both have defaults"
        by_epochs = self.training is not None and not given.num_steps
        num_steps = given.num_steps or steps
        warmup_steps = int(given.warmup_ratio * num_steps)
        schedule = Schedule(num_steps, given.lr, warmup_steps, given.end_lr)
        summary = (
            f"{size} examples a step ({product}), {count:,} an epoch; "
            f"{f'{self.epochs:g} epochs' if by_epochs else '--training_steps'}: {num_steps} steps, "
            f"{given.optimizer}, peak learning rate {given.lr:.5g}, {warmup_steps} warmup steps"
        )
        of_epoch = max(1, -(-count // size))
        return RunPlan(num_steps, given.lr, warmup_steps, 0, schedule, summary, (), of_epoch)

    def open_training(
        self, config: RunConfig, plan: RunPlan, seed: int, communicator: Communicator, reporter: Reporter
    ) -> Feed[Any] | None:
        """This rank's share of each step's examples."""
        if self.training is None:
            return None
        size = config.batch.batch_size * config.batch.micro_batches
        if size < communicator.size:
            raise InputError(
                f"--batch_size: a step of this run has {size} examples, too few for {communicator.size} "
                f"processes; start {size} of them at most"
            )
        order = self._order(config, self.training, (seed, communicator.rank, communicator.size))
        lengths = ", ".join(map(str, order.bounds))
        reporter.note(f"batches of a process: {config.batch.batch_size} examples of {lengths} tokens")
        batches = OrderedBatches(order, self.training.collate)
        return Feed(batches.tasks, batches.micro_batches, config.data.num_data_workers)

    def open_evaluation(self, config: RunConfig, communicator: Communicator) -> EvaluationFeed | None:
        """This rank's share of what is evaluated on."""
        evaluation = self.evaluation
        if evaluation is None:
            return None
        order = EvaluationOrder(
            evaluation.lengths,
            config.batch.batch_size_eval,
            communicator.rank,
            communicator.size,
            grouping=Grouping(max_length=self.max_seq_length),
        )
        return EvaluationFeed(
            lambda: (evaluation.collate(rows.examples, rows.padded) for rows in order.batches()),
            collector=evaluation.collector,
        )

    def _order(
        self, config: RunConfig, training: TrainingExamples, place: tuple[int, int, int]
    ) -> TrainingOrder:
        """The order for `place`: seed, rank and number of ranks."""
        seed, rank, world_size = place
        batch = config.batch
        size = batch.batch_size * batch.micro_batches
        most = Share(rank, world_size, batch.micro_batches).most  # so that memory stays what it was
        grouping = Grouping(accumulate=min(most, size // world_size), max_length=self.max_seq_length)
        return TrainingOrder(training.lengths, size, seed, rank, world_size, grouping)


def _fingerprint(examples: TrainingExamples) -> str:
    """Their number and the digest of all batches that they make."""
    lengths = examples.lengths
    digest = hashlib.blake2b(digest_size=DIGITS // 2)
    for start in range(0, len(lengths), _TOGETHER):
        rows = np.arange(start, min(start + _TOGETHER, len(lengths)), dtype=np.int64)
        for column in examples.collate(rows, int(lengths[rows].max())):
            digest.update(np.ascontiguousarray(column).data)
    return f"{len(lengths)} examples, {digest.hexdigest()}"
