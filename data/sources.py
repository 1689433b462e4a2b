"""Where samples come from: a token store, paired and masked anew each epoch, or npz files, masked already."""

from __future__ import annotations

import threading
from typing import Callable, NamedTuple, Protocol, Sequence

import numpy as np

from data.errors import InputError
from data.instances import MIN_SEQ_LENGTH, Pairs, mask, pair_plan
from data.npz import PretrainingArrays, read_npz
from data.streams import epoch_generator, sample_keys
from data.tokenizer import SentencePieceTokenizer, Tokenizer
from data.tokens import Progress, TokenStore, cached_store
from data.vocab import Vocabulary

MAX_SEQ_LENGTH = 512  # rows of BERT's position embedding
SAMPLED_STORES = 10  # segmentations kept when SentencePiece samples, then they repeat
_PAIRS_PURPOSE = 1
_EPOCHS_KEPT = 2  # while one epoch ends, prefetching already makes batches of the next


class Batch(NamedTuple):
    """One rank's batch as NumPy arrays: B sequences padded to L tokens, each with up to P predictions.

    `next_sentence_labels` are GluonNLP's and Google's: 1 where B is a random sentence, 0 where it really
    follows A.
    """

    input_ids: np.ndarray  # int32 (B, L), padded with [PAD]
    segment_ids: np.ndarray  # int32 (B, L), 0 for [CLS] A [SEP] and padding, 1 for B [SEP]
    valid_lengths: np.ndarray  # int32 (B,), tokens that are not padding
    masked_positions: np.ndarray  # int32 (B, P), padded with 0
    masked_ids: np.ndarray  # int32 (B, P), the tokens to predict, padded with 0
    masked_weights: np.ndarray  # float32 (B, P), 0 for padding
    next_sentence_labels: np.ndarray  # int32 (B,)


class Source(Protocol):
    """Samples of an epoch by index. Sample i of epoch e is a pure function of (seed, e, i).

    `max_length` bounds every sample's length; `max_predictions` is P of every batch.
    """

    max_length: int
    max_predictions: int

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        """Length in tokens of each sample of the epoch, int32 of shape (N,), N >= 1."""
        ...

    def collate(self, seed: int, epoch: int, indices: np.ndarray, padded_length: int) -> Batch:
        """The samples `indices` as a batch padded to `padded_length`, no less than any of their lengths."""
        ...


