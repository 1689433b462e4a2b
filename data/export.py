"""Writes instances to files that other projects read: npz, HDF5, TFRecord, OFRecord.

Two ways in, both ending in a directory of files `pretrain-00000.npz` (or `.tfrecord`, `.tfrecord.gz`; HDF5:
`training-00000.hdf5`; OFRecord: `part-00000`) and a `manifest.json`:

    export_text(store_directories, output, CopiesConfig(...), FileConfig(...), num_workers, progress)
    export_instances(paths, vocab_size, output, FileConfig(...), num_workers, progress)

The instances first become an instance store in `<output>.partial`, which takes about as much disk as the
files of records and is removed at the end; then each file is a pure function of that store. So both steps run
in parallel, and go on where they stopped: a file that is there is whole. `output` appears by a rename when
all is there. Shuffled files are gathered from all over the store, which is fast as long as it fits into the
memory that the system has free.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from base.errors import InputError
from base.files import sha256_of
from base.progress import Progress, Silent
from base.workers import in_order
from data.formats.records import BLOCK_INSTANCES, PretrainingArrays, id_dtype
from data.formats.write import FORMATS, write_instances
from data.masked_copies import CopiesConfig, as_arrays, build_masked
from data.pretraining.randomness import epoch_key, permuted
from data.pretraining.sources import padded_batch
from data.store.build import UNFINISHED, build_columns, make_directory
from data.store.cache import describe_sources
from data.store.instances import InstanceStore, instance_store_plan
from data.store.manifest import EXPORT_FORMAT, MANIFEST, read_json, write_json
from data.store.tokens import TokenStore

_SHUFFLE_PURPOSE = 64
INSTANCES_PER_FILE = 100_000


class Exported(NamedTuple):
    """Result of an export."""

    num_files: int
    num_bytes: int
    counts: dict[str, int]  # instances, tokens, predictions and, for files of instances, skipped
    messages: list[str]  # of the first records that were skipped


def export_text(
    stores: Sequence[str],
    output: str,
    copies: CopiesConfig,
    files: FileConfig,
    num_workers: int = 1,
    progress: Progress | None = None,
) -> Exported:
    """Writes `copies.dupe_factor` copies of a token store's pairs, each with masks of its own, to files.

    Copy e is what training on the store has in epoch e with this seed. The instances of all copies are
    shuffled together by the seed and padded to max_seq_length. `stores` is the directory of the store, or of
    several, for a tokenizer that samples: one for each copy.
    Raises InputError for options out of range, a store that is not one, or if `output` holds something else.
    """
    opened = [TokenStore.open(store) for store in stores]
    identity = {
        "stores": [sha256_of(os.path.join(store, MANIFEST)) for store in stores],
        "masks": copies.identity(opened),
    }

    def build(directory: str) -> None:
        build_masked(stores, copies, directory, identity, num_workers, progress)

    order = Order(identity, epoch_key(copies.seed, 0, _SHUFFLE_PURPOSE), opened[0].vocabulary.pad_id)
    return _export(build, order, output, files, num_workers, progress)


def export_instances(
    paths: Sequence[str],
    vocab_size: int,
    output: str,
    files: FileConfig,
    num_workers: int = 1,
    progress: Progress | None = None,
) -> Exported:
    """Writes the instances of files, of any formats, to files of one format: same masks, same order.

    Rows are padded with 0 to the widest of the sources. `vocab_size` bounds the token ids.
    Raises InputError as data.store.instances.build_instances, for what a format cannot hold (HDF5: weights),
    or if `output` holds something else.
    """
    sources, skip = describe_sources(paths, progress=progress), files.skip_bad_records
    identity = {
        "vocab_size": vocab_size,
        "skip_bad_records": skip,
        "sources": [source.sha256 for source in sources],
    }

    def build(directory: str) -> None:
        build_columns(directory, instance_store_plan(sources, vocab_size, skip), num_workers, progress)

    return _export(build, Order(identity), output, files, num_workers, progress)


def _export(
    build: Callable[[str], None],
    order: Order,
    output: str,
    files: FileConfig,
    num_workers: int,
    progress: Progress | None,
) -> Exported:
    """Builds the instance store by `build(directory)` and writes the files from it."""
    files.check()
    written = {"format": files.format, "gzip": files.gzip, "instances_per_file": files.instances_per_file}
    identity = {"format": EXPORT_FORMAT, **order.source, "files": written}
    reporter = progress if progress is not None else Silent()

    def make(partial: str) -> None:
        directory = os.path.join(partial, UNFINISHED, "instances")
        build(directory)
        store = InstanceStore.open(directory, verify=False)
        count = store.num_instances
        num_files = -(-count // files.instances_per_file)
        bounds = [count * number // num_files for number in range(num_files + 1)]
        jobs = [
            FileJob(os.path.join(partial, files.file_name(number)), bounds[number], bounds[number + 1])
            for number in range(num_files)
        ]
        work = WriteFile(directory, order, files)
        token_bytes = store.ids.itemsize + store.segments.itemsize
        done = []
        reporter.begin(f"writing {files.format}", store.num_tokens * token_bytes)
        try:
            in_process = num_files <= 1 or num_workers <= 1
            results = (work(job) for job in jobs) if in_process else in_order(work, jobs, num_workers)
            with closing(results):
                for job, described in zip(jobs, results):
                    done.append(described)
                    reporter.update(int(store.token_ends[job.stop]) * token_bytes, {"instances": job.stop})
        finally:
            reporter.end()
        content = {
            "format": EXPORT_FORMAT,
            "identity": identity,
            "counts": store.manifest["counts"],
            "messages": store.manifest["messages"],
            "files": done,
        }
        write_json(os.path.join(partial, MANIFEST), content)

    make_directory(output, identity, make, reporter)
    manifest = read_json(os.path.join(output, MANIFEST))
    size = sum(int(file["size"]) for file in manifest["files"])
    return Exported(len(manifest["files"]), size, manifest["counts"], manifest["messages"])


class Order(NamedTuple):
    """Instances of a source, which its identity describes: permuted by `key` if there is one, and short rows
    filled with `pad_id`."""

    source: Mapping[str, Any]
    key: int | None = None
    pad_id: int = 0


@dataclass(frozen=True)
class FileConfig:
    """Files to write. npz and HDF5 are always compressed inside; `gzip` is for TFRecord. With
    `skip_bad_records` bad instances of the files that are read are left out."""

    format: str
    gzip: bool = False
    instances_per_file: int = INSTANCES_PER_FILE
    skip_bad_records: bool = False

    def check(self) -> None:
        """Raises InputError naming the option that is out of range."""
        if self.format not in FORMATS:
            raise InputError(f"--format {self.format}: choose one of {', '.join(FORMATS)}")
        if self.gzip and self.format == "ofrecord":
            raise InputError("--gzip: OneFlow reads OFRecord only as it is; leave the option out")
        if self.instances_per_file < 1:
            raise InputError(f"--instances_per_file {self.instances_per_file}: must be at least 1")

    @property
    def compress(self) -> bool:
        return self.gzip or self.format in ("npz", "hdf5")

    def file_name(self, number: int) -> str:
        """As the format's users name them; NVIDIA's script takes only files with "training" in their name."""
        if self.format == "ofrecord":
            return f"part-{number:05d}"
        if self.format == "hdf5":
            return f"training-{number:05d}.hdf5"
        return f"pretrain-{number:05d}.{self.format}" + (
            ".gz" if self.gzip and self.format == "tfrecord" else ""
        )


@dataclass(frozen=True)
class FileJob:
    """One file to write: places `start` to `stop` of the order."""

    path: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        return self.path


@dataclass(frozen=True)
class WriteFile:
    """Writes the file of a FileJob from an instance store, unless it is there; returns what the manifest says
    of it."""

    store: str
    order: Order
    files: FileConfig

    def __call__(self, job: FileJob) -> dict[str, Any]:
        if not os.path.exists(job.path):
            blocks = self._blocks(InstanceStore.open(self.store, verify=False), job)
            write_instances(job.path, self.files.format, blocks, self.files.compress)
        return {
            "file": os.path.basename(job.path),
            "size": os.path.getsize(job.path),
            "sha256": sha256_of(job.path),
            "instances": job.stop - job.start,
        }

    def _blocks(self, store: InstanceStore, job: FileJob) -> Iterator[PretrainingArrays]:
        predictions = max(1, store.prediction_width)
        id_type = id_dtype(store.vocab_size)
        types = (id_type, np.uint8, np.uint16, id_type, np.float32, np.uint8, np.int32)
        for start in range(job.start, job.stop, BLOCK_INSTANCES):
            rows = np.arange(start, min(start + BLOCK_INSTANCES, job.stop))
            if self.order.key is not None:
                rows = permuted(rows, store.num_instances, self.order.key)
            arrays = as_arrays(padded_batch(store, rows, store.width, predictions, self.order.pad_id))
            yield PretrainingArrays(*(column.astype(kind) for column, kind in zip(arrays, types)))
