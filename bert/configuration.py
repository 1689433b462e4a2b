"""The sizes of a BERT by its name. Standard library only: options are checked before mxnet is imported."""

from __future__ import annotations

import re

from base.errors import InputError

_NAME = re.compile(r"bert_([1-9]\d*)_([1-9]\d*)_([1-9]\d*)")


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
