"""Figure 4: damage to the bytes of every kind of file kept between runs (tests/faults/flip_bytes.py)."""

from __future__ import annotations

import contextlib
import random
import shutil
from typing import Any, Iterator
from unittest import mock

from tests.faults.figure import ONCE, Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import named, parsed

UNCHECKED = "the sha256 of a checkpoint's files is not compared"
UNCHECKED_STORES = "the sha256 of a store's files is not compared"
UNSIGNED = "results of units and manifests of stores have no checksum"
KINDS = ("checkpoints", "tokens", "instances", "cache", "unfinished")  # of tests/faults/flip_bytes.py


def cases(setting: Setting) -> Iterator[str]:
    """Endless: each kind of file, with other places in each round."""
    draw = random.Random(setting.seed)
    while True:
        for kind in KINDS:
            yield named(kind=kind, seed=draw.randrange(10**6))


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: every damage to each file of a kind, once."""
    from data.store import manifest, tokens
    from tests.faults import flip_bytes
    from training import checkpoint

    assert {target.name for target in flip_bytes.TARGETS} == set(KINDS)

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        folder = setting.work / "files"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        found = flip_bytes.attacks(0.0, int(parts["seed"]), folder, [parts["kind"]])
        used = [f"{each.damage}: {each.used}" for each in found if each.used is not None]
        return Tally(len(found), len(found) - len(used), tuple(used))

    def unchecked(content: Any) -> str:
        return "0" * 64

    def unchecked_sums(directory: str, described: Any) -> None:
        return None

    with contextlib.ExitStack() as stack:
        if setting.damage == UNCHECKED:
            stack.enter_context(mock.patch.object(checkpoint, "sha256_of", unchecked))
        if setting.damage == UNCHECKED_STORES:
            stack.enter_context(mock.patch.object(tokens, "check_sums", unchecked_sums))
        if setting.damage == UNSIGNED:
            stack.enter_context(mock.patch.object(manifest, "checksum_of", unchecked))
        yield attempt


PROGRAM = Program(
    "4",
    "bytes of every kind flipped, files cut, swapped, deleted: checkpoints, stores, caches, unfinished ones",
    "100% identified before use",
    weight=0.3,
    seconds=5,
    backends=(ONCE,),
    cases=cases,
    opened=opened,
    damages={
        UNCHECKED: Damage(named(kind="checkpoints", seed=1), "other content|Error"),
        UNCHECKED_STORES: Damage(named(kind="tokens", seed=1), "other content|Error"),
        UNSIGNED: Damage(named(kind="cache", seed=1), "other content|Error"),
    },
)
