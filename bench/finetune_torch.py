"""Worker of bench/finetune.py: fine-tuning with Hugging Face's transformers on PyTorch.

    python -m bench.finetune_torch FOLDER float32|bfloat16

Runs in an environment of its own that has torch and transformers; see bench/serve.py for what it reads and
writes, bench/finetune_work.py for the folder. BertForQuestionAnswering and BertForSequenceClassification as
they come, with AdamW (fused), clipping and the batches of the other contestants. bfloat16 is torch.autocast
in training, and a copy of the weights in bfloat16 in evaluation, which is faster. Of the implementations of
attention the one is taken that is faster here.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as functional
import transformers

from bench.finetune_work import (
    CASES,
    EVALUATION,
    LOSS_STEPS,
    LOSSES,
    MODEL,
    PAIRS,
    SHORT,
    WINDOWS,
    WITHOUT_PADDING,
    Case,
    Settings,
    head_weights,
    logits_name,
    padded_to,
    read_batches,
    read_settings,
    training_name,
    write_logits,
    write_losses,
)
from bench.serve import ReadLoss, TakeStep, Unsupported, serve

ATTENTIONS = ("sdpa", "eager")
Tensors = Mapping[str, Any]
LABELS = {"starts": "start_positions", "ends": "end_positions", "labels": "labels"}


class Learner:
    """A model of transformers with the folder's weights; `kind` is its class."""

    def __init__(self, kind: Any, head: str, folder: str, dtype: str, attention: str):
        self._folder, self._kind, self._head = folder, kind, head
        self._settings: Settings = read_settings(folder)
        self._autocast, self._attention = dtype == "bfloat16", attention
        self._model: Any
        self._optimizer: Any

    def begin(self, seed: int, dropout: float | None = None) -> None:
        """Takes the weights as they are in the folder, a new head and a new optimizer."""
        torch.manual_seed(seed)
        settings = self._settings if dropout is None else replace(self._settings, dropout=dropout)
        self._model = self._kind.from_pretrained(
            os.path.join(self._folder, MODEL),
            attn_implementation=self._attention,
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
            dtype=torch.float32,
        ).train()
        layer = getattr(self._model, self._head)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(head_weights(seed, *layer.weight.shape)))
            layer.bias.zero_()
        groups: dict[float, list[Any]] = {settings.weight_decay: [], 0.0: []}
        for name, parameter in self._model.named_parameters():
            spared = name.endswith("bias") or "LayerNorm" in name
            groups[0.0 if spared else settings.weight_decay].append(parameter)
        self._optimizer = torch.optim.AdamW(
            [{"params": each, "weight_decay": decay} for decay, each in groups.items()],
            lr=0.0,
            eps=settings.epsilon,
            fused=True,
        )

    def train(self, batches: Sequence[Tensors], lr: float | None = None, loss_of: Any = None) -> Any:
        """A step for each batch, at `lr` or the schedule's rates; the last step's loss."""
        parameters = list(self._model.parameters())
        for number, batch in enumerate(batches, start=1):
            for group in self._optimizer.param_groups:
                group["lr"] = self._settings.rate(number) if lr is None else lr
            self._optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._autocast):
                loss = loss_of(self._model, **batch) if loss_of else self._model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, self._settings.clip_norm)
            self._optimizer.step()
        return loss.detach()

    def first_losses(self, batches: Sequence[Tensors]) -> list[float]:
        """The loss of a step for each batch, where no place of padding can be an answer, as in ours: the
        model's own loss takes those places for wrong answers too."""
        rates = map(self._settings.rate, range(1, len(batches) + 1))
        return [float(self.train([batch], rate, _unpadded)) for batch, rate in zip(batches, rates)]

    def evaluator(self) -> Any:
        """The model for evaluation: in bfloat16 a copy."""
        model = copy.deepcopy(self._model).to(torch.bfloat16) if self._autocast else self._model
        return model.eval()

    def resume_training(self) -> None:
        """Turns dropout on again."""
        self._model.train()


def _unpadded(model: Any, **batch: Any) -> Any:
    """The loss of `model` without the logits of padding."""
    places = {name: batch.pop(name) for name in ("start_positions", "end_positions")}
    outputs, padding = model(**batch), ~batch["attention_mask"].bool()
    losses = [
        functional.cross_entropy(logits.float().masked_fill(padding, -1e9), place)
        for logits, place in zip((outputs.start_logits, outputs.end_logits), places.values())
    ]
    return sum(losses) / 2


