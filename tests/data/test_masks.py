"""Masks against a plain loop's expectations and the distributions of the BERT paper."""

from __future__ import annotations

import numpy as np
import pytest

from data.instances import mask
from data.streams import draw, sample_keys
from data.vocab import vocabulary_from_tokens

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB = vocabulary_from_tokens([*SPECIAL, *(f"w{i}" for i in range(60)), *(f"##c{i}" for i in range(35))])
WORDS = range(5, 65)
CONTINUATIONS = range(65, 100)


def make_rows(lengths, width, generator, continuing=0.4):
    """[CLS] tokens [SEP] tokens [SEP] padding, with random tokens other than special ones."""
    rows = np.zeros((len(lengths), width), dtype=np.int32)
    for row, length in zip(rows, lengths):
        tokens = generator.choice(WORDS, length)
        joined = generator.random(length) < continuing
        row[:length] = np.where(joined, generator.choice(CONTINUATIONS, length), tokens)
        row[0] = VOCAB.cls_id
        row[[generator.integers(2, length - 2), length - 1]] = VOCAB.sep_id
    return rows


@pytest.fixture(params=[False, True], ids=["tokens", "words"])
def masked(request):
    generator = np.random.default_rng(0)
    lengths = generator.integers(6, 129, 3000).astype(np.int32)
    ids = make_rows(lengths, 128, generator)
    keys = sample_keys(11, 0, np.arange(3000))
    return ids, lengths, request.param, mask(ids, lengths, keys, VOCAB, 0.15, 20, request.param)


def test_positions_labels_and_weights_fit_together(masked):
    ids, lengths, whole_words, (corrupted, positions, labels, weights) = masked
    assert positions.shape == labels.shape == weights.shape == (3000, 20)
    assert (corrupted.dtype, positions.dtype, labels.dtype, weights.dtype) == (np.int32,) * 3 + (np.float32,)
    for row in range(len(ids)):
        count = int(weights[row].sum())
        expected = min(20, max(1, int(round(int(lengths[row]) * 0.15))))
        assert count == expected if not whole_words else count <= expected
        assert weights[row].tolist() == [1.0] * count + [0.0] * (20 - count)
        chosen = positions[row, :count]
        assert (np.diff(chosen) > 0).all() and (chosen < lengths[row]).all()
        assert (labels[row, :count] == ids[row, chosen]).all()
        assert not np.isin(ids[row, chosen], (VOCAB.cls_id, VOCAB.sep_id, VOCAB.pad_id)).any()
        assert not positions[row, count:].any() and not labels[row, count:].any()
        elsewhere = np.setdiff1d(np.arange(128), chosen)
        assert (corrupted[row, elsewhere] == ids[row, elsewhere]).all()


def test_80_10_10(masked):
    _, _, _, (corrupted, positions, labels, weights) = masked
    row, column = np.nonzero(weights)
    original, now = labels[row, column], corrupted[row, positions[row, column]]
    # A random token is the original or [MASK] once in 100 times each.
    share = np.array([0.8 + 0.1 / 100, 0.1 + 0.1 / 100, 0.1 * 98 / 100])
    counts = np.array([(now == VOCAB.mask_id).sum(), (now == original).sum(), 0])
    counts[2] = len(now) - counts.sum()
    assert len(now) > 25_000
    assert chi_square(counts, share) < 18.4  # 2 degrees of freedom, one in 10,000


def test_random_tokens_are_uniform_over_the_vocabulary(masked):
    _, _, _, (corrupted, positions, labels, weights) = masked
    row, column = np.nonzero(weights)
    now = corrupted[row, positions[row, column]]
    now = now[(now != VOCAB.mask_id) & (now != labels[row, column])]
    never_original = np.bincount(now, minlength=100)[[0, 1, 2, 3]]
    rate = never_original / len(now)
    assert (np.abs(rate - 1 / 98) < 5 * np.sqrt(1 / 98 / len(now))).all()


def test_every_candidate_is_equally_likely():
    ids = make_rows([20], 24, np.random.default_rng(1))
    count = 40_000
    keys = sample_keys(5, 0, np.arange(count))
    _, positions, _, weights = mask(np.repeat(ids, count, 0), np.full(count, 20), keys, VOCAB, 0.15, 20)
    assert weights.sum() == 3 * count
    chosen = np.bincount(positions[weights > 0], minlength=24)
    candidates = np.flatnonzero(~np.isin(ids[0], (VOCAB.cls_id, VOCAB.sep_id, VOCAB.pad_id)))
    assert chosen.sum() == chosen[candidates].sum()
    assert chi_square(chosen[candidates], np.full(17, 1 / 17)) < 46  # 16 degrees of freedom, one in 10,000
    pairs = np.bincount(positions[:, 0] * 24 + positions[:, 1], minlength=576)
    triple_start = candidates[0] * 24 + candidates[1]  # in 15 of the 680 subsets of three
    assert abs(pairs[triple_start] / count - 15 / 680) < 5 * np.sqrt(15 / 680 / count)


