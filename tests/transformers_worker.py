"""Hugging Face's transformers at work, in an environment of its own: imports nothing of this project.

    python transformers_worker.py TASKS.json

Each task has a "folder", "inputs" (an .npz with tokens, segments, lengths) and an "out" (an .npz for the
logits). Of those with a "config" the folder is made, with a random BERT of numbers N(0, stdev^2), as
save_pretrained and torch.save write it; the others are loaded, and what transformers say about it is printed
as JSON.
"""

from __future__ import annotations

import io
import json
import logging
import sys
from collections import OrderedDict
from typing import Any

import numpy as np
import torch
import transformers


def logits(model: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    length = inputs["tokens"].shape[1]
    model.eval()
    with torch.no_grad():
        result = model(
            input_ids=torch.tensor(inputs["tokens"]),
            token_type_ids=torch.tensor(inputs["segments"]),
            attention_mask=torch.tensor(np.arange(length)[None] < inputs["lengths"][:, None]).long(),
            output_hidden_states=True,
        )
    if hasattr(result, "prediction_logits"):
        return {
            "mlm": result.prediction_logits.numpy(),
            "nsp": result.seq_relationship_logits.numpy(),
            "hidden": np.stack([each.numpy() for each in result.hidden_states]),
        }
    return {"sequence": result.last_hidden_state.numpy(), "pooled": result.pooler_output.numpy()}


def make(task: dict[str, Any], inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    torch.manual_seed(3)
    model = transformers.BertForPreTraining(transformers.BertConfig(**task["config"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0, task["stdev"])
            if name.endswith("LayerNorm.weight"):
                parameter.add_(1)
    model.save_pretrained(task["folder"])
    state = model.state_dict()
    torch.save(state, f"{task['folder']}.bin")
    renamed = OrderedDict((nvidia(name), tensor) for name, tensor in state.items())
    optimizer = torch.optim.Adam(model.parameters(), lr=0)
    content = {
        "model": renamed,
        "optimizer": optimizer.state_dict(),
        "master params": [],
        "files": ["a"],
        "epoch": 1,
    }
    torch.save(content, f"{task['folder']}.pt")
    np.savez(task["out"], **logits(model, inputs))
    return {}


def nvidia(name: str) -> str:
    for dense in ("intermediate", "pooler", "transform"):
        name = name.replace(f"{dense}.dense.", f"{dense}.dense_act.")
    return f"module.{name}"


def load(task: dict[str, Any], inputs: dict[str, np.ndarray]) -> dict[str, Any]:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    transformers.logging.add_handler(handler)
    kind = getattr(transformers, task["class"])
    model, info = kind.from_pretrained(task["folder"], output_loading_info=True)
    np.savez(task["out"], **logits(model, inputs))
    tokenizer = transformers.AutoTokenizer.from_pretrained(task["folder"])
    transformers.logging.remove_handler(handler)
    return {
        "keys": {name: sorted(found) for name, found in info.items()},
        "said": text.getvalue(),
        "ids": tokenizer(task["text"])["input_ids"],
    }


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        tasks = json.load(file)
    found = []
    for task in tasks:
        given = dict(np.load(task["inputs"]))
        found.append(make(task, given) if "config" in task else load(task, given))
    print(json.dumps(found))