class RawSource:
    """Samples from a token store: a fresh pairing and a fresh mask every epoch.

    `store` may also be a function from the epoch to its store, for tokenizers that sample. An epoch's plan
    takes 33 bytes a sample; the last two are kept. Raises InputError for options out of range.
    """

    def __init__(
        self,
        store: TokenStore | Callable[[int], TokenStore],
        vocab: Vocabulary,
        max_seq_length: int,
        short_seq_prob: float,
        masked_lm_prob: float,
        max_predictions_per_seq: int,
        whole_word_mask: bool = False,
    ) -> None:
        if not MIN_SEQ_LENGTH <= max_seq_length <= MAX_SEQ_LENGTH:
            raise InputError(
                f"--max_seq_length {max_seq_length}: must be from {MIN_SEQ_LENGTH} to {MAX_SEQ_LENGTH}, "
                "the positions that BERT has"
            )
        if not 0 <= short_seq_prob <= 1:
            raise InputError(f"--short_seq_prob {short_seq_prob}: must be from 0 to 1")
        if not 0 < masked_lm_prob <= 1:
            raise InputError(f"--masked_lm_prob {masked_lm_prob}: must be above 0 and at most 1")
        if max_predictions_per_seq < 1:
            raise InputError(f"--max_predictions_per_seq {max_predictions_per_seq}: must be at least 1")
        self.max_length = max_seq_length
        self.max_predictions = max_predictions_per_seq
        self._store_of: Callable[[int], TokenStore]
        if isinstance(store, TokenStore):
            fixed = store
            self._store_of = lambda epoch: fixed
        else:
            self._store_of = store
        self._vocab = vocab
        self._short_seq_prob = short_seq_prob
        self._masked_lm_prob = masked_lm_prob
        self._whole_word_mask = whole_word_mask
        self._plans: dict[tuple[int, int], tuple[TokenStore, Pairs]] = {}
        self._lock = threading.Lock()

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        """Length in tokens of each sample of the epoch, int32 of shape (N,)."""
        return self._plan(seed, epoch)[1].lengths()

    def collate(self, seed: int, epoch: int, indices: np.ndarray, padded_length: int) -> Batch:
        """The samples `indices`, masked, as a batch padded to `padded_length`."""
        store, pairs = self._plan(seed, epoch)
        input_ids, segment_ids, valid_lengths = _assemble(store, pairs, indices, padded_length, self._vocab)
        keys = sample_keys(seed, epoch, indices)
        corrupted, positions, masked_ids, weights = mask(
            input_ids,
            valid_lengths,
            keys,
            self._vocab,
            self._masked_lm_prob,
            self.max_predictions,
            self._whole_word_mask,
        )
        labels = pairs.is_random[indices].astype(np.int32)
        return Batch(corrupted, segment_ids, valid_lengths, positions, masked_ids, weights, labels)

    def _plan(self, seed: int, epoch: int) -> tuple[TokenStore, Pairs]:
        with self._lock:
            if (seed, epoch) not in self._plans:
                store = self._store_of(epoch)
                if store.vocabulary_sha256 != self._vocab.sha256:
                    raise InputError(
                        "the token store was made with another vocabulary; tokenize the text again"
                    )
                rng = epoch_generator(seed, epoch, _PAIRS_PURPOSE)
                pairs = pair_plan(store, self.max_length, self._short_seq_prob, rng)
                while len(self._plans) >= _EPOCHS_KEPT:
                    del self._plans[next(iter(self._plans))]
                self._plans[seed, epoch] = (store, pairs)
            return self._plans[seed, epoch]


def epoch_stores(
    paths: Sequence[str],
    tokenizer_of: Callable[[int], Tokenizer],
    vocab: Vocabulary,
    cache_dir: str,
    progress: Progress | None = None,
) -> TokenStore | Callable[[int], TokenStore]:
    """What RawSource takes as `store`: one store, or for a tokenizer that samples one for each of ten epochs.

    `tokenizer_of` makes the tokenizer from a seed. Sampling (--sp_nbest other than 0 and 1) costs one
    tokenization an epoch and the disk of ten stores; from the eleventh epoch on the ten are used again.
    """
    first = tokenizer_of(0)
    if not (isinstance(first, SentencePieceTokenizer) and first.samples):
        return cached_store(paths, first, vocab, cache_dir, progress)

    def store_of(epoch: int) -> TokenStore:
        return cached_store(paths, tokenizer_of(epoch % SAMPLED_STORES), vocab, cache_dir, progress)

    return store_of


class NpzSource:
    """Samples from GluonNLP's npz files, with the pairs and masks stored in them: the same every epoch.

    All files are held in memory. `vocab_size` bounds the token ids and `pad_id` fills short sequences.
    Raises InputError as `data.npz.read_npz`, and for sequences longer than 512.
    """

    def __init__(self, paths: Sequence[str], vocab_size: int, pad_id: int = 0) -> None:
        parts = [read_npz(path, vocab_size) for path in paths]
        for path, part in zip(paths, parts):
            if part.valid_lengths.max() > MAX_SEQ_LENGTH:
                raise InputError(
                    f"{path}: valid_lengths holds {part.valid_lengths.max()}, above {MAX_SEQ_LENGTH}"
                )
        self._arrays = PretrainingArrays(*(_stack(column) for column in zip(*parts)))
        self._pad_id = pad_id
        self.max_length = int(self._arrays.valid_lengths.max())
        self.max_predictions = self._arrays.masked_lm_positions.shape[1]

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        """Length in tokens of each sample, int32 of shape (N,)."""
        return self._arrays.valid_lengths

    def collate(self, seed: int, epoch: int, indices: np.ndarray, padded_length: int) -> Batch:
        """The samples `indices` as a batch padded to `padded_length`."""
        arrays = PretrainingArrays(*(column[indices] for column in self._arrays))
        outside = np.arange(padded_length) >= arrays.valid_lengths[:, None]
        input_ids = _fit_width(arrays.input_ids, padded_length)
        segment_ids = _fit_width(arrays.segment_ids, padded_length)
        input_ids[outside] = self._pad_id
        segment_ids[outside] = 0
        unused = arrays.masked_lm_weights == 0
        positions = arrays.masked_lm_positions.astype(np.int32)
        masked_ids = arrays.masked_lm_ids.astype(np.int32)
        positions[unused] = 0
        masked_ids[unused] = 0
        return Batch(
            input_ids,
            segment_ids,
            arrays.valid_lengths.astype(np.int32),
            positions,
            masked_ids,
            arrays.masked_lm_weights.astype(np.float32),
            arrays.next_sentence_labels.astype(np.int32),
        )


