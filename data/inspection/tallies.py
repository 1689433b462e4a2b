"""Numbers about samples and the batches made of them, as plain values that JSON can hold."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from data.inspection.decoding import KEPT, MASKED, REPLACED
from data.inspection.sampling import evenly
from data.pretraining.batches import PretrainingBatches
from data.pretraining.buckets import length_counts, padded_to
from data.pretraining.sources import Source
from data.store.tokens import TokenStore
from data.tokenizing.vocab import Vocabulary

SAMPLED_SEQUENCES = (
    20_000  # of which masks and labels are counted: shares are then good to 0.4 percent points
)
SAMPLED_TOKENS = 1 << 24  # of a token store, whose frequencies are counted
FREQUENT_TOKENS = 20
_ROWS = 512
_BLOCK = 1 << 20


def spread(counts: np.ndarray) -> dict[str, Any]:
    """Smallest, mean, median and largest of values counted in `counts` (by value), and the counts themselves.

    `counts` is int64, element v telling how often v occurs; at least one value does.
    """
    occurring = np.flatnonzero(counts)
    total = int(counts.sum())
    below = np.cumsum(counts)
    return {
        "number": total,
        "smallest": int(occurring[0]),
        "mean": float((np.arange(len(counts)) * counts).sum() / total),
        "median": int(np.searchsorted(below, (total + 1) // 2)),
        "largest": int(occurring[-1]),
        "counts": [[int(value), int(counts[value])] for value in occurring],
    }


def difference_counts(ends: np.ndarray, most: int) -> np.ndarray:
    """How often neighbours in `ends` (rising, int64, (N + 1,)) differ by 0, 1, ..., `most` or more."""
    counts = np.zeros(most + 1, dtype=np.int64)
    for start in range(0, len(ends) - 1, _BLOCK):
        differences = np.diff(ends[start : start + _BLOCK + 1])
        counts += np.bincount(np.minimum(differences, most), minlength=most + 1)
    return counts


class BatchSettings(NamedTuple):
    """The options of a training that say how its batches are cut."""

    batch_size: int
    use_avg_len: bool
    num_buckets: int


def batch_facts(source: Source, settings: BatchSettings, seed: int, epoch: int) -> dict[str, Any]:
    """What an epoch's batches are like: by bucket, and the share of their positions that is padding.

    Counted over every batch of the epoch, of all ranks together; none of them is made for it.
    """
    lengths = source.lengths(seed, epoch)
    batches = PretrainingBatches(source, *settings, seed, 0, 1)
    rows, padded = batches.order(epoch).shapes()
    buckets = []
    lower = 0
    for full, bound in batches.shapes:
        # An epoch after the first may hold a longer sample than the last bound.
        inside = (padded > lower) & ((padded <= bound) | (bound == batches.shapes[-1][1]))
        buckets.append(
            {
                "shortest": lower + 1,
                "padded_to": bound,
                "sequences_per_batch": full,
                "batches": int(inside.sum()),
                "sequences": int(rows[inside].sum()),
            }
        )
        lower = bound
    tokens = int(lengths.sum(dtype=np.int64))
    positions = int((rows * padded).sum())
    return {
        **settings._asdict(),
        "buckets": buckets,
        "batches_per_epoch": len(rows),
        "sequences": len(lengths),
        "tokens": tokens,
        "positions": positions,
        "padding_share": 1 - tokens / positions,
        "tokens_per_batch": tokens / len(rows),
        "fullest_batch_positions": int((rows * padded).max()),
    }


def mask_facts(
    source: Source, seed: int, epoch: int, vocab: Vocabulary | None, limit: int = SAMPLED_SEQUENCES
) -> tuple[dict[str, Any], np.ndarray]:
    """What is masked, in what way, and how often B is random; and how often each token id occurs.

    Counted over the whole epoch, or over `limit` samples spread evenly over it. The second result is int64,
    by token id, with the hidden tokens in their places and without [CLS], [SEP] and [PAD].
    """
    lengths = source.lengths(seed, epoch)
    chosen = evenly(len(lengths), limit)
    fates = {MASKED: 0, KEPT: 0, REPLACED: 0}
    tokens = predictions = random_next = 0
    per_sequence = np.zeros(source.max_predictions + 1, dtype=np.int64)
    occurrences = np.zeros(len(vocab) if vocab is not None else 1, dtype=np.int64)
    for start in range(0, len(chosen), _ROWS):
        indices = chosen[start : start + _ROWS]
        batch = source.collate(
            seed, epoch, indices, padded_to(int(lengths[indices].max()), source.max_length)
        )
        row, column = np.nonzero(batch.masked_weights > 0)
        place = batch.masked_positions[row, column]
        originals = batch.masked_ids[row, column]
        shown = batch.input_ids[row, place]
        kept = shown == originals
        masked = ~kept & (shown == vocab.mask_id) if vocab is not None else np.zeros_like(kept)
        fates[KEPT] += int(kept.sum())
        fates[MASKED] += int(masked.sum())
        fates[REPLACED] += int((~kept & ~masked).sum())
        tokens += int(batch.valid_lengths.sum())
        predictions += len(row)
        random_next += int(batch.next_sentence_labels.sum())
        per_sequence += np.bincount(np.bincount(row, minlength=len(indices)), minlength=len(per_sequence))
        restored = batch.input_ids.copy()
        restored[row, place] = originals
        real = restored[np.arange(restored.shape[1]) < batch.valid_lengths[:, None]]
        counts = np.bincount(real, minlength=len(occurrences))
        counts[: len(occurrences)] += occurrences
        occurrences = counts
    if vocab is not None:
        occurrences[[vocab.cls_id, vocab.sep_id, vocab.pad_id]] = 0
    facts = {
        "sequences": len(chosen),
        "of": len(lengths),
        "tokens": tokens,
        "predictions": predictions,
        "predicted_share": predictions / tokens,
        "masked_share": _share(fates[MASKED], predictions),
        "replaced_share": _share(fates[REPLACED], predictions),
        "kept_share": _share(fates[KEPT], predictions),
        "random_next_share": random_next / len(chosen),
        "predictions_per_sequence": spread(per_sequence),
    }
    return facts, occurrences


def store_occurrences(store: TokenStore, vocab: Vocabulary, limit: int = SAMPLED_TOKENS) -> np.ndarray:
    """How often each token occurs in the text, int64 (len(vocab),); of `limit` tokens spread over it."""
    counts = np.zeros(len(vocab), dtype=np.int64)
    block = 1 << 16
    for number in evenly(-(-store.num_tokens // block), max(1, limit // block)).tolist():
        counts += np.bincount(store.ids[number * block : (number + 1) * block], minlength=len(vocab))
    store.check()
    return counts


def token_facts(occurrences: np.ndarray, vocab: Vocabulary | None) -> dict[str, Any]:
    """The most frequent tokens, the share of [UNK] and the share of the vocabulary that occurs."""
    total = int(occurrences.sum())
    order = np.argsort(-occurrences, kind="stable")[:FREQUENT_TOKENS]
    facts: dict[str, Any] = {
        "tokens": total,
        "most_frequent": [
            [int(each) if vocab is None else vocab.tokens[each], _share(int(occurrences[each]), total)]
            for each in order.tolist()
            if occurrences[each]
        ],
        "different": int((occurrences > 0).sum()),
    }
    if vocab is not None:
        facts["unknown_share"] = _share(int(occurrences[vocab.unk_id]), total)
        facts["vocabulary_used_share"] = facts["different"] / len(vocab)
    return facts


def text_facts(store: TokenStore) -> dict[str, Any]:
    """Lengths of sentences in tokens (those above 512 count as 512) and of documents in sentences (64)."""
    sentences = spread(difference_counts(store.sentences, 512))
    documents = spread(difference_counts(store.documents, 64))
    store.check()
    sentences["mean"] = store.num_tokens / store.num_sentences
    documents["mean"] = store.num_sentences / store.num_documents
    return {"sentence_lengths": sentences, "document_lengths": documents}


def length_facts(source: Source, seed: int, epoch: int) -> dict[str, Any]:
    """Lengths of the epoch's sequences in tokens, with [CLS] and [SEP], all of them."""
    return spread(length_counts(source.lengths(seed, epoch)))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
