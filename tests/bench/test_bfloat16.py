"""The picture of bench.bfloat16."""

from __future__ import annotations

import argparse

import pytest

from bench.bfloat16 import DTYPES, curves, draw


def runs(seeds: int) -> list[dict]:
    return [
        {
            "dtype": dtype,
            "seed": seed,
            "steps": [10, 20],
            "losses": [8.0, 7.0 - seed - place / 8],
            "eval": 7.0,
        }
        for seed in range(seeds)
        for place, dtype in enumerate(DTYPES)
    ]


@pytest.mark.parametrize("seeds", [2, 3, 12])
def test_every_line_is_in_the_legend(seeds):
    upper, lower = curves(runs(seeds), "title").axes
    named = [text.get_text() for text in upper.get_legend().get_texts()]
    assert named == [f"seed {seed}, {dtype}" for seed in range(seeds) for dtype in DTYPES]
    drawn = upper.get_lines()
    assert [line.get_label() for line in drawn] == named
    # Seeds differ in colour (of ten), dtypes in style.
    assert len({line.get_color() for line in drawn}) == min(seeds, 10)
    for full, low in zip(drawn[::2], drawn[1::2]):
        assert full.get_color() == low.get_color() and full.get_linestyle() != low.get_linestyle()
    differences = [line for line in lower.get_lines() if line.get_label().startswith("seed")]
    assert [list(line.get_ydata()) for line in differences] == seeds * [[0.0, -0.125]]
    named = [text.get_text() for text in lower.get_legend().get_texts()]
    assert named == [f"seed {seed}" for seed in range(seeds)]


def test_the_picture_is_written(tmp_path):
    path = tmp_path / "curves.png"
    draw(runs(3), argparse.Namespace(plot=str(path), model="bert_1_32_2", option="dtype"))
    assert path.read_bytes().startswith(b"\x89PNG")
