from __future__ import annotations

import itertools

import numpy as np
import pytest

from data.batches import (
    NpzSource,
    PretrainingBatches,
    RawSource,
    dummy_batch,
    evaluation_batches,
    prefetched,
    write_evaluation_set,
)
from data.errors import InputError
from data.raw_source import epoch_stores
from data.tokenizer import SentencePieceTokenizer, WordPieceTokenizer, load_sentencepiece


@pytest.fixture
def source(store, vocab):
    return RawSource(store, vocab, 64, 0.3, 0.15, 10)


def make(source, rank=0, world_size=1, batch_size=16, use_avg_len=False, num_buckets=4, seed=3, shuffle=True):
    return PretrainingBatches(source, batch_size, use_avg_len, num_buckets, seed, rank, world_size, shuffle)


def rows_of(batch):
    """Each row of a batch as something that can be compared and counted, without its padding."""
    return [
        (
            batch.input_ids[row, : batch.valid_lengths[row]].tobytes(),
            batch.segment_ids[row, : batch.valid_lengths[row]].tobytes(),
            batch.masked_positions[row].tobytes(),
            batch.masked_ids[row].tobytes(),
            batch.masked_weights[row].tobytes(),
            int(batch.next_sentence_labels[row]),
        )
        for row in range(len(batch.valid_lengths))
    ]


def same(left, right):
    return all(np.array_equal(one, other) for one, other in zip(left, right))


def take(batches, count):
    return list(itertools.islice(batches, count))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("batching", [(16, False), (7, False), (500, True)], ids=["16", "7", "500 tokens"])
def test_every_sample_once_an_epoch_and_one_shape_for_all_ranks(source, world_size, batching):
    batch_size, use_avg_len = batching
    count = len(source.lengths(3, 0))
    ranks = [make(source, rank, world_size, batch_size, use_avg_len) for rank in range(world_size)]
    per_epoch = ranks[0].batches_per_epoch(0)
    seen, irregular = [], 0
    for step in zip(*(take(rank, per_epoch) for rank in ranks)):
        assert len({batch.input_ids.shape[1] for batch in step}) == 1
        irregular += any(batch.input_ids.shape not in ranks[0].shapes for batch in step)
        for batch in step:
            assert batch.masked_ids.shape[1] == 10
            assert not use_avg_len or batch.input_ids.size <= 500
            seen += rows_of(batch)
    everything = source.collate(3, 0, np.arange(count), 64)
    assert sorted(seen) == sorted(rows_of(everything)) and len(seen) == count
    assert irregular <= 2


def test_a_row_is_what_its_pair_and_mask_say(store, source, vocab):
    batch = next(iter(make(source)))
    for row in range(len(batch.input_ids)):
        length, ids = batch.valid_lengths[row], batch.input_ids[row].copy()
        predictions = int(batch.masked_weights[row].sum())
        ids[batch.masked_positions[row, :predictions]] = batch.masked_ids[row, :predictions]
        separators = np.flatnonzero(ids[:length] == vocab.sep_id)
        assert ids[0] == vocab.cls_id and len(separators) == 2 and separators[1] == length - 1
        assert (ids[length:] == vocab.pad_id).all()
        b_start = separators[0] + 1
        padding = batch.input_ids.shape[1] - length
        assert batch.segment_ids[row].tolist() == [0] * b_start + [1] * (length - b_start) + [0] * padding
        a, b = ids[1 : separators[0]], ids[b_start : length - 1]
        assert occurs(a, store.ids) and occurs(b, store.ids)
        if not batch.next_sentence_labels[row] and length < 64:
            assert occurs(np.concatenate([a, b]), store.ids)


def occurs(needle, haystack):
    starts = np.flatnonzero(haystack[: len(haystack) - len(needle) + 1] == needle[0])
    return any((haystack[start : start + len(needle)] == needle).all() for start in starts)


def test_every_epoch_pairs_and_masks_anew(source):
    batches = make(source, num_buckets=1)
    epochs = [
        {row[0] for batch in take(batches, batches.batches_per_epoch(epoch)) for row in rows_of(batch)}
        for epoch in range(2)
    ]
    assert len(epochs[0] & epochs[1]) < 0.02 * len(epochs[0])


