"""Reads thousands of damaged files of weights in a process whose memory is limited.

python -m tests.bert.weights.fuzz_worker FORMAT SEED ROUNDS FOLDER

Every file has to end in an InputError of one line, or in arrays of the shapes that were announced; in less
than three seconds, and with less memory than 40 MiB beyond what the process had. Files are damaged by flipped
bits, other bytes, cuts, insertions and large numbers; where a checksum covers what is damaged, some
have the right one for the damaged content, so that the damage gets past it. The last line printed is a JSON
object: how many files were read and how many rejected.
"""

from __future__ import annotations

import io
import json
import resource
import struct
import sys
import time
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import safetensors.numpy

from base.errors import InputError
from bert.weights import bundle, params_file, pickled, safetensors_file
from bert.weights.bundle import read_table, write_table
from tests.bert.weights import test_bundle, test_pickled
from tests.bert.weights.written import VARIABLES, write_out
from tests.data.formats.fuzz_worker import damaged

LIMIT = 40 << 20  # bytes
SECONDS = 3


def safetensors_files(folder: Path, rng: np.random.Generator, rounds: int) -> Iterator[Callable[[], Any]]:
    """The file, its header with the right length, and the index of several files."""
    whole = safetensors.numpy.save({name: np.asarray(array) for name, array in VARIABLES.items()})
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    index = json.dumps({"metadata": {"total_size": 9}, "weight_map": dict.fromkeys(VARIABLES, "x")}).encode()
    path, index_path = folder / "x", folder / "index.json"
    for _ in range(rounds):
        path.write_bytes(damaged(rng, whole))
        yield lambda: safetensors_file.read_index(str(path))
        header = damaged(rng, whole[8:end])
        path.write_bytes(struct.pack("<Q", len(header)) + header + whole[end:])
        yield lambda: safetensors_file.read_index(str(path))
        path.write_bytes(whole)
        index_path.write_bytes(damaged(rng, index))
        yield lambda: safetensors_file.read_sharded(str(index_path))


def bundle_files(folder: Path, rng: np.random.Generator, rounds: int) -> Iterator[Callable[[], Any]]:
    """The index, its entries and its block with right checksums, the data."""
    index = write_out("one.index", folder).read_bytes()
    data_path = write_out("one.data-00000-of-00001", folder)
    data = data_path.read_bytes()
    entries = list(read_table(index))
    content = b"".join(test_bundle.entry(key, value) for key, value in entries)
    path = folder / "one.index"
    read = partial(bundle.read_index, str(path))
    for _ in range(rounds):
        path.write_bytes(damaged(rng, index))
        yield read
        chosen = rng.integers(len(entries))
        changed = [list(each) for each in entries]
        part = rng.integers(2)
        changed[chosen][part] = damaged(rng, changed[chosen][part])
        path.write_bytes(write_table([(key, value) for key, value in changed]))
        yield read
        path.write_bytes(test_bundle.table(damaged(rng, test_bundle.block(content))))
        yield read
        path.write_bytes(index)
        data_path.write_bytes(damaged(rng, data))
        yield read
        data_path.write_bytes(data)
    for each in test_bundle.DAMAGED.values():
        path.write_bytes(each)
        yield read


def pickled_files(folder: Path, rng: np.random.Generator, rounds: int) -> Iterator[Callable[[], Any]]:
    """Archives, pickles inside of them with right checksums, files in the older form."""
    archives = [write_out(name, folder).read_bytes() for name in ("zip.pt", "five.pt")]
    legacy = write_out("legacy.pt", folder).read_bytes()
    path = folder / "x"
    read = partial(pickled.read_index, str(path))
    for _ in range(rounds):
        archive = archives[rng.integers(2)]
        path.write_bytes(damaged(rng, archive))
        yield read
        with zipfile.ZipFile(io.BytesIO(archive)) as whole, zipfile.ZipFile(path, "w") as file:
            for name in whole.namelist():
                content = whole.read(name)
                file.writestr(name, damaged(rng, content) if name.endswith("data.pkl") else content)
        yield read
        path.write_bytes(damaged(rng, legacy))
        yield read
    for each in test_pickled.BAD_PICKLES.values():
        test_pickled.archive(path, each)
        yield read
        path.write_bytes(each)
        yield read


def params_files(folder: Path, rng: np.random.Generator, rounds: int) -> Iterator[Callable[[], Any]]:
    """The file, and files of very many arrays or names."""
    path = folder / "x"
    out = io.BytesIO()
    params_file.write_params(out, {name: array for name, array in VARIABLES.items() if np.size(array) > 1})

    read = partial(params_file.read_index, str(path))
    for _ in range(rounds):
        path.write_bytes(damaged(rng, out.getvalue()))
        yield read
    start = struct.pack("<QQ", 0x112, 0)
    one = struct.pack("<IiIqiii", 0xF993FAC9, 0, 1, 1, 1, 0, 3) + b"x"
    for content in (
        struct.pack("<Q", 1 << 31) + one,
        struct.pack("<Q", 300_000) + one * 300_000,
        struct.pack("<Q", 0) + struct.pack("<Q", 500_000) + bytes(8) * 500_000,
        struct.pack("<QQQ", 0, 1, 1 << 60),
        struct.pack("<QIiI32qiii", 1, 0xF993FAC9, 0, 32, *[1 << 62] * 32, 1, 0, 3),
    ):
        path.write_bytes(start + content)
        yield read


FORMATS = {
    "safetensors": safetensors_files,
    "bundle": bundle_files,
    "pickled": pickled_files,
    "params": params_files,
}


def main(format: str, seed: str, rounds: str, folder: str) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LIMIT, used + LIMIT))
    outcomes = {"read": 0, "rejected": 0}
    files = FORMATS[format](Path(folder), np.random.default_rng(int(seed)), int(rounds))
    for number, read in enumerate(files):
        started = time.process_time()
        try:
            for name, tensor in read().items():
                array = tensor.read()
                assert (array.shape, array.dtype) == (tensor.shape, tensor.dtype), (number, name)
            outcomes["read"] += 1
        except InputError as error:
            message = str(error)
            assert message.isprintable() and folder in message and len(message) < 600, (number, message)
            outcomes["rejected"] += 1
        assert time.process_time() - started < SECONDS, number
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(*sys.argv[1:])
