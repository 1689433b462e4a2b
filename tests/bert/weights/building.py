"""Weights of a small BERT for tests: every number another one, and square matrices that are not symmetric."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping

import numpy as np

from bert.configuration import BertConfig
from bert.weights.bare_params import distinct_shapes
from bert.weights.params_file import write_params

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
