"""The shape of a BERT. Standard library only: options are checked before mxnet is imported."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import asdict, dataclass
from typing import Any, Mapping

from base.errors import InputError

GELU_FORMS = ("erf", "tanh")
LAYER_NORM_EPSILON = 1e-12  # Devlin et al., arXiv:1810.04805, the released code
PADDING = KEEP, REMOVE = "keep", "remove"  # what becomes of rows behind the end of short sequences
BFLOAT16X3 = "bfloat16x3"  # float32 whose products are three of bfloat16 (bert/fused.py)
# The fused CPU operators; where the file is missing they have not been built.
OPERATORS_LIBRARY = os.path.join(sys.prefix, "lib", "libbert_operators.so")
INITIAL_STDEV = 0.02  # of random weights; the same
DROPOUT = 0.1  # the same, section A.2
MOST_LAYERS, MOST_UNITS = 10_000, 1_000_000  # of a BERT: a hundred times the largest that was ever trained
_LARGEST = 1 << 24  # of a size
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
                (f"GELU by {self.gelu}", self.gelu != usual.gelu),
            )
            if differs
        ]
        return f"{self.name} ({', '.join(parts)})" if parts else self.name

    def facts(self) -> dict[str, Any]:
        """This configuration as entries of a manifest, a trace or a report: its name, and all of it."""
        return {"model": self.name, "bert": asdict(self)}


def recorded_config(facts: Mapping[str, Any], source: str) -> BertConfig:
    """The configuration whose `BertConfig.facts` are among these. Before there were others than named ones
    only the name was recorded.

    Args:
        source: of the facts, for the beginning of the message.

    Raises:
        InputError: neither is there, or not in this form.
    """
    recorded = facts.get("bert")
    try:
        config = named_config(facts["model"]) if recorded is None else BertConfig(**recorded)
        sizes = [value for name, value in asdict(config).items() if name != "gelu"]
        if not all(type(size) is int and 0 < size <= _LARGEST for size in sizes):
            raise ValueError("sizes that no BERT has")
        if config.units % config.heads or config.gelu not in GELU_FORMS:
            raise ValueError("heads or a form of GELU that no BERT has")
    except (KeyError, TypeError, ValueError, InputError) as error:
        raise InputError(f"{source} has no model in the form of this version") from error
    return config


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
    if max(map(len, match.groups())) > len(str(MOST_UNITS)):
        raise InputError(f"--model {name}: at most {MOST_LAYERS:,} layers and {MOST_UNITS:,} units")
    layers, units, heads = (int(part) for part in match.groups())
    if layers > MOST_LAYERS or units > MOST_UNITS:
        raise InputError(f"--model {name}: at most {MOST_LAYERS:,} layers and {MOST_UNITS:,} units")
    if units % heads:
        raise InputError(f"--model {name}: {heads} heads do not divide {units} units")
    return layers, units, heads
