"""Masks against a plain loop's expectations and the distributions of the BERT paper."""

from __future__ import annotations

import math

import numpy as np
import pytest

from data.options import MaskingConfig
from data.pretraining.masks import mask
from data.pretraining.randomness import draw, sample_keys
from data.tokenizing.vocab import SPECIAL_TOKENS, vocabulary_from_tokens
from tests.data.pretraining.chance import UNLIKELY, chi_square_p

TOKENS = [*(f"w{i}" for i in range(60)), *(f"##c{i}" for i in range(35))]
VOCAB = vocabulary_from_tokens([*SPECIAL_TOKENS, *TOKENS])
WORDS = range(5, 65)
CONTINUATIONS = range(65, 100)


def masking(masked_lm_prob, whole_word_mask=False):
    return MaskingConfig(masked_lm_prob=masked_lm_prob, whole_word_mask=whole_word_mask)


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


@pytest.fixture(scope="module", params=[False, True], ids=["tokens", "words"])
def masked(request):
    generator = np.random.default_rng(0)
    lengths = generator.integers(6, 129, 3000).astype(np.int32)
    ids = make_rows(lengths, 128, generator)
    keys = sample_keys(11, 0, np.arange(3000))
    return ids, lengths, request.param, mask(ids, lengths, keys, VOCAB, masking(0.15, request.param), 20)


def test_positions_labels_and_weights_fit_together(masked):
    ids, lengths, whole_words, (corrupted, positions, labels, weights) = masked
    assert positions.shape == labels.shape == weights.shape == (3000, 20)
    assert (corrupted.dtype, positions.dtype, labels.dtype, weights.dtype) == (np.int32,) * 3 + (np.float32,)
    for row in range(1000):
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
    shares = np.array([0.8 + 0.1 / 100, 0.1 + 0.1 / 100, 0.1 * 98 / 100])
    counts = np.array([(now == VOCAB.mask_id).sum(), (now == original).sum(), 0])
    counts[2] = len(now) - counts.sum()
    assert len(now) > 25_000
    assert chi_square_p(counts, shares) > UNLIKELY


def test_random_tokens_are_uniform_over_the_whole_vocabulary():
    count = 100_000
    ids = np.tile(np.array([[2, 5, 3, 6, 3]], dtype=np.int32), (count, 1))
    lengths = np.full(count, 5)
    corrupted, _, _, _ = mask(ids, lengths, sample_keys(8, 0, np.arange(count)), VOCAB, masking(1.0), 5)
    for place, original in ((1, 5), (3, 6)):
        # Special tokens are among the 100; the original and [MASK] cannot be told from the other fates.
        counts = np.bincount(corrupted[:, place], minlength=100)
        others = np.delete(np.arange(100), [original, VOCAB.mask_id])
        assert counts[others].sum() > 9000
        assert chi_square_p(counts[others], np.ones(98)) > UNLIKELY
    # The two places of a row have independent fates.
    table = np.array([(corrupted[:, place] == VOCAB.mask_id) for place in (1, 3)])
    both = np.bincount(2 * table[0] + table[1], minlength=4)
    share = 0.8 + 0.1 / 100
    shares = [(1 - share) ** 2, share * (1 - share), share * (1 - share), share**2]
    assert chi_square_p(both, shares) > UNLIKELY


def test_every_candidate_and_every_set_of_candidates_is_equally_likely():
    ids = make_rows([20], 24, np.random.default_rng(1))
    count = 40_000
    keys = sample_keys(5, 0, np.arange(count))
    rows = np.repeat(ids, count, 0)
    _, positions, _, weights = mask(rows, np.full(count, 20), keys, VOCAB, masking(0.15), 20)
    assert weights.sum() == 3 * count
    chosen = np.bincount(positions[weights > 0], minlength=24)
    candidates = np.flatnonzero(~np.isin(ids[0], (VOCAB.cls_id, VOCAB.sep_id, VOCAB.pad_id)))
    assert len(candidates) == 17 and chosen.sum() == chosen[candidates].sum()
    # A row's three positions exclude each other, which makes the statistic smaller by this factor.
    counts = chosen[candidates]
    statistic_scale = (17 - 1) / (17 - 3)
    spread = counts.mean() + (counts - counts.mean()) * math.sqrt(statistic_scale)
    assert chi_square_p(spread, np.ones(17)) > UNLIKELY
    sets = np.bincount(positions[:, :3] @ np.array([576, 24, 1]))
    sets = sets[sets > 0]
    assert len(sets) == math.comb(17, 3) and chi_square_p(sets, np.ones(len(sets))) > UNLIKELY