def logits_of(model: Any, batches: Sequence[Tensors]) -> list[np.ndarray]:
    """Logits (B, 2, L) of starts and ends, batch by batch."""
    found = []
    with torch.inference_mode():
        for batch in batches:
            outputs = model(**{name: batch[name] for name in batch if not name.endswith("positions")})
            both = torch.stack([outputs.start_logits, outputs.end_logits], dim=1)
            found.append(both.float().numpy())
    return found


def tensors(batch: Mapping[str, np.ndarray], padded: int | None = None) -> dict[str, Any]:
    """The model's arguments, padded to `padded` tokens, by default to the longest example."""
    lengths = batch["valid_lengths"]
    arrays = padded_to(batch, padded or int(lengths.max()))
    width = arrays["input_ids"].shape[1]
    chosen = {
        "input_ids": arrays["input_ids"],
        "token_type_ids": arrays["segment_ids"],
        "attention_mask": np.arange(width)[None, :] < lengths[:, None],
        **{name: batch[field] for field, name in LABELS.items() if field in batch},
    }
    return {name: torch.from_numpy(array.astype(np.int64)) for name, array in chosen.items()}


def fastest_attention(folder: str, dtype: str) -> str:
    """The implementation of attention whose steps take less time on windows as they are."""
    batches = [tensors(batch, CASES[WINDOWS].padded) for batch in read_batches(folder, WINDOWS)[:1]]
    seconds = {}
    for attention in ATTENTIONS:
        learner = Learner(transformers.BertForQuestionAnswering, "qa_outputs", folder, dtype, attention)
        learner.begin(seed=0)
        learner.train(batches, lr=0.0)
        begun = time.perf_counter()
        learner.train(2 * batches, lr=0.0)
        seconds[attention] = time.perf_counter() - begun
    return min(seconds, key=lambda attention: seconds[attention])


def set_up(folder: str, dtype: str) -> tuple[dict[str, TakeStep], dict[str, Any]]:
    """The trainings for the scores, and the cases, by name."""
    if not hasattr(torch, dtype):
        raise Unsupported(f"PyTorch has no {dtype}")
    transformers.logging.set_verbosity_error()
    attention = fastest_attention(folder, dtype)
    answers = Learner(transformers.BertForQuestionAnswering, "qa_outputs", folder, dtype, attention)
    labels = Learner(transformers.BertForSequenceClassification, "classifier", folder, dtype, attention)
    for learner in (answers, labels):
        learner.begin(seed=0)

    def train(seed: int) -> ReadLoss:
        answers.begin(seed)
        loss = answers.train([tensors(batch) for batch in read_batches(folder, training_name(seed))])

        def evaluate() -> float:
            evaluation = read_batches(folder, EVALUATION)
            found = logits_of(answers.evaluator(), [tensors(batch) for batch in evaluation])
            outputs = [(batch["examples"], each) for batch, each in zip(evaluation, found)]
            write_logits(folder, logits_name("torch", seed), outputs)
            answers.resume_training()
            return float(loss)

        return evaluate

    steps: dict[str, TakeStep] = {
        training_name(seed): partial(train, seed) for seed in read_settings(folder).seeds
    }

    def take_first_steps() -> ReadLoss:
        seed = read_settings(folder).seeds[0]
        answers.begin(seed, dropout=0.0)
        stored = read_batches(folder, training_name(seed))[:LOSS_STEPS]
        losses = answers.first_losses([tensors(batch) for batch in stored])
        write_losses(folder, "torch", losses)
        return lambda: losses[-1]

    steps[LOSSES] = take_first_steps
    for name, case in CASES.items():
        learner, stored = (labels if name == PAIRS else answers), read_batches(folder, name)
        steps[name] = _step(learner, case, [tensors(batch, case.padded) for batch in stored])
        if name not in WITHOUT_PADDING:
            steps[name + SHORT] = _step(learner, case, [tensors(batch) for batch in stored])
    facts = {
        "PyTorch": torch.__version__,
        "transformers": transformers.__version__,
        "attention": attention,
        "threads": torch.get_num_threads(),
    }
    return steps, facts


def _step(learner: Learner, case: Case, batches: Sequence[Tensors]) -> TakeStep:
    evaluators: list[Any] = []

    def take_step() -> ReadLoss:
        if case.trains:
            loss: ReadLoss = learner.train(batches, lr=1e-6).item
            return loss
        if not evaluators:  # in the warm-up
            evaluators.append(copy.deepcopy(learner.evaluator()))
            learner.resume_training()
        logits_of(evaluators[0], batches)
        return lambda: None

    return take_step


def main() -> None:
    folder, dtype = sys.argv[1:]
    serve(lambda: set_up(folder, dtype))


if __name__ == "__main__":
    main()
