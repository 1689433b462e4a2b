"""Columns of files, mapped as arrays: a shard that is cut while a process reads it ends that process with one
line that names the file."""

from __future__ import annotations

import gc
import json
import mmap
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from base.errors import InputError
from data.export import as_arrays
from data.formats.files import write_instances
from data.options import MaskingConfig
from data.pretraining.sources import TextSource
from data.store.columns import Column, ColumnWriter, check_sums, map_columns
from tests.data.instance_files import build_instances
from tests.processes import run_command, start_command, until

PAGE = mmap.PAGESIZE


def write(directory, values, dtype="<i8", shard_bytes=PAGE, chunk=700, name="x"):
    writer = ColumnWriter(str(directory), Column(name, dtype), shard_bytes)
    for start in range(0, len(values), chunk):
        writer.append(values[start : start + chunk])
    return writer.close()


def read(directory, described, dtype="<i8"):
    check_sums(str(directory), {"x": described})
    columns, _ = map_columns(str(directory), {"x": described}, [Column("x", dtype)])
    return columns["x"]


def mapped_files():
    with open("/proc/self/maps", encoding="utf-8") as handle:
        return [line for line in handle if "/x-000" in line]


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<i8", "|u1", "<f4"])
@pytest.mark.parametrize("pages", [0.01, 1, 1.5, 3, 3.25])
def test_shards_read_as_the_one_array_that_was_written(tmp_path, dtype, pages):
    values = (np.arange(int(pages * PAGE) // np.dtype(dtype).itemsize) % 251).astype(dtype)
    described = json.loads(json.dumps(write(tmp_path, values, dtype)))
    sizes = [shard["size"] for shard in described["shards"]]
    assert sizes[:-1] == [PAGE] * (len(sizes) - 1) and sum(sizes) == values.nbytes
    assert len(sizes) == np.ceil(pages) and described["length"] == len(values)
    column = read(tmp_path, described, dtype)
    assert column.dtype == dtype and (column == values).all()
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        column.flags.writeable = True


def test_columns_are_mapped_side_by_side_and_an_empty_one_has_no_file(tmp_path):
    values = {"x": np.arange(3 * PAGE // 8 + 5), "empty": np.arange(0), "y": np.arange(PAGE) % 251}
    columns = [Column("x", "<i8"), Column("empty", "<i8"), Column("y", "|u1")]
    described = {
        each.name: write(tmp_path, values[each.name], each.dtype, name=each.name) for each in columns
    }
    assert described["empty"]["shards"] == [] and len(os.listdir(tmp_path)) == 5
    mapped, files = map_columns(str(tmp_path), described, columns)
    assert [mapped[name].tolist() for name in values] == [each.tolist() for each in values.values()]
    assert len(files.paths) == 5
    for column in (Column("x", "<u8"), Column("empty", "<i4"), Column("z", "<i8")):
        with pytest.raises(InputError, match=column.name):
            map_columns(str(tmp_path), described, [*columns, column])
    with pytest.raises(InputError, match="the column y has another length"):
        map_columns(str(tmp_path), {**described, "y": {**described["y"], "length": 5}}, columns)


def test_numbers_that_a_column_cannot_hold_are_not_written(tmp_path):
    writer = ColumnWriter(str(tmp_path), Column("x", "<u2"), PAGE)
    for bad in ([65536], [-1], [1.5]):
        with pytest.raises(ValueError, match="column x: values that uint16 cannot hold"):
            writer.append(np.array(bad))
    writer.append(np.array([65535, 0]))
    assert read(tmp_path, writer.close(), "<u2").tolist() == [65535, 0]


def test_files_stay_mapped_as_long_as_a_view_lives_and_no_longer(tmp_path):
    described = write(tmp_path, np.arange(3 * PAGE // 8 + 5))
    gc.collect()
    before = len(mapped_files())
    column = read(tmp_path, described)
    view = column[PAGE // 8 - 2 : PAGE // 8 + 2]
    assert len(mapped_files()) == before + 4
    del column
    gc.collect()
    for name in os.listdir(tmp_path):
        os.unlink(tmp_path / name)
    assert view.tolist() == list(range(PAGE // 8 - 2, PAGE // 8 + 2))
    del view
    gc.collect()
    assert len(mapped_files()) == before


def test_threads_may_map_at_once(tmp_path):
    """MAP_FIXED replaces whatever is at its address: it must never be another thread's memory."""
    values = np.arange(4 * PAGE // 8)
    described = write(tmp_path, values)

    def use(_):
        column = read(tmp_path, described)
        noise = np.ones(200_000)
        return (column == values).all() and noise.sum() == 200_000

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(240)))


def test_a_writer_begins_anew_and_removes_what_it_wrote(tmp_path):
    values = np.arange(3 * PAGE // 8 + 5)
    earlier = ColumnWriter(str(tmp_path), Column("x", "<i8"), PAGE)
    earlier.append(-values)
    described = write(tmp_path, values)
    assert (read(tmp_path, described) == values).all()
    earlier.remove()
    assert os.listdir(tmp_path) == []


def test_a_manifest_that_lies_is_an_input_error(tmp_path):
    described = write(tmp_path, np.arange(2 * PAGE // 8))
    first, second = described["shards"]
    lies = [("file", file) for file in ("../x-00000.bin", "/etc/passwd", 7)]
    lies += [("size", size) for size in ("8", 0, -PAGE, PAGE - 8, 2 * PAGE)] + [("sha256", None)]
    for bad in (*([{**first, name: lie}, second] for name, lie in lies), "text", [1], [None], [{}]):
        with pytest.raises(InputError):
            read(tmp_path, {**described, "shards": bad})
    for bad in (None, 1, [], {}):
        with pytest.raises(InputError):
            map_columns(str(tmp_path), bad, [Column("x", "<i8")])


READER = """
import contextlib
import sys
from training.entry import exit_code
kind, directory, before = sys.argv[1:]
if before == "mxnet":
    import mxnet
from data.options import BatchingConfig, MaskingConfig
from data.pretraining.batches import PretrainingBatches
from data.pretraining.prefetch import Feed
from data.pretraining.sources import InstanceSource, TextSource
from data.sharing import Share
from data.store.instances import InstanceStore
from data.store.tokens import TokenStore

def main():
    if kind == "tokens":
        store = TokenStore.open(directory)
        source = TextSource(store, store.vocabulary, MaskingConfig(64, 0.1, 0.15, 10))
    else:
        source = InstanceSource(InstanceStore.open(directory))
    made = PretrainingBatches(source, BatchingConfig(16, False, 4), 0, Share.of(0, 1))
    with contextlib.closing(Feed(made.tasks, num_workers=2, depth=4)) as batches:
        batches.seek(0)
        for number, _ in enumerate(batches):
            if number == 20:
                print("reading", flush=True)
    return 0

sys.exit(exit_code(main))
"""


@pytest.fixture(scope="module")
def stores(store, tmp_path_factory):
    """A token store, and an instance store of 400 instances."""
    directory = tmp_path_factory.mktemp("whole")
    shutil.copytree(store.directory, directory / "tokens")
    source = TextSource(store, store.vocabulary, MaskingConfig(64, 0.1, 0.15, 10))
    block = as_arrays(source.collate(0, 0, np.arange(400), 64))
    write_instances(str(directory / "a.npz"), "npz", block)
    build_instances([str(directory / "a.npz")], len(store.vocabulary), str(directory / "instances"))
    return directory


@pytest.mark.parametrize(
    "kind, name, left, before",
    [
        ("tokens", "ids", 4096, ""),
        ("tokens", "ids", -2, ""),  # inside of the last page, which reads as zeros without a signal
        ("tokens", "ids", 0, "mxnet"),  # which has a handler of its own
        ("tokens", "documents", 0, ""),
        ("instances", "lengths", 0, ""),
        ("instances", "prediction_ends", 0, ""),
    ],
)
def test_a_shard_cut_while_a_process_reads_it(stores, tmp_path, kind, name, left, before):
    directory = tmp_path / "store"
    shutil.copytree(stores / kind, directory)
    path = directory / f"{name}-00000.bin"
    size = path.stat().st_size
    left = left if left >= 0 else size + left
    words = [sys.executable, "-c", READER, kind, str(directory), before]
    with start_command(words) as run:
        until(lambda: "reading" in run.stdout(), run)
        os.truncate(path, left)
        result = run.wait()
    assert result.returncode == 2, result.describe()
    assert result.stderr.splitlines()[-1] == (
        f"error: {path} became shorter while it was in use: {left:,} of its {size:,} bytes are left; put the "
        "whole file back or make the store again, and start again"
    )


def mapped(directory, **elements):
    """Columns by name, of so many numbers each from 0 on, and their files."""
    described = {
        name: write(directory, np.arange(number), shard_bytes=8192, name=name)
        for name, number in elements.items()
    }
    return map_columns(str(directory), described, [Column(name, "<i8") for name in elements])


def test_every_file_beside_the_one_that_was_cut_is_as_it_was(tmp_path):
    columns, files = mapped(tmp_path, before=1100, cut=5000, whole=3000)
    other, of_other = mapped(tmp_path, other=3000)
    files.check()
    os.truncate(tmp_path / "cut-00001.bin", 4096)
    expected = np.arange(5000)
    expected[1024 + 512 : 2048] = 0
    assert (columns["cut"] == expected).all()
    assert (columns["before"] == np.arange(1100)).all() and (columns["whole"] == np.arange(3000)).all()
    assert (other["other"] == np.arange(3000)).all()
    of_other.check()
    with pytest.raises(InputError, match=r"cut-00001\.bin became shorter .*: 4,096 of its 8,192 bytes"):
        files.check()
    os.truncate(tmp_path / "cut-00001.bin", 8192)  # what was read is still wrong
    with pytest.raises(InputError, match=r"cut-00001\.bin cannot be read any more"):
        files.check()


def test_a_file_that_is_cut_and_read_by_another_thread_during_a_check(tmp_path, monkeypatch):
    columns, files = mapped(tmp_path, x=3000)
    stat = os.stat

    def as_it_was(path):
        facts = stat(path)
        os.truncate(path, 4096)
        assert columns["x"][1000] == 0  # what this check is for was read before
        return facts

    monkeypatch.setattr("data.store.columns.os.stat", as_it_was)
    files.check()
    monkeypatch.undo()
    with pytest.raises(InputError, match=r"x-00000\.bin became shorter"):
        files.check()


def test_files_that_are_replaced_or_removed_stay_mapped_as_they_were(tmp_path):
    columns, files = mapped(tmp_path, x=3000)
    os.unlink(tmp_path / "x-00000.bin")
    (tmp_path / "new").write_bytes(b"short")
    os.replace(tmp_path / "new", tmp_path / "x-00001.bin")
    assert (columns["x"] == np.arange(3000)).all()
    files.check()


def test_a_signal_of_another_mapping_is_left_to_the_handler_before(tmp_path):
    code = f"""
import faulthandler, mmap, os
faulthandler.enable()
import numpy as np
from data.store.columns import Column, ColumnWriter, map_columns
column = Column("x", "<i8")
writer = ColumnWriter({str(tmp_path)!r}, column)
writer.append(np.arange(3000))
ours = map_columns({str(tmp_path)!r}, dict(x=writer.close()), [column])[0]["x"]
with open({str(tmp_path / "other")!r}, "w+b") as handle:
    handle.write(bytes(8192))
    handle.flush()
    other = mmap.mmap(handle.fileno(), 8192)
    handle.truncate(0)
print(int(ours.sum()), flush=True)
print(other[5000])
"""
    result = run_command([sys.executable, "-c", code])
    assert result.returncode == -7 and "Fatal Python error: Bus error" in result.stderr
    assert result.stdout.split() == [str(3000 * 2999 // 2)]


def test_a_check_costs_microseconds(store):
    """Per batch: against a millisecond and more for the batch itself."""

    def seconds():
        begun = time.process_time()
        for _ in range(200):
            store.check()
        return (time.process_time() - begun) / 200

    assert len(store.files.paths) == 3 and min(seconds() for _ in range(5)) < 100e-6
