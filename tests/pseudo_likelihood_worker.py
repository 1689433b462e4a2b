"""Pseudo-log-likelihoods by transformers' model and tokenizer, in a straightforward loop: imports nothing of
this project, and runs in an environment of its own.

    python pseudo_likelihood_worker.py FOLDER SENTENCES OUT.npz

FOLDER has a BERT with a masked-LM head as save_pretrained writes it, SENTENCES has one on each line, OUT gets
the arrays "original" (Salazar et al. 2020) and "word_l2r" (Kauf and Ivanova 2023).
"""

from __future__ import annotations

import sys

import numpy as np
import torch
import transformers


def scores(model, tokenizer, text: str) -> tuple[float, float]:
    encoded = tokenizer(text, return_tensors="pt")
    ids, words = encoded["input_ids"][0], encoded.word_ids()
    totals = []
    for within_word in (False, True):
        total = 0.0
        for place in range(1, len(ids) - 1):
            masked = ids.clone()
            masked[place] = tokenizer.mask_token_id
            for later in range(place + 1, len(ids) - 1):
                if within_word and words[later] == words[place]:
                    masked[later] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = model(masked[None]).logits[0, place]
            total += float(torch.log_softmax(logits.double(), dim=-1)[ids[place]])
        totals.append(total)
    return totals[0], totals[1]


if __name__ == "__main__":
    folder, sentences, out = sys.argv[1:]
    loaded = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    pieces = transformers.AutoTokenizer.from_pretrained(folder)
    with open(sentences, encoding="utf-8") as file:
        found = np.array([scores(loaded, pieces, line.rstrip("\n")) for line in file])
    np.savez(out, original=found[:, 0], word_l2r=found[:, 1])
