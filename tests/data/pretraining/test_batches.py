"""This rank's batches: every sample once an epoch, for any number of ranks, from any place, always alike."""

from __future__ import annotations

import contextlib
import glob
import itertools
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from base.errors import InputError
from base.progress import SILENT
from data.opening import TEXT, DataFiles, open_data
from data.options import BatchingConfig, DataConfig, MaskingConfig, TokenizerConfig
from data.pretraining.batches import (
    EPOCH_SHIFT,
    PretrainingBatches,
    control_batches,
    dummy_batch,
    evaluation_batches,
    with_context_of,
)
from data.pretraining.prefetch import Feed
from data.pretraining.sources import TextSource
from data.sharing import Share
from data.store.tokens import TokenStore
from data.tokenizing.tokenizer import TokenizerSettings, load_sentencepiece
from data.tokenizing.vocab import SPECIAL_TOKENS, vocabulary_from_tokens
from tests.data.streams import Stream
from tests.data.token_stores import build_store
from tests.processes import until

MASKING = MaskingConfig(64, 0.3, 0.15, 10)


@pytest.fixture
def source(store, vocab):
    return TextSource(store, vocab, MASKING)


def make(source, rank=0, world_size=1, batch_size=16, use_avg_len=False, num_buckets=4, seed=3, position=0):
    batching = BatchingConfig(batch_size, use_avg_len, num_buckets)
    batches = PretrainingBatches(source, batching, seed, Share.of(rank, world_size))
    return Stream(batches, position)


def rows_of(batch):
    """Each row of a batch as something that can be compared and counted, without its padding."""
    rows = []
    for row, length in enumerate(batch.valid_lengths):
        count = int(batch.masked_weights[row].sum())
        assert not batch.masked_positions[row, count:].any() and not batch.masked_ids[row, count:].any()
        tokens = (each[row, :length].tobytes() for each in batch[:2])
        predictions = (each[row, :count].tobytes() for each in batch[3:5])
        rows.append((*tokens, *predictions, int(batch.next_sentence_labels[row])))
    return rows


def same(left, right):
    return all(np.array_equal(one, other) for one, other in zip(left, right))


def take(batches, count):
    return list(itertools.islice(batches, count))


def global_order(source, world_sizes, steps, **options):
    """The batches of all ranks in the order of ranks, the number of ranks changing after `steps` of each."""
    position, order = 0, []
    for world_size, count in zip(world_sizes, steps):
        ranks = [make(source, rank, world_size, position=position, **options) for rank in range(world_size)]
        taken = [take(rank, count) for rank in ranks]
        assert len({rank.position for rank in ranks}) == 1
        position = ranks[0].position
        order += [batch for step in zip(*taken) for batch in step]
    return order, position


@pytest.mark.parametrize("batch_size, use_avg_len", [(16, False), (500, True)])
def test_every_sample_comes_once_an_epoch(source, batch_size, use_avg_len):
    batches = make(source, 0, 1, batch_size, use_avg_len)
    for epoch in range(2):
        count = len(source.lengths(3, epoch))
        seen, irregular = [], 0
        for batch in take(batches, batches.blocks_in_epoch(epoch)):
            irregular += batch.input_ids.shape not in batches.shapes
            assert batch.masked_ids.shape[1] == min(10, round(0.15 * batch.input_ids.shape[1]))
            assert not use_avg_len or batch.input_ids.size <= 500
            seen += rows_of(batch)
        assert len(seen) == count and irregular <= 1
        assert sorted(seen) == sorted(rows_of(source.collate(3, epoch, np.arange(count), 64)))
        assert batches.position == (epoch + 1) << EPOCH_SHIFT


