"""The instance store: ready-made instances of any file format, converted once and then memory-mapped.

Rows have their true lengths: the tokens of instance i are ids[token_ends[i]:token_ends[i+1]] (with their
segments), its predictions are positions[prediction_ends[i]:prediction_ends[i+1]] (with masked_ids and
weights). Predictions of weight 0 are what files pad with; they are not kept. File s of the sources has the
instances source_ends[s] to source_ends[s+1], which were padded to token_widths[s] and prediction_widths[s].
"""

from __future__ import annotations

import faulthandler
import functools
import os
from dataclasses import dataclass
from typing import Any, Iterable, Iterator, Mapping, Sequence

import numpy as np

from base.errors import InputError
from base.progress import SILENT, Progress
from data.formats.files import read_instances
from data.formats.records import PretrainingArrays
from data.options import MAX_POSITIONS
from data.store.build import BuildPlan, Skipped, Writers, open_or_build
from data.store.cache import SourceFile, check_unchanged, describe_sources, verify_once
from data.store.columns import Column, MappedFiles, map_columns
from data.store.manifest import MANIFEST, check_figures, naming_damage, read_json

FORMAT = "instance-store-1"
_CHECK_ROWS = 1 << 18
# Address space of a worker, against what a damaged file may ask for. Good files need 0.2 GiB (measured).
WORKER_BYTES = 2 << 30
SECONDS_PER_BLOCK = 300.0  # for up to 1024 instances: even a slow disk needs a hundredth of it


@dataclass(frozen=True, eq=False)
class InstanceStore:
    """A mapped store of N instances with T tokens and P predictions from S files, all read-only."""

    ids: np.ndarray  # (T,) uint16 or uint32
    segments: np.ndarray  # (T,) uint8
    lengths: np.ndarray  # (N,) int32, the difference of token_ends
    token_ends: np.ndarray  # (N + 1,) int64
    positions: np.ndarray  # (P,) uint16
    masked_ids: np.ndarray  # (P,) as ids
    weights: np.ndarray  # (P,) float32, above 0
    prediction_ends: np.ndarray  # (N + 1,) int64
    labels: np.ndarray  # (N,) uint8, 1 for a random next sentence
    source_ends: np.ndarray  # (S + 1,) int64
    token_widths: np.ndarray  # (S,) int32
    prediction_widths: np.ndarray  # (S,) int32
    manifest: dict[str, Any]
    directory: str
    files: MappedFiles

    def check(self) -> None:
        """To be called after reading: raises InputError if a file was cut meanwhile, which reads as zeros."""
        self.files.check()

    @property
    def num_instances(self) -> int:
        return len(self.labels)

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def vocab_size(self) -> int:
        """All token ids are below it."""
        return int(self.manifest["vocab_size"])

    @property
    def width(self) -> int:
        """Tokens that the widest source file pads its rows to."""
        return int(self.token_widths.max())

    @property
    def prediction_width(self) -> int:
        """Predictions that the widest source file has room for."""
        return int(self.prediction_widths.max())

    def source_of(self, instance: int) -> str:
        """Name of the file that an instance comes from."""
        number = int(np.searchsorted(self.source_ends, instance, side="right")) - 1
        return str(self.manifest["sources"][number]["name"])

    @staticmethod
    def open(directory: str, verify: bool = True) -> InstanceStore:
        """Map the store in `directory`, with `verify` after checking every checksum and every value.

        A successful check is remembered beside the store and not repeated while the files are the same.
        Raises InputError when the store is missing, incomplete or damaged.
        """
        manifest = read_json(os.path.join(directory, MANIFEST))
        if manifest.get("format") != FORMAT:
            raise InputError(f"{directory} is not a store of instances of the form {FORMAT}")
        with naming_damage(f"the store of instances {directory}", "delete it to have it made again"):
            check_figures(manifest)
            columns = instance_columns(int(manifest["vocab_size"]))
            arrays, files = map_columns(directory, manifest["columns"], columns)
            store = InstanceStore(**arrays, manifest=manifest, directory=directory, files=files)
            if verify:
                verify_once(directory, manifest["columns"], files, lambda: _check_values(store))
            _check_lengths(store)
        return store


