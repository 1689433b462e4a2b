"""The shape of a BERT. Standard library only: options are checked before mxnet is imported."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import asdict, dataclass
from typing import Any, Mapping, NamedTuple

from base.errors import InputError

SIZES = ("layers", "units", "heads", "hidden", "positions", "token_types")  # of BertConfig
GELU_FORMS = ("erf", "tanh")
RELU = "relu"
LAYER_NORM_EPSILON = 1e-12  # Devlin et al., arXiv:1810.04805, the released code
LEAST_EPSILON = 1e-37  # of LayerNorm: a float32 with all of its bits
PADDING = KEEP, REMOVE = "keep", "remove"  # what becomes of rows behind the end of short sequences
BFLOAT16X3 = "bfloat16x3"  # float32 whose products are three of bfloat16 (bert/fused.py)
# The fused CPU operators; where the file is missing they have not been built.
OPERATORS_LIBRARY = os.path.join(sys.prefix, "lib", "libbert_operators.so")
INITIAL_STDEV = 0.02  # of random weights; the same
DROPOUT = 0.1  # the same, section A.2
MOST_LAYERS, MOST_UNITS = 10_000, 1_000_000  # of a BERT: a hundred times the largest that was ever trained
_LARGEST = 1 << 24  # of a size
_NAME = re.compile(r"bert_([1-9]\d*)_([1-9]\d*)_([1-9]\d*)", re.ASCII)


class Dropout(NamedTuple):
    """Rates of dropout: of activations (`hidden`), and of the attention's probabilities."""

    hidden: float = DROPOUT
    attention: float = DROPOUT

    @classmethod
    def of(cls, given: float | Dropout) -> Dropout:
        """The rates, of which a single number is both."""
        return given if isinstance(given, Dropout) else cls(given, given)

    def __str__(self) -> str:
        apart = f" (attention {self.attention:g})" if self.attention != self.hidden else ""
        return f"{self.hidden:g}{apart}"


@dataclass(frozen=True)
class BertConfig:
    """The sizes of a BERT and what its layers compute, without its vocabulary.

    Attributes:
        hidden: units of the feed-forward layers.
        positions: rows of the position embedding, the longest sequence.
        token_types: rows of the segment embedding.
        activation: "erf", GELU as x Phi(x) itself (GluonNLP, Hugging Face's "gelu"), "tanh", Google's
            approximation of it (Hendrycks and Gimpel, arXiv:1606.08415, section 2), or "relu".
        epsilon: of every LayerNorm, added to the variance.
        tied: whether the word embedding is the decoder's weight.
    """

    layers: int
    units: int
    heads: int
    hidden: int
    positions: int = 512
    token_types: int = 2
    activation: str = "erf"
    epsilon: float = LAYER_NORM_EPSILON
    tied: bool = True

    @property
    def name(self) -> str:
        """The name as --model has it, which says nothing of the others."""
        return f"bert_{self.layers}_{self.units}_{self.heads}"

    @property
    def description(self) -> str:
        """The name, and whatever differs from the BERT of that name."""
        usual = named_config(self.name)
        parts = [
            words
            for words, differs in (
                (f"feed-forward layers of {self.hidden} units", self.hidden != usual.hidden),
                (f"{self.positions} positions", self.positions != usual.positions),
                (f"{self.token_types} token types", self.token_types != usual.token_types),
            )
            if differs
        ]
        if self.network != usual.network:
            parts.append(self.network)
        return f"{self.name} ({', '.join(parts)})" if parts else self.name

    @property
    def network(self) -> str:
        """The activation, and what else differs from a usual BERT but sizes."""
        words = "ReLU" if self.activation == RELU else f"GELU by {self.activation}"
        words += "" if self.epsilon == LAYER_NORM_EPSILON else f", layer-norm epsilon {self.epsilon:g}"
        return words if self.tied else f"{words}, a decoder of its own"

    def facts(self) -> dict[str, Any]:
        """This configuration as entries of a manifest, a trace or a report: its name, and all of it."""
        return {"model": self.name, "bert": asdict(self)}


def recorded_config(facts: Mapping[str, Any], source: str) -> BertConfig:
    """The configuration whose `BertConfig.facts` are among these. Before there were others than named ones
    only the name was recorded, and before there was ReLU the activation was called `gelu`.

    Args:
        source: of the facts, for the beginning of the message.

    Raises:
        InputError: neither is there, or not in this form.
    """
    recorded = facts.get("bert")
    try:
        if recorded is None:
            config = named_config(facts["model"])
        else:
            renamed = {"activation" if name == "gelu" else name: value for name, value in recorded.items()}
            config = BertConfig(**renamed)
        sizes = [getattr(config, name) for name in SIZES]
        if not all(type(size) is int and 0 < size <= _LARGEST for size in sizes):
            raise ValueError("sizes that no BERT has")
        if config.units % config.heads or config.activation not in (*GELU_FORMS, RELU):
            raise ValueError("heads or an activation that no BERT has")
        if not is_epsilon(config.epsilon) or type(config.tied) is not bool:
            raise ValueError("an epsilon or a decoder that no BERT has")
    except (AttributeError, KeyError, TypeError, ValueError, InputError) as error:
        raise InputError(f"{source} has no model in the form of this version") from error
    return config


def is_epsilon(value: Any) -> bool:
    """Whether a value can be the epsilon of a LayerNorm."""
    return isinstance(value, (int, float)) and type(value) is not bool and LEAST_EPSILON <= value < 1


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
        InputError: another form, sizes that no BERT has, or units that the heads do not divide.
    """
    match = _NAME.fullmatch(name)
    if not match:
        raise InputError(
            f"--model {name}: use bert_12_768_12, bert_24_1024_16 or any other bert_LAYERS_UNITS_HEADS"
        )
    sizes = match.groups()
    too_long = max(map(len, sizes)) > len(str(MOST_UNITS))  # Python does not read thousands of digits
    if too_long or int(sizes[0]) > MOST_LAYERS or int(sizes[1]) > MOST_UNITS:
        raise InputError(f"--model {name}: at most {MOST_LAYERS:,} layers and {MOST_UNITS:,} units")
    layers, units, heads = map(int, sizes)
    if units % heads:
        raise InputError(f"--model {name}: {heads} heads do not divide {units} units")
    return layers, units, heads
