"""Worker of bench/pretraining.py: pretraining with Hugging Face's transformers on PyTorch.

    python -m bench.pretraining_torch FOLDER SEED

Runs in an environment of its own that has torch and transformers; see bench/workers.py for what it reads and
writes, bench/pretraining_work.py for the folder. BertForPreTraining's layers are applied to the masked
positions only, which is faster than the model's own loss over all positions, and gives the same one.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping, Sequence

import numpy as np
import torch
import transformers

from bench.finetune_work import Arrays
from bench.pretraining_work import Settings, model_name, read_settings, serve_chunks
from bench.workers import Steps, serve

Tensors = Mapping[str, Any]


class Lamb(torch.optim.Optimizer):
    """LAMB, written after the paper (You et al., arXiv:1904.00962, Algorithm 2), with phi(z) = z and, as in
    its authors' code, without Adam's bias correction. A group's `adapts` says whether the ratio
    ||w|| / ||update|| applies. Its tensors are updated by PyTorch's functions for lists, which are faster
    than one call a tensor."""

    def __init__(self, groups: list[dict[str, Any]], settings: Settings):
        defaults = {"lr": 0.0, "betas": (settings.beta1, settings.beta2), "eps": settings.epsilon}
        super().__init__(groups, defaults)

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


class Torch:
    """BertForPreTraining with the folder's weights: a `Learner` of bench/pretraining_work.py."""

    def __init__(self, folder: str, settings: Settings):
        self._model = transformers.BertForPreTraining.from_pretrained(
            folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, dtype=torch.float32
        ).train()
        self.attention = self._model.config._attn_implementation
        self._clip_norm = settings.clip_norm
        spared: list[Any] = []
        others: list[Any] = []
        for name, parameter in self._model.named_parameters():
            (spared if name.endswith("bias") or "LayerNorm" in name else others).append(parameter)
        self._optimizer = Lamb(
            [
                {"params": others, "weight_decay": settings.weight_decay, "adapts": True},
                {"params": spared, "weight_decay": 0.0, "adapts": False},
            ],
            settings,
        )

    def prepare(self, batches: Sequence[Arrays]) -> Sequence[Tensors]:
        return [tensors(batch) for batch in batches]

    def train(self, batches: Sequence[Tensors], rates: Sequence[float]) -> Sequence[Any]:
        losses, parameters = [], list(self._model.parameters())
        for batch, rate in zip(batches, rates):
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.zero_grad()
            mlm, nsp = self._losses(batch)
            loss = mlm + nsp
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, self._clip_norm)
            self._optimizer.step()
            losses.append(loss.detach())
        return losses

    def read(self, losses: Sequence[Any]) -> list[float]:
        return [float(loss) for loss in losses]

    def evaluate(self, batches: Sequence[Tensors]) -> float:
        total = masked = 0.0
        with torch.no_grad():  # without dropout, training and evaluation compute the same
            for batch in batches:
                count = len(batch["rows"])
                total, masked = total + float(self._losses(batch)[0]) * count, masked + count
        return total / masked

    def _losses(self, batch: Tensors) -> tuple[Any, Any]:
        """Means of both losses of a batch."""
        encoded = self._model.bert(
            batch["ids"], attention_mask=batch["mask"], token_type_ids=batch["segments"]
        )
        hidden = encoded.last_hidden_state
        chosen = hidden.reshape(-1, hidden.shape[-1])[batch["rows"]]
        scores, next_sentence = self._model.cls(chosen, encoded.pooler_output)
        cross_entropy = torch.nn.functional.cross_entropy
        return cross_entropy(scores, batch["labels"]), cross_entropy(next_sentence, batch["next"])


def tensors(batch: Arrays) -> dict[str, Any]:
    """The arrays of a batch for the model. `rows`: places of the masked tokens among all, `labels`: the
    tokens that stood there; both without padding. A next sentence's label means the same in both projects:
    1 is a random one."""
    ids, real = batch["input_ids"], batch["masked_weights"] > 0
    length = ids.shape[1]
    arrays = {
        "ids": ids,
        "segments": batch["segment_ids"],
        "mask": np.arange(length)[None] < batch["valid_lengths"][:, None],
        "rows": (np.arange(len(ids))[:, None] * length + batch["masked_positions"])[real],
        "labels": batch["masked_ids"][real],
        "next": batch["next_sentence_labels"],
    }
    return {name: torch.from_numpy(array.astype(np.int64)) for name, array in arrays.items()}


def set_up(folder: str, seed: int) -> tuple[Steps, dict[str, Any]]:
    transformers.logging.set_verbosity_error()
    learner = Torch(os.path.join(folder, model_name(seed)), read_settings(folder))
    facts = {
        "PyTorch": torch.__version__,
        "transformers": transformers.__version__,
        "attention": learner.attention,
        "threads": torch.get_num_threads(),
    }
    return serve_chunks(folder, "torch", seed, learner), facts


def main() -> None:
    folder, seed = sys.argv[1:]
    serve(lambda: set_up(folder, int(seed)))


if __name__ == "__main__":
    main()
