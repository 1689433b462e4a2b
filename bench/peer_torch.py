"""Worker: BERT of Hugging Face's transformers on PyTorch, and PyTorch's matrix products alone.

    python -m bench.peer_torch torch|torch_high|torch_masked|products_torch MODEL 128|512 DTYPE

Runs in an environment of its own that has torch and transformers; see bench/workers.py for what it reads and
writes. BertForPreTraining as it comes scores the vocabulary for all positions ("torch"). The same layers
applied to the masked positions only, as a user could write it, are "torch_masked". bfloat16 is
torch.autocast; bfloat16x3, which is not PyTorch's, is float32 here. "torch_high" is "torch" with PyTorch's
precision of float32 products set to high, which its CPU code need not heed. The update is AdamW, fused; there
is no gradient clipping and no attention mask, because all sequences are full.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from bench.work import DROPOUT, SQUARE, VOCABULARY, Work, gflop, products
from bench.workers import ReadLoss, TakeStep, Unsupported, best_gflops, no_loss, serve


def set_up_model(kind: str, work: Work) -> tuple[TakeStep, dict[str, Any]]:
    import transformers

    transformers.logging.set_verbosity_error()
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
    masked_labels, rows = labels[masked], masked.reshape(-1).nonzero().reshape(-1)
    is_next = torch.zeros(sequences, dtype=torch.long)

    def all_positions() -> Any:
        return model(input_ids=ids, token_type_ids=segments, labels=labels, next_sentence_label=is_next).loss

    def masked_positions() -> Any:
        encoded = model.bert(input_ids=ids, token_type_ids=segments)
        chosen = encoded.last_hidden_state.reshape(-1, size.units)[rows]
        scores, next_sentence = model.cls(chosen, encoded.pooler_output)
        cross_entropy = torch.nn.functional.cross_entropy
        return cross_entropy(scores, masked_labels) + cross_entropy(next_sentence, is_next)

    compute_loss = masked_positions if kind == "torch_masked" else all_positions

    def take_step() -> ReadLoss:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=work.peers_dtype == "bfloat16"):
            loss = compute_loss()
        loss.backward()
        optimizer.step()
        read_loss: ReadLoss = loss.item
        return read_loss

    facts = {
        "transformers": transformers.__version__,
        "attention": config._attn_implementation,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "gflop": gflop(products(size, work.batch, None if kind == "torch_masked" else work.batch.tokens)),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }
    return take_step, facts


def set_up_products(work: Work) -> tuple[TakeStep, dict[str, Any]]:
    """The products of one step and nothing else, each layer with weights of its own."""
    number = getattr(torch, work.peers_dtype)

    def array(*shape: int) -> Any:
        return torch.randn(*shape).to(number)

    chosen = products(work.config, work.batch)
    jobs = []
    for product in chosen:
        batch = (product.batch,) if product.batch > 1 else ()
        left = array(*batch, product.rows, product.inner)
        gradient = array(*batch, product.rows, product.columns)
        for _ in range(product.times):
            jobs.append((left, array(*batch, product.columns, product.inner), gradient))

    def take_step() -> ReadLoss:
        for left, right, _ in jobs:
            left @ right.mT
        for left, right, gradient in jobs:
            gradient @ right
            gradient.mT @ left
        return no_loss

    square, other = array(SQUARE, SQUARE), array(SQUARE, SQUARE)
    rate = best_gflops(lambda: torch.mm(square, other), 2 * SQUARE**3 / 1e9)
    return take_step, {"gflop": gflop(chosen), "square_gflops": rate}


def main() -> None:
    kind, *words = sys.argv[1:]
    work = Work.read(words)

    def set_up() -> tuple[TakeStep, dict[str, Any]]:
        if not hasattr(torch, work.peers_dtype):
            raise Unsupported(f"PyTorch has no {work.peers_dtype}")
        if kind == "torch_high":
            torch.set_float32_matmul_precision("high")
        if kind == "products_torch":
            take_step, facts = set_up_products(work)
        else:
            take_step, facts = set_up_model(kind, work)
        return take_step, {"PyTorch": torch.__version__, "threads": torch.get_num_threads(), **facts}

    serve(set_up)


if __name__ == "__main__":
    main()
