from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from base.errors import InputError
from base.files import sha256_of
from data.formats.records import PretrainingArrays
from data.formats.write import write_instances
from data.store.instances import InstanceStore, cached_instances, instance_columns, is_instance_store
from tests.data.formats.samples import ragged
from tests.data.instance_files import VOCAB_SIZE, assert_holds, build_instances, files_of, flip, save
from tests.processes import run_command


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
    assert [(source["name"], source["instances"]) for source in store.sources] == [
        (os.path.basename(path), count) for path, count in zip(paths, [1100, 40, 7, 60])
    ]
    assert [source["sha256"] for source in store.sources] == [sha256_of(path) for path in paths]
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


def save_large(path, count):
    """An npz file of `count` * 1024 instances of 512 tokens; about 4 MB of arrays for each `count`."""
    generator = np.random.default_rng(0)
    rows = count * 1024
    block = PretrainingArrays(
        generator.integers(0, 30000, (rows, 512)).astype(np.int32),
        np.zeros((rows, 512), np.uint8),
        np.tile(np.arange(1, 3, dtype=np.uint16), (rows, 1)),
        np.ones((rows, 2), np.int32),
        np.ones((rows, 2), np.float32),
        np.zeros(rows, np.uint8),
        np.full(rows, 512, np.int32),
    )
    write_instances(path, "npz", block, compress=False)
    assert os.path.getsize(path) > count << 22


def test_memory_does_not_grow_with_the_file(tmp_path):
    """Peak memory of the converting processes, for 8 MB and 40 MB of arrays."""
    script = (
        "import sys; from resource import RUSAGE_CHILDREN, getrusage\n"
        "from base.memory import peak_of; from tests.data.instance_files import build_instances\n"
        "for path in sys.argv[1:]:\n"
        "    build_instances([path], 30000, path + '.store')\n"
        "    print(max(peak_of(), getrusage(RUSAGE_CHILDREN).ru_maxrss << 10))"
    )
    paths = [str(tmp_path / name) for name in ("small", "large")]
    for path, count in zip(paths, (2, 10)):
        save_large(path, count)
    small, large = run_command([sys.executable, "-c", script, *paths]).check().stdout.split()
    assert int(large) - int(small) < 8 << 20, (small, large)


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


def test_damage_to_any_column_is_seen(built, tmp_path):
    directory = copied(built, tmp_path)
    for column in instance_columns(VOCAB_SIZE):
        path = Path(directory, f"{column.name}-00000.bin")
        whole = path.read_bytes()
        flip(path, len(whole) // 2)
        with pytest.raises(InputError, match=f"{column.name}-00000.bin does not have its checksum") as caught:
            InstanceStore.open(directory)
        assert directory in str(caught.value) and "delete it" in str(caught.value)
        path.write_bytes(whole + b"12345678")
        with pytest.raises(InputError, match="damaged"):
            InstanceStore.open(directory, verify=False)
        path.unlink()
        with pytest.raises(InputError, match="damaged"):
            InstanceStore.open(directory, verify=False)
        path.write_bytes(whole)


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
