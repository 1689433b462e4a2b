from __future__ import annotations

import json
import os
import random
import shutil

import numpy as np
import pytest

from base.errors import InputError
from base.files import sha256_of
from data.store.instances import InstanceStore
from tests.data.instance_files import VOCAB_SIZE, build_instances, files_of, flip

TOKENS = ("ids", "segments", "lengths", "token_ends", "labels")
PREDICTIONS = ("positions", "masked_ids", "weights", "prediction_ends")
COLUMNS = (*TOKENS, *PREDICTIONS, "source_ends", "token_widths", "prediction_widths")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The directory of a store of files of all formats."""
    directory = tmp_path_factory.mktemp("built")
    paths, _ = files_of(directory, [1100, 40, 7, 60])
    build_instances(paths, VOCAB_SIZE, str(directory / "store"), num_workers=2)
    return str(directory / "store")


def copied(built, tmp_path):
    directory = str(tmp_path / "copy")
    shutil.copytree(built, directory)
    if os.path.exists(os.path.join(directory, "verified.json")):
        os.unlink(os.path.join(directory, "verified.json"))
    return directory


@pytest.mark.parametrize("column", COLUMNS)
def test_damage_to_any_column_is_seen(built, tmp_path, column):
    directory = copied(built, tmp_path)
    path = os.path.join(directory, f"{column}-00000.bin")
    flip(path, os.path.getsize(path) // 2)
    with pytest.raises(InputError, match=f"{column}-00000.bin does not have its checksum") as caught:
        InstanceStore.open(directory)
    assert directory in str(caught.value) and "delete it" in str(caught.value)
    with open(path, "ab") as handle:
        handle.write(b"12345678")
    with pytest.raises(InputError, match="damaged"):
        InstanceStore.open(directory, verify=False)
    os.unlink(path)
    with pytest.raises(InputError, match="damaged"):
        InstanceStore.open(directory, verify=False)


@pytest.mark.parametrize(
    "column, place, value",
    [
        ("ids", 100, VOCAB_SIZE),
        ("segments", 100, 2),
        ("lengths", 9, 0),
        ("lengths", 9, 600),
        ("lengths", 9, -3),
        ("token_ends", 0, 1),
        ("token_ends", 9, -1),
        ("token_ends", 9, 1 << 60),
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
    manifest_path = os.path.join(directory, "manifest.json")
    with open(manifest_path) as handle:
        manifest = json.load(handle)
    values = np.fromfile(path, manifest["columns"][column]["dtype"])
    values[place] = value
    values.tofile(path)
    manifest["columns"][column]["shards"][0]["sha256"] = sha256_of(path)
    del manifest["sha256"]
    with open(manifest_path, "w") as handle:
        json.dump(manifest, handle)
    with pytest.raises(InputError, match="is damaged"):
        InstanceStore.open(directory)


def test_a_manifest_with_anything_wrong_is_one_error(built, tmp_path):
    """300 manifests, each with one entry removed or replaced, wherever it stands."""
    directory = copied(built, tmp_path)
    manifest_path = os.path.join(directory, "manifest.json")
    with open(manifest_path) as handle:
        original = handle.read()
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
            parent[key] = generator.choice(
                [None, -1, 0, 1 << 70, 1.5, "", "x", "../x", "\0", [], {}, [[]], True]
            )
        with open(manifest_path, "w") as handle:
            json.dump(manifest, handle)
        try:
            store = InstanceStore.open(directory, verify=generator.random() < 0.5)
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
        else:  # what was changed does not bear on the content
            assert store.num_instances == 1207
    assert refused > 100
