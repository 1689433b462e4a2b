"""The work that bench/finetune.py measures: settings and batches, in a folder that all contestants read.

    model/                      weights in Hugging Face's format
    settings.json               Settings
    train_SEED.npz              batches of a training, evaluation.npz those that it is evaluated on
    CASE.npz                    batches of a case
    logits_CONTESTANT_SEED.npz  outputs on evaluation.npz, which the contestants write
    losses_CONTESTANT.json      losses of the first steps, which the contestants write

The steps of both workers are made here, of a `Learner` that each has. NumPy and the standard library only:
the workers read it, whatever their environment has.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Callable, Mapping, NamedTuple, Protocol, Sequence

import numpy as np

from bench.workers import ReadLoss, Steps, TakeStep, no_loss

Arrays = Mapping[str, np.ndarray]
MODEL, SETTINGS = "model", "settings.json"
EVALUATION = "evaluation"
FULL, FULL_ANSWERS, WINDOWS, ANSWERS, PAIRS = "full", "full_answers", "windows", "answers", "pairs"
WITHOUT_PADDING = FULL, FULL_ANSWERS
SHORT = "_short"  # behind a case: each batch padded to its longest example, not to the case's length
LOSSES = "losses"  # a request: the first steps of a training without dropout
LOSS_STEPS = 20
INITIAL_STDEV = 0.02  # of a head's weights


class Case(NamedTuple):
    """One request to a worker: all batches of `NAME.npz`, each a training step or an evaluation.

    `padded`: tokens that the peer's example pads to.
    """

    title: str
    trains: bool
    padded: int


CASES = {
    FULL: Case("training, full windows of 384 tokens", True, 384),
    FULL_ANSWERS: Case("evaluation, full windows of 384 tokens", False, 384),
    WINDOWS: Case("training, windows as the questions have them", True, 384),
    ANSWERS: Case("evaluation, windows as the questions have them", False, 384),
    PAIRS: Case("training a classifier of sentence pairs", True, 128),
}


@dataclass(frozen=True)
class Settings:
    """Numbers of a training, the same for all contestants. AdamW with bias correction; biases and
    LayerNorm's parameters do not decay. `num_steps`: of the training for the scores that each seed has."""

    num_steps: int
    seeds: Sequence[int]
    lr: float = 1e-4
    warmup_ratio: float = 0.1
    epsilon: float = 1e-6
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    dropout: float = 0.1

    def rates(self, steps: int) -> list[float]:
        """Learning rates of the first steps: linear warmup, then linear decay to 0."""
        warmup = int(self.warmup_ratio * self.num_steps)
        rest = max(1, self.num_steps - warmup)
        return [
            self.lr * (step / warmup if step <= warmup else (self.num_steps - step) / rest)
            for step in range(1, steps + 1)
        ]


def write_settings(folder: str, settings: Settings) -> None:
    with open(os.path.join(folder, SETTINGS), "w", encoding="utf-8") as file:
        json.dump(asdict(settings), file)


def read_settings(folder: str) -> Settings:
    with open(os.path.join(folder, SETTINGS), encoding="utf-8") as file:
        return Settings(**json.load(file))


def write_batches(folder: str, name: str, batches: Sequence[Arrays]) -> None:
    arrays: dict[str, Any] = {
        f"{number}/{field}": array for number, batch in enumerate(batches) for field, array in batch.items()
    }
    np.savez(os.path.join(folder, f"{name}.npz"), **arrays)


def read_batches(folder: str, name: str) -> list[dict[str, np.ndarray]]:
    """The batches of a file, in order, by the names of their fields."""
    batches: dict[int, dict[str, np.ndarray]] = {}
    with np.load(os.path.join(folder, f"{name}.npz"), allow_pickle=False) as stored:
        for key in stored.files:
            number, _, field = key.partition("/")
            batches.setdefault(int(number), {})[field] = stored[key]
    return [batches[number] for number in sorted(batches)]


def head_weights(seed: int, outputs: int, units: int) -> np.ndarray:
    """Weights of a head, float32 (outputs, units), normally distributed, the same for all contestants."""
    drawn = np.random.default_rng(seed).normal(scale=INITIAL_STDEV, size=(outputs, units))
    return drawn.astype(np.float32)


