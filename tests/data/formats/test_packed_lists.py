"""Decoding records together must give what protobuf gives one by one, or nothing."""

from __future__ import annotations

import numpy as np
import pytest

from data.formats import record_files
from data.formats.record_files import FIELDS
from tests.data.formats.samples import entries, example, field, integer_list, ofrecord, ragged

KINDS = {name: "float_list" if name == "masked_lm_weights" else "int64_list" for name in FIELDS}


def decode(records, format="tfrecord"):
    return record_files.Messages(format).decode_together(records)


def rows_by_protobuf(records, name):
    message_type = record_files.message_type(is_example=True)
    for record in records:
        feature = message_type.FromString(record).features.feature[name]
        yield list(getattr(feature, KINDS[name]).value)


@pytest.mark.parametrize("largest", [2, 128, 1 << 14, 1 << 21, 1 << 28])
def test_the_same_numbers_as_protobufs(largest):
    generator = np.random.default_rng(largest)
    instances = ragged(200, width=30, predictions=5, seed=1)
    for instance in instances:
        for name in ("input_ids", "masked_lm_ids", "masked_lm_positions"):
            bound = generator.integers(1, largest + 1)
            instance[name] = generator.integers(0, bound, len(instance[name])).tolist()
        instance["masked_lm_weights"] = generator.random(len(instance["masked_lm_ids"])).tolist()
    records = [example(instance) for instance in instances]
    columns = decode(records)
    assert columns is not None and set(columns) == set(FIELDS)
    for name, column in columns.items():
        for found, expected in zip(column, rows_by_protobuf(records, name)):
            assert found[: len(expected)].tolist() == expected and not found[len(expected) :].any()


def test_int32_lists_of_ofrecord():
    instances = ragged(50)
    columns = decode([ofrecord(instance) for instance in instances], "ofrecord")
    for found, instance in zip(columns["input_ids"], instances):
        assert found[: len(instance["input_ids"])].tolist() == instance["input_ids"]


def with_ids(content):
    """A record whose input_ids has these bytes for a list, and one token everywhere else."""
    row = ragged(1)[0]
    row = {name: values[:1] for name, values in row.items() if name != "input_ids"}
    entry = field(1, field(1, b"input_ids") + field(2, field(3, content)))
    return field(1, entries(row, 3) + entry)


@pytest.mark.parametrize(
    "content, taken",
    [
        (integer_list([7]), True),
        (field(1, b"\x87\x00"), True),  # 7 in two bytes: unusual, but protobuf takes it too
        (integer_list([7], packed=False), False),
        (integer_list([7]) + integer_list([], packed=True), False),
        (integer_list([7]) + b"\x08\x09", False),  # a number beside the list
        (integer_list([7]) + field(2, b"?"), False),
        (integer_list([-1]), False),
        (integer_list([1 << 28]), False),
        (field(1, b"\x87"), False),  # cut inside a number
        (field(1, b""), False),
        (b"", False),
    ],
)
def test_unusual_lists_are_left_to_protobuf(content, taken):
    columns = decode([with_ids(content)])
    assert (columns is not None) == taken
    if taken:
        assert columns["input_ids"].tolist() == [[7]]


def test_fields_of_different_lengths_or_missing_are_left_to_protobuf():
    good = ragged(3)
    assert decode([example(row) for row in good]) is not None
    for name in FIELDS:
        longer = {**good[1], name: good[1][name] + [1] * 2}
        without = {key: values for key, values in good[1].items() if key != name}
        for bad in (longer, without):
            assert decode([example(good[0]), example(bad), example(good[2])]) is None
    wide = {name: values * 30 for name, values in good[0].items() if name != "next_sentence_labels"}
    assert decode([example({**wide, "next_sentence_labels": [0]})]) is None
    assert decode([b"\x0a\xff\xff"]) is None


def test_damaged_records_are_never_decoded_to_other_numbers():
    generator = np.random.default_rng(3)
    decoded = 0
    for seed in range(30):
        sound = example(ragged(1, width=12, seed=seed)[0])
        for _ in range(60):
            content = bytearray(sound)
            content[generator.integers(len(content))] = generator.integers(256)
            columns = decode([bytes(content)])
            if columns is None:
                continue
            decoded += 1
            for name, column in columns.items():
                (expected,) = rows_by_protobuf([bytes(content)], name)
                assert np.array_equal(column[0], expected, equal_nan=True), name
    assert decoded > 300