def test_the_mask_alone_changes_with_the_epoch(source):
    one, two = (source.collate(0, epoch, np.arange(50), 64) for epoch in (0, 1))
    assert same(one, source.collate(0, 0, np.arange(50), 64))
    assert not np.array_equal(one.masked_positions, two.masked_positions)


def test_the_same_seed_gives_the_same_batches_in_a_new_process_and_another_seed_others(store, vocab):
    def some(seed):
        return take(make(RawSource(store, vocab, 64, 0.3, 0.15, 10), seed=seed), 10)

    assert all(same(one, two) for one, two in zip(some(3), some(3)))
    assert not all(same(one, two) for one, two in zip(some(3), some(4)))


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_seeking_equals_iterating_across_epochs(source, num_workers):
    batches = make(source, rank=1, world_size=2)
    per_epoch = batches.batches_per_epoch(0)
    batches.seek(0)
    expected, positions = [], []
    for batch in itertools.islice(batches, 2 * per_epoch + 20):
        expected.append(batch)
        positions.append(batches.position)
    assert positions == sorted(set(positions))
    for consumed in (1, 7, per_epoch - 1, per_epoch, per_epoch + 1, 2 * per_epoch + 3):
        for position in (positions[consumed - 1], consumed):  # a position, or a plain count of batches
            fresh = make(source, rank=1, world_size=2)
            fresh.seek(position)
            with prefetched(fresh, 4, num_workers) as ahead:
                for index in range(consumed, consumed + 3):
                    assert same(next(ahead), expected[index])
                    assert fresh.position == positions[index]


def test_prefetching_counts_what_was_taken_and_not_what_was_made(source):
    batches = make(source)
    with prefetched(batches, 8, 2) as ahead:
        assert batches.position == 0
        for count in (1, 2, 3):
            next(ahead)
            assert batches.position == count


def test_an_error_while_collating_reaches_the_consumer(source):
    source.collate = lambda *arguments: 1 / 0
    with prefetched(make(source), 4, 2) as ahead, pytest.raises(ZeroDivisionError):
        next(ahead)


def test_repeated_samples_are_announced_by_rank_0_alone(source, recwarn):
    count = len(source.lengths(3, 0))
    make(source, rank=0, world_size=count - 1, batch_size=1, num_buckets=1)
    make(source, rank=1, world_size=count - 1, batch_size=1, num_buckets=1)
    assert [str(warning.message)[:8] for warning in recwarn.list] == ["epoch 0:"]


def test_without_shuffling_samples_come_in_order(source):
    batches = make(source, num_buckets=1, shuffle=False)
    expected = source.collate(3, 0, np.arange(16), batches.shapes[-1][1])
    assert same(next(iter(batches)), expected)


def test_a_negative_position_is_refused(source):
    with pytest.raises(ValueError, match="negative"):
        make(source).seek(-1)


@pytest.mark.parametrize("world_size", [1, 2, 3, 40])
def test_evaluation_sees_every_sample_once_with_the_same_masks(source, world_size):
    count = len(source.lengths(0, 0))
    seen = []
    for rank in range(world_size):
        for batch in evaluation_batches(source, 32, rank, world_size):
            assert len(batch.input_ids) <= 32
            seen += rows_of(batch)
    assert len(seen) == count
    assert sorted(seen) == sorted(row for b in evaluation_batches(source, 9, 0, 1) for row in rows_of(b))


