from __future__ import annotations

import io
import os
import pickle
import zipfile

import numpy as np
import pytest

from data.convert_npz import convert
from data.convert_npz import main as convert_main
from data.errors import InputError
from data.npz import read_npz, write_npz
from data.records import PretrainingArrays
from data.sources import NpzSource

VOCAB_SIZE = 50


def instances(count=6, seed=0, min_length=8):
    """Rows of different lengths, as GluonNLP's convert_to_npz makes them."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(min_length, 17, count).astype(np.int32)
    predictions = [int(generator.integers(1, 4)) for _ in range(count)]
    return {
        "input_ids": [generator.integers(0, VOCAB_SIZE, n).astype(np.int32) for n in lengths],
        "segment_ids": [np.repeat([0, 1], [n // 2, n - n // 2]).astype(np.int32) for n in lengths],
        "masked_lm_positions": [
            np.sort(generator.choice(n, p, False)).astype(np.int32) for n, p in zip(lengths, predictions)
        ],
        "masked_lm_ids": [generator.integers(0, VOCAB_SIZE, p).astype(np.int32) for p in predictions],
        "masked_lm_weights": [np.ones(p, np.float32) for p in predictions],
        "next_sentence_labels": generator.integers(0, 2, count).astype(np.int32),
        "valid_lengths": lengths,
    }


def padded(rows):
    out = {}
    for name, column in rows.items():
        if isinstance(column, list):
            wide = np.zeros((len(column), max(map(len, column))), column[0].dtype)
            for index, row in enumerate(column):
                wide[index, : len(row)] = row
            column = wide
        out[name] = column
    return out


def write_as_gluonnlp(path, rows):
    """What GluonNLP's write_to_files_np does with them."""
    arrays = {n: np.array(c, dtype=object) if isinstance(c, list) else c for n, c in rows.items()}
    np.savez_compressed(path, **arrays)


