"""Generates broken files of one format and checks what the reader makes of them; for a process of its own.

    python -m tests.data.formats.fuzz_worker FORMAT SEED FIRST COUNT DIRECTORY

Prints `reading N` before each file, so that a crash of a C library can be told from the output, and then
a JSON object with what happened. A wrong exception, a bad instance let through or a file that takes over
5 seconds ends the process with a traceback.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import resource
import signal
import struct
import sys
import zipfile

import numpy as np

from base.errors import InputError
from data.formats.files import peek, read_instances
from tests.data.formats.samples import (
    columns,
    example,
    field,
    masked_crc,
    ofrecord,
    ofrecord_frame,
    padded,
    ragged,
    save_hdf5,
    save_npz,
    tfrecord_frame,
    varint,
)

VOCAB_SIZE = 300
MEMORY = 3 << 30  # of address space, of which the libraries take about 1 GiB
NASTY = [0, 1, -1, 2, 127, 128, 255, 299, 300, 511, 512, 65535, 65536]
NASTY += [2**31 - 1, 2**31, 2**32, 2**62, -(2**63)]


def damaged(generator, content):
    """One to three random changes of the bytes."""
    content = bytearray(content)
    for _ in range(generator.integers(1, 4)):
        place = int(generator.integers(0, len(content) + 1))
        kind = generator.integers(0, 6)
        if kind == 0:
            del content[place:]
        elif kind == 1 and place < len(content):
            content[place] ^= 1 << int(generator.integers(0, 8))
        elif kind == 2:
            content[place : place + 8] = struct.pack("<Q", int(generator.choice(NASTY)) & (1 << 64) - 1)
        elif kind == 3:
            content[place:place] = generator.bytes(int(generator.integers(1, 20)))
        elif kind == 4:
            del content[place : place + int(generator.integers(1, 20))]
        elif kind == 5 and place < len(content):
            content[place] = int(generator.integers(0, 256))
    return bytes(content)


def nasty_columns(generator, instances):
    """Columns by name with a value, a shape, a type, a name or an order that is wrong."""
    out = columns(instances)
    name = str(generator.choice(sorted(out)))
    kind = generator.integers(0, 8)
    column = out[name]
    if kind <= 2:
        column = out[name] = column.astype(np.float64 if generator.integers(0, 8) == 0 else np.int64)
        values = [*NASTY, np.nan, np.inf] if column.dtype == float else NASTY
        for _ in range(generator.integers(1, 4)):
            value = generator.choice(values)
            column.flat[int(generator.integers(0, column.size))] = value
    elif kind == 3:
        out[name] = generator.choice([None, 1])
        out[name] = None if out[name] is None else np.asarray(generator.choice(NASTY))
    elif kind == 4:
        types = ["f8", "c8", "S3", "U2", "M8[s]", "?", "u8", "f2", ">i8", "i1"]
        with np.errstate(all="ignore"):
            out[name] = column.astype(str(generator.choice(types)))
    elif kind == 5:
        out[name] = column[: int(generator.integers(0, len(column)))]
    elif kind == 6:
        shape = generator.integers(0, 4, int(generator.integers(0, 4)))
        out[name] = np.zeros(shape.tolist(), np.int32)
    else:
        out[name] = np.asfortranarray(column)
    return out


def nasty_record(generator, kind):
    """A record's message with a field that is wrong, well encoded or not; `kind` encodes instances."""
    row = padded(ragged(1, 12, 3, int(generator.integers(0, 99)), VOCAB_SIZE)[0], 12, 3)
    name = str(generator.choice(sorted(row)))
    change = generator.integers(0, 7)
    if change <= 1:
        row[name] = list(row[name])
        row[name][int(generator.integers(0, len(row[name])))] = int(generator.choice(NASTY))
    elif change == 2:
        del row[name]
    elif change == 3:
        row[name] = row[name] * int(generator.choice([0, 2, 50, 2000]))
    elif change == 4:
        row[name] = [float(value) for value in row[name]]
    elif change == 5:
        row["of no use"] = [1, 2, 3]
    message = kind(row, packed=bool(generator.integers(0, 2)))
    if change == 6:
        message = damaged(generator, message)
    if generator.integers(0, 9) == 0:
        message += field(int(generator.integers(1, 4)), generator.bytes(5))
        message += varint(int(generator.integers(0, 200)))
    return message


def npz_file(generator):
    instances = ragged(3, 12, 3, int(generator.integers(0, 99)), VOCAB_SIZE)
    buffer = io.BytesIO()
    kind = generator.integers(0, 3)
    if kind == 0:  # the archive's bytes
        save_npz(buffer, instances, bool(generator.integers(0, 2)))
        return damaged(generator, buffer.getvalue())
    if kind == 1:  # the arrays
        wide = nasty_columns(generator, instances)
        np.savez_compressed(buffer, **{name: column for name, column in wide.items() if column is not None})
        return buffer.getvalue()
    save_npz(buffer, instances)  # an array's bytes, in a sound archive
    out = io.BytesIO()
    with zipfile.ZipFile(buffer) as source, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as target:
        victim = str(generator.choice(source.namelist()))
        for name in source.namelist():
            member = source.read(name)
            if name == victim:
                cut = int(generator.choice([60, len(member)]))
                member = damaged(generator, member[:cut]) + member[cut:]
            target.writestr(name, member)
    return out.getvalue()


