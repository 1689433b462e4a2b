"""Weights of a small BERT for tests: every number another one, and square matrices that are not symmetric."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Mapping

import numpy as np

from bert.configuration import BertConfig
from bert.weights.bare_params import distinct_shapes
from bert.weights.params_file import write_params
from bert.weights.tensors import Tensor

SMALL = BertConfig(layers=2, units=64, heads=2, hidden=96, positions=40, token_types=3)
TOKENS = 20
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]


def arrays(
    config: BertConfig = SMALL, vocab_size: int = TOKENS, stdev: float = 0.02, dtype: Any = np.float32
) -> dict[str, np.ndarray]:
    """Random weights by structural name, without a tied decoder's, which is the word embedding."""
    generator = np.random.default_rng(0)
    shapes = distinct_shapes(config, vocab_size)
    found = {name: generator.normal(0, stdev, shape).astype(dtype) for name, shape in shapes.items()}
    for name in found:
        if name.endswith("gamma"):  # about 1, or LayerNorms would shrink all signals
            found[name] += 1
    return found


def write(path: Path, named: Mapping[str, np.ndarray]) -> str:
    """A .params file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        write_params(file, named)
    return str(path)


def tensors_of(named: Mapping[str, Any]) -> dict[str, Tensor]:
    """Arrays as the writers of files take them."""
    arrays = {name: np.asarray(each) for name, each in named.items()}
    return {name: Tensor(each.shape, each.dtype, lambda each=each: each) for name, each in arrays.items()}


def sizes_of(config: BertConfig) -> dict[str, Any]:
    """The sizes as a bert_config.json has them."""
    return {
        **{"num_hidden_layers": config.layers, "hidden_size": config.units, "vocab_size": TOKENS},
        **{"num_attention_heads": config.heads, "intermediate_size": config.hidden},
        **{"max_position_embeddings": config.positions, "type_vocab_size": config.token_types},
    }


def write_folder(folder: Path, config: BertConfig, named: Mapping[str, np.ndarray]) -> None:
    """A folder in our format: the parameters, and all that may lie beside them."""
    write(folder / "model.params", named)
    form = "hidden_act" if config.activation == "relu" else "gelu_form"
    network = {form: config.activation, "layer_norm_eps": config.epsilon, "tie_word_embeddings": config.tied}
    (folder / "bert_config.json").write_text(json.dumps({**sizes_of(config), **network}))
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
