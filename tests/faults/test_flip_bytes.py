"""Damage to the files that are kept between runs is found before they are used; the reliability program goes
on with other places (tests/faults/flip_bytes.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.flip_bytes import TARGETS, Target, attacks


@pytest.mark.parametrize("name", TARGETS)
def test_each_byte_class_of_each_file(tmp_path: Path, name: str) -> None:
    done = attacks(TARGETS[name], 16, tmp_path, most=15 if name in ("cache", "unfinished") else 40)
    assert len(done) >= 15
    assert not [(each.damage, each.used) for each in done if each.used is not None]


def test_damage_that_nobody_notices_is_reported(tmp_path: Path) -> None:
    """A file without a checksum, read as it is: every damage but none to its length is used."""

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "plain").write_bytes(bytes(range(64)))

    done = attacks(Target("plain", make, lambda folder: (folder / "plain").read_bytes()), 1, tmp_path)
    assert len(done) > 5 and all(each.used is not None for each in done)
