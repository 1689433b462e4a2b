"""Worker: BERT of Hugging Face's transformers on PyTorch.

    python -m bench.peer_torch step torch|torch_high|torch_masked MODEL 128|512 DTYPE
    python -m bench.peer_torch finetune FOLDER float32|bfloat16
    python -m bench.peer_torch pretraining FOLDER SEED
    python -m bench.peer_torch latency FOLDER float32|bfloat16 SIZE ...

Runs in an environment of its own that has torch and transformers; see bench/workers.py for what it reads and
writes, bench/trainings.py for the folder. In training bfloat16 is torch.autocast.

step: BertForPreTraining as it comes scores the vocabulary for all positions ("torch"). The same layers
applied to the masked positions only, as a user could write it, are "torch_masked". bfloat16x3, which is not
PyTorch's, is float32 here. "torch_high" is "torch" with PyTorch's precision of float32 products set to high,
which its CPU code need not heed. The update is AdamW, fused; there is no gradient clipping and no attention
mask, because all sequences are full.

finetune: BertForQuestionAnswering and BertForSequenceClassification as they come, with AdamW (fused),
clipping and the batches of the other contestants. Evaluation in bfloat16 is by a copy of the weights in
bfloat16, which is faster. Of the implementations of attention the one is taken that is faster here.

latency: BertForQuestionAnswering as in evaluation, for each size with the faster attention.

pretraining: BertForPreTraining's layers on the masked positions only, which is faster than the model's own
loss over all positions, and gives the same one; LAMB and clipping.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from functools import partial
from typing import Any, Callable, Mapping, Sequence

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy

from bench.trainings import (
    CASES,
    PAIRS,
    PRETRAINING,
    TORCH,
    WINDOWS,
    Arrays,
    ReadLosses,
    Settings,
    head_weights,
    latency_step,
    model_name,
    read_batches,
    read_settings,
    serve_finetuning,
    serve_pretraining,
)
from bench.work import DROPOUT, VOCABULARY, Work
from bench.workers import ReadResults, Steps, TakeStep, serve

ATTENTIONS = ("sdpa", "eager")
Tensors = Mapping[str, Any]
Losses = Callable[[Any, Tensors], Sequence[Any]]  # of a model and a batch: means, which are added
LABELS = {"starts": "start_positions", "ends": "end_positions", "labels": "labels"}


class Lamb(torch.optim.Optimizer):
    """LAMB, written after the paper (You et al., arXiv:1904.00962, Algorithm 2), with phi(z) = z and, as in
    its authors' code, without Adam's bias correction. A group's `adapts` says whether the ratio
    ||w|| / ||update|| applies. Its tensors are updated by PyTorch's functions for lists, which are faster
    than one call a tensor."""

    def __init__(self, groups: list[dict[str, Any]], betas: tuple[float, float], epsilon: float):
        super().__init__(groups, {"lr": 0.0, "betas": betas, "eps": epsilon})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            weights = group["params"]
            gradients = [weight.grad for weight in weights]
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight] = {"m": torch.zeros_like(weight), "v": torch.zeros_like(weight)}
            m = [self.state[weight]["m"] for weight in weights]
            v = [self.state[weight]["v"] for weight in weights]
            beta1, beta2 = group["betas"]
            torch._foreach_lerp_(m, gradients, 1 - beta1)
            torch._foreach_mul_(v, beta2)
            torch._foreach_addcmul_(v, gradients, gradients, 1 - beta2)
            divisors = torch._foreach_sqrt(v)
            torch._foreach_add_(divisors, group["eps"])
            updates = torch._foreach_div(m, divisors)
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
            if group["adapts"]:
                norms = zip(torch._foreach_norm(weights), torch._foreach_norm(updates))
                ratios = [torch.where((w > 0) & (u > 0), w / u, 1.0) for w, u in norms]
                torch._foreach_mul_(updates, ratios)
            torch._foreach_add_(weights, updates, alpha=-group["lr"])


def own_loss(model: Any, batch: Tensors) -> Sequence[Any]:
    """The loss that the model comes with."""
    return [model(**batch).loss]


def masked_losses(model: Any, batch: Tensors) -> Sequence[Any]:
    """Both losses of pretraining, the vocabulary scored for the places `rows` only: numbers of a place among
    all of the batch."""
    mask, segments = batch.get("attention_mask"), batch["token_type_ids"]
    encoded = model.bert(batch["input_ids"], attention_mask=mask, token_type_ids=segments)
    chosen = encoded.last_hidden_state.flatten(0, 1)[batch["rows"]]
    scores, next_sentence = model.cls(chosen, encoded.pooler_output)
    return [
        cross_entropy(scores, batch["labels"]),
        cross_entropy(next_sentence, batch["next_sentence_label"]),
    ]


def unpadded_loss(model: Any, batch: Tensors) -> Sequence[Any]:
    """The loss of questions without the logits of padding, as in ours: the model's own takes these for wrong
    answers."""
    outputs, padding = model(**without_answers(batch)), ~batch["attention_mask"].bool()
    starts, ends = (
        logits.float().masked_fill(padding, -1e9) for logits in (outputs.start_logits, outputs.end_logits)
    )
    both = cross_entropy(starts, batch["start_positions"]), cross_entropy(ends, batch["end_positions"])
    return [sum(both) / 2]


def without_answers(batch: Tensors) -> Tensors:
    return {name: batch[name] for name in batch if not name.endswith("positions")}


def train(
    model: Any, optimizer: Any, compute: Losses, batch: Tensors, dtype: str, clip_norm: float = 0.0
) -> Any:
    """A step; the loss, detached. Without `clip_norm` nothing is clipped."""
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bfloat16"):
        losses = compute(model, batch)
    loss = losses[0] if len(losses) == 1 else losses[0] + losses[1]
    loss.backward()
    if clip_norm:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    return loss.detach()


class Torch:
    """A model of transformers with the folder's weights: a `Learner` of bench/trainings.py. `attention`: its
    implementation, by default that of transformers."""

    def __init__(self, kind: str, folder: str, settings: Settings, dtype: str, attention: str | None = None):
        self._make, self._head = {
            PRETRAINING: (transformers.BertForPreTraining, ""),
            WINDOWS: (transformers.BertForQuestionAnswering, "qa_outputs"),
            PAIRS: (transformers.BertForSequenceClassification, "classifier"),
        }[kind]
        self._kind, self._folder, self._settings, self._dtype = kind, folder, settings, dtype
        self._more = {"attn_implementation": attention} if attention else {}
        self._model: Any
        self._optimizer: Any
        self._evaluator: Any = None

    @property
    def attention(self) -> str:
        """The implementation that the model has; after `begin`."""
        return str(self._model.config._attn_implementation)

    def begin(self, seed: int) -> None:
        torch.manual_seed(seed)
        settings, self._evaluator = self._settings, None
        self._model = self._make.from_pretrained(
            os.path.join(self._folder, model_name(self._kind, seed)),
            hidden_dropout_prob=settings.dropout,
            attention_probs_dropout_prob=settings.dropout,
            dtype=torch.float32,
            **self._more,
        ).train()
        if self._head:
            layer = getattr(self._model, self._head)
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(head_weights(seed, *layer.weight.shape)))
                layer.bias.zero_()
        groups: list[dict[str, Any]] = [
            {"params": [], "weight_decay": settings.weight_decay, "adapts": True},
            {"params": [], "weight_decay": 0.0, "adapts": False},
        ]
        for name, parameter in self._model.named_parameters():
            groups[name.endswith("bias") or "LayerNorm" in name]["params"].append(parameter)
        betas = settings.beta1, settings.beta2
        if self._kind == PRETRAINING:
            self._optimizer = Lamb(groups, betas, settings.epsilon)
        else:
            self._optimizer = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=settings.epsilon, fused=True)

    def batches(self, stored: Sequence[Arrays], padded: int | None = None) -> Sequence[Tensors]:
        return [tensors(batch, padded) for batch in stored]

    def train(self, batches: Sequence[Tensors], rates: Sequence[float], exact: bool = False) -> ReadLosses:
        self._evaluator = None
        compute = masked_losses if self._kind == PRETRAINING else unpadded_loss if exact else own_loss
        losses = []
        for batch, rate in zip(batches, rates):
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            clip_norm = self._settings.clip_norm
            losses.append(train(self._model, self._optimizer, compute, batch, self._dtype, clip_norm))
        return lambda: [float(loss) for loss in losses]

    def logits(self, batches: Sequence[Tensors]) -> list[np.ndarray]:
        if self._evaluator is None:  # of a case in its warm-up
            self._evaluator = copy.deepcopy(self._model).to(getattr(torch, self._dtype)).eval()
        found = []
        with torch.inference_mode():
            for batch in batches:
                outputs = self._evaluator(**without_answers(batch))
                both = torch.stack([outputs.start_logits, outputs.end_logits], dim=1)
                found.append(both.float().numpy())
        return found

    def held_out(self, batches: Sequence[Tensors]) -> float:
        counts = [len(batch["rows"]) for batch in batches]
        with torch.no_grad():  # without dropout, training and evaluation compute the same
            losses = [float(masked_losses(self._model, batch)[0]) for batch in batches]
        return sum(loss * count for loss, count in zip(losses, counts)) / sum(counts)


def tensors(batch: Arrays, padded: int | None = None) -> dict[str, Any]:
    """The arguments of the model, padded to `padded` tokens, by default to the longest example; for
    `masked_losses` as long as they are. A next sentence's label means the same in both projects: 1 is a
    random one."""
    masked, lengths = "masked_ids" in batch, batch["valid_lengths"]
    stored = batch["input_ids"].shape[1]
    width = stored if masked else padded or int(lengths.max())
    more = (0, 0), (0, max(0, width - stored))
    chosen = {
        "input_ids": np.pad(batch["input_ids"], more)[:, :width],
        "token_type_ids": np.pad(batch["segment_ids"], more)[:, :width],
        "attention_mask": np.arange(width)[None, :] < lengths[:, None],
        **{name: batch[field] for field, name in LABELS.items() if field in batch},
    }
    if masked:
        real = batch["masked_weights"] > 0
        chosen["rows"] = (np.arange(len(lengths))[:, None] * width + batch["masked_positions"])[real]
        chosen["labels"] = batch["masked_ids"][real]
        chosen["next_sentence_label"] = batch["next_sentence_labels"]
    return {name: torch.from_numpy(array.astype(np.int64)) for name, array in chosen.items()}


def faster(folder: str, dtype: str, name: str) -> Torch:
    """A learner for questions, with the implementation of attention that takes less time: to train on windows
    (WINDOWS), else to answer the calls of the file `name`."""
    found = []
    for attention in ATTENTIONS:
        learner = Torch(WINDOWS, folder, read_settings(folder), dtype, attention)
        learner.begin(seed=0)
        if name == WINDOWS:
            batches = learner.batches(read_batches(folder, name)[:1], CASES[name].padded)
            run: Callable[[], Any] = partial(learner.train, batches, [0.0])
        else:
            run = partial(learner.logits, learner.batches(read_batches(folder, name)))
        run()
        begun = time.perf_counter()
        run()
        run()
        found.append((time.perf_counter() - begun, learner))
    return min(found, key=lambda each: each[0])[1]


def set_up_step(key: str, *words: str) -> tuple[TakeStep, dict[str, Any]]:
    """A contestant of bench/step.py, of the words of its work."""
    work = Work.read(words)
    if key == "torch_high":
        torch.set_float32_matmul_precision("high")
    size, (sequences, length, positions) = work.config, work.batch
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=size.units,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.hidden,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
    )
    model = transformers.BertForPreTraining(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    ids = torch.randint(5, VOCABULARY, (sequences, length))
    segments = torch.zeros_like(ids)
    segments[:, length // 2 :] = 1
    masked = torch.zeros(sequences, length, dtype=torch.bool)
    masked[:, torch.randperm(length)[:positions]] = True
    labels = torch.where(masked, torch.randint(5, VOCABULARY, ids.shape), -100)
    is_next = torch.zeros(sequences, dtype=torch.long)
    batch = {"input_ids": ids, "token_type_ids": segments, "labels": labels, "next_sentence_label": is_next}
    compute, decoded = own_loss, length
    if key == "torch_masked":
        compute, decoded = masked_losses, positions
        batch.update(labels=labels[masked], rows=masked.flatten().nonzero().flatten())
    facts = {
        "attention": config._attn_implementation,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "gflop": work.gflop(decoded),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }

    def take_step() -> ReadResults:
        loss = train(model, optimizer, compute, batch, work.peers_dtype)
        return lambda: {"loss": loss.item()}

    return take_step, facts


def set_up_finetuning(folder: str, dtype: str) -> tuple[Steps, dict[str, Any]]:
    attention = faster(folder, dtype, WINDOWS).attention

    def make(kind: str, settings: Settings) -> Torch:
        return Torch(kind, folder, settings, dtype, attention)

    return serve_finetuning(folder, TORCH, make), {"attention": attention}


def set_up_pretraining(folder: str, seed: str) -> tuple[Steps, dict[str, Any]]:
    learner = Torch(PRETRAINING, folder, read_settings(folder), "float32")
    return serve_pretraining(folder, int(seed), learner), {"attention": learner.attention}


def set_up_latency(folder: str, dtype: str, *sizes: str) -> tuple[Steps, dict[str, Any]]:
    learners = {size: faster(folder, dtype, size) for size in sizes}
    steps = {size: latency_step(folder, size, each.batches, each.logits) for size, each in learners.items()}
    return steps, {"attention": {size: each.attention for size, each in learners.items()}}


SET_UPS: Mapping[str, Callable[..., tuple[Steps, dict[str, Any]]]] = {
    "step": set_up_step,
    "finetune": set_up_finetuning,
    "pretraining": set_up_pretraining,
    "latency": set_up_latency,
}


def set_up(what: str, *words: str) -> tuple[Steps, dict[str, Any]]:
    """Steps and facts, from the words of the command line."""
    transformers.logging.set_verbosity_error()
    steps, facts = SET_UPS[what](*words)
    versions = {"PyTorch": torch.__version__, "transformers": transformers.__version__}
    return steps, {**versions, "threads": torch.get_num_threads(), **facts}


if __name__ == "__main__":
    serve(lambda: set_up(*sys.argv[1:]))
