from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from base.errors import InputError
from base.files import sha256_of
from data.pretraining.sources import Batch, InstanceSource
from data.store.build import build_columns
from data.store.instances import InstanceStore, cached_instances, instance_store_plan, is_instance_store
from tests.data.formats.samples import assert_same, ragged
from tests.data.instance_files import VOCAB_SIZE, assert_holds, build_instances, files_of, flip, save


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Files of all formats, their instances, and the store of them."""
    directory = tmp_path_factory.mktemp("built")
    paths, instances = files_of(directory, [1100, 40, 7, 60])
    build_instances(paths, VOCAB_SIZE, str(directory / "store"), num_workers=2)
    return paths, instances, str(directory / "store")


def test_files_of_all_formats_become_one_store_without_padding(built):
    paths, instances, directory = built
    store = InstanceStore.open(directory)
    assert_holds(store, instances)
    assert (store.width, store.prediction_width, store.vocab_size) == (24, 4, VOCAB_SIZE)
    assert store.ids.dtype == np.uint16 and not store.ids.flags.writeable
    assert np.diff(store.source_ends).tolist() == [1100, 40, 7, 60]
    assert [(source["name"], source["sha256"]) for source in store.manifest["sources"]] == [
        (os.path.basename(path), sha256_of(path)) for path in paths
    ]
    assert store.source_of(1099).endswith("0.npz") and store.source_of(1100).endswith("1.hdf5")
    assert is_instance_store(directory) and not is_instance_store(os.path.dirname(directory))


def test_ids_of_a_large_vocabulary_and_weights_are_kept(tmp_path):
    rows = ragged(20, vocab_size=100_000)
    rows[3]["masked_lm_weights"] = [0.5] * len(rows[3]["masked_lm_ids"])
    save(str(tmp_path / "a"), rows, "tfrecord")
    build_instances([str(tmp_path / "a")], 100_000, str(tmp_path / "store"))
    store = InstanceStore.open(str(tmp_path / "store"))
    assert store.ids.dtype == np.uint32 and store.ids.max() > 1 << 16
    assert_holds(store, rows)


def damaged(paths, tmp_path):
    """The files, with one more as the third whose instance 10 of 20 has a wrong byte."""
    bad = str(tmp_path / "bad.tfrecord")
    save(bad, ragged(11, seed=9), "tfrecord")
    place = os.path.getsize(bad) - 50
    save(bad, ragged(20, seed=9), "tfrecord")
    flip(bad, place)
    return [*paths[:2], bad, *paths[2:]]


def test_a_damaged_file_is_named_and_nothing_is_left(built, tmp_path):
    paths = damaged(built[0], tmp_path)
    with pytest.raises(InputError, match=r"bad\.tfrecord: instance 10") as caught:
        build_instances(paths, VOCAB_SIZE, str(tmp_path / "out" / "store"), num_workers=2)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path / "out") == []


def test_bad_instances_are_skipped_and_counted_on_request(built, tmp_path):
    _, instances, _ = built
    paths = damaged(built[0], tmp_path)
    build_instances(paths, VOCAB_SIZE, str(tmp_path / "store"), num_workers=2, skip_bad_records=True)
    store = InstanceStore.open(str(tmp_path / "store"))
    rest = ragged(20, seed=9)
    assert_holds(store, [*instances[:1140], *rest[:10], *rest[11:], *instances[1140:]])
    assert store.manifest["counts"]["skipped"] == 1
    assert "bad.tfrecord: instance 10" in store.manifest["messages"][0]


def test_files_with_bad_instances_only_are_refused(tmp_path):
    rows = ragged(5)
    save(str(tmp_path / "a.npz"), rows, "npz")
    with pytest.raises(InputError, match=r"a\.npz: no instance is good; 5 bad ones were skipped"):
        build_instances([str(tmp_path / "a.npz")], 3, str(tmp_path / "store"), skip_bad_records=True)
    assert os.listdir(tmp_path) == ["a.npz"]


def test_files_that_change_meanwhile_are_refused(tmp_path):
    """The store would be taken for that of the file as it was when its checksum was computed."""
    path = str(tmp_path / "a.npz")
    save(path, ragged(5), "npz")
    plan = instance_store_plan([path], VOCAB_SIZE)
    save(path, ragged(5, seed=1), "npz")
    with pytest.raises(InputError, match=r"a\.npz changed while it was converted"):
        build_columns(str(tmp_path / "store"), plan, 1)


def test_the_cache_goes_by_content(tmp_path):
    paths, instances = files_of(tmp_path, [5, 4])
    cache = str(tmp_path / "cache")
    store = cached_instances(paths, VOCAB_SIZE, cache)
    assert_holds(store, instances)
    moved = [shutil.copy(path, tmp_path / f"moved-{number}") for number, path in enumerate(paths)]
    assert cached_instances(moved, VOCAB_SIZE, cache).directory == store.directory
    others = [
        cached_instances(moved[::-1], VOCAB_SIZE, cache).directory,
        cached_instances(moved, VOCAB_SIZE + 1, cache).directory,
        cached_instances(moved, VOCAB_SIZE, cache, skip_bad_records=True).directory,
    ]
    save(str(tmp_path / "other.npz"), ragged(3, seed=77), "npz")
    os.replace(tmp_path / "other.npz", moved[0])
    others.append(cached_instances(moved, VOCAB_SIZE, cache).directory)
    assert len({store.directory, *others}) == 5


def copied(built, tmp_path):
    """The directory of a copy of the store whose checksums have not been compared."""
    directory = str(tmp_path / "copy")
    shutil.copytree(built[2], directory, ignore=shutil.ignore_patterns("verified.json"))
    return directory


@pytest.mark.parametrize(
    "column, place, value",
    [
        ("ids", 100, VOCAB_SIZE),
        ("segments", 100, 2),
        ("lengths", 9, 0),
        ("lengths", 9, 600),
        ("token_ends", 0, 1),
        ("token_ends", 9, -1),
        ("positions", 30, 24),
        ("masked_ids", 30, VOCAB_SIZE),
        ("weights", 30, float("nan")),
        ("weights", 30, 0.0),
        ("prediction_ends", 9, 1 << 60),
        ("prediction_ends", -1, 0),
        ("labels", 3, 2),
        ("source_ends", 1, 5000),
        ("source_ends", 2, -1),
        ("token_widths", 0, 513),
        ("token_widths", 0, -1),
        ("prediction_widths", 0, -1),
    ],
)
def test_values_that_no_store_can_hold_are_refused_whatever_the_checksums_say(
    built, tmp_path, column, place, value
):
    directory = copied(built, tmp_path)
    path = os.path.join(directory, f"{column}-00000.bin")
    manifest_path = Path(directory, "manifest.json")
    manifest = json.loads(manifest_path.read_text("utf-8"))
    values = np.fromfile(path, manifest["columns"][column]["dtype"])
    values[place] = value
    values.tofile(path)
    manifest["columns"][column]["shards"][0]["sha256"] = sha256_of(path)
    del manifest["sha256"]
    manifest_path.write_text(json.dumps(manifest), "utf-8")
    with pytest.raises(InputError, match="is damaged"):
        InstanceStore.open(directory)


def test_a_manifest_with_anything_wrong_is_one_error(built, tmp_path):
    """300 manifests, each with one entry removed or replaced, wherever it stands."""
    directory = copied(built, tmp_path)
    manifest_path = Path(directory, "manifest.json")
    original = manifest_path.read_text("utf-8")
    replacements = [None, -1, 0, 1 << 70, 1.5, "", "x", "../x", "\0", [], {}, [[]], True]
    generator = random.Random(3)
    refused = 0
    for _ in range(300):
        manifest = json.loads(original)
        del manifest["sha256"]
        at, parent, key = manifest, None, None
        while isinstance(at, (dict, list)) and len(at) and (parent is None or generator.random() < 0.8):
            parent, key = at, generator.choice(list(at) if isinstance(at, dict) else range(len(at)))
            at = at[key]
        if generator.random() < 0.3:
            del parent[key]
        else:
            parent[key] = generator.choice(replacements)
        manifest_path.write_text(json.dumps(manifest), "utf-8")
        try:
            store = InstanceStore.open(directory, verify=generator.random() < 0.5)
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
        else:  # what was changed does not bear on the content
            assert store.num_instances == 1207
    assert refused > 100


# Batches of a store


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
    drawn = [generator.integers(0, len(instances), rows) for rows in [1, 5, 40] * 10]
    for indices in (*drawn, np.array([len(instances) - 1]), drawn[0][:0]):  # the last one, and none
        chosen = [instances[index] for index in indices]
        width = max((len(instance["input_ids"]) for instance in chosen), default=8)
        width += int(generator.integers(0, 9))
        expected = by_hand(chosen, width, source.columns(width), pad_id)
        assert_same(source.collate(1, 2, indices, width), expected)


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
