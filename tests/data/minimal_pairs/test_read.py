"""The forms in which minimal pairs come, and files that are none."""

from __future__ import annotations

import bz2
import gzip
import json

import pytest

from base.errors import InputError
from data.minimal_pairs.read import MinimalPair, pair_files, read_pairs

# As BLiMP's files have them.
PAIRS = [
    ("agree_1", "s-selection", "The cats sleep.", "The cats sleeps."),
    ("agree_1", "s-selection", 'A "cat" sleeps.', 'A "cat" sleep.'),
    ("island_1", "island_effects", "Who did she see?", "Who see she did?"),
]


def as_json(rows):
    lines = []
    for number, (uid, term, good, bad) in enumerate(rows):
        line = {"sentence_good": good, "sentence_bad": bad, "field": "syntax", "linguistics_term": term}
        lines.append(json.dumps({**line, "UID": uid, "simple_LM_method": True, "pairID": str(number)}))
    return "\n".join([*lines, ""])


def as_tsv(rows, header="UID\tterm\tsentence_good\tsentence_bad"):
    return "".join(f"{line}\n" for line in [header, *("\t".join(row) for row in rows)])


def read(*patterns):
    return read_pairs(pair_files(",".join(map(str, patterns)), "PAIRS"), "PAIRS")


def contents(pairs):
    return [pair[1:] for pair in pairs]


EXPECTED = [
    ("agree_1", "argument_structure", *PAIRS[0][2:]),
    ("agree_1", "argument_structure", *PAIRS[1][2:]),
    ("island_1", "island_effects", *PAIRS[2][2:]),
]


def test_blimps_folder_and_a_table_are_the_same(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "agree_1.jsonl").write_text(as_json(PAIRS[:2]))
    (folder / "island_1.jsonl.bz2").write_bytes(bz2.compress(as_json(PAIRS[2:]).encode()))
    (folder / "README.md").write_text("no pairs")
    (tmp_path / "all.tsv.gz").write_bytes(gzip.compress(as_tsv(PAIRS).encode()))
    found = read(folder)
    assert contents(found) == EXPECTED == contents(read(tmp_path / "all.tsv.gz"))
    assert found[1] == MinimalPair(f"PAIRS: {folder}/agree_1.jsonl, line 2", *EXPECTED[1])
    assert contents(read(folder / "*.jsonl")) == EXPECTED[:2]
    both = read(folder / "agree_1.jsonl", tmp_path / "all.tsv.gz")  # in the order of their names
    assert contents(both) == EXPECTED + EXPECTED[:2]


def test_a_file_without_names_is_one_paradigm(tmp_path):
    (tmp_path / "hypernym.csv").write_text('sentence_bad,sentence_good\n"b, b",a\nd,c\n')
    assert contents(read(tmp_path / "hypernym.csv")) == [
        ("hypernym", "hypernym", "a", "b, b"),
        ("hypernym", "hypernym", "c", "d"),
    ]


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("a.tsv", "a\nb\n", "has no column 'sentence_good', but a; BLiMP's files have sentence_good"),
        ("a.tsv", "sentence_good\na\n", "has no column 'sentence_bad'"),
        ("a.tsv", as_tsv([]), "has a header and no pairs"),
        ("a.tsv", as_tsv([("u", "t", "a")]), "line 2: 3 columns, not 4; correct the line or remove it"),
        ("a.tsv", as_tsv([("u", "t", "a", "b"), ("u", "t", "a", " ")]), "line 3: sentence_bad is empty"),
        ("a.tsv", as_tsv([("", "t", "a", "b")]), "line 2: UID is empty"),
        ("a.tsv", as_tsv([("u", "", "a", "b")]), "line 2: term is empty"),
        ("a.tsv", as_tsv([*PAIRS, ("agree_1", "x", "a", "b")]), "agree_1 is in the group x, and in argument"),
        (
            "a.jsonl",
            as_json(PAIRS) + '{"UID": "u"}\n',
            "line 4: no 'sentence_good', which the first",
        ),
        (
            "a.tsv.gz",
            gzip.compress(as_tsv(PAIRS).encode(), mtime=0)[:40],
            "packed by gzip, and damaged or cut off",
        ),
    ],
)
def test_files_without_pairs(tmp_path, name, content, said):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        read(path)
    message = str(caught.value)
    assert said in message and str(path) in message and "\n" not in message


def test_a_folder_without_pairs(tmp_path):
    (tmp_path / "README.md").write_text("x")
    said = "PAIRS: no file in .* ends with .jsonl, .tsv or .csv; name the files"
    with pytest.raises(InputError, match=said):
        read(tmp_path)
