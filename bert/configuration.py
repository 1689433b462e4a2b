"""The shape of a BERT. Standard library only: options are checked before mxnet is imported."""

from __future__ import annotations

import re
from dataclasses import dataclass

from base.errors import InputError

GELU_FORMS = ("erf", "tanh")
LAYER_NORM_EPSILON = 1e-12  # Devlin et al., arXiv:1810.04805, the released code
_NAME = re.compile(r"bert_([1-9]\d*)_([1-9]\d*)_([1-9]\d*)")


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT and the form of its activation, without its vocabulary.

    Attributes:
        hidden: units of the feed-forward layers.
        positions: rows of the position embedding, the longest sequence.
        token_types: rows of the segment embedding.
        gelu: "erf", x Phi(x) itself (GluonNLP, Hugging Face's "gelu"), or "tanh", Google's approximation of
            it (Hendrycks and Gimpel, arXiv:1606.08415, section 2).
    """

    layers: int
    units: int
    heads: int
    hidden: int
    positions: int = 512
    token_types: int = 2
    gelu: str = "erf"

    @property
    def name(self) -> str:
        """The name as --model has it, which says nothing of the last four."""
        return f"bert_{self.layers}_{self.units}_{self.heads}"


def named_config(name: str) -> BertConfig:
    """The BERT called `bert_L_H_A`: feed-forward layers of 4 H units, 512 positions, GELU by erf.

    Raises:
        InputError: as `parse_model`.
    """
    layers, units, heads = parse_model(name)
    return BertConfig(layers, units, heads, hidden=4 * units)


def parse_model(name: str) -> tuple[int, int, int]:
    """`bert_L_H_A` as (layers, units, heads).

    Raises:
        InputError: another form, or units that the heads do not divide.
    """
    match = _NAME.fullmatch(name)
    if not match:
        raise InputError(
            f"--model {name}: use bert_12_768_12, bert_24_1024_16 or any other bert_LAYERS_UNITS_HEADS"
        )
    layers, units, heads = (int(part) for part in match.groups())
    if units % heads:
        raise InputError(f"--model {name}: {heads} heads do not divide {units} units")
    return layers, units, heads
