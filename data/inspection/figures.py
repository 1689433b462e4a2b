"""Figures of samples, of the batches made of them and of the text they come from, as JSON can hold them."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import numpy as np

from data.inspection.decoding import KEPT, MASKED, REPLACED
from data.options import BatchingConfig
from data.pretraining.batches import PretrainingBatches
from data.pretraining.buckets import length_counts, padded_to
from data.pretraining.randomness import draw
from data.pretraining.sources import Source
from data.sharing import Share
from data.store.tokens import TokenStore
from data.tokenizing.vocab import WORD_START, Vocabulary

SAMPLED_SEQUENCES = (
    20_000  # of which masks and labels are counted: shares are then good to 0.4 percent points
)
SAMPLED_TOKENS = 1 << 24  # of a token store, whose frequencies are counted
FREQUENT_TOKENS = 20
_ROWS = 512
_SENTENCE_BLOCK = 1 << 15

# Of sequences of tokens that make up more of a text than words of a language do: mark-up, boilerplate.
SEARCHED_TOKENS = 1 << 19
LONGEST = 5  # tokens of a sequence: a vocabulary may need as many to spell <unk>
MARKER_SHARE = 0.005  # of the tokens, from which on something that looks like mark-up is reported
SINGLE_SHARE = 0.15  # of one token; "the", commas and full stops have 4 to 7% in English
SEQUENCE_SHARE = 0.05  # of two tokens or more that follow each other; "of the" has below 2%
_SEARCH_BLOCK = 1 << 14
_CANDIDATES = 40  # of each length
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MARKER = re.compile(r"</?[a-z]{1,8}/?>|\[[a-z]{2,8}\]|@[-,.]@|&[a-z]{2,6};")


def spread(counts: np.ndarray) -> dict[str, Any]:
    """Smallest, mean, median and largest of values counted in `counts` (by value), and the counts themselves.

    `counts` is int64, element v the number of times that v occurs; at least one value does.
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


