"""Tables in both forms, and numbers as people read them."""

from __future__ import annotations

import pytest

from base.quantities import digits, duration, percent
from base.tables import Row, Table, markdown, terminal
from comparison.report import memory, size, with_extremes, with_quartiles
from comparison.verdicts import Spread

TABLE = Table(
    "Speed",
    ["workers", "backend", "s/step", "tokens/s"],
    [
        Row(["1", "Horovod", "0.07", "1,000"]),
        Row(["1", "BytePS"], "failed: a | b\nmore"),
        Row(["2", "BytePS", "0.5", "2"]),
    ],
    names=2,
    notes=["A note."],
)


def test_terminal_lines_up_and_leaves_repeated_names_out():
    assert terminal(TABLE).splitlines() == [
        "Speed",
        "workers  backend  s/step  tokens/s",
        "1        Horovod    0.07     1,000",
        "         BytePS   failed: a | b more",
        "2        BytePS      0.5         2",
        "A note.",
    ]


def test_markdown_is_a_table_whatever_the_cells_hold():
    lines = markdown(TABLE).splitlines()
    assert lines[:2] == ["### Speed", ""]
    assert lines[3] == "| --- | --- | ---: | ---: |"
    assert lines[5] == "| 1 | BytePS | failed: a \\| b more | – |"
    table = [line for line in lines if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in table} == {5}
    assert lines[-1] == "A note."


def test_a_reason_in_the_last_column_fits_too():
    table = Table("T", ["a", "b"], [Row(["1"], "<gone>")])
    assert "| 1 | &lt;gone> |" in markdown(table)


def test_rows_must_fit_the_columns():
    with pytest.raises(ValueError, match="1 cells for 2 columns"):
        Table("T", ["a", "b"], [Row(["1"])])
    with pytest.raises(ValueError, match="3 cells"):
        Table("T", ["a", "b"], [Row(["1", "2", "3"])])


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0"), (0.071234, "0.0712"), (0.07, "0.0700"), (9.999, "10.0"), (99.96, "100"), (0.99951, "1.00"),
        (1234567, "1,234,567"), (31517.2, "31,517"), (12.345, "12.3"), (0.00001234, "0.0000123"),
    ],
)  # fmt: skip
def test_three_digits(value, text):
    assert digits(value) == text


def test_spreads_have_the_places_of_their_median():
    spread = Spread(0.0712345, 0.07, 0.0735, 0.06, 0.1)
    assert with_quartiles(spread) == "0.0712 (0.0700 to 0.0735)"
    assert with_extremes(Spread(3.14, 3.0, 3.3, 2.94, 13.62)) == "3.1 (2.9 to 13.6)"


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0.25, "0.25 s"), (42, "42 s"), (59.7, "1 min"), (250, "4 min 10 s"), (3600, "1 h"), (3599.9, "1 h"),
        (11520, "3 h 12 min"), (86400 + 7200, "1 day 2 h"), (190800, "2 days 5 h"),
        (12.34 * 86400, "12.3 days"),
        (700 * 86400, "700 days"), (3 * 365.25 * 86400, "3.0 years"),
    ],
)  # fmt: skip
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_bytes_and_shares():
    sizes = ["–", "0 B", "999 B", "4.20 MB", "1.50 GB"]
    assert [size(each) for each in (None, 0, 999, 4_200_000, 1.5e9)] == sizes
    assert [memory(each) for each in (None, 700 << 20, 3 << 30)] == ["–", "700 MiB", "3.00 GiB"]
    assert [percent(each) for each in (0, 0.0123, 0.0996, 1.25)] == ["0.0%", "1.2%", "10%", "125%"]
