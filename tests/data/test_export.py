from __future__ import annotations

import os
import resource
import signal
import sys

import numpy as np
import pytest

from base.errors import InputError
from base.files import sha256_of
from base.progress import Progress
from data.export import CopiesConfig, FileConfig, Rows, export, text_rows
from data.formats.files import identify, peek
from data.formats.records import PretrainingArrays
from data.options import MaskingConfig
from data.pretraining.sources import InstanceSource
from data.store.instances import cached_instances, instance_store_plan
from data.store.tokens import TokenStore
from data.tokenizing.tokenizer import TokenizerSettings
from tests.data.formats.samples import arrays, joined, ragged
from tests.data.instance_files import FILE_FORMATS, files_of, save
from tests.data.token_stores import build_store, content
from tests.processes import run_command, start_command, until

MASKS = CopiesConfig(MaskingConfig(48, max_predictions_per_seq=8), dupe_factor=3, seed=21)


@pytest.fixture(scope="module")
def text_store(embedded, vocab, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("text") / "store")
    build_store([str(embedded / "corpus" / "eval.txt")], TokenizerSettings(vocab), directory)
    return directory


@pytest.fixture(scope="module")
def exported(text_store, tmp_path_factory):
    """The text's instances in each format: a directory for each."""
    parent = tmp_path_factory.mktemp("exported")
    for kind in FILE_FORMATS:
        export(text_rows([text_store], MASKS), str(parent / kind), FileConfig(kind, instances_per_file=100))
    return parent


def data_files(directory):
    names = sorted(name for name in os.listdir(str(directory)) if name != "manifest.json")
    return [os.path.join(str(directory), name) for name in names]


def wanted(*stores):
    """TextSource's own batches of all copies, copy by copy: of the first store, of the second, of the first
    again."""
    sources = [MASKS.source([TokenStore.open(store)]) for store in stores]
    copies = []
    for epoch in range(3):
        source = sources[epoch % len(sources)]
        count = len(source.lengths(MASKS.seed, epoch))
        copies.append(source.collate(MASKS.seed, epoch, np.arange(count), 48))
    return [np.concatenate(columns) for columns in zip(*copies)]


def sorted_rows(columns):
    """Rows of a batch as bytes, sorted."""
    return sorted(b"|".join(column[row].tobytes() for column in columns) for row in range(len(columns[0])))