def training_name(seed: int) -> str:
    """The batches of a training, and a worker's step that takes them all."""
    return f"train_{seed}"


def logits_name(contestant: str, seed: int) -> str:
    return f"logits_{contestant}_{seed}"


def read_losses(folder: str, contestant: str) -> list[float]:
    """Losses of the first steps."""
    with open(os.path.join(folder, f"{LOSSES}_{contestant}.json"), encoding="utf-8") as file:
        return [float(loss) for loss in json.load(file)]


def padded_to(batch: Arrays, length: int) -> dict[str, np.ndarray]:
    """A batch whose token arrays (B, L) are padded, or cut behind the last token, to `length`."""
    found = {}
    for name, array in batch.items():
        if array.ndim == 2:
            wide = np.zeros((len(array), length), array.dtype)
            kept = min(length, array.shape[1])
            wide[:, :kept] = array[:, :kept]
            array = wide
        found[name] = array
    return found


class Learner(Protocol):
    """A contestant's network with a head above the folder's BERT."""

    def begin(self, seed: int) -> None:
        """Takes the weights as they are in the folder, a new head and a new optimizer."""

    def batches(self, stored: Sequence[Arrays], padded: int | None = None) -> Sequence[Any]:
        """Stored batches in its own form, padded to `padded` tokens; None: to the longest of each."""

    def train(self, batches: Sequence[Any], rates: Sequence[float], exact: bool = False) -> ReadLoss:
        """A step for each batch; the last one's loss. `exact`: no place of padding can be an answer."""

    def logits(self, batches: Sequence[Any]) -> list[np.ndarray]:
        """Logits (B, 2, L) of starts and ends, batch by batch, without dropout."""


def serve_learners(folder: str, key: str, make: Callable[[str, Settings], Learner], pads: bool) -> Steps:
    """The steps of a worker: the trainings for the scores, the first losses, the cases.

    Args:
        make: from PAIRS or WINDOWS, whose head is meant, and settings.
        pads: whether the cases with padding come padded to their full length too, as SHORT says.
    """
    settings = read_settings(folder)
    answers, labels = make(WINDOWS, settings), make(PAIRS, settings)
    for learner in (answers, labels):
        learner.begin(seed=0)

    def train(seed: int) -> ReadLoss:
        answers.begin(seed)
        stored = read_batches(folder, training_name(seed))
        loss = answers.train(answers.batches(stored), settings.rates(len(stored)))

        def evaluate() -> float | None:
            """Writes of each batch the examples' numbers (B,), and logits (B, 2, L) of starts and ends."""
            evaluation = read_batches(folder, EVALUATION)
            logits = answers.logits(answers.batches(evaluation))
            written = [{"examples": e["examples"], "logits": both} for e, both in zip(evaluation, logits)]
            write_batches(folder, logits_name(key, seed), written)
            return loss()

        return evaluate

    def take_first_steps() -> ReadLoss:
        learner, seed = make(WINDOWS, replace(settings, dropout=0.0)), settings.seeds[0]
        learner.begin(seed)
        batches = learner.batches(read_batches(folder, training_name(seed))[:LOSS_STEPS])
        rates = settings.rates(len(batches))
        losses = [learner.train([batch], [rate], exact=True)() for batch, rate in zip(batches, rates)]
        with open(os.path.join(folder, f"{LOSSES}_{key}.json"), "w", encoding="utf-8") as file:
            json.dump(losses, file)
        return lambda: losses[-1]

    def case_step(learner: Learner, case: Case, batches: Sequence[Any]) -> ReadLoss:
        if case.trains:
            return learner.train(batches, [1e-6] * len(batches))
        learner.logits(batches)
        return no_loss

    steps: dict[str, TakeStep] = {training_name(seed): partial(train, seed) for seed in settings.seeds}
    steps[LOSSES] = take_first_steps
    for name, case in CASES.items():
        learner, stored = (labels if name == PAIRS else answers), read_batches(folder, name)
        paddings = {name: case.padded, name + SHORT: None} if pads else {name: None}
        if name in WITHOUT_PADDING:
            paddings.pop(name + SHORT, None)
        for request, padded in paddings.items():
            steps[request] = partial(case_step, learner, case, learner.batches(stored, padded))
    return steps