def save(tmp_path, **changes):
    path = str(tmp_path / "part-000.npz")
    arrays = {**padded(instances()), **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_padded_arrays_are_read_and_written_back(tmp_path):
    path = save(tmp_path)
    arrays = read_npz(path, VOCAB_SIZE)
    write_npz(str(tmp_path / "copy.npz"), arrays)
    for name, expected in padded(instances()).items():
        assert (getattr(arrays, name) == expected).all()
        with np.load(tmp_path / "copy.npz", allow_pickle=False) as copy:
            assert (copy[name] == expected).all()
            assert copy[name].dtype == (np.float32 if name == "masked_lm_weights" else np.int32)


def bad(name, index, value):
    array = padded(instances())[name].copy()
    array[index] = value
    return {name: array}


@pytest.mark.parametrize(
    "changes, message",
    [
        (bad("input_ids", (3, 1), VOCAB_SIZE), "input_ids of instance 3 .*0 to 49"),
        (bad("input_ids", (0, 0), -1), "input_ids of instance 0"),
        (bad("masked_lm_ids", (2, 0), VOCAB_SIZE), "masked_lm_ids of instance 2"),
        (bad("segment_ids", (1, 1), 2), "segment_ids of instance 1"),
        (bad("masked_lm_positions", (4, 0), 16), "masked_lm_positions of instance 4"),
        (bad("masked_lm_positions", (4, 0), -1), "masked_lm_positions of instance 4"),
        (bad("masked_lm_weights", (5, 0), np.nan), "masked_lm_weights of instance 5"),
        (bad("next_sentence_labels", 5, 2), "next_sentence_labels of instance 5"),
        (bad("valid_lengths", 1, 0), "valid_lengths of instance 1"),
        (bad("valid_lengths", 1, 400), "valid_lengths of instance 1"),
        ({"valid_lengths": None}, "lacks the array valid_lengths"),
        ({"segment_ids": np.zeros((6, 3), np.int32)}, "segment_ids has shape"),
        ({"input_ids": np.zeros(6, np.int32)}, "input_ids has shape"),
        ({"masked_lm_weights": np.ones((5, 3))}, "masked_lm_weights has shape"),
        ({"valid_lengths": np.ones((6, 1), np.int32)}, "shape"),
        ({"valid_lengths": np.zeros(0, np.int32)}, "valid_lengths is empty"),
        ({"valid_lengths": np.int32(5)}, "valid_lengths is empty"),
        ({"input_ids": np.zeros((6, 16))}, "input_ids has type float64"),
        ({"input_ids": np.full((6, 16), "x")}, "input_ids has type"),
    ],
)
def test_bad_arrays_are_named_in_one_line(tmp_path, changes, message):
    path = save(tmp_path, **changes)
    with pytest.raises(InputError, match=message) as caught:
        read_npz(path, VOCAB_SIZE)
    assert path in str(caught.value) and "\n" not in str(caught.value)


class Bomb:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def test_object_arrays_are_never_unpickled(tmp_path):
    trace = str(tmp_path / "unpickled")
    path = save(tmp_path, input_ids=np.array([Bomb(trace)] * 6, dtype=object))
    with pytest.raises(InputError, match="input_ids is an object array.*data.convert_npz"):
        read_npz(path, VOCAB_SIZE)
    assert convert_main(["--input", path, "--output", str(tmp_path / "out")]) == 2
    assert not os.path.exists(trace)
    np.load(path, allow_pickle=True)["input_ids"]
    assert os.path.exists(trace), "the bomb is live"


@pytest.mark.parametrize(
    "content", [b"", b"text", b"PK\x03\x04", pickle.dumps([1]), b"PK\x05\x06" + bytes(18)]
)
def test_what_is_no_npz_is_an_input_error(tmp_path, content):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npz"):
        read_npz(str(path), VOCAB_SIZE)
    with pytest.raises(InputError, match=r"x\.npz"):
        convert(str(path), str(tmp_path / "y.npz"))


def test_an_array_file_and_no_file_are_input_errors(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    for path in (tmp_path / "x.npy", tmp_path / "none.npz"):
        with pytest.raises(InputError, match=path.name):
            read_npz(str(path), VOCAB_SIZE)


def test_cut_and_flipped_files_are_refused_or_read_unharmed(tmp_path):
    path = str(tmp_path / "gluonnlp.npz")
    write_as_gluonnlp(path, instances())
    plain = save(tmp_path)
    generator = np.random.default_rng(0)
    refused = 0
    for source, read in (
        (path, lambda p: convert(p, p + ".out")),
        (plain, lambda p: read_npz(p, VOCAB_SIZE)),
    ):
        with open(source, "rb") as handle:
            content = handle.read()
        for _ in range(150):
            damaged = bytearray(content[: generator.integers(1, len(content) + 1)])
            damaged[generator.integers(len(damaged))] ^= 1 << generator.integers(8)
            broken = str(tmp_path / "broken.npz")
            with open(broken, "wb") as handle:
                handle.write(damaged)
            try:
                read(broken)
            except InputError as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > 250


def test_a_header_that_lies_about_the_size_is_refused(tmp_path):
    path = save(tmp_path)
    lying = str(tmp_path / "lying.npz")
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(lying, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "input_ids.npy":
                buffer = io.BytesIO()
                np.lib.format.write_array_header_1_0(
                    buffer, {"descr": "<i4", "fortran_order": False, "shape": (6, 1 << 44)}
                )
                content = buffer.getvalue() + b"\0" * 400
            target.writestr(name, content)
    with pytest.raises(InputError, match="input_ids is damaged"):
        read_npz(lying, VOCAB_SIZE)


@pytest.mark.parametrize("equal", [False, True], ids=["ragged", "rows of equal length"])
def test_gluonnlps_own_files_convert(tmp_path, equal):
    rows = instances(count=9, seed=3, min_length=16 if equal else 8)
    if equal:
        for name in ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"):
            rows[name] = [row[:1] for row in rows[name]]
    write_as_gluonnlp(str(tmp_path / "part-000.npz"), rows)
    assert convert_main(["--input", str(tmp_path / "*.npz"), "--output", str(tmp_path / "padded")]) == 0
    arrays = read_npz(str(tmp_path / "padded" / "part-000.npz"), VOCAB_SIZE)
    for name, expected in padded(rows).items():
        assert (getattr(arrays, name) == expected).all()


def test_pickle_protocol_2_converts_too(tmp_path):
    """As GluonNLP on Python 2 wrote it."""
    rows = instances()
    path = str(tmp_path / "old.npz")
    with zipfile.ZipFile(path, "w") as archive:
        for name, column in rows.items():
            buffer = io.BytesIO()
            if isinstance(column, list):
                array = np.array(column, dtype=object)
                np.lib.format.write_array_header_1_0(buffer, np.lib.format.header_data_from_array_1_0(array))
                pickle.dump(array, buffer, protocol=2)
            else:
                np.save(buffer, column)
            archive.writestr(name + ".npy", buffer.getvalue())
    assert convert(path, str(tmp_path / "new.npz")) == 6
    arrays = read_npz(str(tmp_path / "new.npz"), VOCAB_SIZE)
    assert (arrays.input_ids == padded(rows)["input_ids"]).all()


def test_converting_overwrites_nothing(tmp_path, capsys):
    write_as_gluonnlp(str(tmp_path / "part-000.npz"), instances())
    before = (tmp_path / "part-000.npz").read_bytes()
    assert convert_main(["--input", str(tmp_path / "*.npz"), "--output", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "part-000.npz").read_bytes() == before


def test_a_source_of_several_files_of_different_widths(tmp_path):
    paths = []
    for index, count in enumerate((4, 7)):
        rows = instances(count, seed=index, min_length=8 + 8 * index)
        paths.append(str(tmp_path / f"{index}.npz"))
        write_npz(paths[-1], PretrainingArrays(**padded(rows)))
    source = NpzSource(paths, VOCAB_SIZE, pad_id=49)
    lengths = source.lengths(0, 0)
    assert len(lengths) == 11 and source.max_length == lengths.max()
    batch = source.collate(0, 0, np.array([10, 0]), 24)
    assert batch.input_ids.shape == batch.segment_ids.shape == (2, 24)
    assert batch.masked_ids.shape == (2, source.max_predictions)
    for row, (count, seed, index, low) in enumerate(((7, 1, 6, 16), (4, 0, 0, 8))):
        rows = instances(count, seed=seed, min_length=low)
        length = rows["valid_lengths"][index]
        assert batch.valid_lengths[row] == length
        assert (batch.input_ids[row, :length] == rows["input_ids"][index]).all()
        assert (batch.input_ids[row, length:] == 49).all() and not batch.segment_ids[row, length:].any()
        predictions = len(rows["masked_lm_ids"][index])
        assert (batch.masked_ids[row, :predictions] == rows["masked_lm_ids"][index]).all()
        assert (batch.masked_positions[row, :predictions] == rows["masked_lm_positions"][index]).all()
        assert batch.masked_weights[row].sum() == predictions
        assert batch.next_sentence_labels[row] == rows["next_sentence_labels"][index]


def test_sequences_longer_than_berts_positions_are_refused(tmp_path):
    rows = padded(instances())
    rows["input_ids"] = np.zeros((6, 600), np.int32)
    rows["segment_ids"] = np.zeros((6, 600), np.int32)
    rows["valid_lengths"] = np.full(6, 513, np.int32)
    write_npz(str(tmp_path / "long.npz"), PretrainingArrays(**rows))
    with pytest.raises(InputError, match=r"long\.npz: valid_lengths holds 513, above 512"):
        NpzSource([str(tmp_path / "long.npz")], VOCAB_SIZE)
