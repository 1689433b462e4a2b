"""bench.scaling: what is counted of a size, what is called too fast a growth, and a run of it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from itertools import product

import pytest

from base.errors import InputError
from bench import quick, work
from bench.scaling_report import BEGIN, END, Measured, cells, faster_than_operations, write_page
from bench.scaling_work import AXES, Axis, Point, cache_bytes, left_caches
from tests.processes import ROOT, run_command

BASE = Point(4, 512, 8, work.VOCABULARY, 128, 8, "float32")
LENGTH = Axis("length", (64, 128))


@pytest.mark.parametrize("layers, units, batch", product((1, 4), (64, 512), (1, 8)))
def test_operations_are_those_of_the_products(layers, units, batch):
    """bench.work lists them one by one."""
    point = replace(BASE, layers=layers, units=units, batch=batch)
    listed = work.products(work.Size(layers, units, 8), work.Batch(batch, 128, 20))
    assert point.flops / 1e9 == pytest.approx(work.gflop(listed), rel=1e-9)
    assert point.parameters == work.parameters(work.Size(layers, units, 8))


def test_an_axis_varies_one_size_and_meets_the_base():
    for axis in AXES:
        points = axis.points(BASE)
        assert BASE in points and len(set(points)) == len(axis.values)
        assert {replace(point, **{axis.field: getattr(BASE, axis.field)}) for point in points} == {BASE}
        assert list(axis.values) == sorted(axis.values)
        assert all(large.flops > small.flops for small, large in zip(points, points[1:]))
    assert Point.read(BASE.words) == BASE


def rows_of(times: float, updates: float = 1.0, memory: float = 1.0) -> list[Measured]:
    """Two lengths; what the second one takes is a multiple of what it may."""
    small, large = LENGTH.points(BASE)
    ratio = large.flops / small.flops
    second = 0.3 * updates
    step = second + 0.7 * ratio * times
    return [
        Measured(small, [0.9, 1.0, 1.1], [0.3], 1 << 30),
        Measured(large, [step], [second], int((1 << 30) * ratio * memory)),
    ]


def test_growth_is_compared_with_what_has_to_be_done():
    assert faster_than_operations(LENGTH, rows_of(1.05)) == []
    (slow,) = faster_than_operations(LENGTH, rows_of(1.2))
    assert re.fullmatch(
        r"length 64 to 128: forward and backward took 2\.\d\d times as much, 2\.\d\d times the operations",
        slow,
    )
    (update,) = faster_than_operations(LENGTH, rows_of(1.0, updates=1.5))
    assert "the update took 1.50 times as much, 1.00 times the parameters" in update
    (memory,) = faster_than_operations(LENGTH, rows_of(1.0, memory=1.2))
    assert "memory was" in memory
    # Of a vocabulary every row is held: 2.6 times the parameters, 1.5 times the operations.
    vocabulary = Axis("vocabulary", (30522, 119547))
    small, large = vocabulary.points(BASE)
    rows = [Measured(small, [1.0], [0.1], 1 << 30), Measured(large, [1.4], [0.2], int(2.5 * 2**30))]
    assert faster_than_operations(vocabulary, rows) == []
    head, first, second = cells(LENGTH, rows_of(1.0), {})
    assert head[0] == "length" and first[0] == "64" and first[6:] == ["", "", "", ""]
    assert second[7] == f"{BASE.flops / rows_of(1.0)[0].point.flops:.2f}"


def test_a_cache_that_is_left_is_named(tmp_path):
    for number, (cpu, level, kind, size, shared) in enumerate(
        [
            *((cpu, 1, "Data", "48K", cpu) for cpu in "01"),
            *((cpu, 1, "Instruction", "32K", cpu) for cpu in "01"),
            *((cpu, 2, "Unified", "2048K", cpu) for cpu in "01"),
            *((cpu, 3, "Unified", "16M", "0-1") for cpu in "01"),
        ]
    ):
        folder = tmp_path / f"cpu{cpu}" / f"index{number}"
        folder.mkdir(parents=True)
        for name, value in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(f"{value}\n")
    caches = cache_bytes(f"{tmp_path}/cpu*/index*")
    assert caches == {"L1": 96 << 10, "L2": 4 << 20, "L3": 16 << 20}
    # 2 and 4 sequences of 512 tokens, 512 units: 2 and 4 MiB; four times that of feed-forward activations.
    small, large = (replace(BASE, length=512, batch=batch) for batch in (2, 8))
    assert left_caches(small, large, caches) == [
        "L2: activations (tokens x units)",
        "L3: feed-forward activations",
    ]
    assert cache_bytes(f"{tmp_path}/none*") == {} and left_caches(small, large, {}) == []


def test_figures_go_between_the_marks_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\n\nText.\n")
    for figures in ("first", "second"):
        write_page(str(page), figures)
        assert page.read_text() == f"# Title\n\n{BEGIN}\n\n{figures}\n\n{END}\n\nText.\n"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n")
    with pytest.raises(InputError, match=f"--page {page}: it lacks the line {END}"):
        write_page(str(page), "new")
    assert page.read_text().endswith("old\n")


def test_quick(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}\n")
    words = [sys.executable, "-m", "bench.scaling", "--quick", "--plot", str(tmp_path / "scaling.png")]
    words += ["--page", str(page), "--json", str(tmp_path / "scaling.json")]
    result = run_command(words, cwd=ROOT).check()
    assert result.stdout.rstrip().endswith(quick.NOTICE)
    assert "bert_1_64_1, float32, by vocabulary" in result.stdout and "| vocabulary |" in page.read_text()
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    rows = json.loads((tmp_path / "scaling.json").read_text())["rows"]
    assert [(row["axis"], row["point"]["length"], row["point"]["vocabulary"]) for row in rows] == [
        ("length", 64, 30522), ("length", 128, 30522), ("vocabulary", 128, 1024), ("vocabulary", 128, 30522)
    ]  # fmt: skip
    # Weights, gradients and moments of 2 million numbers at least, and not a process of libraries more.
    numbers = Point(**rows[-1]["point"]).parameters
    assert 16 * numbers < rows[-1]["memory"] < 16 * numbers + 250e6
    assert all(0 < update < step for row in rows for update in row["updates"] for step in [sum(row["steps"])])


@pytest.mark.parametrize(
    "words, message",
    [
        (["--model", "tiny"], "--model tiny: use base, large or bert_LAYERS_UNITS_HEADS"),
        (["--steps", "1"], "--steps"),
    ],
)
def test_bad_options_are_one_line(words, message):
    result = run_command([sys.executable, "-m", "bench.scaling", *words], cwd=ROOT)
    assert result.returncode == 2 and message in result.stderr.splitlines()[-1], result.describe()
