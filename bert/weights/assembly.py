"""Weights out of the tensors of a file: sizes from shapes, and checks that a whole BERT is there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Iterable, Mapping, Sequence

import numpy as np

from base.errors import InputError
from bert.configuration import LAYER_NORM_EPSILON, SIZES, BertConfig
from bert.weights.bare_params import distinct_shapes
from bert.weights.names import DECODER, DECODER_BIAS, EMBEDDING, layer_of, part_of
from bert.weights.spellings import IGNORED, Spelling, Weight
from bert.weights.tensors import Tensor, Weights, shown, transposed

UNITS_PER_HEAD = 64  # of every BERT that Google has published
_FIRST_FFN = "encoder.transformer_cells.0.ffn.ffn_1.weight"


@dataclass(frozen=True)
class Beside:
    """Facts about a model in files beside its weights; None where nothing says."""

    config: BertConfig | None = None
    vocab_size: int | None = None
    vocabulary: Sequence[str] | None = None
    cased: bool | None = None
    source: str = ""  # the file of `config`, for messages
    notes: Sequence[str] = ()
    activation: str = "erf"  # where there is no `config`


_Found = tuple[str, Tensor]  # a weight: the file's own name of it, for messages, and its tensor


def _by_structural_name(
    source: str, tensors: Mapping[str, Tensor], spelling: Spelling, tied: bool
) -> tuple[dict[str, _Found], list[str], int | None]:
    """The tensors that are weights of a BERT, in GluonNLP's layout; names of others; attention heads, where
    the weights have an axis for them.

    Where the decoder is not tied, cls.predictions.bias is not tied to the decoder's either, and transformers
    compute with the decoder's alone.

    Raises:
        InputError: a part of the network that BERT has not, or two tensors for one weight.
    """
    found: dict[str, _Found] = {}
    ignored, heads = [], None
    for name, tensor in tensors.items():
        meaning = spelling(name)
        if meaning == IGNORED:
            ignored.append(name)
        elif isinstance(meaning, Weight):
            if meaning.folded and len(tensor.shape) == 2:  # a bias: (heads, units of a head)
                heads = tensor.shape[0]
            this, first = (name, _laid_out(tensor, meaning)), found.get(meaning.name)
            if first is not None and meaning.name == DECODER_BIAS and not tied:
                (unused, _), this = sorted((first, this), key=lambda each: "decoder" in each[0])
                ignored.append(unused)
            elif first is not None:
                this = first[0], _same(source, first, this)
            found[meaning.name] = this
        else:
            raise InputError(
                f"{source} has {shown(name)}, which a BERT has not; only BERT itself can be read"
            )
    return found, ignored, heads


def _laid_out(tensor: Tensor, weight: Weight) -> Tensor:
    """A tensor of a file in GluonNLP's layout: heads that have an axis of their own are folded into the
    units, kernels are transposed."""
    if weight.folded:
        shape = tensor.shape
        if len(shape) == 3 and weight.name.endswith(".proj.weight"):
            shape = (shape[0] * shape[1], shape[2])  # (heads, units of a head, units)
        elif len(shape) == 3:
            shape = (shape[0], shape[1] * shape[2])
        elif len(shape) == 2 and weight.name.endswith(".bias"):
            shape = (shape[0] * shape[1],)
        tensor = Tensor(shape, tensor.dtype, lambda read=tensor.read: read().reshape(shape))  # type: ignore[misc]
    return transposed(tensor) if weight.kernel and len(tensor.shape) == 2 else tensor


def _same(
    source: str, first: _Found, second: _Found, remedy: str = "leave the one not wanted out of the file"
) -> Tensor:
    """One tensor that a file has under two names, compared when it is read."""
    if first[1].shape != second[1].shape or first[1].dtype != second[1].dtype:
        raise InputError(
            f"{source} has {shown(first[0])} of {first[1].dtype}{first[1].shape} and "
            f"{shown(second[0])} of {second[1].dtype}{second[1].shape}, but they are one array in a BERT"
        )

    def read() -> np.ndarray:
        array, other = first[1].read(), second[1].read()
        bits = f"u{array.itemsize}"  # a NaN is the same as itself, 0.0 and -0.0 are not
        differing = int(np.count_nonzero(array.view(bits) != other.view(bits)))
        if differing:
            raise InputError(
                f"{source}: {shown(second[0])} differs from {shown(first[0])} in {differing} of "
                f"{array.size} numbers, but they are one array in a BERT; {remedy}"
            )
        return array

    return Tensor(first[1].shape, first[1].dtype, read)


def assemble(
    source: str,
    kind: str,
    tensors: Mapping[str, Tensor],
    spelling: Spelling,
    beside: Beside,
    given: BertConfig | None,
) -> Weights:
    """Weights of a file, checked against each other and against what lies beside them.

    Args:
        source: flag and path, for the beginning of messages.
        kind: `Weights.format`.
        tensors: by the file's own names, of which `spelling` gives the meanings.
        given: gives the attention heads, the epsilon and whether the decoder is tied where no file does. One
            that is not tied is looked for only: a file without it has a tied one.

    Raises:
        InputError: no BERT, an incomplete one, shapes that do not fit together, integers, or another
            configuration or vocabulary beside it.
    """
    said = beside.config or given
    tied = said is None or said.tied
    found, ignored, heads = _by_structural_name(source, tensors, spelling, tied)
    tied = tied or (beside.config is None and DECODER not in found)
    if tied and DECODER in found:
        decoder = found.pop(DECODER)
        if EMBEDDING in found:
            remedy = (
                'leave one of them out, or say "tie_word_embeddings": false in the configuration beside it'
            )
            decoder = found[EMBEDDING][0], _same(source, found[EMBEDDING], decoder, remedy)
        found[EMBEDDING] = decoder
    config, notes = _sizes(source, found, ignored, heads, said)
    config = replace(
        config,
        activation=beside.config.activation if beside.config else beside.activation,
        epsilon=said.epsilon if said else LAYER_NORM_EPSILON,
        tied=tied,
    )
    rows = found[EMBEDDING][1].shape[0]
    expected = distinct_shapes(config, rows)
    missing = _check_complete(source, found, expected)
    ordered = {}
    for name, shape in expected.items():
        if name in found:
            _check(source, *found[name], shape)
            ordered[name] = found[name][1]
    _check_beside(source, config, rows, beside)
    path, notes = source.partition(" ")[2], (*beside.notes, *notes)
    return Weights(path, kind, ordered, config, beside.vocabulary, beside.cased, missing, ignored, notes)


def _sizes(
    source: str,
    found: Mapping[str, _Found],
    ignored: Sequence[str],
    heads: int | None,
    given: BertConfig | None,
) -> tuple[BertConfig, tuple[str, ...]]:
    """The configuration that the shapes imply, its heads perhaps those of `given`; and what was assumed."""
    cells = {layer for layer in map(layer_of, found) if layer is not None}
    needed = (EMBEDDING, "encoder.position_weight", _FIRST_FFN)
    if not found.keys() & needed:
        some = f"; it has {shown(ignored[0])}" if ignored else ""
        raise InputError(f"{source} holds no weights of a BERT under a known name{some}")
    for name in needed:
        if name not in found:
            raise InputError(f"{source} lacks {name} (GluonNLP's name of it), without which it is no BERT")
        if len(found[name][1].shape) != 2 or 0 in found[name][1].shape:
            _check(source, *found[name], None)
    shapes = {name: tensor.shape for name, (_, tensor) in found.items()}
    units, types = shapes[EMBEDDING][1], shapes.get("token_type_embed.0.weight")
    notes: tuple[str, ...] = ()
    if not heads or units % heads:
        if given is not None and given.units == units:
            heads = given.heads
        elif units % UNITS_PER_HEAD == 0:
            heads = units // UNITS_PER_HEAD
            notes = (f"{heads} attention heads of {UNITS_PER_HEAD} units are assumed: no file says how many",)
        else:
            raise InputError(
                f"{source}: nothing says how many attention heads its {units} units are divided into; give "
                "--model bert_LAYERS_UNITS_HEADS, or put a bert_config.json beside it"
            )
    config = BertConfig(
        layers=len(cells),
        units=units,
        heads=heads,
        hidden=shapes[_FIRST_FFN][0],
        positions=shapes["encoder.position_weight"][0],
        token_types=(types[0] or 1) if types else 2,
    )
    if cells != set(range(len(cells))):
        absent = min(set(range(len(cells))) - cells)
        raise InputError(f"{source} has layer {max(cells)} but not layer {absent}; the file is incomplete")
    return config, notes


def _check_complete(source: str, found: Mapping[str, _Found], expected: Iterable[str]) -> list[str]:
    """The parts that are missing as a whole; raises InputError for a part of a part."""
    there: set[str | None] = set()
    absent: dict[str | None, str] = {}
    for name in expected:
        if name in found:
            there.add(part_of(name))
        else:
            absent.setdefault(part_of(name), name)
    for part, name in absent.items():
        if part is None or part in there:
            raise InputError(
                f"{source} lacks {name} (GluonNLP's name of it)"
                + (f", but has more of the {part}" if part else "")
                + "; save the whole model"
            )
    return [part for part in absent if part is not None]


def _check(source: str, name: str, tensor: Tensor, shape: tuple[int, ...] | None) -> None:
    if tensor.shape != shape:
        needed = f"{shape} by the file's other weights" if shape else "two axes, none empty"
        raise InputError(
            f"{source} has {shown(name)} of shape {tensor.shape}, needed is {needed}; the file is "
            "damaged or no plain BERT"
        )
    if tensor.dtype.kind != "f":
        raise InputError(
            f"{source} has {shown(name)} in {tensor.dtype}, but weights are floating-point numbers"
        )


def _check_beside(source: str, config: BertConfig, rows: int, beside: Beside) -> None:
    for name in SIZES:
        found, said = getattr(config, name), getattr(beside.config, name, None)
        if said is not None and said != found:
            raise InputError(
                f"{source} has {name} {found} by the shapes of its weights, but {beside.source} says {said}; "
                "name the configuration of these weights"
            )
    if beside.vocab_size is not None and beside.vocab_size != rows:
        raise InputError(
            f"{source} has embeddings of {rows} tokens, but {beside.source} says {beside.vocab_size}; name "
            "the configuration of these weights"
        )
    if beside.vocabulary is not None and len(beside.vocabulary) > rows:
        raise InputError(
            f"{source} has embeddings of {rows} tokens, but its vocabulary has {len(beside.vocabulary)}; "
            "name the vocabulary of these weights"
        )
