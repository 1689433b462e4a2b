from __future__ import annotations

import numpy as np
import pytest

from data.pretraining.sources import Batch, InstanceSource
from data.store.instances import InstanceStore
from tests.data.formats.samples import ragged
from tests.data.instance_files import VOCAB_SIZE, build_instances, files_of, save


def by_hand(instances, width, predictions, pad_id):
    """The batch of these instances (dicts of lists), one number after the other."""

    def rows(name, width, dtype=np.int32, fill=0):
        out = np.full((len(instances), width), fill, dtype)
        for row, instance in enumerate(instances):
            for place, number in enumerate(instance[name]):
                out[row, place] = number
        return out

    return Batch(
        rows("input_ids", width, fill=pad_id),
        rows("segment_ids", width),
        np.array([len(instance["input_ids"]) for instance in instances], np.int32),
        rows("masked_lm_positions", predictions),
        rows("masked_lm_ids", predictions),
        rows("masked_lm_weights", predictions, np.float32),
        rows("next_sentence_labels", 1)[:, 0],
    )


def assert_equal(found, expected):
    for name, left, right in zip(Batch._fields, found, expected):
        assert left.dtype == right.dtype, name
        assert left.shape == right.shape, name
        assert (left == right).all(), name


@pytest.fixture(scope="module")
def three_files(tmp_path_factory):
    """The store of three files of three formats, of 150, 131 and 70 instances; and the instances."""
    directory = tmp_path_factory.mktemp("three")
    paths, instances = files_of(directory, [150, 131, 70], ("npz", "tfrecord", "hdf5"))
    build_instances(paths, VOCAB_SIZE, str(directory / "store"), num_workers=1)
    return InstanceStore.open(str(directory / "store")), instances


@pytest.mark.parametrize("pad_id", [0, 7])
def test_batches_are_the_rows_padded(three_files, pad_id):
    store, instances = three_files
    source = InstanceSource(store, pad_id)
    generator = np.random.default_rng(0)
    for rows in (1, 5, 40):
        for _ in range(10):
            indices = generator.integers(0, len(instances), rows)
            chosen = [instances[index] for index in indices]
            width = max(len(instance["input_ids"]) for instance in chosen) + int(generator.integers(0, 9))
            expected = by_hand(chosen, width, source.columns(width), pad_id)
            assert_equal(source.collate(1, 2, indices, width), expected)


def test_the_last_instance_and_an_empty_batch(three_files):
    store, instances = three_files
    source = InstanceSource(store)
    last = np.array([len(instances) - 1])
    assert_equal(source.collate(0, 0, last, 40), by_hand(instances[-1:], 40, source.columns(40), 0))
    assert source.collate(0, 0, last[:0], 16).input_ids.shape == (0, 16)


def test_lengths_are_the_mapped_column_itself(three_files):
    store, instances = three_files
    lengths = InstanceSource(store).lengths(0, 0)
    assert lengths is store.lengths and lengths is InstanceSource(store).lengths(5, 9)
    assert lengths.dtype == np.int32 and not lengths.flags.writeable
    assert lengths.tolist() == [len(instance["input_ids"]) for instance in instances]


def test_columns_are_those_that_sequences_of_a_length_need(three_files):
    store, instances = three_files
    source = InstanceSource(store)
    assert (source.max_length, source.max_predictions) == (24, 4)
    for length in range(1, 60):
        counts = [len(i["masked_lm_ids"]) for i in instances if len(i["input_ids"]) <= length]
        assert source.columns(length) == max(counts, default=1)
    assert len({source.columns(length) for length in range(5, 25)}) > 1


def test_instances_without_predictions(tmp_path):
    rows = ragged(6)
    for row in rows:
        row["masked_lm_weights"] = [0.0] * len(row["masked_lm_ids"])
    save(str(tmp_path / "a.npz"), rows, "npz")
    build_instances([str(tmp_path / "a.npz")], VOCAB_SIZE, str(tmp_path / "store"))
    store = InstanceStore.open(str(tmp_path / "store"))
    assert len(store.positions) == len(store.weights) == 0 and store.prediction_ends.tolist() == [0] * 7
    source = InstanceSource(store)
    batch = source.collate(0, 0, np.arange(6), 24)
    assert source.max_predictions == 1 and not batch.masked_weights.any()
    assert batch.masked_positions.shape == (6, 1) and (batch.input_ids[0] == rows[0]["input_ids"]).all()


def test_instances_that_do_not_fit_are_an_error(three_files):
    store, _ = three_files
    with pytest.raises(ValueError, match="of up to 24 tokens do not fit into 23"):
        InstanceSource(store).collate(0, 0, np.array([0]), 23)
