from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
import pytest
from gluonnlp.model.bert import BERTEncoder, BERTModel

from base.errors import InputError, TrainingError
from tests.processes import run_command
from tests.training.test_checkpoint_facts import newest
from tests.training.tiny import block_arrays
from training import checkpoint

FACTS = {"model": "bert_2_32_2", "vocab_size": 60, "seed": 7, "scaler": {"kind": "static", "scale": 1.0}}
FILES = (".params", ".states.npz", ".json")


def arrays(value: float, size: int = 1000) -> dict[str, np.ndarray]:
    return {
        "word_embed.0.weight": np.full((size, 4), value, np.float32),
        "encoder.bias": np.arange(3, dtype=np.float32),
    }


def states(value: float, size: int = 1000) -> dict[str, np.ndarray]:
    mean = np.full((size, 4), value, np.float32)
    return {"t": np.array(int(value), np.int64), "word_embed.0.weight.mean": mean}


def save(directory: Path, step: int, keep: int = 0, **facts: Any) -> checkpoint.Checkpoint:
    return checkpoint.save(
        str(directory), step, arrays(step), states(step), {**FACTS, **facts}, checkpoint.Kept(keep)
    )


# What is written


def test_states_of_more_than_two_gb(tmp_path: Path) -> None:
    """BERT-large's are 2.7 GB; 32 bits with a sign count to 2.1."""
    array = np.arange(1 << 25, dtype=np.float32)
    names = [f"{number}.mean" for number in range(17)]
    checkpoint.save(str(tmp_path), 3, {"weight": array[:4]}, dict.fromkeys(names, array), FACTS)
    path = tmp_path / "0000003.states.npz"
    assert path.stat().st_size > 2**31
    with checkpoint.verified(str(tmp_path), 3).open_states() as found:
        assert list(found) == names and found[names[-1]].tobytes() == array.tobytes()
    path.unlink()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_params_file_is_byte_for_byte_gluonnlps(tmp_path: Path, dtype: str) -> None:
    encoder = BERTEncoder(num_layers=2, units=32, hidden_size=64, max_length=16, num_heads=2, dropout=0.1)
    model = BERTModel(encoder=encoder, vocab_size=60, token_type_vocab_size=2, units=32, embed_size=32)
    model.initialize(mx.init.Normal(0.02))
    ids = mx.nd.array(np.arange(16).reshape(2, 8), dtype="int32")
    positions = mx.nd.array([[1, 2], [3, 4]], dtype="int32")
    model(ids, mx.nd.zeros_like(ids), mx.nd.array([8, 6]), positions)  # some shapes are known only then
    model.cast(dtype)
    model.save_parameters(str(tmp_path / "gluonnlp.params"))
    saved = checkpoint.save(str(tmp_path), 30, block_arrays(model), {}, FACTS)
    assert saved.params_path == str(tmp_path / "0000030.params")
    assert Path(saved.params_path).read_bytes() == (tmp_path / "gluonnlp.params").read_bytes()
    assert saved.manifest is not None and saved.manifest["versions"]["mxnet"] == mx.__version__


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    whole: dict[str, Any] = {"parameters": arrays(1), "states": {}, "facts": {}}
    for wrong in (
        *({"facts": each} for each in ({"loss": float("nan")}, {"path": Path()})),
        *({"parameters": {"a": each}} for each in (np.array([None]), np.zeros((0, 3), np.float32))),
        {"states": {"a": np.array([{}])}},
    ):
        with pytest.raises((ValueError, TypeError)):
            checkpoint.save(str(tmp_path), 1, **{**whole, **wrong})
        assert list(tmp_path.iterdir()) == []


# Which one is found


def test_newest_and_list(tmp_path: Path) -> None:
    assert checkpoint.list_steps(str(tmp_path / "nowhere")) == []
    assert newest(tmp_path / "nowhere") == (None, [])
    for step in (20, 9, 10_000_000):
        save(tmp_path, step)
    (tmp_path / "metrics.jsonl").touch()
    (tmp_path / "options.json").touch()
    assert checkpoint.list_steps(str(tmp_path)) == [9, 20, 10_000_000]
    assert newest(tmp_path) == (10_000_000, [])
    assert checkpoint.load_step(str(tmp_path), 9).step == 9


def flip(content: bytes, position: int, bit: int = 0) -> bytes:
    flipped = bytearray(content)
    flipped[position] ^= 1 << bit
    return bytes(flipped)


