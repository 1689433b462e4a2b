"""Manifests whose checksum is right and whose content is not, and files in the place of others: the next
older checkpoint is taken, with a line for what was passed over."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import threading
import zipfile
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest

from tests.processes import LIMIT
from training import checkpoint

FACTS = {
    "model": "bert_2_32_2",
    "bert": {"layers": 2, "units": 32, "heads": 2, "hidden": 128},
    "vocab_size": 60,
    "vocab_sha256": "0" * 64,
    "vocabulary": None,
    "stage": None,
    "begun": 0,
    "num_steps": 10,
    "ended": False,
    "world_size": 2,
    "processes": 2,
    "options": {"lr": 0.1},
    "scaler": {"kind": "static", "scale": 1.0},
    "skips": {"in_a_row": 0, "total": 0},
    "seed": 7,
    "blocks": (3 << 32) + 5,
    "ckpt_interval": 3,
    "training_s": 1.5,
    "wall_s": None,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints of steps 3 and 6."""
    for step in (3, 6):
        weight = np.full((50, 4), step, np.float32)
        states = {"t": np.array(step, np.int64), "weight.mean": weight}
        checkpoint.save(str(tmp_path), step, {"weight": weight}, states, FACTS)
    return tmp_path


def newest(folder: Path) -> tuple[int | None, list[str]]:
    """As `checkpoint.newest_complete`, which must not wait for anything."""
    found: list[Any] = []
    messages: list[str] = []

    def find() -> None:
        found.append(checkpoint.newest_complete(str(folder), messages.append))

    thread = threading.Thread(target=find, daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert found, "it waits, or has failed"
    return found[0].step if found[0] else None, messages


def signed(path: Path, manifest: Any) -> None:
    """Writes a manifest with its own checksum, whatever its content."""
    if isinstance(manifest, dict):
        manifest = {name: each for name, each in manifest.items() if name != "sha256"}
        checksum = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        manifest = {**manifest, "sha256": checksum}
    path.write_text(json.dumps(manifest))


def older_is_taken(folder: Path) -> str:
    """Returns what was said of step 6."""
    step, messages = newest(folder)
    assert step == 3, (step, messages)
    assert len(messages) == 1 and len(messages[0].splitlines()) == 1 and "0000006" in messages[0], messages
    return messages[0]


DYNAMIC = {"kind": "dynamic", "scale": 2.0, "good_steps": 0}
BERT = FACTS["bert"]
# By entry: what it cannot be, each for a reason of its own or just beyond a bound.
WRONG: dict[str, list[Any]] = {
    "blocks": [2**62, -1, "3", True],
    "step": ["6", 3],
    "files": [
        *(None, {}, {".params": 5, ".states.npz": 5}, {"../../x": {"size": 1, "sha256": "0" * 64}}),
        {".params": {"size": "1", "sha256": "0" * 64}, ".states.npz": {}},
    ],
    "options": [
        *([1], {"beta1": None}, {"accumulate": None}, {"accumulate": 2**62}, {"ckpt_interval": "3"}),
        *({name: "0.9"} for name in ("beta1", "beta2", "epsilon", "weight_decay")),
    ],
    "scaler": [
        *(None, "dynamic", {}, {"kind": "static"}, {"kind": "another", "scale": 1.0}),
        *({"kind": "static", "scale": each} for each in ("1", math.nan, -1.0, 0, 2.0**60, True)),
        *({**DYNAMIC, "scale": each} for each in ("1", math.nan, math.inf, -1.0, 0.5, 2.0**25, 10**400)),
        *({**DYNAMIC, "good_steps": each} for each in (-1, 2000, 1.5, None)),
    ],
    "skips": [
        3,
        {},
        *(
            {"in_a_row": in_a_row, "total": total}
            for in_a_row, total in ((1, 0), (-1, 0), (0, "0"), (0, math.nan), (0, 7), (None, 0), (0, 2**62))
        ),
    ],
    "guard": [{"losses": ["5"], "norms": []}],
    "seed": [-1, "x", 2**63, 7.0],
    "begun": [7, None],
    "stage": [3],
    "num_steps": [0],
    "ended": ["yes"],
    "world_size": [0, 65_537],
    "processes": [0, 65_537, "2", None],
    "vocab_size": [2**62],
    "vocab_sha256": [5],
    "vocabulary": ["vocab.txt"],
    "classes": ["yes,no", [5]],
    "training_s": [math.nan, "long"],
    "wall_s": [1e300, 10**400],
    "ckpt_interval": [0],
    "model": [5],
    "bert": [
        *({**BERT, **each} for each in ({"layers": "2"}, {"layers": 2**62}, {"heads": 3})),
        {"layers": 2},
    ],
    "versions": ["all"],
}


def changed(folder: Path, **entries: Any) -> None:
    path = folder / "0000006.json"
    signed(path, {**json.loads(path.read_text()), **entries})


@pytest.mark.parametrize("name", WRONG)
def test_wrong_content_with_the_right_checksum(folder: Path, name: str) -> None:
    whole = json.loads((folder / "0000006.json").read_text())
    for value in WRONG[name]:
        changed(folder, **{**whole, name: value})
        said = older_is_taken(folder)
        assert any(each in said for each in (name, "schedule", "model", "sha256")), (value, said)


def test_what_a_run_can_have_is_taken(folder: Path) -> None:
    changed(folder, seed=2**63 - 1, processes=65_536, world_size=1, options={"beta1": 0, "epsilon": 1e-6})
    assert newest(folder) == (6, [])
    changed(
        folder,
        scaler={**DYNAMIC, "scale": 2.0**24, "good_steps": 1999},
        skips={"in_a_row": 6, "total": 6, "another": [1]},
    )
    assert newest(folder) == (6, [])


@pytest.mark.parametrize(
    "content",
    ["[" * 200_000, '{"a":' * 200_000, "[]", "5", "", '{"sha256": {}}', '{"format": 1, "step": 6}'],
    ids=["brackets", "braces", "list", "number", "empty", "checksum", "without"],
)
def test_manifests_that_are_none(folder: Path, content: str) -> None:
    (folder / "0000006.json").write_text(content)
    older_is_taken(folder)


@pytest.mark.parametrize("extension", [".params", ".states.npz", ".json"])
@pytest.mark.parametrize("put", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_other_things_in_the_place_of_a_file(
    folder: Path, extension: str, put: Callable[[Path], None]
) -> None:
    path = folder / f"0000006{extension}"
    path.unlink()
    put(path)
    older_is_taken(folder)


def test_a_link_out_is_not_followed_though_its_content_is_right(folder: Path, tmp_path_factory: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for extension in (".params", ".states.npz", ".json"):
        name = f"0000006{extension}"
        (folder / name).rename(elsewhere / name)
        (folder / name).symlink_to(elsewhere / name)
        assert "symbolic link out of its folder" in older_is_taken(folder)
        (folder / name).unlink()
        (elsewhere / name).rename(folder / name)
    assert newest(folder) == (6, [])


# States


def npy(shape: tuple[int, ...], content: bytes, dtype: str = "<f4") -> bytes:
    """An array's file that claims a shape, whatever it holds."""
    header = io.BytesIO()
    described = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue() + content


def archive(members: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", kind) as file:
        for name, member in members.items():
            file.writestr(name, member)
    return content.getvalue()


DEEP = b"\x93NUMPY\x01\x00" + (60_000).to_bytes(2, "little") + b"(" * 60_000
NO_ARRAYS = {
    "2^60": archive({"t.npy": npy((2**60,), b"1234")}),
    "2^40": archive({"t.npy": npy((2**40,), b"1234")}),
    "overflow": archive({"t.npy": npy((2**31, 2**31, 2**31), b"")}),
    "short": archive({"t.npy": npy((1,), b"12")}),
    "long": archive({"t.npy": npy((1,), b"12345")}),
    "objects": archive({"t.npy": npy((1,), b"12345678", "|O")}),
    "nested": archive({"t.npy": DEEP}),
    "version": archive({"t.npy": b"\x93NUMPY\x03\x00" + b"\0" * 20}),
    "empty": archive({"t.npy": b""}),
    "name": archive({"t.txt": npy((1,), b"1234")}),
    "compressed": archive({"t.npy": npy((10**6,), b"\0" * 4 * 10**6)}, zipfile.ZIP_DEFLATED),
    "nothing": b"",
    "half": b"PK",
    "one array": npy((1,), b"1234"),
}


@pytest.mark.parametrize("content", NO_ARRAYS.values(), ids=NO_ARRAYS)
def test_states_that_claim_what_they_are_not(folder: Path, content: bytes) -> None:
    (folder / "0000006.states.npz").write_bytes(content)
    manifest = json.loads((folder / "0000006.json").read_text())
    manifest["files"][".states.npz"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    signed(folder / "0000006.json", manifest)
    assert "does not hold optimizer states as plain arrays" in older_is_taken(folder)
