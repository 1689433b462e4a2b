"""Pages: what stands in the file, and what a real browser makes of it."""

from __future__ import annotations

import pytest

from base.drawing import as_svg, literal, new_figure
from base.page import page, value_of
from base.tables import EMPTY, Row, Table
from tests.pages import WIDTHS, checked, look_at

HOSTILE = '<script>alert("1")</script>'


def plot(label: str, prefix: str) -> str:
    figure = new_figure((4, 2))
    axes = figure.subplots()
    axes.plot([1, 2, 3], [2, 1, 3], marker="o", color="black", label=label)
    axes.bar([1], [1], hatch="//")
    axes.legend()
    return as_svg(figure, prefix)


def sorting() -> Table:
    behind = Table(f"behind {HOSTILE}", ["repeat", "A"], [Row(["1", "0.5"])])
    cells = ["1,234", "9", EMPTY, "~2 h 5 min", "4 min", "-3", "OOM", "64KB"]
    rows = [Row([f"row {index}", cell, "a verdict"], samples=behind) for index, cell in enumerate(cells)]
    return Table("Sorting", ["name", "value", HOSTILE], [*rows, Row(["row 10"], f"failed: {HOSTILE}")])


@pytest.fixture(scope="module")
def text() -> str:
    document = [
        f"# A page & {HOSTILE}",
        f"**Bold** `a*b <{HOSTILE}` [a link](https://example.org/a?b=1&c=2), see https://example.org/x; no.",
        "Facts:\n\n- one\n  goes on\n- two",
        f"```text\n# no heading {HOSTILE}\n\n- no list\n```",
        "[no link](javascript:alert(1))",
        sorting(),
        "![one](a)",
        "![another](b)",
    ]
    return page(document, {name: plot(literal(f"_$\\x{HOSTILE}\x01"), name) for name in "ab"})


def test_what_stands_in_a_page(text):
    found = checked(text)
    assert text.count("<svg") == 2 and "<strong>Bold</strong>" in text
    assert "<li>one goes on</li>\n<li>two</li>" in text
    assert '<pre class="box" tabindex="0"><code># no heading &lt;script&gt;' in text
    assert [each for each in found.links if each.startswith("http")] == [
        "https://example.org/a?b=1&c=2",
        "https://example.org/x",
    ]
    assert "[no link](javascript:alert(1))" in found.text
    assert f"./_$\\x{HOSTILE}\N{REPLACEMENT CHARACTER}" in found.text, "as text, in the plot"
    assert len([each for each in found.ids if each.startswith("samples-")]) == 8


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1,234", 1234), ("0.07 (0.06 to 0.09)", 0.07), ("~2 h 5 min", 7500), ("12%", 12), ("< 0.0001", 1e-4),
        ("64KB", 65536), ("1.20 MB", 1.2e6), ("700 MiB", 700 * 2**20), ("3 days 2 h", 266400), ("-3", -3),
        ("+1.5%", 1.5), ("7 of 8", 7), (EMPTY, None), ("OOM", None), ("2x64KB", None), ("1e999", None),
    ],
)  # fmt: skip
def test_numbers_sort_by_their_value(cell, value):
    assert value_of(cell) == (None if value is None else pytest.approx(value))


@pytest.fixture(scope="module")
def seen(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    (folder / "page.html").write_text(text, "utf-8")
    return look_at(folder / "page.html", folder)


def test_a_browser_sorts_it(seen):
    """Numbers by value, words after them, what is missing last in both orders."""
    for frame in seen.frames:
        assert frame["focusable"]
        _, rising, up, falling, down = frame["columns"][1]
        assert (rising, falling) == ("ascending", "descending")
        numbers = ["-3", "9", "4 min", "1,234", "~2 h 5 min", "64KB"]
        assert up[:7] == [*numbers, "OOM"] and down[:7] == [*numbers[::-1], "OOM"]
        assert set(up[7:]) == set(down[7:]) == {EMPTY, f"failed: {HOSTILE}"}
        names = frame["columns"][0][2]
        assert names[-1] == "row 10" and names == [f"row {index}" for index in (*range(8), 10)]


def test_a_browser_shows_it(seen):
    assert seen.console == []
    assert [frame["width"] for frame in seen.frames] == list(WIDTHS)
    for frame in seen.frames:
        assert frame["overflow"] == 0 and len(frame["marks"]) == 2 and all(frame["marks"])
        assert frame["links"] == 8 and frame["opened"] == 1, "the samples of a verdict that is clicked"


def test_an_error_in_a_page_is_seen(text, tmp_path):
    """The script may not run where one byte of it differs."""
    damaged = text.replace("addEventListener('hashchange'", "addEventListener( 'hashchange'")
    (tmp_path / "page.html").write_text(damaged, "utf-8")
    assert any(
        "Content Security Policy" in line for line in look_at(tmp_path / "page.html", tmp_path).console
    )


def test_dark(text, tmp_path, seen):
    """Text and the black of plots are light."""
    (tmp_path / "page.html").write_text(text, "utf-8")
    dark = look_at(tmp_path / "page.html", tmp_path, "--blink-settings=preferredColorScheme=0")
    assert (seen.frames[0]["colour"], dark.frames[0]["colour"]) == ("rgb(29, 33, 38)", "rgb(227, 230, 233)")
    assert "#000000" not in text.partition("<body>")[2]
