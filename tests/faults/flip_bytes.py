"""Damage to each byte class of each kind of file that is kept between runs: checkpoints, token stores,
instance stores, unfinished builds, caches.

A `Target` makes a folder and reads it back: what it gives is compared with what the undamaged folder gave.
Figure 4. Damage is found when reading is an InputError of one line, or passes over the file, or when the
content is the right one all the same (made again, or never taken from what was damaged).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence
from unittest import mock

import numpy as np

from base.errors import InputError
from data.store import cache, manifest
from data.store.instances import InstanceStore
from data.store.tokens import TokenStore, cached_store
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import SPECIAL_TOKENS, vocabulary_from_tokens
from tests.data.formats.samples import ragged, save_npz
from tests.data.instance_files import build_instances
from tests.data.store.building import Numbers, build
from tests.data.token_stores import build_store
from tests.faults.figure import ONCE, Damage, Parts, Program, Setting, Tally, endless, named
from training import checkpoint

UNITS = 5  # of the unfinished build


class Target(NamedTuple):
    """A kind of file. `make` fills a folder that does not exist; `read` gives what a run would use of it, and
    `read_older` what it may fall back to."""

    name: str
    make: Callable[[Path], None]
    read: Callable[[Path], Any]
    read_older: Callable[[Path], Any] | None = None


class Attack(NamedTuple):
    """A damage, and the difference that nobody noticed; None where it was found."""

    damage: str
    used: str | None


def attacks(target: Target, seed: int, work: Path, most: int = 10**9) -> list[Attack]:
    """Each damage to each file of a target once, or `most` of them, drawn by the seed, in an empty folder."""
    sound, copy, generator = work / "sound", work / "damaged", random.Random(seed)
    target.make(sound)
    expected = _content(target.read, sound, work)
    older = _content(target.read_older, sound, work) if target.read_older else None
    files = sorted(path for path in sound.rglob("*") if path.is_file() and path.suffix != ".lock")
    chosen = [
        (path, *damage)
        for path in files
        # Files that could be mistaken for this one.
        for others in [[each for each in files if each != path and each.suffix == path.suffix][:2]]
        for damage in damages(path, others, generator)
    ]
    found = []
    for path, damage, content in generator.sample(chosen, min(most, len(chosen))):
        shutil.copytree(sound, copy)
        victim = copy / path.relative_to(sound)
        victim.unlink()
        if content is not None:
            victim.write_bytes(content)
        found.append(Attack(f"{path.relative_to(sound)}: {damage}", _used(target, copy, expected, older)))
        shutil.rmtree(copy, ignore_errors=True)
    return found


def damages(
    path: Path, others: Sequence[Path], generator: random.Random
) -> Iterator[tuple[str, bytes | None]]:
    """Names of damages to a file, with its content after them; None: deleted.

    A bit is flipped among the first and the last 16 bytes, in the middle, in a digit, a letter, a bracket or
    quote, and a zero byte, wherever the file has such.
    """
    content = path.read_bytes()
    yield "deleted", None
    yield "empty", b""
    for name, length in (("cut by one byte", len(content) - 1), ("cut in half", len(content) // 2)):
        if 0 < length < len(content):
            yield name, content[:length]
    yield "grown by one byte", content + b"\0"
    for other in others:
        swapped = other.read_bytes()
        if swapped != content:
            yield f"swapped with {other.name}", swapped
    for name, places in _classes(content).items():
        if places:
            place = generator.choice(places)
            flipped = bytearray(content)
            flipped[place] ^= 1 << generator.randrange(7)
            yield f"bit flipped in {name} at {place}", bytes(flipped)


def _classes(content: bytes) -> dict[str, Sequence[int]]:
    size = len(content)
    text = content[: 1 << 16]
    return {
        "the beginning": range(min(16, size)),
        "the middle": range(size // 4, 3 * size // 4),
        "the end": range(max(0, size - 16), size),
        "a digit": [at for at, byte in enumerate(text) if 48 <= byte < 58],
        "a letter": [at for at, byte in enumerate(text) if 97 <= byte < 123],
        "a bracket": [at for at, byte in enumerate(text) if byte in b'{}[]",:'],
        "a zero": [at for at, byte in enumerate(text) if byte == 0],
    }


def _content(read: Callable[[Path], Any], sound: Path, work: Path) -> Any:
    copy = work / "copy"
    shutil.copytree(sound, copy)
    try:
        return read(copy)
    finally:
        shutil.rmtree(copy)


def _used(target: Target, folder: Path, expected: Any, older: Any) -> str | None:
    try:
        found = target.read(folder)
    except InputError as error:
        lines = str(error).splitlines()
        return None if len(lines) == 1 else f"an error of {len(lines)} lines"
    except Exception as error:  # whatever it is, it is no orderly end
        return f"{type(error).__name__}: {error}"
    return None if found in (expected, older) else f"other content: {str(found)[:200]}"


# Checkpoints: steps 3 and 6; a run goes on with the newest whole one.


def _make_checkpoints(folder: Path) -> None:
    for step in (3, 6):
        checkpoint.save(
            str(folder), step, *_arrays(step), {"model": "bert_1_32_2", "seed": 7, "blocks": step}
        )


def _arrays(step: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    generator = np.random.default_rng(step)
    weight = generator.standard_normal((40, 8)).astype(np.float32)
    return {"weight": weight}, {"t": np.array(step, np.int64), "weight.mean": weight + 1}


def _read_checkpoints(folder: Path) -> list[str]:
    found = checkpoint.newest_complete(str(folder), lambda message: None)
    if found is None:
        raise InputError(f"{folder}: no whole checkpoint")
    return _of_checkpoint(found)


def _of_checkpoint(found: checkpoint.Checkpoint) -> list[str]:
    with found.open_states() as states:
        arrays = {name: _digest(np.asarray(array).tobytes()) for name, array in states.items()}
    facts = {name: each for name, each in (found.manifest or {}).items() if name not in ("time", "versions")}
    return [_digest(Path(found.params_path).read_bytes()), json.dumps([arrays, facts], sort_keys=True)]


# Stores: of tokens, of instances, in a cache, and half built.

_TEXT = "".join(
    f"the cat {number % 7} sat on the mat {number % 5} .\n" + "\n" * (number % 3 == 2) for number in range(60)
)
_WORDS = [*SPECIAL_TOKENS, *["the", "cat", "sat", "on", "mat", "."], *map(str, range(10))]


def _settings() -> TokenizerSettings:
    return TokenizerSettings(vocabulary_from_tokens(_WORDS))


def _make_tokens(folder: Path) -> None:
    folder.mkdir()
    text = folder.with_name(f"{folder.name}.txt")
    text.write_text(_TEXT)
    build_store([str(text)], _settings(), str(folder / "store"))
    TokenStore.open(str(folder / "store"))


def _of_tokens(store: TokenStore) -> list[str]:
    columns = (store.ids, store.sentences, store.documents)
    return [
        *(_digest(column.tobytes()) for column in columns),
        *store.vocabulary.tokens,
        _text(store.manifest),
    ]


def _make_instances(folder: Path) -> None:
    folder.mkdir()
    source = folder.with_name(f"{folder.name}.npz")
    save_npz(str(source), ragged(12, seed=1))
    build_instances([str(source)], 30_000, str(folder / "store"))
    InstanceStore.open(str(folder / "store"))


def _read_instances(folder: Path) -> Any:
    store = InstanceStore.open(str(folder / "store"))
    columns = (store.ids, store.positions, store.weights, store.labels)
    return [*(_digest(column.tobytes()) for column in columns), _text(store.manifest)]


def _make_cache(folder: Path) -> None:
    folder.mkdir()
    (folder / "text.txt").write_text(_TEXT)
    os.utime(folder / "text.txt", (10**9, 10**9))
    _read_cache(folder)


def _read_cache(folder: Path) -> Any:
    """The data of a run with --cache_dir; a text that was changed is another text, and no damage."""
    text = folder / "text.txt"
    if not text.is_file() or text.read_text(errors="replace") != _TEXT:
        raise InputError(f"{text} is another text")
    return _of_tokens(cached_store([str(text)], _settings(), str(folder / "cache")))


def _make_unfinished(folder: Path) -> None:
    folder.mkdir()
    with contextlib.suppress(KeyError):
        build(folder / "store", UNITS, 0, Numbers("defect", at=UNITS - 2))
    assert (folder / "store.partial").exists(), "the build was not interrupted"


def _read_unfinished(folder: Path) -> Any:
    """The columns of the build, gone on with from whatever is there."""
    build(folder / "store", UNITS, 0)
    return _digest(b"".join(path.read_bytes() for path in sorted((folder / "store").glob("*.bin"))))


def _text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


TARGETS = {
    target.name: target
    for target in (
        Target(
            *("checkpoints", _make_checkpoints, _read_checkpoints),
            lambda folder: _of_checkpoint(checkpoint.verified(str(folder), 3)),
        ),
        Target("tokens", _make_tokens, lambda folder: _of_tokens(TokenStore.open(str(folder / "store")))),
        Target("instances", _make_instances, _read_instances),
        Target("cache", _make_cache, _read_cache),
        Target("unfinished", _make_unfinished, _read_unfinished),
    )
}


# --- The figure.


def attempt(setting: Setting, parts: Parts) -> Tally:
    """Every damage to each file of a kind, once."""
    found = attacks(TARGETS[parts["kind"]], int(parts["seed"]), setting.folder("files"))
    return Tally.of(*(f"{each.damage}: {each.used}" for each in found if each.used), tried=len(found))


def _without(module: Any, name: str, result: Any, kind: str) -> Damage:
    """A check that is left out, which the figure has to notice in a kind of file."""
    return Damage(
        named(kind=kind, seed=1),
        "other content|Error",
        broken=lambda: mock.patch.object(module, name, lambda *given: result),
    )


PROGRAM = Program(
    "4",
    "bytes of every kind flipped, files cut, swapped, deleted: checkpoints, stores, caches, unfinished ones",
    "100% identified before use",
    weight=0.3,
    seconds=5,
    backends=(ONCE,),
    cases=endless(*({"kind": name} for name in TARGETS)),
    attempt=attempt,
    damages={
        "the sha256 of a checkpoint's files is not compared": _without(
            checkpoint, "sha256_of", "0" * 64, "checkpoints"
        ),
        "the sha256 of a store's files is not compared": _without(cache, "check_sums", None, "tokens"),
        "results of units and manifests of stores have no checksum": _without(
            manifest, "checksum_of", "0" * 64, "cache"
        ),
    },
)
