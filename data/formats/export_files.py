"""One output file of an export: how it is called, and its writing from an instance store."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Iterator

import numpy as np

from base.errors import InputError
from base.files import sha256_of
from data.formats.records import BLOCK_INSTANCES, PretrainingArrays, id_dtype
from data.formats.write import FORMATS, write_instances
from data.pretraining.instance_source import padded_batch
from data.pretraining.permutation import permuted
from data.store.from_tokens import as_arrays
from data.store.instances import InstanceStore

INSTANCES_PER_FILE = 100_000


@dataclass(frozen=True)
class FileSettings:
    """What files to write. npz and HDF5 are always compressed inside; `gzip` is for TFRecord."""

    format: str
    gzip: bool = False
    instances_per_file: int = INSTANCES_PER_FILE

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
    """Writes the file of a FileJob from an instance store, in the order permuted by `key` if there is one."""

    store: str
    pad_id: int
    key: int | None
    files: FileSettings

    def __call__(self, job: FileJob) -> dict[str, Any]:
        store = InstanceStore.open(self.store, verify=False)
        blocks = self._blocks(store, job)
        count = write_instances(job.path, self.files.format, blocks, self.files.compress)
        return {
            "file": os.path.basename(job.path),
            "size": os.path.getsize(job.path),
            "sha256": sha256_of(job.path),
            "instances": count,
        }

    def _blocks(self, store: InstanceStore, job: FileJob) -> Iterator[PretrainingArrays]:
        predictions = max(1, store.prediction_width)
        id_type = id_dtype(store.vocab_size)
        types = (id_type, np.uint8, np.uint16, id_type, np.float32, np.uint8, np.int32)
        for start in range(job.start, job.stop, BLOCK_INSTANCES):
            rows = np.arange(start, min(start + BLOCK_INSTANCES, job.stop))
            if self.key is not None:
                rows = permuted(rows, store.num_instances, self.key)
            arrays = as_arrays(padded_batch(store, rows, store.width, predictions, self.pad_id))
            yield PretrainingArrays(*(column.astype(kind) for column, kind in zip(arrays, types)))
