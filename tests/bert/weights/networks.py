"""MXNet's network with the weights of a file, and inputs for it."""

from __future__ import annotations

from typing import NamedTuple

import mxnet as mx
import numpy as np

from bert.model import build_model, each_once, initialize
from bert.weights.tensors import Weights


class Inputs(NamedTuple):
    """Token ids, segments, lengths and places to predict of a few sentences, of different lengths."""

    tokens: np.ndarray
    segments: np.ndarray
    lengths: np.ndarray
    places: np.ndarray


def random_inputs(vocab_size: int, length: int, sentences: int = 3) -> Inputs:
    generator = np.random.default_rng(7)
    lengths = generator.integers(length // 2, length + 1, sentences)
    return Inputs(
        generator.integers(0, vocab_size, (sentences, length)),
        generator.integers(0, 2, (sentences, length)),
        lengths,
        np.stack([generator.permutation(int(each))[: length // 3] for each in lengths]),
    )


def mxnet_logits(weights: Weights, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
    """Of the next-sentence head and of the masked-LM head, in float32."""
    assert not weights.missing
    outputs = _outputs(weights, inputs)
    return outputs[2], outputs[3]


def mxnet_sequence(weights: Weights, inputs: Inputs) -> np.ndarray:
    """The last layer's output; heads that are missing do not matter to it."""
    return _outputs(weights, inputs)[0]


def _outputs(weights: Weights, inputs: Inputs) -> list[np.ndarray]:
    model = build_model(weights.config, weights.vocab_size, dropout=0.0)
    initialize(model, mx.cpu(), "float32", seed=0)
    parameters = model._collect_params_with_prefix()
    assert weights.missing or set(weights.tensors) == set(each_once(parameters))
    for name, tensor in weights.tensors.items():
        parameters[name].set_data(mx.nd.array(tensor.read(), dtype="float32"))
    arrays = [mx.nd.array(each, dtype="float32") for each in inputs]
    return [each.asnumpy() for each in model(*arrays)]
