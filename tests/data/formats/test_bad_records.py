from __future__ import annotations

import gzip
import struct
import zlib

import pytest

from tests.data.formats.reading import refused, skipping
from tests.data.formats.samples import (
    arrays,
    assert_same,
    field,
    joined,
    masked_crc,
    ofrecord_frame,
    padded,
    ragged,
    record,
    tfrecord_frame,
)

WIDTH, PREDICTIONS = 24, 4


def test_tfrecord_damage(tmp_path):
    rows = ragged(1200)
    frames = [record("tfrecord", row) for row in rows]
    sound = b"".join(frames)
    path = tmp_path / "x"
    start = len(b"".join(frames[:1100]))

    def check(content, message, kept, lost):
        path.write_bytes(content)
        refused(path, message)
        blocks, skipped = skipping(path)
        assert_same(joined(blocks), arrays([rows[index] for index in kept]))
        assert sum(number for _, number in skipped) == lost

    data = bytearray(sound)
    data[start + 30] ^= 4
    others = [index for index in range(1200) if index != 1100]
    check(data, "instance 1100: its checksum is wrong", others, 1)
    length = bytearray(sound)
    length[start] ^= 4
    check(length, "instance 1100: its length has a wrong checksum", range(1100), 1)
    check(sound[: start + 5], "instance 1100: the file ends inside its length", range(1100), 1)
    check(sound[: start + 50], "instance 1100: the file ends inside it", range(1100), 1)
    for size in (1 << 21, (1 << 64) - 1):
        header = struct.pack("<Q", size)
        huge = sound[:start] + header + masked_crc(header) + bytes(99)
        check(huge, f"instance 1100: its length {size} cannot be", range(1100), 1)
    packed = gzip.compress(sound)
    path.write_bytes(packed[: len(packed) // 2])
    refused(path, r"instance \d+: the (compressed data are damaged|file ends)")
    assert 0 < len(joined(skipping(path)[0]).valid_lengths) < 1200
    torn = bytearray(packed)
    torn[len(packed) // 2] ^= 255
    path.write_bytes(torn)
    refused(path, r"instance \d+: ")


def test_ofrecord_damage(tmp_path):
    rows = ragged(1200)
    frames = [record("ofrecord", row) for row in rows]
    sound = b"".join(frames)
    path = tmp_path / "x"
    start = len(b"".join(frames[:1100]))
    for content, message in (
        (sound[: start + 5], "instance 1100: the file ends inside its length"),
        (sound[: start + 50], "instance 1100: the file ends inside it"),
        (sound[:start] + struct.pack("<q", -5) + sound[start:], "instance 1100: its length -5 cannot be"),
        (sound[:start] + struct.pack("<q", 1 << 40) + sound[start:], "its length 1099511627776 cannot be"),
    ):
        path.write_bytes(content)
        refused(path, message)
        blocks, skipped = skipping(path)
        assert len(skipped) == 1
        assert_same(joined(blocks), arrays(rows[:1100]))
    path.write_bytes(sound[:start] + ofrecord_frame(b"\x0a\xff\xff") + sound[start:])
    refused(path, "instance 1100: it is not a message")
    assert_same(joined(skipping(path)[0]), arrays(rows))


@pytest.mark.parametrize("kind", ["tfrecord", "ofrecord"])
def test_records_with_wrong_fields(tmp_path, kind):
    good, path = padded(ragged(1)[0], WIDTH, PREDICTIONS), tmp_path / "x"
    without = {name: values for name, values in good.items() if name != "segment_ids"}
    for row, message in (
        (without, "it lacks the field segment_ids"),
        ({**good, "segment_ids": good["segment_ids"][:-1]}, "segment_ids has 23 values, but input_ids 24"),
        ({**good, "masked_lm_ids": [1]}, "masked_lm_ids has 1 values, but masked_lm_positions 4"),
        ({**good, "next_sentence_labels": [0, 1]}, "next_sentence_labels has 2 values"),
        ({**good, "next_sentence_labels": []}, "next_sentence_labels has 0 values"),
        ({**good, "input_ids": [0.5] * WIDTH}, "input_ids holds float numbers, expected integers"),
        ({name: values * 30 for name, values in good.items()}, "input_ids has 720 values, expected 1 to 512"),
        ({name: [] for name in good}, "input_ids has 0 values"),
    ):
        path.write_bytes(b"".join(record(kind, each) for each in (good, row, good)))
        refused(path, f"instance 1: {message}")
        blocks, skipped = skipping(path)
        assert len(skipped) == 1
        assert_same(joined(blocks), arrays([ragged(1)[0]] * 2))
    raw = field(1, field(1, b"input_ids") + field(2, field(1, field(1, b"text"))))
    path.write_bytes(tfrecord_frame(field(1, raw)) if kind == "tfrecord" else ofrecord_frame(raw))
    refused(path, "instance 0: (input_ids holds bytes|it lacks the field)")
    path.write_bytes(record(kind, {**good, "something": [1, 2], "else": [0.5]}))
    assert_same(joined(skipping(path)[0]), arrays([ragged(1)[0]]))


def test_gzip_bomb_of_sound_records(tmp_path):
    """The same record over and over: 45 MB of sound TFRecords in 45 KB are stopped, not believed."""
    filled = record("tfrecord", {**ragged(1)[0], "filler": [0] * 1_000_000})
    packer = zlib.compressobj(9, wbits=31)
    path = tmp_path / "x"
    path.write_bytes(b"".join(packer.compress(filled) for _ in range(45)) + packer.flush())
    refused(path, "over 500 times")