@pytest.mark.parametrize("extension", FILES)
def test_damaged_checkpoint_is_named_and_passed_over(tmp_path: Path, extension: str) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)
    path = tmp_path / f"0000002{extension}"
    whole = path.read_bytes()
    # The manifest ends with a line break, which nobody would miss.
    last = len(whole) - (2 if extension == ".json" else 1)
    for damaged in (
        *(whole[:-2], b"", whole + b"x"),
        *(flip(whole, position) for position in (0, len(whole) // 2, last)),
    ):
        path.write_bytes(damaged)
        step, messages = newest(tmp_path)
        assert step == 1 and len(messages) == 1 and path.name in messages[0]
        with pytest.raises(InputError, match=path.name):
            checkpoint.load_step(str(tmp_path), 2)
    path.unlink()
    step, messages = newest(tmp_path)
    assert step == 1 and len(messages) == 1
    assert ("0000002.params" if extension == ".json" else path.name) in messages[0]
    if extension != ".json":
        with pytest.raises(InputError, match=path.name):
            checkpoint.load_step(str(tmp_path), 2)


def test_no_flipped_bit_of_the_manifest_changes_what_is_read(tmp_path: Path) -> None:
    save(tmp_path, 1)
    path = tmp_path / "0000001.json"
    content = path.read_bytes()
    expected = checkpoint.read_manifest(str(tmp_path), 1)
    refused = 0
    for position in range(len(content)):
        path.write_bytes(flip(content, position, position % 8))
        try:
            assert checkpoint.read_manifest(str(tmp_path), 1) == expected
        except InputError:
            refused += 1
    assert refused > 0.8 * len(content)


def test_step_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--start_step 5.*there is none"):
        checkpoint.load_step(str(tmp_path), 5)
    save(tmp_path, 1)
    save(tmp_path, 2)
    with pytest.raises(InputError, match="--start_step 5.*available: 1, 2"):
        checkpoint.load_step(str(tmp_path), 5)


# What is deleted


def test_keep(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 9):
        save(tmp_path, step)
    (tmp_path / "0000000.params").write_bytes(b"not ours")
    save(tmp_path, 5, keep=2)
    # Those after step 5, from a run that went further, do not count.
    assert checkpoint.list_steps(str(tmp_path)) == [4, 5, 9]
    expected = [f"{step:07d}{extension}" for step in (4, 5, 9) for extension in FILES]
    assert sorted(os.listdir(tmp_path)) == sorted([*expected, "0000000.params"])


def test_keep_those_of_an_interval(tmp_path: Path) -> None:
    """Beside the newest ones, and the end of stage 1."""
    for step in range(2, 21, 2):
        kept = checkpoint.Kept(2, 6)
        checkpoint.save(str(tmp_path), step, arrays(step), states(step), {**FACTS, "begun": 4}, kept)
    assert checkpoint.list_steps(str(tmp_path)) == [4, 6, 12, 18, 20]


# What a kill leaves, and where nothing can be written


def test_only_our_own_leftovers_are_removed(tmp_path: Path) -> None:
    kept = ["notes.tmp", "0000001.params.tmp", "vocab.json.tmp-1-ab", "x0000001.params.tmp-1-ab"]
    kept += [f"loss.png.tmp-{os.getpid()}-ab"]  # this process may be writing it
    removed = ["0000002.params.tmp-1-ab", "loss.png.tmp-1-ab", "metrics.jsonl.tmp-1-ab"]
    for name in kept + removed:
        (tmp_path / name).touch()
    save(tmp_path, 1)
    left = {path.name for path in tmp_path.iterdir()}
    assert left >= set(kept) and left.isdisjoint(removed) and len(left) == len(kept) + 3


def test_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TrainingError, match="step 1"):
        save(tmp_path / "file" / "ckpt", 1)


def test_memory_stays_at_one_array(tmp_path: Path) -> None:
    code = f"""
import resource, numpy as np
from training import checkpoint
class Array:
    def asnumpy(self):
        return np.ones((1 << 22,), np.float32)  # 16 MiB
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
arrays = {{str(i): Array() for i in range(8)}}
checkpoint.save({str(tmp_path)!r}, 1, arrays, arrays, {{}})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    result = run_command([sys.executable, "-c", code]).check()
    # 128 MiB each for parameters and states; two arrays at a time while one replaces the other.
    assert int(result.stdout) < 48
    assert json.loads((tmp_path / "0000001.json").read_text())["files"][".params"]["size"] > 8 << 24
