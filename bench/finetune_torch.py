"""Worker of bench/finetune.py: fine-tuning with Hugging Face's transformers on PyTorch.

    python -m bench.finetune_torch FOLDER float32|bfloat16

Runs in an environment of its own that has torch and transformers; see bench/workers.py for what it reads and
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
from typing import Any, Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as functional
import transformers

from bench.finetune_work import (
    CASES,
    MODEL,
    PAIRS,
    WINDOWS,
    Arrays,
    Settings,
    head_weights,
    padded_to,
    read_batches,
    read_settings,
    serve_learners,
)
from bench.workers import ReadLoss, Steps, Unsupported, serve

ATTENTIONS = ("sdpa", "eager")
Tensors = Mapping[str, Any]
LABELS = {"starts": "start_positions", "ends": "end_positions", "labels": "labels"}


class Torch:
    """A model of transformers with the folder's weights: a `Learner` of bench/finetune_work.py."""

    def __init__(self, pairs: bool, folder: str, settings: Settings, dtype: str, attention: str):
        kinds = transformers.BertForQuestionAnswering, transformers.BertForSequenceClassification
        self._kind, self._head = kinds[pairs], ("qa_outputs", "classifier")[pairs]
        self._folder, self._settings, self._attention = folder, settings, attention
        self._autocast = dtype == "bfloat16"
        self._model: Any
        self._optimizer: Any
        self._evaluator: Any = None

    def begin(self, seed: int) -> None:
        torch.manual_seed(seed)
        settings = self._settings
        self._evaluator = None
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

    def batches(self, stored: Sequence[Arrays], padded: int | None = None) -> Sequence[Tensors]:
        return [tensors(batch, padded) for batch in stored]

    def train(self, batches: Sequence[Tensors], rates: Sequence[float], exact: bool = False) -> ReadLoss:
        self._evaluator = None
        parameters = list(self._model.parameters())
        for batch, rate in zip(batches, rates):
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._autocast):
                loss = _unpadded(self._model, **batch) if exact else self._model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, self._settings.clip_norm)
            self._optimizer.step()
        read_loss: ReadLoss = loss.detach().item
        return read_loss

    def logits(self, batches: Sequence[Tensors]) -> list[np.ndarray]:
        if self._evaluator is None:  # of a case in its warm-up
            number = torch.bfloat16 if self._autocast else torch.float32
            self._evaluator = copy.deepcopy(self._model).to(number).eval()
        found = []
        with torch.inference_mode():
            for batch in batches:
                given = {name: batch[name] for name in batch if not name.endswith("positions")}
                outputs = self._evaluator(**given)
                both = torch.stack([outputs.start_logits, outputs.end_logits], dim=1)
                found.append(both.float().numpy())
        return found


def _unpadded(model: Any, **batch: Any) -> Any:
    """The loss without the logits of padding, as in ours: the model's own takes these for wrong answers."""
    places = {name: batch.pop(name) for name in ("start_positions", "end_positions")}
    outputs, padding = model(**batch), ~batch["attention_mask"].bool()
    losses = [
        functional.cross_entropy(logits.float().masked_fill(padding, -1e9), place)
        for logits, place in zip((outputs.start_logits, outputs.end_logits), places.values())
    ]
    return sum(losses) / 2


def tensors(batch: Arrays, padded: int | None = None) -> dict[str, Any]:
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
    stored, seconds = read_batches(folder, WINDOWS)[:1], {}
    for attention in ATTENTIONS:
        learner = Torch(False, folder, read_settings(folder), dtype, attention)
        learner.begin(seed=0)
        batches = learner.batches(stored, CASES[WINDOWS].padded)
        learner.train(batches, [0.0])
        begun = time.perf_counter()
        learner.train([*batches, *batches], [0.0, 0.0])
        seconds[attention] = time.perf_counter() - begun
    return min(seconds, key=lambda attention: seconds[attention])


def set_up(folder: str, dtype: str) -> tuple[Steps, dict[str, Any]]:
    if not hasattr(torch, dtype):
        raise Unsupported(f"PyTorch has no {dtype}")
    transformers.logging.set_verbosity_error()
    attention = fastest_attention(folder, dtype)

    def make(kind: str, settings: Settings) -> Torch:
        return Torch(kind == PAIRS, folder, settings, dtype, attention)

    facts = {
        "PyTorch": torch.__version__,
        "transformers": transformers.__version__,
        "attention": attention,
        "threads": torch.get_num_threads(),
    }
    return serve_learners(folder, "torch", make, pads=True), facts


def main() -> None:
    folder, dtype = sys.argv[1:]
    serve(lambda: set_up(folder, dtype))


if __name__ == "__main__":
    main()
