"""Damage to the files that are kept between runs is found before they are used; the reliability program goes
on with other places (tests/faults/flip_bytes.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import flip_bytes
from tests.faults.flip_bytes import TARGETS, Target, attacks


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_each_byte_class_of_each_file(tmp_path: Path, target: Target) -> None:
    done = attacks(0, 16, tmp_path, [target.name], most=15 if target.name in ("cache", "unfinished") else 40)
    assert len(done) >= 15
    assert not [(each.damage, each.used) for each in done if each.used is not None]


def test_damage_that_nobody_notices_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file without a checksum, read as it is: every damage but none to its length is used."""

    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "plain").write_bytes(bytes(range(64)))

    plain = Target("plain", make, lambda folder: (folder / "plain").read_bytes())
    monkeypatch.setattr(flip_bytes, "TARGETS", (plain,))
    done = attacks(0, 1, tmp_path)
    assert len(done) > 5 and all(each.used is not None for each in done)
