"""What is masked to predict what, and batches that have every copy once."""

from __future__ import annotations

import random

import pytest

from data.minimal_pairs.copies import METRICS, batches, to_score, tokens_in
from data.tokenizing.vocab import vocabulary_from_tokens

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


def test_ends_of_sentences():
    assert copies([SO, UV], "word_l2r") == [
        ("[CLS] [MASK] [MASK] [SEP]", "so"),
        ("[CLS] so [MASK] [SEP]", "##uv"),
    ]
    assert copies([UV], "word_l2r") == [("[CLS] [MASK] [SEP]", "##uv")]


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