def test_whole_words_are_masked_whole_and_stop_at_the_separator():
    generator = np.random.default_rng(2)
    ids = make_rows(np.full(2000, 64), 64, generator)
    _, positions, _, weights = mask(
        ids, np.full(2000, 64), sample_keys(1, 0, np.arange(2000)), VOCAB, 0.15, 20, True
    )
    split_words = 0
    for row in range(len(ids)):
        chosen = set(positions[row, weights[row] > 0].tolist())
        word = []
        for place in range(65):
            token = int(ids[row, place]) if place < 64 else VOCAB.sep_id
            special = token in (VOCAB.cls_id, VOCAB.sep_id)
            if special or not VOCAB.is_continuation[token]:
                assert len(chosen & set(word)) in (0, len(word))
                split_words += len(word) > 1 and len(chosen & set(word)) > 1
                word = []
            if not special:
                word.append(place)
    assert split_words > 1000


def test_whole_words_reach_the_number_of_predictions_that_googles_loop_reaches():
    """Google's loop takes words in random order and skips those that do not fit; run it as it stands."""
    generator = np.random.default_rng(3)
    ids = make_rows(np.full(4000, 40), 40, generator)
    _, _, _, weights = mask(ids, np.full(4000, 40), sample_keys(1, 0, np.arange(4000)), VOCAB, 0.15, 20, True)
    expected = []
    for row in ids:
        words = []
        for place, token in enumerate(row):
            if token in (VOCAB.cls_id, VOCAB.sep_id):
                continue
            if VOCAB.is_continuation[token] and words and words[-1][-1] == place - 1:
                words[-1].append(place)
            else:
                words.append([place])
        taken = 0
        for index in generator.permutation(len(words)):
            if taken + len(words[index]) <= 6:
                taken += len(words[index])
        expected.append(taken)
    ours = np.bincount(weights.sum(axis=1).astype(int), minlength=7)
    theirs = np.bincount(expected, minlength=7)
    assert np.abs(ours - theirs).max() < 5 * np.sqrt(2 * 4000 * 0.25)


@pytest.mark.parametrize("whole_words", [False, True])
def test_more_predictions_than_candidates_mask_all_of_them(whole_words):
    ids = np.array([[2, 7, 8, 3, 9, 3, 0, 0]], dtype=np.int32)
    _, positions, labels, weights = mask(
        ids, np.array([6]), np.array([1], dtype=np.uint64), VOCAB, 1.0, 8, whole_words
    )
    assert positions[0].tolist() == [1, 2, 4, 0, 0, 0, 0, 0] and weights[0].sum() == 3
    assert labels[0].tolist() == [7, 8, 9, 0, 0, 0, 0, 0]


def test_a_sequence_of_special_tokens_only_has_no_predictions():
    ids = np.array([[2, 3, 3, 0]], dtype=np.int32)
    corrupted, _, _, weights = mask(ids, np.array([3]), np.array([1], dtype=np.uint64), VOCAB, 0.15, 2)
    assert weights.sum() == 0 and (corrupted == ids).all()


def test_a_row_does_not_depend_on_its_batch():
    generator = np.random.default_rng(4)
    lengths = generator.integers(6, 60, 50)
    ids, keys = make_rows(lengths, 64, generator), sample_keys(1, 2, np.arange(50))
    whole = mask(ids, lengths, keys, VOCAB, 0.15, 10)
    for row in range(50):
        alone = mask(ids[[row], :60], lengths[[row]], keys[[row]], VOCAB, 0.15, 10)
        assert (alone[0][0] == whole[0][row, :60]).all()
        assert all((one[0] == all_rows[row]).all() for one, all_rows in zip(alone[1:], whole[1:]))


def test_keys_and_draws_look_independent():
    keys = sample_keys(0, 0, np.arange(20_000))
    assert len({*keys.tolist(), *sample_keys(0, 1, np.arange(20_000)).tolist()}) == 40_000
    words = draw(keys[:, None], np.arange(4, dtype=np.uint64)[None, :])
    bits = np.unpackbits(words.view(np.uint8)).reshape(20_000, 256).astype(float)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.02
    correlation = np.corrcoef(bits.T) - np.eye(256)
    assert np.abs(correlation).max() < 0.04


def test_draw_is_splitmix64():
    """The first outputs of the reference generator (Vigna's splitmix64.c) seeded with 1234567."""
    words = draw(np.array([1234567], dtype=np.uint64), np.arange(3, dtype=np.uint64))
    assert words.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def chi_square(counts, share):
    expected = counts.sum() * np.asarray(share) / np.sum(share)
    return float(((counts - expected) ** 2 / expected).sum())