def words_of(row, length):
    """The words of a sequence, each a list of places: Google's rule that a piece with ## joins the last."""
    words = []
    for place, token in enumerate(row[:length].tolist()):
        if token in (VOCAB.cls_id, VOCAB.sep_id, VOCAB.pad_id):
            continue
        if VOCAB.is_continuation[token] and words and words[-1][-1] == place - 1:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def check_googles_loop(ids, lengths, keys, most):
    """Compare with Google's loop over the words in the same random order; returns the words passed over."""
    _, positions, _, weights = mask(ids, lengths, keys, VOCAB, masking(0.15, True), most)
    passed_over = 0
    for row, length in enumerate(lengths.tolist()):
        words = words_of(ids[row], length)
        # The order is that of the random words of the first places, without their top and lowest bits.
        drawn = draw(keys[row], np.array([word[0] for word in words], dtype=np.uint64))
        left = min(most, max(1, int(round(length * 0.15))))
        expected = []
        for index in np.argsort((drawn >> np.uint64(16)) & np.uint64((1 << 47) - 1), kind="stable"):
            if len(words[index]) <= left:
                expected += words[index]
                left -= len(words[index])
            else:
                passed_over += left > 0
        assert sorted(expected) == positions[row, weights[row] > 0].tolist()
    return passed_over


@pytest.mark.parametrize("continuing", [0.05, 0.4, 0.9])
def test_whole_words_are_those_of_googles_loop(continuing):
    generator = np.random.default_rng(3)
    lengths = generator.integers(6, 65, 600).astype(np.int32)
    ids, keys = make_rows(lengths, 64, generator, continuing), sample_keys(1, 0, np.arange(600))
    assert check_googles_loop(ids, lengths, keys, 8) > 20


def test_a_word_that_fits_is_found_behind_many_that_do_not():
    """One word of a single token among 60 of two, and room for three tokens."""
    row = [2, *([5, 65] * 30), 7, 3, *([6, 66] * 30), 3]
    ids = np.tile(np.array([row], dtype=np.int32), (300, 1))
    keys = sample_keys(2, 0, np.arange(300))
    assert check_googles_loop(ids, np.full(300, len(row), dtype=np.int32), keys, 3) > 300 * 20


@pytest.mark.parametrize("whole_words", [False, True])
def test_more_predictions_than_candidates_mask_all_of_them(whole_words):
    ids, key = np.array([[2, 7, 8, 3, 9, 3, 0, 0]], dtype=np.int32), np.array([1], dtype=np.uint64)
    _, positions, labels, weights = mask(ids, np.array([6]), key, VOCAB, masking(1.0, whole_words), 8)
    assert positions[0].tolist() == [1, 2, 4, 0, 0, 0, 0, 0] and weights[0].sum() == 3
    assert labels[0].tolist() == [7, 8, 9, 0, 0, 0, 0, 0]
    only_special = np.array([[2, 3, 3, 0]], dtype=np.int32)
    corrupted, _, _, weights = mask(only_special, np.array([3]), key, VOCAB, masking(0.15, whole_words), 2)
    assert weights.sum() == 0 and (corrupted == only_special).all()


def test_a_sequence_of_which_a_share_is_no_token_has_one_prediction():
    ids, key = np.array([[2, 7, 3, 9, 3]], dtype=np.int32), np.array([1], dtype=np.uint64)
    assert mask(ids, np.array([5]), key, VOCAB, masking(0.05), 2)[3].tolist() == [[1, 0]]


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_row_does_not_depend_on_its_batch(whole_words):
    generator = np.random.default_rng(4)
    lengths = generator.integers(6, 60, 50)
    ids, keys = make_rows(lengths, 64, generator), sample_keys(1, 2, np.arange(50))
    rules = masking(0.15, whole_words)
    whole = mask(ids, lengths, keys, VOCAB, rules, 10)
    for row in range(50):
        alone = mask(ids[[row], :60], lengths[[row]], keys[[row]], VOCAB, rules, 10)
        assert (alone[0][0] == whole[0][row, :60]).all()
        assert all((one[0] == all_rows[row]).all() for one, all_rows in zip(alone[1:], whole[1:]))


def test_draw_is_splitmix64():
    """The first outputs of the reference generator (Vigna's splitmix64.c) seeded with 1234567."""
    words = draw(np.array([1234567], dtype=np.uint64), np.arange(3, dtype=np.uint64))
    assert words.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]
