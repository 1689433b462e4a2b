"""Writes instances to files that other projects read: npz, HDF5, TFRecord, OFRecord.

    export(text_rows(store_directories, CopiesConfig(...)), output, FileConfig(...), num_workers, progress)
    export(Rows(instance_store_plan(paths, vocab_size)), output, FileConfig(...), num_workers, progress)

makes a directory of files `pretrain-00000.npz` (or `.tfrecord`, `.tfrecord.gz`; HDF5: `training-00000.hdf5`;
OFRecord: `part-00000`) and a `manifest.json`. The instances first become an instance store in
`<output>.partial`, which takes about as much disk as the files of records and is removed at the end; then
each file is a pure function of that store. So both steps run in parallel, and go on where they stopped: a
file that is there is whole. `output` appears by a rename when all is there. Shuffled files are gathered from
all over the store, which is fast as long as it fits into the memory that the system has free.
"""

from __future__ import annotations

import functools
import os
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Mapping, NamedTuple, Sequence

import numpy as np

from base.command_line import count, positive_int, whole
from base.errors import InputError
from base.files import sha256_of
from base.options import flag, option
from base.progress import SILENT, Progress
from base.workers import in_order
from data.formats.files import FORMATS, write_instances
from data.formats.records import Gathered, PretrainingArrays, in_blocks
from data.options import MaskingConfig
from data.pretraining.randomness import epoch_key, permuted
from data.pretraining.sources import Batch, TextSource, padded, places
from data.store.build import UNFINISHED, BuildPlan, Writers, build_columns, check_free, new_directory
from data.store.instances import FORMAT, InstanceStore, instance_columns, write_rows
from data.store.manifest import EXPORT_FORMAT, MANIFEST, read_json, write_json
from data.store.tokens import TokenStore

_SHUFFLE_PURPOSE = 64
_TOKENS_PER_UNIT = 4 << 20
STORE = "store"  # no files, but what they are made from


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

    @property
    def identity(self) -> dict[str, Any]:
        """All that the copies of a text depend on."""
        return {
            "max_seq_length": self.masking.length,
            "short_seq_prob": self.masking.short_seq_prob,
            "masked_lm_prob": self.masking.masked_lm_prob,
            "max_predictions_per_seq": self.masking.predictions,
            "whole_word_mask": self.masking.whole_word_mask,
            "dupe_factor": self.dupe_factor,
            "seed": self.seed,
        }

    def source(self, stores: Sequence[TokenStore]) -> TextSource:
        """The samples whose epoch e, over store e modulo their number, is copy e."""
        return TextSource(lambda epoch: stores[epoch % len(stores)], stores[0].vocabulary, self.masking)


@dataclass(frozen=True)
class Rows:
    """Instances to be written: an instance store of them is built by `plan`, whose identity tells them from
    others. They are permuted by `key` if there is one, and short rows are filled with `pad_id`."""

    plan: BuildPlan
    key: int | None = None
    pad_id: int = 0


