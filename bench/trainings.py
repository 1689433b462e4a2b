"""The work of bench/finetune.py, bench/pretraining.py and bench/latency.py, in a folder that all read.

    settings.json               Settings
    model/, model_SEED/         weights in Hugging Face's format; those of pretraining have its heads
    train_SEED.npz              batches of a training, in order; evaluation.npz those that it is evaluated on
    CASE.npz                    batches of a case of fine-tuning; SIZE.npz: calls of bench/latency.py
    onnx/                       the model as an ONNX graph
    logits_CONTESTANT_SEED.npz  of fine-tuning: outputs on evaluation.npz, which the contestants write

The steps of all workers are made here, of a `Learner` that each has. NumPy and the standard library only:
the workers read it, whatever their environment has.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Callable, Mapping, NamedTuple, Protocol, Sequence

import numpy as np

from bench import workers
from bench.workers import ReadResults, Results, Steps, TakeStep, nothing

Arrays = Mapping[str, np.ndarray]
ReadLosses = Callable[[], Sequence[float]]
OURS, TORCH, ONNX = "ours", "torch", "onnx"
TITLES = {OURS: "ours", TORCH: "PyTorch", ONNX: "onnxruntime"}
MODULES = {OURS: workers.OURS, TORCH: workers.TORCH, ONNX: "bench.peer_onnx"}
MODEL, EVALUATION = "model", "evaluation"
LIMIT = 1800.0  # seconds of a training, or of a part of one
INITIAL_STDEV = 0.02  # of a head's weights
# Networks: for windows of questions, for pairs of texts (both are cases, too), and with BERT's own heads.
WINDOWS, PAIRS, PRETRAINING = "windows", "pairs", "pretraining"
FULL, FULL_ANSWERS, ANSWERS = "full", "full_answers", "answers"
WITHOUT_PADDING = FULL, FULL_ANSWERS
SHORT = "_short"  # behind a case: each batch padded to its longest example, not to the case's length
LOSSES = "losses"  # a request: the first steps of a training without dropout
BEGIN = "begin"
LOSS_STEPS = 20


class Case(NamedTuple):
    """One request to a worker: all batches of `NAME.npz`, each a training step or an evaluation. `padded`:
    tokens that the peer's example pads to."""

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
    """Numbers of a training, the same for all contestants. Fine-tuning is by AdamW with bias correction,
    pretraining by LAMB without, as its authors' code has it; biases and LayerNorm's parameters do not decay.
    `chunk`: of pretraining, steps between two evaluations."""

    num_steps: int
    seeds: Sequence[int]
    lr: float
    dropout: float = 0.0
    chunk: int = 1
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

    def rates(self, begin: int, count: int) -> list[float]:
        """Learning rates of the `count` steps that follow `begin` others: linear warmup, then linear decay
        to 0."""
        warmup = int(self.warmup_ratio * self.num_steps)
        rest = max(1, self.num_steps - warmup)
        return [
            self.lr * (step / warmup if step <= warmup else (self.num_steps - step) / rest)
            for step in range(begin + 1, begin + count + 1)
        ]


class Learner(Protocol):
    """A contestant's network above the folder's BERT, and its optimizer."""

    def begin(self, seed: int) -> None:
        """Takes the weights as they are in the folder, a new head and a new optimizer."""

    def batches(self, stored: Sequence[Arrays], padded: int | None = None) -> Sequence[Any]:
        """Stored batches in its own form, padded to `padded` tokens; None: to the longest of each."""

    def train(self, batches: Sequence[Any], rates: Sequence[float], exact: bool = False) -> ReadLosses:
        """Takes a step for each batch; returns when all work is done. `exact`: of questions, no place of
        padding can be an answer."""

    def logits(self, batches: Sequence[Any]) -> list[np.ndarray]:
        """Of questions: logits (B, 2, L) of starts and ends, batch by batch, without dropout."""

    def held_out(self, batches: Sequence[Any]) -> float:
        """Of pretraining: the mean masked-LM loss over all masked positions of the batches."""


def write_settings(folder: str, settings: Settings) -> None:
    with open(os.path.join(folder, "settings.json"), "w", encoding="utf-8") as file:
        json.dump(asdict(settings), file)


def read_settings(folder: str) -> Settings:
    with open(os.path.join(folder, "settings.json"), encoding="utf-8") as file:
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