def is_instance_store(directory: str) -> bool:
    """True if `directory` claims to be a store of instances."""
    return read_json(os.path.join(directory, MANIFEST)).get("format") == FORMAT


def instance_columns(vocab_size: int) -> list[Column]:
    """The columns of a store, for data.store.build; the names are the fields of InstanceStore."""
    id_type = "<u2" if vocab_size <= 1 << 16 else "<u4"
    return [
        Column("ids", id_type),
        Column("segments", "|u1"),
        Column("lengths", "<i4"),
        Column("token_ends", "<i8", ends_of="ids"),
        Column("positions", "<u2"),
        Column("masked_ids", id_type),
        Column("weights", "<f4"),
        Column("prediction_ends", "<i8", ends_of="positions"),
        Column("labels", "|u1"),
        Column("source_ends", "<i8", ends_of="labels"),
        Column("token_widths", "<i4"),
        Column("prediction_widths", "<i4"),
    ]


def write_rows(
    writers: Writers, blocks: Iterable[PretrainingArrays], token_width: int = 0, prediction_width: int = 0
) -> dict[str, int]:
    """Appends padded blocks of instances, checked already, to the columns of a unit, as one source; returns
    its counts. The source's widths are those of its widest block, and at least the two given here."""
    instances = tokens = predictions = 0
    for block in blocks:
        rows, width = block.input_ids.shape
        lengths = block.valid_lengths.astype(np.int64)
        inside = np.arange(width) < lengths[:, None]
        kept = block.masked_lm_weights != 0
        counts = kept.sum(axis=1)
        writers["ids"].append(block.input_ids[inside])
        writers["segments"].append(block.segment_ids[inside])
        writers["lengths"].append(lengths)
        writers["token_ends"].append(tokens + np.cumsum(lengths))
        writers["positions"].append(block.masked_lm_positions[kept])
        writers["masked_ids"].append(block.masked_lm_ids[kept])
        writers["weights"].append(block.masked_lm_weights[kept])
        writers["prediction_ends"].append(predictions + np.cumsum(counts))
        writers["labels"].append(block.next_sentence_labels)
        instances += rows
        tokens += int(lengths.sum())
        predictions += int(counts.sum())
        token_width, prediction_width = max(token_width, width), max(prediction_width, kept.shape[1])
    writers["source_ends"].append(np.array([instances]))
    writers["token_widths"].append(np.array([token_width]))
    writers["prediction_widths"].append(np.array([prediction_width]))
    return {"instances": instances, "tokens": tokens, "predictions": predictions}


def _check_lengths(store: InstanceStore) -> None:
    """Raises InputError if the columns do not fit each other in size, so that indexing cannot go astray."""
    count, sources = len(store.labels), store.manifest["sources"]
    ends = (
        ("token_ends", store.token_ends, count, len(store.ids)),
        ("prediction_ends", store.prediction_ends, count, len(store.positions)),
        ("source_ends", store.source_ends, len(sources), count),
    )
    for name, offsets, rows, end in ends:
        if len(offsets) != rows + 1 or offsets[0] != 0 or offsets[-1] != end:
            raise InputError(f"the offsets in {name} do not fit")
    same = (
        (store.segments, store.ids),
        (store.lengths, store.labels),
        (store.masked_ids, store.positions),
        (store.weights, store.positions),
        (store.token_widths, sources),
        (store.prediction_widths, sources),
    )
    if not count or any(len(one) != len(other) for one, other in same):
        raise InputError("its columns do not fit each other")
    if (np.diff(store.source_ends) < 0).any():
        raise InputError("the offsets in source_ends do not rise")
    if (
        min(store.token_widths.min(), store.prediction_widths.min()) < 0
        or not 1 <= store.width <= MAX_POSITIONS
    ):
        raise InputError("the widths of the sources are out of range")


