"""A token store's pairs with static masks, several copies, as an instance store: made in parallel."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Sequence

import numpy as np

from base.command_line import count, whole
from base.files import sha256_of
from base.options import check_values, option
from data.formats.records import BLOCK_INSTANCES, PretrainingArrays
from data.options import MaskingConfig
from data.pretraining.sources import Batch, TextSource
from data.store.build import BuildPlan, Part
from data.store.instances import FORMAT, RowWriter, instance_columns, store_manifest
from data.store.manifest import MANIFEST
from data.store.tokens import TokenStore

_TOKENS_PER_UNIT = 4 << 20


@dataclass(frozen=True)
class CopiesConfig:
    """Instances made from text once: `dupe_factor` copies of it, each with pairs and masks of its own."""

    masking: MaskingConfig = MaskingConfig(128)
    dupe_factor: int = option(
        "copies of the text, each with other pairs and masks",
        whole(1, 10_000, "more than a run has epochs"),
        default=5,
    )
    seed: int = option("seed of pairs, masks and order", count, default=0)

    def source(self, stores: Sequence[TokenStore]) -> TextSource:
        """The samples whose epoch e, over store e modulo their number, is copy e."""
        check_values(self)
        return TextSource(lambda epoch: stores[epoch % len(stores)], stores[0].vocabulary, self.masking)


@dataclass(frozen=True)
class CopyPiece:
    """A unit of work: piece `piece` of the `pieces` of one copy. `size` is in bytes, for progress."""

    name: str
    size: int
    epoch: int
    piece: int
    pieces: int


class MaskCopies:
    """Makes the instances of a CopyPiece. Picklable; a worker plans each epoch that it meets once."""

    def __init__(self, directories: Sequence[str], copies: CopiesConfig) -> None:
        self._directories, self._copies = list(directories), copies
        self._source: TextSource | None = None

    def __call__(self, unit: CopyPiece, part: Part) -> dict[str, Any]:
        copies = self._copies
        if self._source is None:
            stores = [TokenStore.open(directory, verify=False) for directory in self._directories]
            self._source = copies.source(stores)
        total = len(self._source.lengths(copies.seed, unit.epoch))
        first, end = total * unit.piece // unit.pieces, total * (unit.piece + 1) // unit.pieces
        rows = RowWriter(part, self._source.max_length, self._source.max_predictions)
        for start in range(first, end, BLOCK_INSTANCES):
            indices = np.arange(start, min(start + BLOCK_INSTANCES, end))
            batch = self._source.collate(copies.seed, unit.epoch, indices, self._source.max_length)
            rows.write(as_arrays(batch))
        return {"counts": rows.finish()}


def masked_plan(stores: Sequence[str], copies: CopiesConfig) -> BuildPlan:
    """The building of an instance store of copies 0 to dupe_factor - 1 of all pairs, in order.

    `stores` are directories of token stores: one, or for a tokenizer that samples one for each copy, which
    repeat if they are fewer. Memory: a worker holds the plans of two epochs (see TextSource).
    Raises InputError for options out of range.
    """
    opened = [TokenStore.open(store) for store in stores]
    source = copies.source(opened)  # so that bad options are named before anything is written
    masks = {
        "max_seq_length": source.max_length,
        "short_seq_prob": copies.masking.short_seq_prob,
        "masked_lm_prob": copies.masking.masked_lm_prob,
        "max_predictions_per_seq": source.max_predictions,
        "whole_word_mask": copies.masking.whole_word_mask,
        "dupe_factor": copies.dupe_factor,
        "seed": copies.seed,
    }
    manifests = [sha256_of(os.path.join(store, MANIFEST)) for store in stores]
    vocab_size = len(opened[0].vocabulary)
    units = []
    for epoch in range(copies.dupe_factor):
        store = opened[epoch % len(opened)]
        pieces = -(-store.num_tokens // _TOKENS_PER_UNIT)
        size = store.ids.nbytes // pieces
        units += [
            CopyPiece(f"copy {epoch}, piece {piece + 1} of {pieces}", size, epoch, piece, pieces)
            for piece in range(pieces)
        ]
    return BuildPlan(
        instance_columns(vocab_size),
        lambda: units,
        MaskCopies(stores, copies),
        {"format": FORMAT, "stores": manifests, "masks": masks},
        store_manifest(vocab_size, [{"name": unit.name} for unit in units]),
        what="masking",
    )


def as_arrays(batch: Batch) -> PretrainingArrays:
    """A batch under the names of files; types stay as they are."""
    return PretrainingArrays(
        input_ids=batch.input_ids,
        segment_ids=batch.segment_ids,
        masked_lm_positions=batch.masked_positions,
        masked_lm_ids=batch.masked_ids,
        masked_lm_weights=batch.masked_weights,
        next_sentence_labels=batch.next_sentence_labels,
        valid_lengths=batch.valid_lengths,
    )