def tfrecord_file(generator):
    kind = generator.integers(0, 3)
    if kind == 0:
        rows = ragged(3, 12, 3, int(generator.integers(0, 99)), VOCAB_SIZE)
        content = b"".join(tfrecord_frame(example(row)) for row in rows)
        if generator.integers(0, 3) == 0:
            content = gzip.compress(content)
        return damaged(generator, content)
    content = b"".join(tfrecord_frame(nasty_record(generator, example)) for _ in range(3))
    if kind == 1:  # a lying length whose checksum is right
        length = struct.pack("<Q", int(generator.choice(NASTY)) & (1 << 64) - 1)
        content += length + masked_crc(length) + generator.bytes(30)
    return content


def ofrecord_file(generator):
    if generator.integers(0, 3) == 0:
        rows = ragged(3, 12, 3, int(generator.integers(0, 99)), VOCAB_SIZE)
        return damaged(generator, b"".join(ofrecord_frame(ofrecord(row)) for row in rows))
    first = ofrecord(ragged(1, 12, 3, 1, VOCAB_SIZE)[0])
    records = [first, *(nasty_record(generator, ofrecord) for _ in range(3))]
    return b"".join(map(ofrecord_frame, records))


def hdf5_file(generator, path):
    instances = ragged(3, 12, 3, int(generator.integers(0, 99)), VOCAB_SIZE)
    changes = nasty_columns(generator, instances) if generator.integers(0, 4) == 0 else {}
    compression = "gzip" if generator.integers(0, 2) else None
    if changes:
        changes = {name: column for name, column in changes.items() if name != "valid_lengths"}
        compression = None  # scalars cannot be compressed
    try:
        save_hdf5(path, instances, compression, **changes)
    except TypeError:  # h5py has no such type: nothing to read
        save_hdf5(path, instances, compression)
    with open(path, "rb") as handle:
        content = handle.read()
    if changes:
        return content
    # Most of so small a file is zeros between its structures: aim at what is not.
    used = np.flatnonzero(np.frombuffer(content, np.uint8))
    out = bytearray(content)
    for _ in range(generator.integers(1, 6)):
        place = int(generator.choice(used)) + int(generator.integers(-1, 2))
        if generator.integers(0, 4):
            out[place % len(out)] ^= 1 << int(generator.integers(0, 8))
        else:
            out[place : place + 8] = struct.pack("<Q", int(generator.choice(NASTY)) & (1 << 64) - 1)
    return bytes(out[: int(generator.integers(1, len(out)))]) if generator.integers(0, 8) == 0 else bytes(out)


def random_file(generator):
    starts = [b"", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n", b"\x1f\x8b\x08\0", b"\x78\x9c", struct.pack("<q", 90)]
    return starts[generator.integers(0, len(starts))] + generator.bytes(int(generator.integers(0, 300)))


def check_instances(arrays):
    """Independent of data.formats.records: one instance at a time."""
    count = len(arrays.valid_lengths)
    assert 1 <= count <= 1024 and all(len(column) == count for column in arrays)
    assert 1 <= arrays.input_ids.shape[1] <= 512 and arrays.input_ids.shape == arrays.segment_ids.shape
    for ids, segments, positions, masked_ids, weights, label, length in zip(*arrays):
        assert 1 <= length <= len(ids) and label in (0, 1) and np.isfinite(weights).all()
        assert ids.max() < VOCAB_SIZE and not ids[length:].any() and not segments[length:].any()
        assert set(segments.tolist()) <= {0, 1}
        used = int((weights > 0).sum())
        assert (weights[:used] > 0).all() and not weights[used:].any()
        assert all(position < length for position in positions[:used]) and masked_ids.max() < VOCAB_SIZE


def hold(path):
    """Read the file strictly and with skipping; returns what became of it."""
    try:
        for arrays in read_instances(path, VOCAB_SIZE):
            check_instances(arrays)
        outcome = "read"
    except InputError as error:
        assert path in str(error) and "\n" not in str(error) and len(str(error)) < 1000, str(error)
        outcome = "refused"
    skipped = []
    try:
        for arrays in read_instances(path, VOCAB_SIZE, lambda *bad: skipped.append(bad)):
            check_instances(arrays)
        assert bool(skipped) == (outcome == "refused"), (skipped, outcome)
        outcome = "skipped" if skipped else "read"
    except InputError as error:
        assert path in str(error) and outcome == "refused"
    assert all(path in message and number > 0 for message, number in skipped)
    try:
        peek(path)
    except InputError as error:
        assert path in str(error) and outcome != "read"
    return outcome


def main(format, seed, first, count, directory):
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    files = {"npz": npz_file, "tfrecord": tfrecord_file, "ofrecord": ofrecord_file, "random": random_file}
    outcomes = {"read": 0, "refused": 0, "skipped": 0}
    path = os.path.join(directory, f"{format}.data")
    for index in range(first, first + count):
        generator = np.random.default_rng((seed, index))
        content = hdf5_file(generator, path) if format == "hdf5" else files[format](generator)
        with open(path, "wb") as handle:
            handle.write(content)
        print("reading", index, flush=True)
        signal.alarm(5)
        outcomes[hold(path)] += 1
        signal.alarm(0)
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5])