@pytest.mark.parametrize(
    "options, changes",
    [
        ({"batch_size": 16}, ([2], [7], [5, 1, 4, 2])),
        ({"batch_size": 500, "use_avg_len": True}, ([2], [7], [5, 1, 4, 2])),
        ({"batch_size": 400, "num_buckets": 1}, ([12],)),  # a step spans up to four epochs
    ],
    ids=str,
)
def test_any_number_of_ranks_and_any_change_of_it_gives_the_same_order(source, options, changes):
    batches = make(source, **options)
    assert (batches.blocks_in_epoch(0) < 6) == ("num_buckets" in options)
    count = 2 * batches.blocks_in_epoch(0) + 40
    for world_sizes in changes:
        steps = [-(-count // (len(world_sizes) * size)) for size in world_sizes]
        order, position = global_order(source, world_sizes, steps, **options)
        lone = make(source, **options)
        assert len(order) >= count
        assert all(same(one, two) for one, two in zip(order, take(lone, len(order))))
        assert lone.position == position


def test_epochs_that_a_step_passes_over_are_cheap(source):
    batches = make(source, batch_size=400, num_buckets=1, world_size=100)
    begun = time.process_time()
    take(batches, 2)
    epochs = batches.position >> EPOCH_SHIFT
    assert epochs > 30
    assert time.process_time() - begun < 0.2 * epochs, "seconds of CPU time"


def unmasked(batch, row: int) -> list[int]:
    ids = batch.input_ids[row].tolist()
    for place, token, weight in zip(*(each[row] for each in batch[3:6])):
        if weight:
            ids[place] = token
    return ids[: batch.valid_lengths[row]]


def test_a_row_is_what_its_pair_and_mask_say(store, source, vocab):
    _, pairs = source._plan(3, 0)
    chosen = np.arange(0, len(pairs.a_start), 5)
    batch = source.collate(3, 0, chosen, 64)
    for row, index in enumerate(chosen):
        *ranges, is_random = (int(column[index]) for column in pairs)
        a, b = (store.ids[start : start + size].tolist() for start, size in (ranges[:2], ranges[2:]))
        assert unmasked(batch, row) == [vocab.cls_id, *a, vocab.sep_id, *b, vocab.sep_id]
        padding = 64 - len(a) - len(b) - 3
        assert batch.segment_ids[row].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * padding
        assert (batch.input_ids[row, 64 - padding :] == vocab.pad_id).all()
        assert batch.next_sentence_labels[row] == is_random


def test_every_epoch_pairs_and_masks_anew(source):
    batches = make(source, num_buckets=1)
    epochs = [
        {row[0] for batch in take(batches, batches.blocks_in_epoch(epoch)) for row in rows_of(batch)}
        for epoch in range(2)
    ]
    assert len(epochs[0] & epochs[1]) < 0.02 * len(epochs[0])


@pytest.mark.parametrize("num_workers", [0, 3])
def test_seeking_equals_iterating_across_epochs(source, num_workers):
    batches = make(source, rank=1, world_size=2)
    per_epoch = batches.blocks_in_epoch(0) // 2
    expected, positions = [], []
    for batch in itertools.islice(batches, 2 * per_epoch + 20):
        expected.append(batch)
        positions.append(batches.position)
    assert positions == sorted(set(positions))
    for consumed in (1, per_epoch - 1, per_epoch, per_epoch + 1, 2 * per_epoch + 3):
        for position in (positions[consumed - 1], 2 * consumed):  # a position, or a plain count of blocks
            fresh = make(source, rank=1, world_size=2)
            with contextlib.closing(Feed(fresh.tasks, num_workers=num_workers)) as feed:
                feed.seek(position)
                for index in range(consumed, consumed + 3):
                    assert same(next(feed), expected[index]) and feed.position == positions[index]


class CountingSource(TextSource):
    """Notes the epochs whose plan is asked for, and by which thread."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.asked = {}

    def lengths(self, seed, epoch):
        self.asked.setdefault(epoch, threading.current_thread())
        return super().lengths(seed, epoch)


def test_a_seek_needs_the_plan_of_its_epoch_and_of_the_first_for_the_bounds(store, vocab):
    source = CountingSource(store, vocab, MASKING)
    next(make(source, position=(1000 << EPOCH_SHIFT) + 2))
    assert set(source.asked) == {0, 1000}
    with pytest.raises(ValueError, match="negative"):
        next(make(source, position=-1))


def test_the_next_epoch_is_prepared_in_the_background_once_a_quarter_is_consumed(store, vocab):
    source = CountingSource(store, vocab, MASKING)
    batches = make(source, batch_size=4)
    count, stream = batches.blocks_in_epoch(0), iter(batches)
    for _ in range(count // 4 - 1):
        next(stream)
    time.sleep(0.2)
    assert set(source.asked) == {0}
    for _ in range(3):
        next(stream)
    until(lambda: 1 in source.asked)
    assert source.asked[1] is not threading.current_thread()
    for _ in range(count // 4):
        next(stream)
    assert set(source.asked) == {0, 1}


def test_static_masks_repeat_samples_and_shuffle_them(store, vocab, source):
    batches = make(TextSource(store, vocab, replace(MASKING, static_masks=True)))
    epochs = [
        [row for batch in take(batches, batches.blocks_in_epoch(epoch)) for row in rows_of(batch)]
        for epoch in range(3)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert epochs[0] != epochs[1] != epochs[2]
    fresh = source.collate(3, 0, np.arange(len(source.lengths(3, 0))), 64)
    assert sorted(epochs[2]) == sorted(rows_of(fresh))


def test_single_sentences(store, vocab):
    """Every sentence of the text once an epoch, alone, the beginning of one that is too long."""
    source = TextSource(store, vocab, MaskingConfig(16, 0.3, 0.15, 10, single_sentences=True))
    lengths, count = np.diff(store.sentences), store.num_sentences
    assert lengths.max() > 14
    np.testing.assert_array_equal(source.lengths(3, 1), np.minimum(lengths, 14) + 2)
    batch = source.collate(3, 1, np.arange(count), 16)
    for row, (begin, length) in enumerate(zip(store.sentences, lengths)):
        text = store.ids[begin : begin + min(length, 14)].tolist()
        assert unmasked(batch, row) == [vocab.cls_id, *text, vocab.sep_id]
        assert (batch.input_ids[row, len(text) + 2 :] == vocab.pad_id).all()
    assert not batch.segment_ids.any() and (batch.next_sentence_labels == -1).all()


@pytest.mark.parametrize("world_size", [1, 3, 40])
def test_evaluation_sees_every_sample_once_with_the_same_masks(source, world_size):
    count = len(source.lengths(0, 0))
    ranks = [list(evaluation_batches(source, 32, rank, world_size)) for rank in range(world_size)]
    batches = [batch for rank in ranks for batch in rank]
    seen = [row for batch in batches for row in rows_of(batch)]
    assert len(seen) == count and max(len(batch.input_ids) for batch in batches) <= 32
    assert max(map(len, ranks)) - min(map(len, ranks)) <= 1
    assert sorted(seen) == sorted(row for b in evaluation_batches(source, 9, 0, 1) for row in rows_of(b))


def test_a_control_has_the_text_of_others_around_its_own_predictions(store, vocab):
    source = TextSource(store, vocab, MaskingConfig(max_seq_length=64))
    batch = source.collate(0, 0, np.arange(0, 12), 64)
    others = source.collate(0, 0, np.arange(30, 42), 64)
    control = with_context_of(others, batch)
    assert control.input_ids is not batch.input_ids and control[1:] == batch[1:]
    special = (vocab.cls_id, vocab.sep_id)
    for row in range(12):
        text = [token for token in unmasked(others, row) if token not in special]
        own = unmasked(batch, row)
        predicted = set(batch.masked_positions[row, batch.masked_weights[row] > 0].tolist())
        expected, number = batch.input_ids[row].tolist(), 0
        for place, token in enumerate(own):
            if token not in special and place not in predicted:
                expected[place] = text[number % len(text)]
                number += 1
        assert control.input_ids[row].tolist() == expected
    assert (control.input_ids != batch.input_ids).mean() > 0.5


@pytest.mark.parametrize("world_size", [1, 3])
def test_every_batch_has_its_control_on_its_rank(store, vocab, world_size):
    source = TextSource(store, vocab, MaskingConfig(max_seq_length=64))
    for rank in range(world_size):
        batches = list(evaluation_batches(source, 8, rank, world_size))
        controls = list(control_batches(source, 8, rank, world_size))
        assert len(batches) == len(controls) > 2
        for batch, control in zip(batches, controls):
            for own, other in zip(batch[1:], control[1:]):
                assert np.array_equal(own, other)
            row, column = np.nonzero(batch.masked_weights)
            place = batch.masked_positions[row, column]
            assert np.array_equal(batch.input_ids[row, place], control.input_ids[row, place])
            assert (batch.input_ids != control.input_ids).any(axis=1).all(), "no sequence is its own control"


def test_a_store_of_another_vocabulary_is_refused(store):
    other = vocabulary_from_tokens(SPECIAL_TOKENS)
    with pytest.raises(InputError, match="another vocabulary"):
        TextSource(store, other, MASKING).lengths(0, 0)


def padding_share(store, length, batch_size, use_avg_len, num_buckets):
    source = TextSource(store, store.vocabulary, MaskingConfig(length, 0.1, 0.15, 20))
    batches = make(source, 0, 1, batch_size, use_avg_len, num_buckets)
    taken = take(batches, batches.blocks_in_epoch(0))
    rows, padded = batches.order(0).shapes()
    positions = sum(batch.input_ids.size for batch in taken)
    assert positions == (rows * padded).sum()
    return 1 - sum(int(batch.valid_lengths.sum()) for batch in taken) / positions


@pytest.fixture(scope="module")
def whole_corpus(embedded, vocab, tmp_path_factory):
    directory = str(tmp_path_factory.mktemp("whole") / "store")
    texts = sorted(glob.glob(str(embedded / "corpus" / "train-*.txt")))
    build_store(texts, TokenizerSettings(vocab), directory)
    return TokenStore.open(directory)


@pytest.mark.parametrize(
    "length, batch_size, use_avg_len, num_buckets",
    # With few samples many are left over, which costs up to a block of padding for each bucket: batches of 16
    # sequences for these two thousand samples of 512. Their documents are short, so that 70% of the samples
    # are of all lengths, and it takes 16 buckets.
    [(128, 8192, True, 10), (128, 64, False, 10), (512, 8192, True, 16), (512, 16, False, 16)],
)
def test_padding_is_below_5_percent(whole_corpus, length, batch_size, use_avg_len, num_buckets):
    assert padding_share(whole_corpus, length, batch_size, use_avg_len, num_buckets) < 0.05
    assert padding_share(whole_corpus, length, batch_size, use_avg_len, 1) > 0.075, "what buckets are for"


def test_sampling_tokenizers_have_a_store_for_each_epoch_and_others_one(embedded, vocab, sp_model, tmp_path):
    text = str(embedded / "corpus" / "eval.txt")

    def stores(tokenizer, words):
        """The stores that epochs 0, 1 and 10 leave in the cache."""
        cache = tmp_path / words.kind
        config = DataConfig(cache_dir=str(cache), tokenizer=tokenizer, masking=MASKING)
        opened = open_data(DataFiles(TEXT, (text,)), config, words, len(words), 1, SILENT)
        assert opened.tokens.num_documents > 5
        assert all(len(opened.source.lengths(0, epoch)) > 20 for epoch in (0, 1, 10))
        return [TokenStore.open(str(path)) for path in cache.glob("tokens-*") if path.is_dir()]

    assert len(stores(TokenizerConfig(), vocab)) == 1
    sampling = TokenizerConfig(sentencepiece=sp_model, sp_nbest=-1, sp_alpha=0.2)
    one, other = stores(sampling, load_sentencepiece(sp_model))  # epoch 10 samples as epoch 0 does
    assert not np.array_equal(one.ids, other.ids)


def test_a_dummy_batch_is_full_and_valid():
    batch = dummy_batch(4, 32, 5, 100, np.random.default_rng(0))
    assert batch.input_ids.shape == batch.segment_ids.shape == (4, 32)
    assert batch.valid_lengths.tolist() == [32] * 4 and batch.masked_weights.sum() == 20
    assert (np.diff(batch.masked_positions, axis=1) > 0).all() and batch.masked_positions.max() < 32
    assert batch.input_ids.max() < 100
    assert [array.dtype.name for array in batch] == [*["int32"] * 5, "float32", "int32"]
    assert dummy_batch(1, 8, 20, 100, np.random.default_rng(0)).masked_weights.sum() == 8
