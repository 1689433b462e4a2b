"""The interface of a task: from batches to losses, and from sums over many steps to figures."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Mapping, NamedTuple, Protocol, Sequence

import numpy as np

from bert.configuration import BertConfig, Dropout
from bert.flops import Size

Figures = Mapping[str, Any]  # a line of metrics.jsonl: numbers by name, None where there is none


class Panel(NamedTuple):
    """One plot of a task: a figure over the steps. `marks`: names and values of horizontal lines."""

    figure: str  # its name in the metrics; evaluations have it behind "eval_"
    title: str
    unit: str
    marks: Mapping[str, float]


class Floors(NamedTuple):
    """Losses in nats of models that ignore context; None where a text is not known.

    training, held_out: the least possible loss on that text. transferred: the loss on the held-out text of
    the model that is best on the training text, whose frequencies are all it knows.
    """

    training: float | None = None
    held_out: float | None = None
    transferred: float | None = None


class Collector(Protocol):
    """Collects the network's outputs during an evaluation, and makes scores of them at its end.

    Each example is evaluated on one rank. A rank's arrays are zero for all other examples, so that the sums
    over the ranks have every example once.
    """

    def add(self, batch: Any, outputs: Sequence[Any]) -> None:
        """Adds a batch's outputs, as NumPy arrays: those that the network returns after its sums.

        Raises:
            NotFiniteError: no score can be made of them.
        """

    def arrays(self) -> Sequence[np.ndarray]:
        """All that this rank has collected: float32 or int32, of the same shapes on every rank."""

    def scores(self, arrays: Sequence[np.ndarray]) -> dict[str, float | None]:
        """The scores by name, from the sums of `arrays()` over all ranks; rank 0 calls it. It may write
        predictions.

        Raises:
            TrainingError: outputs that no score can be made of.
        """


class Task(ABC):
    """One thing that a network is trained for. Training and evaluation know a task by this alone.

    A batch is a named tuple of arrays, among them `input_ids` (B, L) and `valid_lengths` (B,). The network
    returns the loss (1,) and the sums (len(sums),) of a batch, and behind them what a Collector collects, if
    anything. Each sum is divided by one of the denominators, over a step for the gradient and over an
    interval for the figures.

    Attributes:
        name: of the task, for records.
        heads: of bert.model.HEADS, those that the network needs.
        sums: names of the network's second output.
        denominators: names of the numbers that sums are divided by.
        judged: a sum and its denominator: the loss whose standard error is kept.
        shown: the figures of a line for people, each with its format; the judged loss among them.
        short: the judged loss beside a progress bar.
    """

    name: str
    heads: Sequence[str] = ()
    sums: Sequence[str]
    denominators: Sequence[str]
    judged: tuple[str, str]
    shown: Mapping[str, str]
    short = "loss"

    @abstractmethod
    def network(
        self, bert: Any, config: BertConfig, dtype: str, dropout: float | Dropout, operators: str
    ) -> Any:
        """The hybridized heads and losses above `bert`, a BERT of this configuration, on "fused" or "mxnet"
        operators.

        It has `bert`, `adds_in_backward` (whether grad_req "add" is heeded) and `pack_weights()`, and where
        there are parameters above `bert`, `head`: an initialized block with them.
        """

    @abstractmethod
    def inputs(self, batch: Any, device: Any) -> list[Any]:
        """A batch's arrays on the device, in the order of the network's inputs before the factors."""

    @abstractmethod
    def count(self, batches: Sequence[Any]) -> tuple[float, ...]:
        """The denominators of these batches together, in their order: the divisors of a step's losses. The
        network's last inputs are the loss scale over each of them, as a mean over the ranks and over 1 where
        it is 0, so that micro-batches add up to the gradient of one large batch."""

    @abstractmethod
    def flops(self, batch: Any, size: Size, operators: str) -> int:
        """Floating-point operations of a forward pass over a batch, as bert.flops counts them."""

    @abstractmethod
    def figures(self, totals: Mapping[str, float]) -> dict[str, float | None]:
        """Means over an interval, from totals of sums and denominators by name; in the metrics' order."""

    @abstractmethod
    def panels(self, floors: Floors) -> Sequence[Panel]:
        """Plots of the figures."""

    def line(self, figures: Figures, prefix: str = "") -> str:
        """Those of the figures that there are, for people, such as "mlm_loss 7.552  mlm_acc 3.5%"; their
        names begin with `prefix`."""
        found = [(name, figures.get(prefix + name), form) for name, form in self.shown.items()]
        return "  ".join(f"{name} {format(value, form)}" for name, value, form in found if value is not None)

    def summary(self, metrics: Sequence[Figures], step: int, floors: Floors) -> list[str]:
        """The closing sentences of a run that ended at `step`, from all lines of its metrics: the first and
        the last loss, and the scores of an evaluation after the last step."""
        loss, form = self.judged[0], self.shown[self.judged[0]]
        training = [each for each in metrics if each.get(loss) is not None]
        evaluations = [each for each in metrics if "eval_sequences" in each and each["step"] == step]
        lines = []
        if training:
            first, last = ((f"{each[loss]:{form}}", each["step"]) for each in (training[0], training[-1]))
            lines.append(f"loss {first[0]} at step {first[1]} -> {last[0]} at step {last[1]}")
        scores = self.line(evaluations[-1], "eval_") if evaluations else ""
        return [*lines, f"scores: {scores}"] if scores else lines


def ratio(total: float, count: float) -> float | None:
    """A mean; None where there is nothing to divide by, and for what is not finite."""
    found = total / count if count else math.nan
    return found if math.isfinite(found) else None


class DividedTask(Task):
    """A task whose network may be divided over stages of a pipeline."""

    @abstractmethod
    def stage(self, bert: Any, part: Any, dtype: str, dropout: float | Dropout, operators: str) -> Any:
        """The pipeline stage with the layers `part` (a bert.part.ModelPart) of `bert`, hybridized. All stages
        together compute what `network` does; the last one returns the same outputs.

        Its inputs are the activations of the stage before, a slice of the task's `inputs`, and the factors.
        Besides a network's members it has `part`; `takes`, that slice; `activations(rows, length)`, shape and
        dtype of what stages hand on; `skip_dropout(rows, length)`, which draws from MXNet's generator what
        the earlier stages draw for a micro-batch.
        """