def _check_values(store: InstanceStore) -> None:
    """Raises InputError if the store holds what none can hold."""
    _check_lengths(store)
    for start in range(0, store.num_instances, _CHECK_ROWS):
        stop = min(start + _CHECK_ROWS, store.num_instances)
        lengths = store.lengths[start:stop]
        token_ends = store.token_ends[start : stop + 1]
        prediction_ends = store.prediction_ends[start : stop + 1]
        counts = np.diff(prediction_ends)
        if lengths.min() < 1 or lengths.max() > store.width or (np.diff(token_ends) != lengths).any():
            raise InputError(f"the lengths of instances from {start} on are wrong")
        if counts.min() < 0 or counts.max() > store.prediction_width:
            raise InputError(f"the numbers of predictions from instance {start} on are wrong")
        tokens = slice(int(token_ends[0]), int(token_ends[-1]))
        predictions = slice(int(prediction_ends[0]), int(prediction_ends[-1]))
        weights = store.weights[predictions]
        good = (
            store.ids[tokens].max(initial=0) < store.vocab_size
            and store.masked_ids[predictions].max(initial=0) < store.vocab_size
            and store.segments[tokens].max(initial=0) <= 1
            and store.labels[start:stop].max(initial=0) <= 1
            and (store.positions[predictions] < np.repeat(lengths, counts)).all()
            and (np.isfinite(weights) & (weights > 0)).all()
        )
        if not good:
            raise InputError(f"instances from {start} to {stop - 1} hold values out of range")


def _convert_file(
    vocab_size: int, skip_bad_records: bool, unit: SourceFile, number: int, writers: Writers
) -> dict[str, Any]:
    """Reads and checks one file in a worker process and appends its instances to a unit's columns."""
    skipped = Skipped()

    def watched() -> Iterator[PretrainingArrays]:
        with open(os.devnull, "w") as nowhere:
            # On a damaged file the HDF5 library can loop for ever, where no exception reaches it.
            dump = faulthandler.dump_traceback_later
            watch = functools.partial(dump, SECONDS_PER_BLOCK, exit=True, file=nowhere)
            try:
                watch()
                for block in read_instances(unit.name, vocab_size, skipped if skip_bad_records else None):
                    yield block
                    watch()
            finally:
                faulthandler.cancel_dump_traceback_later()

    counts = write_rows(writers, watched())
    return {"counts": {**counts, "skipped": skipped.count}, "messages": skipped.messages}


def instance_store_plan(
    paths: Sequence[str],
    vocab_size: int,
    skip_bad_records: bool = False,
    cache_dir: str | None = None,
    progress: Progress = SILENT,
) -> BuildPlan:
    """The converting of files of instances, of any formats, into a store.

    Every value is checked once, here. The files are read in worker processes, one file each at a time, in
    bounded memory; a library that crashes on a damaged file takes only its worker along. With
    `skip_bad_records` bad instances are counted and left out. `cache_dir`: as for `describe_sources`.
    Raises InputError for a file that cannot be read; the build names the file and the instance, or a file
    that changes meanwhile.
    """
    sources = describe_sources(paths, cache_dir, progress)

    def check(counts: Mapping[str, int], lengths: Mapping[str, int]) -> None:
        check_unchanged(sources, "converted")
        if not counts.get("instances"):
            files = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} other files"
            raise InputError(
                f"{files}: no instance is good; {counts.get('skipped', 0)} bad ones were skipped"
            )

    return BuildPlan(
        instance_columns(vocab_size),
        lambda: sources,
        functools.partial(_convert_file, vocab_size, skip_bad_records),
        {
            "format": FORMAT,
            "vocab_size": vocab_size,
            "skip_bad_records": skip_bad_records,
            "sources": [source.sha256 for source in sources],
        },
        {"format": FORMAT, "vocab_size": vocab_size, "sources": [source.described for source in sources]},
        check,
        "converting",
        isolate=True,
        memory_limit=WORKER_BYTES,
    )


def cached_instances(
    paths: Sequence[str],
    vocab_size: int,
    cache_dir: str,
    num_workers: int = 1,
    skip_bad_records: bool = False,
    progress: Progress = SILENT,
) -> InstanceStore:
    """The store of these files under `cache_dir`, built if it is not there; a damaged one is built again.

    Its name is a hash of the files' content, so that moved files find it and changed ones do not. Several
    processes may ask at once: one converts, the others wait for it. Raises InputError as the build.
    """
    plan = instance_store_plan(paths, vocab_size, skip_bad_records, cache_dir, progress)
    return open_or_build(cache_dir, "instances", plan, InstanceStore.open, num_workers, progress)
