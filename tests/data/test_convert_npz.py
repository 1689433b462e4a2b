from __future__ import annotations

import io
import os
import pickle
import zipfile

import numpy as np
import pytest

from base.errors import InputError
from data.convert_npz import convert
from data.convert_npz import main as convert_main
from tests.data.formats.reading import read
from tests.data.formats.samples import arrays, assert_same, columns, ragged, save_npz

NAMES = ("input_ids", "segment_ids", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")


def gluonnlp_columns(instances):
    """Ragged columns as object arrays, as GluonNLP's write_to_files_np makes them."""
    wide = columns(instances)
    out = {name: wide[name] for name in ("next_sentence_labels", "valid_lengths")}
    for name in NAMES:
        rows = [np.array(instance[name], wide[name].dtype) for instance in instances]
        out[name] = np.array(rows, dtype=object)
    return out


def write_as_gluonnlp(path, instances):
    np.savez_compressed(path, **gluonnlp_columns(instances))


@pytest.mark.parametrize("equal", [False, True], ids=["ragged", "rows of equal length"])
def test_gluonnlps_own_files_convert(tmp_path, equal):
    instances = ragged(1500, seed=3)
    if equal:
        instances = [dict(instances[0]) for _ in range(5)]
    write_as_gluonnlp(str(tmp_path / "part-000.npz"), instances)
    assert convert_main(["--input", str(tmp_path / "*.npz"), "--output", str(tmp_path / "padded")]) == 0
    path = tmp_path / "padded" / "part-000.npz"
    assert_same(read(path), arrays(instances))
    with np.load(path, allow_pickle=False) as archive:  # and so anyone else can read it
        for name, expected in columns(instances).items():
            if name != "input_mask":
                assert archive[name].dtype == expected.dtype and (archive[name] == expected).all()


def test_pickle_protocol_2_converts_too(tmp_path):
    """As GluonNLP on Python 2 wrote it."""
    instances, path = ragged(6), str(tmp_path / "old.npz")
    with zipfile.ZipFile(path, "w") as archive:
        for name, column in gluonnlp_columns(instances).items():
            buffer = io.BytesIO()
            if column.dtype == object:
                np.lib.format.write_array_header_1_0(buffer, np.lib.format.header_data_from_array_1_0(column))
                pickle.dump(column, buffer, protocol=2)
            else:
                np.save(buffer, column)
            archive.writestr(name + ".npy", buffer.getvalue())
    assert convert(path, str(tmp_path / "new.npz")) == 6
    assert_same(read(tmp_path / "new.npz"), arrays(instances))


def test_rows_of_different_types_keep_their_numbers(tmp_path):
    instances, path = ragged(6), str(tmp_path / "mixed.npz")
    given = gluonnlp_columns(instances)
    given["input_ids"][0] = np.zeros(len(given["input_ids"][0]), np.int8)
    instances[0]["input_ids"] = [0] * len(instances[0]["input_ids"])
    np.savez_compressed(path, **given)
    assert convert(path, str(tmp_path / "new.npz")) == 6
    assert_same(read(tmp_path / "new.npz"), arrays(instances))


def test_nothing_in_a_pickle_is_run(tmp_path, capsys):
    trace, path = str(tmp_path / "unpickled"), str(tmp_path / "x.npz")

    class Bomb:
        """Makes a directory when it is unpickled."""

        def __reduce__(self):
            return (os.mkdir, (trace,))

    save_npz(path, ragged(6), input_ids=np.array([Bomb()] * 6, dtype=object))
    assert convert_main(["--input", path, "--output", str(tmp_path / "out")]) == 2
    assert "x.npz: input_ids is rejected: it wants to run posix.mkdir" in capsys.readouterr().err
    assert not os.path.exists(trace) and not os.listdir(tmp_path / "out")
    np.load(path, allow_pickle=True)["input_ids"]
    assert os.path.exists(trace), "the bomb is live"


def test_instances_that_are_not_sound_are_refused(tmp_path):
    instances, path = ragged(6), str(tmp_path / "x.npz")
    instances[2]["masked_lm_positions"][0] = 99
    write_as_gluonnlp(path, instances)
    with pytest.raises(InputError, match="instance 2: masked_lm_positions"):
        convert(path, str(tmp_path / "y.npz"))
    assert os.listdir(tmp_path) == ["x.npz"]


def test_rows_longer_than_berts_positions_and_missing_arrays_are_refused(tmp_path):
    path = str(tmp_path / "x.npz")
    write_as_gluonnlp(path, ragged(6, width=513))
    with pytest.raises(InputError, match=r"x\.npz: input_ids is rejected: a row has 513 numbers, above 512"):
        convert(path, str(tmp_path / "y.npz"))
    save_npz(path, ragged(6), valid_lengths=None)
    with pytest.raises(InputError, match=r"x\.npz lacks the array valid_lengths"):
        convert(path, str(tmp_path / "y.npz"))


@pytest.mark.parametrize(
    "content", [b"", b"text", b"PK\x03\x04", pickle.dumps([1]), b"PK\x05\x06" + bytes(18)]
)
def test_what_is_no_npz_is_an_input_error(tmp_path, content):
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.npz"):
        convert(str(path), str(tmp_path / "y.npz"))


def is_refused(path):
    """Whether the damaged file is refused, in a line; else it is converted."""
    try:
        assert convert(str(path), f"{path}.converted") == 6
        return False
    except InputError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return True


def test_damaged_files_and_damaged_pickles_in_sound_archives_are_refused_or_converted(tmp_path):
    sound, broken = tmp_path / "gluonnlp.npz", tmp_path / "broken.npz"
    write_as_gluonnlp(str(sound), ragged(6))
    content, generator = sound.read_bytes(), np.random.default_rng(0)
    refused = [0, 0]
    for _ in range(250):
        damaged = bytearray(content[: generator.integers(1, len(content) + 1)])
        damaged[generator.integers(len(damaged))] ^= 1 << generator.integers(8)
        broken.write_bytes(damaged)
        refused[0] += is_refused(broken)
    with zipfile.ZipFile(sound) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for _ in range(400):
        damaged = bytearray(members["input_ids.npy"])
        for _ in range(generator.integers(1, 4)):
            damaged[generator.integers(64, len(damaged))] = generator.integers(256)
        with zipfile.ZipFile(broken, "w") as archive:
            for name, member in {**members, "input_ids.npy": bytes(damaged)}.items():
                archive.writestr(name, member)
        refused[1] += is_refused(broken)
    assert refused[0] > 200 and refused[1] > 50


def test_converting_overwrites_nothing(tmp_path, capsys):
    write_as_gluonnlp(str(tmp_path / "part-000.npz"), ragged(6))
    before = (tmp_path / "part-000.npz").read_bytes()
    assert convert_main(["--input", str(tmp_path / "*.npz"), "--output", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "part-000.npz").read_bytes() == before