@pytest.mark.parametrize("kind", FILE_FORMATS)
def test_text_through_files_gives_the_batches_of_the_text_itself(text_store, exported, vocab, kind):
    """In the same order in all formats."""
    expected = wanted(text_store)
    paths, cache = data_files(exported / kind), str(exported / "cache")
    store = cached_instances(paths, len(vocab), cache)
    source = InstanceSource(store, vocab.pad_id)
    count = len(source.lengths(0, 0))
    assert count == len(expected[0]) > 300 and len(paths) == -(-count // 100)
    found = source.collate(0, 0, np.arange(count), MASKS.masking.max_seq_length)
    assert found.masked_ids.shape == expected[4].shape and found.masked_weights.dtype == np.float32
    assert sorted_rows(found) == sorted_rows(expected)

    first = cached_instances(data_files(exported / "npz"), len(vocab), cache)
    assert (first.ids == store.ids).all() and (first.token_ends == store.token_ends).all()
    assert (first.positions == store.positions).all() and (first.weights == store.weights).all()
    assert store.width == 48 and store.prediction_width == 8
    for path, instances in zip(paths, np.diff(store.source_ends)):
        assert (identify(path).format, *peek(path)) == (kind, 48, 8)
        assert abs(instances - count / len(paths)) < 1


def test_npz_read_with_numpy_alone(text_store, exported):
    """Copies, padding and shuffling, told without any of our readers."""
    columns = {name: [] for name in ("input_ids", "valid_lengths", "masked_lm_positions", "masked_lm_ids")}
    for path in data_files(exported / "npz"):
        with np.load(path, allow_pickle=False) as file:
            assert sorted(file.files) == sorted(PretrainingArrays._fields)
            for name, parts in columns.items():
                parts.append(file[name])
    found = {name: np.concatenate(parts) for name, parts in columns.items()}
    expected = wanted(text_store)
    assert found["input_ids"].shape == (len(expected[0]), 48)
    order = permuted_by_content(expected[0], found["input_ids"])
    assert (found["valid_lengths"] == expected[2][order]).all()
    # 48 tokens can have 7 predictions at most; the files have --max_predictions_per_seq columns.
    assert found["masked_lm_positions"].shape == (len(order), 8) and expected[3].shape[1] == 7
    assert (found["masked_lm_positions"][:, :7] == expected[3][order]).all()
    assert (found["masked_lm_ids"][:, :7] == expected[4][order]).all()
    assert not found["masked_lm_positions"][:, 7].any()
    # Every copy is spread over the whole: the mean place of its instances is the middle, give or take 5
    # standard errors.
    count = len(order)
    for copy in range(3):
        places = np.flatnonzero(order * 3 // count == copy)
        assert abs(places.mean() / count - 0.5) < 5 * 0.29 / np.sqrt(len(places))


def permuted_by_content(rows, shuffled):
    """For each row of `shuffled` its number in `rows`, all rows being different."""
    number_of = {row.tobytes(): number for number, row in enumerate(rows.astype(np.int32))}
    assert len(number_of) == len(rows)
    return np.array([number_of[row.tobytes()] for row in shuffled.astype(np.int32)])


def test_a_store_for_each_copy(text_store, embedded, vocab, tmp_path):
    """As for a tokenizer that samples: copies 0 and 2 are of the first store, copy 1 of the second."""
    second = str(tmp_path / "second")
    build_store([str(embedded / "corpus" / "train-0.txt")], TokenizerSettings(vocab), second)
    export(text_rows([text_store, second], MASKS), str(tmp_path / "out"), FileConfig("npz"))
    with np.load(tmp_path / "out" / "pretrain-00000.npz") as file:
        found = file["input_ids"]
    assert sorted_rows([found.astype(np.int32)]) == sorted_rows([wanted(text_store, second)[0]])


def test_the_files_are_the_same_for_any_number_of_workers(text_store, exported, tmp_path):
    files = FileConfig("tfrecord", instances_per_file=100)
    result = export(text_rows([text_store], MASKS), str(tmp_path / "out"), files, num_workers=3)
    assert content(tmp_path / "out") == content(exported / "tfrecord")
    paths = data_files(tmp_path / "out")
    assert [file["size"] for file in result["files"]] == list(map(os.path.getsize, paths))
    assert [file["sha256"] for file in result["files"]] == [sha256_of(path) for path in paths]
    assert sum(file["instances"] for file in result["files"]) == result["counts"]["instances"]
    assert sorted(os.listdir(tmp_path)) == ["out"]


def test_conversion_through_all_formats_and_back_changes_nothing(tmp_path):
    paths, instances = files_of(tmp_path, [40, 55, 30], ("npz",))
    chain = [("npz", False), ("hdf5", False), ("tfrecord", True), ("ofrecord", False), ("npz", False)]
    directories = []
    for number, (kind, gzip) in enumerate(chain):
        output = str(tmp_path / f"{number}-{kind}")
        result = export(Rows(instance_store_plan(paths, 30000)), output, FileConfig(kind, gzip, 50))
        assert result["counts"]["instances"] == 125 and result["counts"]["skipped"] == 0
        directories.append(output)
        paths = data_files(output)
        for path in paths:
            with open(path, "rb") as handle:
                assert (handle.read(2) == b"\x1f\x8b") == gzip
    first, last = content(directories[0]), content(directories[-1])
    for name in ("pretrain-00000.npz", "pretrain-00001.npz", "pretrain-00002.npz"):
        assert first[name] == last[name]
    expected = arrays(instances)
    parts = [np.load(path) for path in paths]
    for name, column in expected._asdict().items():
        assert (np.concatenate([part[name] for part in parts]) == column).all(), name


def test_names_are_those_that_each_formats_users_know(exported):
    assert data_files(exported / "ofrecord")[0].endswith("/part-00000")
    assert data_files(exported / "hdf5")[0].endswith("/training-00000.hdf5")
    assert FileConfig("tfrecord", gzip=True).file_name(3) == "pretrain-00003.tfrecord.gz"
    assert FileConfig("hdf5", gzip=True).file_name(3) == "training-00003.hdf5"


def test_what_a_format_cannot_hold_is_said(tmp_path):
    rows = ragged(9)
    rows[4]["masked_lm_weights"] = [0.5] * len(rows[4]["masked_lm_ids"])
    save(str(tmp_path / "a"), rows, "tfrecord")
    plan = instance_store_plan([str(tmp_path / "a")], 30000)
    with pytest.raises(InputError, match="weight"):
        export(Rows(plan), str(tmp_path / "out"), FileConfig("hdf5"))
    assert os.listdir(tmp_path) == ["a"]
    export(Rows(plan), str(tmp_path / "out"), FileConfig("npz"))
    with np.load(tmp_path / "out" / "pretrain-00000.npz") as file:
        assert (file["masked_lm_weights"] == arrays(rows).masked_lm_weights).all()


def test_bad_instances_are_skipped_on_request_or_stop_it(tmp_path):
    paths, instances = files_of(tmp_path, [20, 20], ("npz", "tfrecord"))
    with open(paths[1], "r+b") as handle:
        handle.truncate(os.path.getsize(paths[1]) - 3)
    with pytest.raises(InputError, match="file-1.tfrecord: instance 19"):
        export(Rows(instance_store_plan(paths, 30000)), str(tmp_path / "out"), FileConfig("npz"))
    assert len(os.listdir(tmp_path)) == 2
    result = export(Rows(instance_store_plan(paths, 30000, True)), str(tmp_path / "out"), FileConfig("npz"))
    assert (result["counts"]["instances"], result["counts"]["skipped"]) == (39, 1)
    assert "file-1.tfrecord: instance 19" in result["messages"][0]
    with np.load(tmp_path / "out" / "pretrain-00000.npz") as file:
        assert (file["input_ids"] == joined([arrays(instances[:39])]).input_ids).all()


def test_packed_ofrecords_are_refused_and_nothing_is_written(text_store, tmp_path):
    with pytest.raises(InputError, match="--gzip: OneFlow"):
        export(text_rows([text_store], MASKS), str(tmp_path / "out"), FileConfig("ofrecord", gzip=True))
    assert os.listdir(tmp_path) == []


def test_what_is_there_is_kept(text_store, tmp_path):
    rows, output = text_rows([text_store], MASKS), str(tmp_path / "out")
    result = export(rows, output, FileConfig("npz"))
    before = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(output)}
    assert export(rows, output, FileConfig("npz")) == result
    with pytest.raises(InputError, match="is there already.*another name"):
        export(rows, output, FileConfig("hdf5"))
    assert before == {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(output)}


CHILD = """
import sys
from data.export import CopiesConfig, FileConfig, export, text_rows
from data.options import MaskingConfig
masks = CopiesConfig(MaskingConfig(48, max_predictions_per_seq=8), dupe_factor=3, seed=21)
export(text_rows([sys.argv[1]], masks), sys.argv[2], FileConfig("hdf5", instances_per_file=20), num_workers=2)
"""


def test_an_export_killed_at_any_moment_goes_on_and_keeps_finished_files(text_store, tmp_path):
    files = FileConfig("hdf5", instances_per_file=20)
    export(text_rows([text_store], MASKS), str(tmp_path / "whole"), files)
    output = str(tmp_path / "out")
    command = [sys.executable, "-c", CHILD, text_store, output]

    def written():
        return [path.name for path in tmp_path.glob("out.partial/*.hdf5")]

    kept = {}
    for moment in (1, 8, 20):
        with start_command(command) as run:
            until(lambda m=moment: len(written()) >= m, run, pause=0.001)
            run.signal(signal.SIGKILL)
            assert run.wait().returncode == -signal.SIGKILL, "it was over before it could be killed"
        names = written()
        assert len(names) >= moment and not os.path.exists(output)
        inodes = {name: os.stat(f"{output}.partial/{name}").st_ino for name in names}
        assert kept.items() <= inodes.items()
        kept = inodes
    run_command(command).check()
    assert kept.items() <= {name: os.stat(f"{output}/{name}").st_ino for name in os.listdir(output)}.items()
    assert content(output) == content(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["out", "whole"]


@pytest.mark.parametrize("format", ["tfrecord", "hdf5"])
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(text_store, tmp_path, format, capfd):
    """A limit on the size of a file fails like a full disk: first in the store, then in a file."""
    files, output = FileConfig(format, instances_per_file=1000), str(tmp_path / "out")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Full(Progress):
        def __init__(self, work):
            self.work = work

        def begin(self, what, total):
            if what.startswith(self.work):
                resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))

    for work, said in (("masking", r"instances\.partial: .* MB free"), ("writing", r"out\.partial: ")):
        try:
            with pytest.raises(InputError, match=f"{said}.*free some space and give the same com") as caught:
                export(text_rows([text_store], MASKS), output, files, progress=Full(work))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "\n" not in str(caught.value) and not os.path.exists(output)
        assert os.path.exists(f"{output}.partial/unfinished/instances") == (work == "writing")
    assert capfd.readouterr().err == ""
    for directory in (output, str(tmp_path / "whole")):
        export(text_rows([text_store], MASKS), directory, files)
    assert content(output) == content(tmp_path / "whole")
