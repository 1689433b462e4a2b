from __future__ import annotations

import gc
import json
import mmap
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from base.errors import InputError
from data.store.columns import Column, ColumnWriter, check_sums, map_columns

PAGE = mmap.PAGESIZE


def write(directory, values, dtype="<i8", shard_bytes=PAGE, chunk=700):
    writer = ColumnWriter(str(directory), Column("x", dtype), shard_bytes)
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
    described = {}
    for column in columns:
        writer = ColumnWriter(str(tmp_path), column, PAGE)
        writer.append(values[column.name])
        described[column.name] = writer.close()
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


def test_shards_must_be_whole_pages(tmp_path):
    with pytest.raises(ValueError, match="page size"):
        ColumnWriter(str(tmp_path), Column("x", "<i8"), PAGE + 8)


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