def model_name(kind: str, seed: int) -> str:
    return f"{MODEL}_{seed}" if kind == PRETRAINING else MODEL


def training_name(seed: int) -> str:
    """The batches of a training, and a worker's step that takes them all."""
    return f"train_{seed}"


def logits_name(contestant: str, seed: int) -> str:
    return f"logits_{contestant}_{seed}"


def serve_finetuning(folder: str, key: str, make: Callable[[str, Settings], Learner]) -> Steps:
    """The steps of a worker: the trainings for the scores, the first losses, the cases, which PyTorch has
    padded to their full length and as SHORT says. `make`: from PAIRS or WINDOWS and settings."""
    settings = read_settings(folder)
    answers, labels = make(WINDOWS, settings), make(PAIRS, settings)
    for learner in (answers, labels):
        learner.begin(seed=0)

    def train(seed: int) -> ReadResults:
        answers.begin(seed)
        stored = read_batches(folder, training_name(seed))
        losses = answers.train(answers.batches(stored), settings.rates(0, len(stored)))

        def evaluate() -> Results:
            """Writes of each batch the logits (B, 2, L) of starts and ends."""
            logits = answers.logits(answers.batches(read_batches(folder, EVALUATION)))
            write_batches(folder, logits_name(key, seed), [{"logits": both} for both in logits])
            return {"loss": losses()[-1]}

        return evaluate

    def take_first_steps() -> ReadResults:
        learner, seed = make(WINDOWS, replace(settings, dropout=0.0)), settings.seeds[0]
        learner.begin(seed)
        batches = learner.batches(read_batches(folder, training_name(seed))[:LOSS_STEPS])
        losses = learner.train(batches, settings.rates(0, len(batches)), exact=True)
        return lambda: {"losses": losses(), "loss": losses()[-1]}

    def take_case(learner: Learner, case: Case, batches: Sequence[Any]) -> ReadResults:
        if case.trains:
            losses = learner.train(batches, [1e-6] * len(batches))
            return lambda: {"loss": losses()[-1]}
        learner.logits(batches)
        return nothing

    steps: dict[str, TakeStep] = {training_name(seed): partial(train, seed) for seed in settings.seeds}
    steps[LOSSES] = take_first_steps
    for name, case in CASES.items():
        learner, stored = (labels if name == PAIRS else answers), read_batches(folder, name)
        steps[name] = partial(take_case, learner, case, learner.batches(stored, case.padded))
        if key == TORCH and name not in WITHOUT_PADDING:
            steps[name + SHORT] = partial(take_case, learner, case, learner.batches(stored))
    return steps


def latency_step(
    folder: str,
    size: str,
    make: Callable[[Sequence[Arrays]], Sequence[Any]],
    answer: Callable[[Sequence[Any]], Any],
) -> TakeStep:
    """A call of `answer` for each batch of the file `size`, which `make` has brought into the worker's own
    form; their seconds are the step's result."""
    batches = make(read_batches(folder, size))

    def take() -> ReadResults:
        seconds = []
        for batch in batches:
            begun = time.perf_counter()
            answer([batch])
            seconds.append(time.perf_counter() - begun)
        return lambda: {"calls": seconds}

    return take


def serve_pretraining(folder: str, seed: int, learner: Learner) -> Steps:
    """The requests of a training: BEGIN, which takes no step, and its chunks by number, to be asked for in
    order. Each answer has the losses of the chunk's steps, and the held-out loss after them; reading these is
    not timed."""
    settings = read_settings(folder)
    learner.begin(seed)
    batches, evaluation = (
        learner.batches(read_batches(folder, name)) for name in (training_name(seed), EVALUATION)
    )

    def train(begin: int, steps: int) -> ReadResults:
        chosen = batches[begin : begin + steps]
        losses = learner.train(chosen, settings.rates(begin, len(chosen)))

        def read() -> Results:
            held_out, of_steps = learner.held_out(evaluation), losses()
            return {"losses": of_steps, "loss": [held_out, *of_steps][-1], "held_out": held_out}

        return read

    chunks = range(settings.chunks)
    steps = {str(number): partial(train, number * settings.chunk, settings.chunk) for number in chunks}
    return {BEGIN: partial(train, 0, 0), **steps}
