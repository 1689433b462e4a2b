"""Checks of a .params file without a manifest, as GluonNLP's scripts leave it, before a run starts from it.

No manifest vouches for such a file, so every name, shape and number is looked at. MXNet is not imported: a
file that cannot be used is found before any work starts.
"""

from __future__ import annotations

from typing import Iterable, Mapping

import numpy as np

from base.errors import InputError
from bert.configuration import BertConfig
from bert.weights.names import DECODER, EMBEDDING, part_of
from bert.weights.tensors import Tensor, shown

Shape = tuple[int, ...]


def expected_shapes(config: BertConfig, vocab_size: int) -> dict[str, Shape]:
    """Shapes of the parameters of `bert.model.build_model`, by GluonNLP's structural names, in its order."""

    def dense(name: str, outputs: int, inputs: int) -> dict[str, Shape]:
        return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

    def norm(name: str) -> dict[str, Shape]:
        return {f"{name}.gamma": (units,), f"{name}.beta": (units,)}

    units, hidden = config.units, config.hidden
    found = {"encoder.position_weight": (config.positions, units), **norm("encoder.layer_norm")}
    for layer in range(config.layers):
        cell = f"encoder.transformer_cells.{layer}"
        attention = [f"{cell}.attention_cell.proj_{each}" for each in ("query", "key", "value")]
        found.update({f"{each}.bias": (units,) for each in attention})
        found.update({f"{each}.weight": (units, units) for each in attention})
        found.update(dense(f"{cell}.proj", units, units))
        found.update(dense(f"{cell}.ffn.ffn_1", hidden, units))
        found.update(dense(f"{cell}.ffn.ffn_2", units, hidden))
        found.update({**norm(f"{cell}.ffn.layer_norm"), **norm(f"{cell}.layer_norm")})
    found.update({EMBEDDING: (vocab_size, units), "token_type_embed.0.weight": (config.token_types, units)})
    found.update({**dense("pooler", units, units), **dense("classifier", 2, units)})
    found.update({**dense("decoder.0", units, units), **norm("decoder.2")})
    return {**found, **dense("decoder.3", vocab_size, units)}


def distinct_shapes(config: BertConfig, vocab_size: int) -> dict[str, Shape]:
    """Those of `expected_shapes` whose arrays differ: a tied decoder's weight is the word embedding."""
    found = expected_shapes(config, vocab_size)
    if config.tied:
        del found[DECODER]
    return found


def check_index(source: str, arrays: Mapping[str, Tensor], expected: Mapping[str, Shape], tied: bool) -> None:
    """Compares the names, shapes and dtypes of a file with those of the model.

    Of the word embedding and the decoder's weight, where they are one array, one is enough.

    Args:
        source: the flag and the file, for the beginning of the message.
        arrays: what `bert.weights.params_file.read_index` gives.
        expected: shapes by structural name.
        tied: whether the decoder is.

    Raises:
        InputError: a parameter is missing, is not the model's, or has another shape or an integer dtype.
    """
    missing = [name for name in expected if name not in arrays]
    if tied and len({EMBEDDING, DECODER} & set(missing)) == 1:
        missing = [name for name in missing if name not in (EMBEDDING, DECODER)]
    if missing:
        parts = dict.fromkeys(part for part in map(part_of, missing) if part)
        raise InputError(
            f"{source} lacks {_some(missing)} of this run's --model"
            + (f" ({', '.join(parts)})" if parts else "")
            + "; save the whole pretraining model with save_parameters (in GluonNLP: a BERTModel with "
            "use_pooler, use_classifier and use_decoder)"
        )
    extra = [name for name in arrays if name not in expected]
    if extra:
        raise InputError(
            f"{source} has {_some(extra)}, which this run's --model has not; save the pretraining model "
            "alone, with save_parameters, or name the --model of the file"
        )
    for name, tensor in arrays.items():
        if tuple(tensor.shape) != tuple(expected[name]):
            raise InputError(
                f"{source} has {name} of shape {tuple(tensor.shape)}, this run's --model of "
                f"{tuple(expected[name])}; name the model and the vocabulary of the file"
            )
        if tensor.dtype.kind != "f":
            raise InputError(
                f"{source} has {name} in {tensor.dtype}, but parameters are floating-point numbers; save the "
                "model in float32"
            )


def check_finite(source: str, tensors: Mapping[str, Tensor]) -> None:
    """Reads all numbers, one tensor at a time. Raises InputError for one that is not finite as float32."""
    for name, tensor in tensors.items():
        with np.errstate(over="ignore"):  # of float64
            array = tensor.read().astype(np.float32, copy=False)
        wrong = array.size - int(np.count_nonzero(np.isfinite(array)))
        if wrong:
            raise InputError(
                f"{source}: {wrong} of the {array.size} numbers of {name} are not finite in float32; "
                "name a file that was saved before training diverged"
            )


def check_values(source: str, arrays: Mapping[str, Tensor], tied: bool) -> None:
    """Reads all numbers of a file, at most two arrays at a time.

    Raises:
        InputError: one is not finite as float32, the decoder is `tied` and its weight is not the word
            embedding, or the file cannot be read.
    """
    check_finite(source, arrays)
    if tied and EMBEDDING in arrays and DECODER in arrays:
        one, other = (arrays[name].read().astype(np.float32, copy=False) for name in (EMBEDDING, DECODER))
        differing = int(np.count_nonzero(one != other))
        if differing:
            raise InputError(
                f"{source}: {DECODER} differs from {EMBEDDING} in {differing} of {other.size} numbers, but "
                "they are one array in this model; leave the one not wanted out of the file"
            )


def _some(names: Iterable[str]) -> str:
    first, *rest = names
    return shown(first) + (f" and {len(rest)} more parameter{'s' if len(rest) > 1 else ''}" if rest else "")