def dummy_batch(
    batch_size: int, length: int, max_predictions: int, vocab_size: int, rng: np.random.Generator
) -> Batch:
    """A batch of random tokens without padding, for measuring speed (--dummy_data_len)."""
    predictions = min(max_predictions, length)
    order = np.argsort(rng.random((batch_size, length)), axis=1)[:, :predictions]
    segment_ids = np.zeros((batch_size, length), dtype=np.int32)
    segment_ids[:, length // 2 :] = 1
    return Batch(
        rng.integers(0, vocab_size, (batch_size, length), dtype=np.int32),
        segment_ids,
        np.full(batch_size, length, dtype=np.int32),
        _fit_width(np.sort(order, axis=1), max_predictions),
        _fit_width(rng.integers(0, vocab_size, (batch_size, predictions)), max_predictions),
        _fit_width(np.ones((batch_size, predictions)), max_predictions).astype(np.float32),
        rng.integers(0, 2, batch_size, dtype=np.int32),
    )


def _assemble(
    store: TokenStore, pairs: Pairs, indices: np.ndarray, padded_length: int, vocab: Vocabulary
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """[CLS] A [SEP] B [SEP] of each pair: ids and segments int32 (B, L), valid lengths int32 (B,)."""
    a_start, b_start = pairs.a_start[indices], pairs.b_start[indices]
    a_length, b_length = pairs.a_end[indices] - a_start, pairs.b_end[indices] - b_start
    valid_lengths = (a_length + b_length + 3).astype(np.int32)
    place = np.arange(padded_length)
    after_a = place >= (a_length + 2)[:, None]
    outside = place >= valid_lengths[:, None]
    source = np.where(after_a, (b_start - a_length - 2)[:, None], (a_start - 1)[:, None])
    source += place
    # Places of special tokens and padding point beside the range or the store; they are overwritten below.
    input_ids = store.ids.take(source, mode="clip").astype(np.int32)
    rows = np.arange(len(indices))
    input_ids[:, 0] = vocab.cls_id
    input_ids[rows, a_length + 1] = vocab.sep_id
    input_ids[rows, valid_lengths - 1] = vocab.sep_id
    input_ids[outside] = vocab.pad_id
    segment_ids = (after_a & ~outside).astype(np.int32)
    return input_ids, segment_ids, valid_lengths


def _fit_width(array: np.ndarray, width: int) -> np.ndarray:
    """A new int32 array (B, width), cut or padded with 0."""
    fitted = np.zeros((len(array), width), dtype=np.int32)
    shared = min(width, array.shape[1])
    fitted[:, :shared] = array[:, :shared]
    return fitted


def _stack(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate rows of arrays of one or two dimensions, padding narrower ones with 0."""
    if arrays[0].ndim == 1:
        return np.concatenate(arrays)
    shape = (sum(len(array) for array in arrays), max(array.shape[1] for array in arrays))
    stacked = np.zeros(shape, dtype=arrays[0].dtype)
    row = 0
    for array in arrays:
        stacked[row : row + len(array), : array.shape[1]] = array
        row += len(array)
    return stacked