def test_the_written_evaluation_set_is_the_same_samples(source, vocab, tmp_path):
    path = str(tmp_path / "eval.npz")
    write_evaluation_set(source, path)
    written = NpzSource([path], len(vocab), vocab.pad_id)
    original = [row for batch in evaluation_batches(source, 16, 0, 1) for row in rows_of(batch)]
    assert [row for batch in evaluation_batches(written, 16, 0, 1) for row in rows_of(batch)] == original


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"max_seq_length": 513}, "--max_seq_length 513: must be from 5 to 512"),
        ({"max_seq_length": 4}, "--max_seq_length 4"),
        ({"short_seq_prob": 1.1}, "--short_seq_prob 1.1"),
        ({"short_seq_prob": float("nan")}, "--short_seq_prob nan"),
        ({"masked_lm_prob": 0.0}, "--masked_lm_prob 0.0"),
        ({"masked_lm_prob": -1.0}, "--masked_lm_prob -1.0"),
        ({"max_predictions_per_seq": 0}, "--max_predictions_per_seq 0"),
    ],
)
def test_options_out_of_range_name_their_flag(store, vocab, changes, message):
    options = {
        "max_seq_length": 64,
        "short_seq_prob": 0.1,
        "masked_lm_prob": 0.15,
        "max_predictions_per_seq": 10,
    }
    with pytest.raises(InputError, match=message):
        RawSource(store, vocab, **{**options, **changes})


def test_a_store_of_another_vocabulary_is_refused(store):
    from data.vocab import vocabulary_from_tokens

    other = vocabulary_from_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    with pytest.raises(InputError, match="another vocabulary"):
        RawSource(store, other, 64, 0.1, 0.15, 10).lengths(0, 0)


@pytest.mark.parametrize("max_seq_length", [5, 37, 512])
def test_extreme_lengths(store, vocab, max_seq_length):
    source = RawSource(store, vocab, max_seq_length, 0.1, 0.15, 80)
    batches = make(source, batch_size=2048, use_avg_len=True, num_buckets=10)
    for batch in take(batches, 5):
        assert batch.input_ids.shape[1] <= max_seq_length
        assert (batch.masked_weights.sum(axis=1) >= 1).all()


def test_padding_is_little_with_buckets(store, vocab):
    source = RawSource(store, vocab, 128, 0.1, 0.15, 20)
    batches = make(source, batch_size=2048, use_avg_len=True, num_buckets=10)
    taken = take(batches, batches.batches_per_epoch(0))
    real = sum(int(batch.valid_lengths.sum()) for batch in taken)
    assert real / sum(batch.input_ids.size for batch in taken) > 0.94


def test_tokenizers_that_do_not_sample_have_one_store(embedded, vocab, tmp_path):
    paths = [str(embedded / "corpus" / "eval.txt")]
    store = epoch_stores(paths, lambda seed: WordPieceTokenizer(vocab), vocab, str(tmp_path))
    assert store.num_documents > 5 and len(list(tmp_path.iterdir())) == 1


def test_sampling_tokenizers_have_a_store_for_each_epoch(embedded, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    text = embedded / "corpus" / "eval.txt"
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(tmp_path / "m"),
        vocab_size=500,
        user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"],
        pad_id=3,
        minloglevel=2,
    )
    model = str(tmp_path / "m.model")
    vocab = load_sentencepiece(model)
    cache = tmp_path / "cache"
    stores = epoch_stores(
        [str(text)],
        lambda seed: SentencePieceTokenizer(model, vocab, nbest=-1, alpha=0.2, seed=seed),
        vocab,
        str(cache),
    )
    source = RawSource(stores, vocab, 64, 0.1, 0.15, 10)
    assert all(len(source.lengths(0, epoch)) > 20 for epoch in (0, 1, 10))
    assert len(list(cache.iterdir())) == 2, "epoch 10 samples as epoch 0 does"
    assert not np.array_equal(stores(0).ids, stores(1).ids)


def test_a_dummy_batch_is_full_and_valid():
    batch = dummy_batch(4, 32, 5, 100, np.random.default_rng(0))
    assert batch.input_ids.shape == batch.segment_ids.shape == (4, 32)
    assert batch.valid_lengths.tolist() == [32] * 4 and batch.masked_weights.sum() == 20
    assert (np.diff(batch.masked_positions, axis=1) > 0).all() and batch.masked_positions.max() < 32
    assert batch.input_ids.max() < 100
    expected = ["int32", "int32", "int32", "int32", "int32", "float32", "int32"]
    assert [array.dtype.name for array in batch] == expected
    assert dummy_batch(1, 8, 20, 100, np.random.default_rng(0)).masked_weights.sum() == 8
