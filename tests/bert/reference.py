"""BERT in float64 NumPy, from the papers: an independent opinion on what weights in a file compute.

The network is that of Devlin et al., arXiv:1810.04805 (section 3 and appendix A), its layers those of Vaswani
et al., arXiv:1706.03762 (section 3): post-norm blocks of self-attention and a feed-forward network with GELU
(Hendrycks and Gimpel, arXiv:1606.08415), a tanh pooler over the first token, a next-sentence classifier on
it, and a masked-LM head that is a dense layer, GELU, a LayerNorm, and the word embedding's transpose with a
bias. ReLU may take the place of GELU, and another matrix that of the word embedding.

It reads the arrays of a published file by the file's own names: `Google` those of a TensorFlow checkpoint,
whose kernels are (inputs, outputs), `HuggingFace` those of a state dictionary, whose weights are
(outputs, inputs).
"""

from __future__ import annotations

import math
from typing import Mapping

import numpy as np

from bert.weights.names import names_of

Arrays = Mapping[str, np.ndarray]
_erf = np.vectorize(math.erf, otypes=[np.float64])


def activated(x: np.ndarray, form: str) -> np.ndarray:
    """x Phi(x), its approximation (section 2), or ReLU."""
    if form == "relu":
        return np.maximum(x, 0)
    if form == "erf":
        return x * 0.5 * (1.0 + _erf(x / math.sqrt(2.0)))
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def softmax(x: np.ndarray) -> np.ndarray:
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


class Google:
    """Arrays of a TensorFlow checkpoint."""

    def __init__(self, arrays: Arrays, epsilon: float = 1e-12):
        self.arrays = arrays
        self.epsilon = epsilon

    def get(self, name: str) -> np.ndarray:
        return self.arrays[name].astype(np.float64)

    def dense(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.get(f"{name}/kernel") + self.get(f"{name}/bias")

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.epsilon)
        gamma, beta = self.norm_parameters(name)
        return scaled * gamma + beta

    def norm_parameters(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        return self.get(f"{name}/gamma"), self.get(f"{name}/beta")

    def embedding(self, name: str) -> np.ndarray:
        return self.get(f"bert/embeddings/{name}_embeddings")

    def decoder(self) -> np.ndarray:
        return self.embedding("word")

    def masked_lm_bias(self) -> np.ndarray:
        return self.get("cls/predictions/output_bias")

    def next_sentence(self, pooled: np.ndarray) -> np.ndarray:
        weights = self.get("cls/seq_relationship/output_weights")  # (2, units): no kernel
        return pooled @ weights.T + self.get("cls/seq_relationship/output_bias")


class HuggingFace(Google):
    """Arrays of a state dictionary."""

    def _path(self, name: str) -> str:
        return name.replace("layer_", "layer.").replace("/", ".")

    def dense(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.get(f"{self._path(name)}.weight").T + self.get(f"{self._path(name)}.bias")

    def norm_parameters(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        return self.get(f"{self._path(name)}.weight"), self.get(f"{self._path(name)}.bias")

    def embedding(self, name: str) -> np.ndarray:
        return self.get(f"bert.embeddings.{name}_embeddings.weight")

    def decoder(self) -> np.ndarray:
        own = "cls.predictions.decoder.weight"
        return self.get(own) if own in self.arrays else self.embedding("word")

    def masked_lm_bias(self) -> np.ndarray:
        return self.get("cls.predictions.bias")

    def next_sentence(self, pooled: np.ndarray) -> np.ndarray:
        return self.dense(pooled, "cls/seq_relationship")


def of_structural(parameters: Arrays, epsilon: float) -> HuggingFace:
    """Parameters by GluonNLP's structural names, those of a task's head left out."""
    heads = ("span_classifier.", "label_classifier.")
    own = {name: array for name, array in parameters.items() if not name.startswith(heads)}
    return HuggingFace({names_of(name).huggingface: array for name, array in own.items()}, epsilon)


def sequence(
    of: Google, heads: int, form: str, tokens: np.ndarray, segments: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """The last layer's output, (sentences, length, units); what lies behind a sentence's end is not seen."""
    sentences, length = tokens.shape
    x = of.embedding("word")[tokens] + of.embedding("token_type")[segments]
    x = of.norm(x + of.embedding("position")[:length], "bert/embeddings/LayerNorm")
    unseen = np.arange(length)[None, None, None, :] >= lengths[:, None, None, None]
    layer = 0
    while any(f"layer_{layer}/" in name or f"layer.{layer}." in name for name in of.arrays):
        block = f"bert/encoder/layer_{layer}"

        query, key, value = (
            of.dense(x, f"{block}/attention/self/{kind}")
            .reshape(sentences, length, heads, -1)
            .transpose(0, 2, 1, 3)
            for kind in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / math.sqrt(query.shape[-1])
        mixed = softmax(np.where(unseen, -np.inf, scores)) @ value
        mixed = mixed.transpose(0, 2, 1, 3).reshape(sentences, length, -1)
        attended = of.dense(mixed, f"{block}/attention/output/dense")
        x = of.norm(x + attended, f"{block}/attention/output/LayerNorm")
        inner = activated(of.dense(x, f"{block}/intermediate/dense"), form)
        x = of.norm(x + of.dense(inner, f"{block}/output/dense"), f"{block}/output/LayerNorm")
        layer += 1
    return x


def logits(of: Google, form: str, x: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the next-sentence head, (sentences, 2), and of the masked-LM head at `places` of each sentence."""
    pooled = np.tanh(of.dense(x[:, 0], "bert/pooler/dense"))
    at = np.take_along_axis(x, places[:, :, None], axis=1)
    transformed = activated(of.dense(at, "cls/predictions/transform/dense"), form)
    transformed = of.norm(transformed, "cls/predictions/transform/LayerNorm")
    return of.next_sentence(pooled), transformed @ of.decoder().T + of.masked_lm_bias()
