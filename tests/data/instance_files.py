"""Files of instances for the tests of stores, written by encoders that share no code with data/."""

from __future__ import annotations

import os

from data.store.build import build_columns
from data.store.instances import instance_store_plan
from tests.data.formats.samples import padded, ragged, record, save_hdf5, save_npz

VOCAB_SIZE = 30000
FILE_FORMATS = ("npz", "hdf5", "tfrecord", "ofrecord")


def build_instances(paths, vocab_size, directory, num_workers=1, skip_bad_records=False):
    """A store at `directory`, not yet opened."""
    build_columns(directory, instance_store_plan(paths, vocab_size, skip_bad_records), num_workers)


def save(path, instances, kind):
    """Write instances (dicts of lists without padding) to `path` in one of FILE_FORMATS."""
    if kind == "npz":
        save_npz(path, instances)
    elif kind == "hdf5":
        save_hdf5(path, instances)
    else:
        with open(path, "wb") as handle:
            handle.writelines(record(kind, padded(instance, 24, 4)) for instance in instances)


def files_of(directory, counts, kinds=FILE_FORMATS):
    """One file of each count, formats in turn; returns their paths and all their instances in order."""
    paths, instances = [], []
    for number, count in enumerate(counts):
        kind = kinds[number % len(kinds)]
        path = os.path.join(str(directory), f"file-{number}.{kind}")
        rows = ragged(count, seed=number)
        save(path, rows, kind)
        paths.append(path)
        instances += rows
    return paths, instances


def assert_holds(store, instances):
    """The store has these instances (dicts of lists), in this order, and nothing else."""
    assert store.num_instances == len(instances)
    assert store.num_tokens == sum(len(instance["input_ids"]) for instance in instances)
    assert len(store.positions) == sum(len(instance["masked_lm_positions"]) for instance in instances)
    for index, instance in enumerate(instances):
        tokens = slice(store.token_ends[index], store.token_ends[index + 1])
        predictions = slice(store.prediction_ends[index], store.prediction_ends[index + 1])
        assert store.ids[tokens].tolist() == instance["input_ids"]
        assert store.segments[tokens].tolist() == instance["segment_ids"]
        assert store.lengths[index] == len(instance["input_ids"])
        assert store.positions[predictions].tolist() == instance["masked_lm_positions"]
        assert store.masked_ids[predictions].tolist() == instance["masked_lm_ids"]
        assert store.weights[predictions].tolist() == instance["masked_lm_weights"]
        assert [store.labels[index]] == instance["next_sentence_labels"]


def flip(path, place):
    """Change one bit of the byte at `place`."""
    with open(path, "r+b") as handle:
        handle.seek(place)
        byte = handle.read(1)[0]
        handle.seek(place)
        handle.write(bytes([byte ^ 1]))
