"""Minimal pairs: the forms in which they come, masked copies, accuracies."""

from __future__ import annotations

import bz2
import gzip
import json
import math
import random
import statistics

import numpy as np
import pytest

from base.errors import InputError
from data.minimal_pairs import (
    METRICS,
    MinimalPair,
    accuracies,
    batches,
    draw_accuracies,
    pair_files,
    read_pairs,
    to_score,
    tokens_in,
)
from data.tokenizing.vocab import vocabulary_from_tokens

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


VOCABULARY = vocabulary_from_tokens(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "so", "##uv", "##enir", "was", "."]
)
SO, UV, ENIR, WAS, DOT = range(5, 10)


def copies(tokens, metric):
    """The copies of a sentence in words, with the predicted token behind each."""
    sentence = to_score(tokens, VOCABULARY, metric)
    (batch,) = batches([sentence], VOCABULARY, 1000)
    shown = [" ".join(VOCABULARY.tokens[token] for token in row) for row in batch.ids]
    predicted = [VOCABULARY.tokens[label] for (label,) in batch.labels]
    assert [int(row[place]) for row, (place,) in zip(batch.ids, batch.places)] == [4] * len(shown)
    return list(zip(shown, predicted))


def test_the_papers_word_of_three_pieces():
    """Kauf and Ivanova, figure 1: "souvenir" as so ##uv ##enir."""
    tokens = [WAS, SO, UV, ENIR, DOT]
    assert copies(tokens, "original") == [
        ("[CLS] [MASK] so ##uv ##enir . [SEP]", "was"),
        ("[CLS] was [MASK] ##uv ##enir . [SEP]", "so"),
        ("[CLS] was so [MASK] ##enir . [SEP]", "##uv"),
        ("[CLS] was so ##uv [MASK] . [SEP]", "##enir"),
        ("[CLS] was so ##uv ##enir [MASK] [SEP]", "."),
    ]
    assert copies(tokens, "word_l2r") == [
        ("[CLS] [MASK] so ##uv ##enir . [SEP]", "was"),
        ("[CLS] was [MASK] [MASK] [MASK] . [SEP]", "so"),
        ("[CLS] was so [MASK] [MASK] . [SEP]", "##uv"),
        ("[CLS] was so ##uv [MASK] . [SEP]", "##enir"),
        ("[CLS] was so ##uv ##enir [MASK] [SEP]", "."),
    ]


@pytest.mark.parametrize("metric", METRICS)
def test_every_copy_is_in_one_batch(metric):
    rng = random.Random(0)
    tokens = [[rng.randrange(5, 10) for _ in range(rng.randrange(1, 30))] for _ in range(40)]
    sentences = [to_score(each, VOCABULARY, metric) for each in tokens]
    seen, computed, before = set(), 0, 99
    for batch in batches(sentences, VOCABULARY, 64):
        rows, length = batch.ids.shape
        assert (rows * length <= 64 or rows == 1) and length <= before
        before = length
        computed += int(batch.lengths.sum())
        for row, own, (place,), (label,), number in zip(*batch[:4], batch.sentences):
            original = [2, *tokens[number], 3]
            assert own == len(original) and label == original[place] and set(row[own:]) <= {0}
            masked = {index for index in range(own) if row[index] != original[index]}
            last = place + 1
            while metric == "word_l2r" and original[last] in (UV, ENIR):
                last += 1
            assert masked == set(range(place, last)) and all(row[index] == 4 for index in masked)
            seen.add((number, place))
    assert seen == {(number, 1 + index) for number, each in enumerate(tokens) for index in range(len(each))}
    assert computed == tokens_in(sentences) == sum((len(each) + 2) * len(each) for each in tokens)


# Paradigm, group, judgements: right, wrong or a tie.
SAMPLE = [("p", "one", "++-="), ("q", "one", "+-"), ("r", "two", "+++"), ("s", "three", "=====")]
SCORES = {"+": (-1.0, -2.0), "-": (-2.0, -1.0), "=": (-3.0, -3.0)}


def judged(sample):
    pairs = [MinimalPair("", name, group, "", "") for name, group, judgements in sample for _ in judgements]
    good, bad = np.array([SCORES[each] for _, _, judgements in sample for each in judgements]).T
    return accuracies(pairs, good, bad)


def test_a_small_example():
    found = judged(SAMPLE)
    paradigms = {each.name: each for each in found.paradigms}
    assert {name: each.accuracy for name, each in paradigms.items()} == {
        "p": 0.625,
        "q": 0.5,
        "r": 1,
        "s": 0.5,
    }
    assert {name: (each.pairs, each.ties) for name, each in paradigms.items()} == {
        **{"p": (4, 1), "q": (2, 0), "r": (3, 0), "s": (5, 5)},
    }
    p, q = statistics.stdev([1, 1, 0, 0.5]) / 2, statistics.stdev([1, 0]) / math.sqrt(2)
    errors = {name: each.error for name, each in paradigms.items()}
    assert errors == pytest.approx({"p": p, "q": q, "r": 0, "s": 0})
    groups = {each.group: each for each in found.groups}
    assert {name: each.accuracy for name, each in groups.items()} == {"one": 0.5625, "three": 0.5, "two": 1}
    assert groups["one"].error == pytest.approx(math.hypot(p, q) / 2) and groups["one"].pairs == 6
    assert found.mean_of_groups.accuracy == pytest.approx((0.5625 + 0.5 + 1) / 3)
    assert found.mean_of_groups.error == pytest.approx(math.hypot(p, q) / 2 / 3)
    assert found.mean_of_paradigms.accuracy == pytest.approx((0.625 + 0.5 + 1 + 0.5) / 4)
    assert found.mean_of_paradigms.error == pytest.approx(math.hypot(p, q) / 4)
    assert (found.mean_of_groups.pairs, found.mean_of_groups.ties) == (14, 6)


def test_one_pair_has_no_standard_error():
    found = judged([("p", "one", "+"), ("q", "two", "++")])
    assert math.isnan(found.paradigms[0].error) and math.isnan(found.mean_of_groups.error)
    assert found.paradigms[1].error == 0 and found.mean_of_paradigms.accuracy == 1


def test_names_are_drawn_as_they_are(tmp_path):
    """No formula is read out of them, which "$_a_b$" would be a wrong one of."""
    name = "$_a_b$ \udcff"
    draw_accuracies(str(tmp_path / "x.png"), name, judged([(name, name, "+-")]))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