def text_rows(stores: Sequence[str], copies: CopiesConfig) -> Rows:
    """`copies.dupe_factor` copies of a token store's pairs, each with masks of its own, shuffled together by
    the seed. Copy e is what training on the store has in epoch e with this seed; the plan makes the copies
    one after the other.

    `stores` is the directory of the store, or of several, for a tokenizer that samples: one for each copy,
    which repeat if they are fewer. Memory: a worker holds the plans of two epochs (see TextSource).
    Raises InputError for a store that is not one.
    """
    opened = [TokenStore.open(store) for store in stores]
    units = []
    for epoch in range(copies.dupe_factor):
        store = opened[epoch % len(opened)]
        pieces = -(-store.num_tokens // _TOKENS_PER_UNIT)
        size = store.ids.nbytes // pieces
        units += [
            _CopyPiece(f"copy {epoch}, piece {piece + 1} of {pieces}", size, epoch, piece, pieces)
            for piece in range(pieces)
        ]
    manifests = [sha256_of(os.path.join(store, MANIFEST)) for store in stores]
    vocabulary = opened[0].vocabulary
    plan = BuildPlan(
        instance_columns(len(vocabulary)),
        lambda: units,
        _MaskCopies(stores, copies),
        {"format": FORMAT, "stores": manifests, "masks": copies.identity},
        {
            "format": FORMAT,
            "vocab_size": len(vocabulary),
            "sources": [{"name": unit.name, "size": unit.size} for unit in units],
        },
        what="masking",
    )
    return Rows(plan, epoch_key(copies.seed, 0, _SHUFFLE_PURPOSE), vocabulary.pad_id)


class _CopyPiece(NamedTuple):
    """A unit of work: piece `piece` of the `pieces` of one copy. `size` is in bytes, for progress."""

    name: str
    size: int
    epoch: int
    piece: int
    pieces: int


@dataclass(frozen=True)
class _MaskCopies:
    """Makes the instances of a _CopyPiece. Picklable; a worker plans each epoch that it meets once."""

    directories: Sequence[str]
    copies: CopiesConfig

    @cached_property
    def _source(self) -> TextSource:
        return self.copies.source([TokenStore.open(each, verify=False) for each in self.directories])

    def __call__(self, unit: _CopyPiece, number: int, writers: Writers) -> dict[str, Any]:
        seed, source, length = self.copies.seed, self._source, self._source.max_length
        total = len(source.lengths(seed, unit.epoch))
        first, end = total * unit.piece // unit.pieces, total * (unit.piece + 1) // unit.pieces
        blocks = (
            as_arrays(source.collate(seed, unit.epoch, indices, length))
            for indices in in_blocks(np.arange(first, end))
        )
        return {"counts": write_rows(writers, blocks, length, source.max_predictions)}


def as_arrays(batch: Batch) -> PretrainingArrays:
    """A batch under the names of files; types stay as they are."""
    return PretrainingArrays(
        batch.input_ids,
        batch.segment_ids,
        batch.masked_positions,
        batch.masked_ids,
        batch.masked_weights,
        batch.next_sentence_labels,
        batch.valid_lengths,
    )


@dataclass(frozen=True)
class FileConfig:
    """Files to write. npz and HDF5 are always compressed inside; `gzip` is for TFRecord."""

    format: str = option(
        "store: a token store, from which training draws new pairs and masks each epoch; the others: "
        "instances with their masks, for this and other projects",
        choices=(STORE, *FORMATS),
        default=STORE,
    )
    gzip: bool = flag("compress TFRecord and OFRecord (npz and HDF5 always are)")
    instances_per_file: int = option("(default: 100,000)", positive_int, default=100_000)

    @property
    def identity(self) -> dict[str, Any]:
        """All that files depend on beside the instances."""
        return {"format": EXPORT_FORMAT, "files": asdict(self)}

    def file_name(self, number: int) -> str:
        """As the format's users name them; NVIDIA's script takes only files with "training" in their name."""
        if self.format == "ofrecord":
            return f"part-{number:05d}"
        if self.format == "hdf5":
            return f"training-{number:05d}.hdf5"
        packed = ".gz" if self.gzip and self.format == "tfrecord" else ""
        return f"pretrain-{number:05d}.{self.format}{packed}"


def check_output(output: str, files: FileConfig, identity: Mapping[str, Any]) -> None:
    """Raises InputError for files that cannot be made, and if `output` holds others already, by as much of
    their identity as is known."""
    if files.gzip and files.format == "ofrecord":
        raise InputError("--gzip: OneFlow reads OFRecord only as it is; leave the option out")
    check_free(output, {**identity, **files.identity})


def export(
    rows: Rows, output: str, files: FileConfig, num_workers: int = 1, progress: Progress = SILENT
) -> dict[str, Any]:
    """Writes the rows to files in the directory `output`; returns its manifest.

    Rows are padded to the widest of the sources: max_seq_length for text. Raises InputError for bad input (as
    data.store.build.build_columns), a packed OFRecord, what a format cannot hold (HDF5: weights), or if
    `output` holds something else.
    """
    identity = {**rows.plan.identity, **files.identity}
    check_output(output, files, identity)

    with new_directory(output, identity, progress) as partial:
        if partial is not None:
            found = _write_files(rows, files, partial, num_workers, progress)
            content = {"format": EXPORT_FORMAT, "identity": identity, **found}
            write_json(os.path.join(partial, MANIFEST), content)
    return read_json(os.path.join(output, MANIFEST))


def _write_files(
    rows: Rows, files: FileConfig, partial: str, num_workers: int, progress: Progress
) -> dict[str, Any]:
    """Builds the instance store in `partial`, and from it the files; returns the manifest's part on these."""
    directory = os.path.join(partial, UNFINISHED, "instances")
    build_columns(directory, rows.plan, num_workers, progress)
    store = InstanceStore.open(directory, verify=False)
    num_files = -(-store.num_instances // files.instances_per_file)
    bounds = [store.num_instances * number // num_files for number in range(num_files + 1)]
    jobs = [
        _FileJob(os.path.join(partial, files.file_name(number)), start, stop)
        for number, (start, stop) in enumerate(zip(bounds, bounds[1:]))
    ]
    work = functools.partial(_write_file, files, (rows.key, rows.pad_id), directory)
    token_bytes = store.ids.itemsize + store.segments.itemsize
    described = []
    progress.begin(f"writing {files.format}", store.num_tokens * token_bytes)
    try:
        in_process = num_files <= 1 or num_workers <= 1
        results = (work(job) for job in jobs) if in_process else in_order(work, jobs, num_workers)
        with closing(results):
            for job, result in zip(jobs, results):
                described.append(result)
                progress.update(int(store.token_ends[job.stop]) * token_bytes, {"instances": job.stop})
    finally:
        progress.end()
    return {"counts": store.manifest["counts"], "messages": store.manifest["messages"], "files": described}


class _FileJob(NamedTuple):
    """One file to write: places `start` to `stop` of the order of the instance store."""

    name: str  # its path
    start: int
    stop: int


def _write_file(
    files: FileConfig, order: tuple[int | None, int], directory: str, job: _FileJob
) -> dict[str, Any]:
    """Writes the file of a job, unless it is there, each column read from the instance store in `directory`
    where the writer slices it; returns the manifest's entry for it.

    `order`: the key of the permutation, and what fills short rows.
    """
    (key, pad_id), store = order, InstanceStore.open(directory, verify=False)
    numbers = np.arange(job.start, job.stop)
    if key is not None:
        for block in in_blocks(numbers):
            block[:] = permuted(block, store.num_instances, key)

    def column(values: np.ndarray, ends: np.ndarray | None = None, width: int = 0, fill: int = 0) -> Any:
        def make(first: int, stop: int) -> np.ndarray:
            rows = numbers[first:stop]
            if ends is None:
                found = values[rows]
            else:
                where = places(ends[rows], ends[rows + 1] - ends[rows], width)
                found = padded(values, where, values.dtype.type, fill)
            store.check()
            return found

        return Gathered((len(numbers), width) if width else (len(numbers),), make)

    if not os.path.exists(job.name):
        tokens = store.token_ends, store.width
        predictions = store.prediction_ends, max(1, store.prediction_width)
        rows = PretrainingArrays(
            column(store.ids, *tokens, pad_id),
            column(store.segments, *tokens),
            column(store.positions, *predictions),
            column(store.masked_ids, *predictions),
            column(store.weights, *predictions),
            column(store.labels),
            column(store.lengths),
        )
        write_instances(job.name, files.format, rows, files.gzip or None)
    return {
        "file": os.path.basename(job.name),
        "size": os.path.getsize(job.name),
        "sha256": sha256_of(job.name),
        "instances": job.stop - job.start,
    }
