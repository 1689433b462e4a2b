"""The work that bench/pretraining.py measures: settings, weights and batches, in a folder that all read.

    model_SEED/           initial weights in Hugging Face's format, both heads included
    settings.json         Settings
    train_SEED.npz        batches of a training, in order; evaluation.npz those that it is evaluated on
    curve_CONTESTANT_SEED.json  a Curve, written by the contestant after every chunk of steps

NumPy and the standard library only: the workers read it, whatever their environment has.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, Sequence

from bench.finetune_work import Arrays, read_batches
from bench.workers import ReadLoss, TakeStep

EVALUATION = "evaluation"


@dataclass(frozen=True)
class Settings:
    """Numbers of a training, the same for all contestants: LAMB without bias correction, as its authors' code
    has it, and clipping of the gradient's norm. `chunk`: steps between two evaluations."""

    num_steps: int
    chunk: int
    lr: float
    warmup_ratio: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    clip_norm: float = 1.0

    @property
    def chunks(self) -> int:
        """Requests of a training."""
        return -(-self.num_steps // self.chunk)

    def rate(self, step: int) -> float:
        """Learning rate of a step, from 1 on: linear warmup, then linear decay to 0."""
        warmup = int(self.warmup_ratio * self.num_steps)
        if step <= warmup:
            return self.lr * step / warmup
        return self.lr * (self.num_steps - step) / (self.num_steps - warmup)


class Curve(NamedTuple):
    """A training so far: the loss of each step, and the masked-LM loss on the evaluation's batches before the
    first step and after each chunk, in nats."""

    losses: list[float]
    held_out: list[float]


class Learner(Protocol):
    """A contestant's network with its optimizer."""

    def prepare(self, batches: Sequence[Arrays]) -> Sequence[Any]:
        """The batches in the contestant's own form."""

    def train(self, batches: Sequence[Any], rates: Sequence[float]) -> Sequence[Any]:
        """Takes a step for each batch; returns when all work is done. The result, given to `read`, has the
        losses: masked-LM plus next-sentence, each a mean over its batch."""

    def read(self, losses: Sequence[Any]) -> list[float]:
        """Losses of `train` as numbers."""

    def evaluate(self, batches: Sequence[Any]) -> float:
        """Mean masked-LM loss over all masked positions of the batches."""


def model_name(seed: int) -> str:
    return f"model_{seed}"


def training_name(seed: int) -> str:
    return f"train_{seed}"


def write_settings(folder: str, settings: Settings) -> None:
    with open(os.path.join(folder, "settings.json"), "w", encoding="utf-8") as file:
        json.dump(asdict(settings), file)


def read_settings(folder: str) -> Settings:
    with open(os.path.join(folder, "settings.json"), encoding="utf-8") as file:
        return Settings(**json.load(file))


def read_curve(folder: str, contestant: str, seed: int) -> Curve:
    with open(_curve_path(folder, contestant, seed), encoding="utf-8") as file:
        return Curve(**json.load(file))


def serve_chunks(folder: str, contestant: str, seed: int, learner: Learner) -> dict[str, TakeStep]:
    """The requests of a training: its chunks by number, to be asked for in order. Losses are read, and the
    evaluation is made, outside the timing."""
    settings = read_settings(folder)
    batches = learner.prepare(read_batches(folder, training_name(seed)))
    evaluation = learner.prepare(read_batches(folder, EVALUATION))
    curve = Curve([], [learner.evaluate(evaluation)])

    def train(number: int) -> ReadLoss:
        begin = number * settings.chunk
        chosen = batches[begin : begin + settings.chunk]
        losses = learner.train(chosen, [settings.rate(begin + each + 1) for each in range(len(chosen))])

        def read_loss() -> float:
            curve.losses.extend(learner.read(losses))
            curve.held_out.append(learner.evaluate(evaluation))
            with open(_curve_path(folder, contestant, seed), "w", encoding="utf-8") as file:
                json.dump(curve._asdict(), file)
            return curve.losses[-1]

        return read_loss

    return {str(number): partial(train, number) for number in range(settings.chunks)}


def _curve_path(folder: str, contestant: str, seed: int) -> str:
    return os.path.join(folder, f"curve_{contestant}_{seed}.json")