def batch_facts(source: Source, batching: BatchingConfig, seed: int, epoch: int) -> dict[str, Any]:
    """Figures of an epoch's batches: by bucket, and the share of their positions that is padding.

    Counted over every batch of the epoch, of all ranks together; none of them is made for it.
    """
    lengths = source.lengths(seed, epoch)
    batches = PretrainingBatches(source, batching, seed, Share.of(0, 1))
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
        **asdict(batching),
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
    """Figures of the masks and of random next sentences; and how often each token id occurs.

    Counted over the whole epoch, or over `limit` samples spread evenly over it. The second result is int64,
    by token id, with the hidden tokens in their places and without [CLS], [SEP] and [PAD].
    """
    lengths = source.lengths(seed, epoch)
    chosen = _evenly(len(lengths), limit)
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
    """Occurrences of each token in the text, int64 (len(vocab),); in `limit` tokens spread over it."""
    counts = np.zeros(len(vocab), dtype=np.int64)
    block = 1 << 16
    for number in _evenly(-(-store.num_tokens // block), max(1, limit // block)).tolist():
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
    """Lengths of sentences in tokens (those above 512 count as 512) and of documents in sentences (64), and
    the sentences that stand in the text before, token by token, which takes 8 bytes of memory a sentence."""
    sentences = spread(length_counts(np.minimum(np.diff(store.sentences), 512)))
    documents = spread(length_counts(np.minimum(np.diff(store.documents), 64)))
    store.check()
    sentences["mean"] = store.num_tokens / store.num_sentences
    documents["mean"] = store.num_sentences / store.num_documents
    duplicates = store.num_sentences - len(np.unique(_sentence_hashes(store)))
    store.check()
    return {"sentence_lengths": sentences, "document_lengths": documents, "duplicate_sentences": duplicates}


def _sentence_hashes(store: TokenStore) -> np.ndarray:
    """64-bit words, uint64 (num_sentences,), that differ where the tokens of two sentences do (but for a
    chance of 2**-64 for each pair): sums of one word for each token and its place."""
    hashes = np.empty(store.num_sentences, dtype=np.uint64)
    for start in range(0, store.num_sentences, _SENTENCE_BLOCK):
        bounds = np.asarray(store.sentences[start : start + _SENTENCE_BLOCK + 1])
        begins, lengths = bounds[:-1] - bounds[0], np.diff(bounds)
        places = np.arange(bounds[-1] - bounds[0]) - np.repeat(begins, lengths)
        words = draw(
            store.ids[bounds[0] : bounds[-1]].astype(np.uint64) << np.uint64(32), places.astype(np.uint64)
        )
        hashes[start : start + len(lengths)] = np.add.reduceat(words, begins)
    return hashes


def repeated_sequences(store: TokenStore, vocab: Vocabulary) -> list[dict[str, Any]]:
    """The sequences of 1 to 5 tokens with an implausible share of the text, the largest share first.

    Each has its "text" (as it stands in the vocabulary, spaces between tokens), "joined" (without them),
    "share" of the tokens and "marker": whether it looks like mark-up (<unk>, @-@, [int]). One that is a part
    of another is left out, and so is [UNK]. Counted in SEARCHED_TOKENS tokens spread evenly over the store.
    """
    blocks = _evenly(-(-store.num_tokens // _SEARCH_BLOCK), SEARCHED_TOKENS // _SEARCH_BLOCK).tolist()
    parts = [store.ids[number * _SEARCH_BLOCK : (number + 1) * _SEARCH_BLOCK] for number in blocks]
    store.check()
    total = sum(map(len, parts))
    frequent: list[dict[str, Any]] = []
    for length in range(1, LONGEST + 1):
        for ids, count in _most_frequent(parts, length):
            if vocab.unk_id in ids or (length > 1 and len(set(ids)) == 1):  # "- - -" is one token's share
                continue
            tokens = [vocab.tokens[index] for index in ids]
            joined = "".join(
                token[2:] if token.startswith("##") and len(token) > 2 else token.replace(WORD_START, "")
                for token in tokens
            )
            share = count * length / total
            marker = length > 1 and _MARKER.fullmatch(joined.lower()) is not None
            least = MARKER_SHARE if marker else SINGLE_SHARE if length == 1 else SEQUENCE_SHARE
            if share >= least:
                text = " ".join(tokens)
                frequent.append({"text": text, "joined": joined, "share": share, "marker": marker})
    frequent.sort(key=lambda each: (not each["marker"], -each["share"]))
    kept: list[dict[str, Any]] = []
    for each in frequent:
        if not any(_overlap(each["text"], other["text"]) for other in kept):
            kept.append(each)
    return sorted(kept, key=lambda each: -each["share"])


def _most_frequent(parts: list[np.ndarray], length: int) -> list[tuple[tuple[int, ...], int]]:
    """The sequences of `length` ids that occur most often in the parts, and how often."""
    hashes, places = [], []
    for number, part in enumerate(parts):
        count = max(0, len(part) - length + 1)
        key = np.zeros(count, dtype=np.uint64)
        for offset in range(length):
            key = key * _FACTOR + part[offset : offset + count].astype(np.uint64) + np.uint64(1)
        hashes.append(key)
        places.append(number * _SEARCH_BLOCK + np.arange(count))
    _, first, counts = np.unique(np.concatenate(hashes), return_index=True, return_counts=True)
    at = np.concatenate(places)[first]
    result = []
    for index in np.argsort(-counts, kind="stable")[:_CANDIDATES].tolist():
        number, offset = divmod(int(at[index]), _SEARCH_BLOCK)
        ids = tuple(parts[number][offset : offset + length].tolist())
        result.append((ids, int(counts[index])))
    return result


def _overlap(one: str, other: str) -> bool:
    """True if one of two sequences is a part of the other, or begins where the other ends."""
    first, second = one.split(" "), other.split(" ")
    short, long = sorted((first, second), key=len)
    if any(long[start : start + len(short)] == short for start in range(len(long) - len(short) + 1)):
        return True
    return any(
        first[-size:] == second[:size] or second[-size:] == first[:size] for size in range(1, len(short) + 1)
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _evenly(total: int, limit: int) -> np.ndarray:
    """The numbers below `total`, or `limit` of them in equal steps, int64."""
    count = min(total, limit)
    return np.arange(count, dtype=np.int64) * total // count
