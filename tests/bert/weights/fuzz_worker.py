"""Reads thousands of damaged files of weights in a process whose memory is limited.

python -m tests.bert.weights.fuzz_worker FORMAT SEED ROUNDS FOLDER

Every file has to end in an InputError of one line, or in arrays of the shapes that were announced; in less
than three seconds, and with less memory than 40 MiB beyond what the process had. Files are damaged by flipped
bits, other bytes, cuts, insertions, copies and large numbers; where a checksum covers what is damaged, some
have the right one for the damaged content, so that the damage gets past it. The last line printed is a JSON
object: how many files were read and how many rejected.
"""

from __future__ import annotations

import io
import json
import random
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

LIMIT = 40 << 20  # bytes
SECONDS = 3
LARGE = (b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 1 << 60), b"\xff\xff\xff\x7f", struct.pack("<Q", 1 << 31))


def damaged(content: bytes, rng: random.Random) -> bytes:
    """`content` with one to four damages."""
    out = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place, other = rng.randrange(len(out) or 1), rng.randrange(len(out) or 1)
        length = rng.randrange(1, 33)
        kind = rng.randrange(7)
        if kind == 0 and out:
            out[place] ^= 1 << rng.randrange(8)
        elif kind == 1 and out:
            out[place] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        elif kind == 2:
            del out[place:]
        elif kind == 3:
            del out[place : place + length]
        elif kind == 4:
            out[place:place] = bytes(rng.randrange(256) for _ in range(length))
        elif kind == 5:
            out[place : place + 8] = rng.choice(LARGE)
        else:
            out[place : place + length] = out[other : other + length]
    return bytes(out)


def safetensors_files(folder: Path, rng: random.Random, rounds: int) -> Iterator[Callable[[], Any]]:
    """The file, its header with the right length, and the index of several files."""
    whole = safetensors.numpy.save({name: np.asarray(array) for name, array in VARIABLES.items()})
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    index = json.dumps({"metadata": {"total_size": 9}, "weight_map": dict.fromkeys(VARIABLES, "x")}).encode()
    path, index_path = folder / "x", folder / "index.json"
    for _ in range(rounds):
        path.write_bytes(damaged(whole, rng))
        yield lambda: safetensors_file.read_index(str(path))
        header = damaged(whole[8:end], rng)
        path.write_bytes(struct.pack("<Q", len(header)) + header + whole[end:])
        yield lambda: safetensors_file.read_index(str(path))
        path.write_bytes(whole)
        index_path.write_bytes(damaged(index, rng))
        yield lambda: safetensors_file.read_sharded(str(index_path))


def bundle_files(folder: Path, rng: random.Random, rounds: int) -> Iterator[Callable[[], Any]]:
    """The index, its entries and its block with right checksums, the data."""
    index = write_out("one.index", folder).read_bytes()
    data_path = write_out("one.data-00000-of-00001", folder)
    data = data_path.read_bytes()
    entries = list(read_table(index))
    content = b"".join(test_bundle.entry(key, value) for key, value in entries)
    path = folder / "one.index"
    read = partial(bundle.read_index, str(path))
    for _ in range(rounds):
        path.write_bytes(damaged(index, rng))
        yield read
        chosen = rng.randrange(len(entries))
        changed = [list(each) for each in entries]
        part = rng.randrange(2)
        changed[chosen][part] = damaged(changed[chosen][part], rng)
        path.write_bytes(write_table([(key, value) for key, value in changed]))
        yield read
        path.write_bytes(test_bundle.table(damaged(test_bundle.block(content), rng)))
        yield read
        path.write_bytes(index)
        data_path.write_bytes(damaged(data, rng))
        yield read
        data_path.write_bytes(data)
    for each in test_bundle.DAMAGED.values():
        path.write_bytes(each)
        yield read


def pickled_files(folder: Path, rng: random.Random, rounds: int) -> Iterator[Callable[[], Any]]:
    """Archives, pickles inside of them with right checksums, files in the older form."""
    archives = [write_out(name, folder).read_bytes() for name in ("zip.pt", "five.pt")]
    legacy = write_out("legacy.pt", folder).read_bytes()
    path = folder / "x"
    read = partial(pickled.read_index, str(path))
    for _ in range(rounds):
        archive = rng.choice(archives)
        path.write_bytes(damaged(archive, rng))
        yield read
        with zipfile.ZipFile(io.BytesIO(archive)) as whole, zipfile.ZipFile(path, "w") as file:
            for name in whole.namelist():
                content = whole.read(name)
                file.writestr(name, damaged(content, rng) if name.endswith("data.pkl") else content)
        yield read
        path.write_bytes(damaged(legacy, rng))
        yield read
    for each in test_pickled.BAD_PICKLES.values():
        test_pickled.archive(path, each)
        yield read
        path.write_bytes(each)
        yield read


def params_files(folder: Path, rng: random.Random, rounds: int) -> Iterator[Callable[[], Any]]:
    """The file, and files of very many arrays or names."""
    path = folder / "x"
    out = io.BytesIO()
    params_file.write_params(out, {name: array for name, array in VARIABLES.items() if np.size(array) > 1})

    read = partial(params_file.read_index, str(path))
    for _ in range(rounds):
        path.write_bytes(damaged(out.getvalue(), rng))
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
    for number, read in enumerate(FORMATS[format](Path(folder), random.Random(seed), int(rounds))):
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
