"""Sentence pairs: how BERT's pretraining cuts documents into instances, as a pure function of a key.

The algorithm is that of Google's create_pretraining_data.py (Devlin et al., arXiv:1810.04805, section A.2).
It walks through a document chunk by chunk, each chunk's place depending on the draws for the one before, but
documents do not depend on each other: thousands of them are walked through in lock step, so that every NumPy
call does one chunk of each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import NamedTuple

import numpy as np

from base.errors import InputError
from data.pretraining.randomness import draw, fractions, ones_among
from data.store.tokens import TokenStore
from data.tokenizing.vocab import Vocabulary

_LANES = 4096  # documents in lock step: their state stays in the cache
_FEW_LANES = 12  # fewer are faster one by one
_WINDOW_DOCUMENTS = 1 << 16  # documents whose pairs are put in order together; numbers fit 16 bits
_WINDOW_CHUNKS = 1 << 18  # ... and about so many pairs: bounds memory

# A document's random words: two for its target length, then eight for each chunk.
_IS_SHORT, _SHORT_LENGTH = 0, 1
_CHUNK_WORDS = 8
_SPLIT, _IS_RANDOM, _OTHER_DOCUMENT, _OTHER_SENTENCE, _CUT_A, _CUT_B = range(6)


class Pairs(NamedTuple):
    """Sentence pairs as ranges of token positions in a store, one row an instance, all of shape (N,).

    Rows come by document, then by place in it. 13 bytes a pair, or 21 for stores of 2**32 tokens and more.
    A single sentence has no B: its length is 0.
    """

    a_start: np.ndarray  # uint32 or int64
    a_length: np.ndarray  # uint16
    b_start: np.ndarray  # uint32 or int64
    b_length: np.ndarray  # uint16
    is_random: np.ndarray  # bool, True where B comes from another document

    def lengths(self) -> np.ndarray:
        """Sequence lengths with [CLS] and a [SEP] after A and after B, int32 of shape (N,)."""
        lengths = self.a_length.astype(np.int32)
        lengths += self.b_length
        lengths += 2
        lengths += self.b_length > 0
        return lengths

    @property
    def nbytes(self) -> int:
        """Memory held, in bytes."""
        return sum(column.nbytes for column in self)


def pair_plan(store: TokenStore, max_seq_length: int, short_seq_prob: float, key: int) -> Pairs:
    """Pair up all sentences of the store, document by document.

    A document draws a target length: max_seq_length - 3, or with probability `short_seq_prob` uniform from 2
    to that. Sentences are collected until they reach it and split at a random sentence into A and B. With
    probability one half, or when there is a single sentence, B is replaced by sentences from a random place
    in another document and the unused ones are returned. A pair that is too long loses tokens from the front
    or back, at random, of its longer half.
    `key` is 64 random bits (pretraining.randomness.epoch_key); a document's pairs depend on it and on its
    number alone.
    Raises InputError when the store has a single document, which leaves no other to take a random B from.
    """
    if store.num_documents < 2:
        raise InputError(
            "the text has a single document, but next-sentence prediction needs two or more: "
            "separate documents by blank lines"
        )
    max_tokens, start = max_seq_length - 3, _start_dtype(store)
    columns = [np.empty(0, dtype) for dtype in (start, np.uint16, start, np.uint16, bool)]
    first = rows = 0
    while first < store.num_documents:
        tokens = store.sentences[store.documents[first : first + _WINDOW_DOCUMENTS + 1]]
        limit = tokens[0] + _WINDOW_CHUNKS * max_tokens
        last = first + max(1, int(np.searchsorted(tokens, limit, side="right")) - 1)
        window = _Window(store, (first, last), max_tokens, short_seq_prob, key).pairs()
        rows += len(window.a_start)
        for column, more in zip(columns, window):
            # In its place: beside a list of parts, the heap would keep the holes that these leave.
            column.resize(rows, refcheck=False)
            column[rows - len(more) :] = more
        del window, more
        first = last
    return Pairs(*columns)


def single_plan(store: TokenStore, max_seq_length: int) -> Pairs:
    """Every sentence of the store alone, in order; of one that is too long the beginning."""
    begin = store.sentences[:-1].astype(_start_dtype(store))
    length = np.minimum(np.diff(store.sentences), max_seq_length - 2).astype(np.uint16)
    nothing = np.zeros(len(begin), np.uint16)
    return Pairs(begin, length, begin, nothing, nothing.astype(bool))


def _start_dtype(store: TokenStore) -> np.dtype:
    return np.dtype(np.uint32 if store.num_tokens < 1 << 32 else np.int64)


class _Chunks(NamedTuple):
    """Chunks of one or several steps: tokens of A and B before anything is cut, all of shape (n,)."""

    document: np.ndarray  # uint16, counted from the window's first
    a_start: np.ndarray  # int64
    a_length: np.ndarray  # int64
    b_start: np.ndarray  # int64
    b_length: np.ndarray  # int64
    is_random: np.ndarray  # bool


class _Window:
    """Documents whose pairs are put in order together."""

    def __init__(
        self, store: TokenStore, documents: tuple[int, int], max_tokens: int, short_seq_prob: float, key: int
    ) -> None:
        """`documents`: the first, and the one after the last."""
        self._offsets, self._documents = store.sentences, store.documents
        self._num_documents, self._max_tokens = store.num_documents, max_tokens
        self._first, last = documents
        self._bounds = self._documents[self._first : last + 1]  # sentences before each
        numbers = np.arange(self._first, last, dtype=np.uint64)
        self._keys = draw(np.array([key], dtype=np.uint64), numbers)
        words = draw(self._keys[:, None], np.array([[_IS_SHORT, _SHORT_LENGTH]], dtype=np.uint64))
        chance = fractions(words)
        short = 2 + (chance[:, 1] * (max_tokens - 1)).astype(np.int64)
        self._targets = np.where(chance[:, 0] < short_seq_prob, short, max_tokens)  # tokens of a pair

    def pairs(self) -> Pairs:
        """The pairs of the documents, in their order."""
        chunks = self._chunks()
        order = np.argsort(chunks.document, kind="stable")  # a radix sort for 16 bits
        chunks = _Chunks(*(column[order] for column in chunks))
        per_document = np.bincount(chunks.document, minlength=len(self._keys))
        place = np.arange(len(order)) - np.repeat(np.cumsum(per_document) - per_document, per_document)
        return self._cut(chunks, self._keys[chunks.document], place)

    def _chunks(self) -> _Chunks:
        """All chunks of the documents, those of one document in rising order."""
        bounds = self._bounds
        # Those with most chunks begin first, so that at the end few long ones are not left alone.
        expected = np.diff(self._offsets[bounds]) / self._targets
        queue = np.argsort(-expected, kind="stable")
        document, queue = queue[:_LANES].copy(), queue[_LANES:]
        sentence, number = bounds[document], np.zeros(len(document), dtype=np.int64)
        parts: list[_Chunks] = []
        while len(queue) or len(document) >= _FEW_LANES:
            chunks, sentence = self._step(document, sentence, number)
            parts.append(chunks)
            number += 1
            over = np.flatnonzero(sentence >= bounds[document + 1])
            if len(over):
                fresh, queue = queue[: len(over)], queue[len(over) :]
                filled = over[: len(fresh)]
                document[filled], sentence[filled], number[filled] = fresh, bounds[fresh], 0
                if len(fresh) < len(over):
                    keep = np.ones(len(document), dtype=bool)
                    keep[over[len(fresh) :]] = False
                    document, sentence, number = document[keep], sentence[keep], number[keep]
        for lane in range(len(document)):
            parts.append(self._rest_of_document(int(document[lane]), int(sentence[lane]), number[lane]))
        return _Chunks(*(np.concatenate(columns) for columns in zip(*parts)))

    def _step(
        self, document: np.ndarray, sentence: np.ndarray, number: np.ndarray
    ) -> tuple[_Chunks, np.ndarray]:
        """The next chunk of each lane, which begins at `sentence`, and the sentence after what it used."""
        offsets = self._offsets
        end, target, keys = self._bounds[document + 1], self._targets[document], self._keys[document]
        split_chance, random_chance, document_chance, sentence_chance = _chances(keys, number)
        start = offsets[sentence]
        stop = _reach(offsets, start + target, sentence, end)
        more = stop - sentence - 1  # sentences of the chunk after the first
        split = sentence + 1 + (split_chance * more).astype(np.int64)
        is_random = (more == 0) | (random_chance < 0.5)
        a_length = offsets[split] - start

        row = np.flatnonzero(is_random)
        other = (document_chance[row] * (self._num_documents - 1)).astype(np.int64)
        other += other >= document[row] + self._first
        low, high = self._documents[other], self._documents[other + 1]
        begin = low + (sentence_chance[row] * (high - low)).astype(np.int64)
        wanted = np.maximum(target[row] - a_length[row], 1)
        b_first, b_last = split.copy(), stop.copy()
        b_first[row] = begin
        b_last[row] = _reach(offsets, offsets[begin] + wanted, begin, high)
        b_start = offsets[b_first]
        chunks = _Chunks(
            document.astype(np.uint16), start, a_length, b_start, offsets[b_last] - b_start, is_random
        )
        return chunks, np.where(is_random, split, stop)

    def _rest_of_document(self, document: int, sentence: int, number: int) -> _Chunks:
        """The same for one document alone, chunk by chunk: a huge one would keep NumPy busy with one lane."""
        end, target, key = int(self._bounds[document + 1]), int(self._targets[document]), self._keys[document]
        # memoryview elements are Python integers without the cost of NumPy scalars, and bisect takes them.
        offsets: memoryview = memoryview(self._offsets)  # type: ignore[arg-type]
        bounds: memoryview = memoryview(self._documents)  # type: ignore[arg-type]
        a_start, a_length, b_start, b_length = array("q"), array("q"), array("q"), array("q")
        is_random = bytearray()
        chances: list[list[float]] = []
        while sentence < end:
            if not chances:
                ahead = np.arange(number, number + 1024)
                chances = _chances(np.full(1024, key), ahead).T.tolist()[::-1]
                number += 1024
            chance = chances.pop()
            start = offsets[sentence]
            stop = bisect_left(offsets, start + target, sentence + 1, end)
            count = stop - sentence
            split = sentence + 1 + int(chance[_SPLIT] * max(count - 1, 0))
            random = count == 1 or chance[_IS_RANDOM] < 0.5
            begin, last = split, stop
            if random:
                other = int(chance[_OTHER_DOCUMENT] * (self._num_documents - 1))
                other += other >= document + self._first
                low, high = bounds[other], bounds[other + 1]
                begin = low + int(chance[_OTHER_SENTENCE] * (high - low))
                wanted = max(target - (offsets[split] - start), 1)
                last = bisect_left(offsets, offsets[begin] + wanted, begin + 1, high)
            a_start.append(start)
            a_length.append(offsets[split] - start)
            b_start.append(offsets[begin])
            b_length.append(offsets[last] - offsets[begin])
            is_random.append(random)
            sentence = split if random else stop
        return _Chunks(
            np.full(len(is_random), document, dtype=np.uint16),
            np.frombuffer(a_start, dtype=np.int64),
            np.frombuffer(a_length, dtype=np.int64),
            np.frombuffer(b_start, dtype=np.int64),
            np.frombuffer(b_length, dtype=np.int64),
            np.frombuffer(bytes(is_random), dtype=bool),
        )

    def _cut(self, chunks: _Chunks, keys: np.ndarray, number: np.ndarray) -> Pairs:
        """Remove tokens one by one from the longer half (B if equal), each from its front or back at random.

        How many each half loses is arithmetic; how many of those from the front is binomial.
        """
        a_start, a_length, b_start, b_length = chunks[1:5]
        row = np.flatnonzero(a_length + b_length > self._max_tokens)
        kept = truncated_pairs(a_length[row], b_length[row], self._max_tokens)
        place = _chunk_place(number[row])
        for start, length, rest, word in (
            (a_start, a_length, kept[0], _CUT_A),
            (b_start, b_length, kept[1], _CUT_B),
        ):
            start[row] += ones_among(draw(keys[row], place + np.uint64(word)), length[row] - rest)
            length[row] = rest
        return Pairs(a_start, a_length, b_start, b_length, chunks.is_random)


def truncated_pairs(first: np.ndarray, second: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths, int64 (N,) both, of pairs cut to at most `most` tokens together: one token at a time from the
    longer one, from the second where both are equal, as Google's code does for pretraining
    (create_pretraining_data.py) and for classification (`_truncate_seq_pair` of run_classifier.py)."""
    excess = np.maximum(first + second - most, 0)
    from_longer = np.minimum(np.abs(first - second), excess)  # until both are equal
    rest = excess - from_longer
    first_is_longer = first > second
    first_loss = np.where(first_is_longer, from_longer, 0) + rest // 2
    second_loss = np.where(first_is_longer, 0, from_longer) + (rest + 1) // 2
    return first - first_loss, second - second_loss


def joined(
    ids: np.ndarray,
    a: tuple[np.ndarray, np.ndarray],
    b_start: np.ndarray,
    lengths: np.ndarray,
    padded_length: int,
    vocab: Vocabulary,
) -> tuple[np.ndarray, np.ndarray]:
    """[CLS] A [SEP] B [SEP] of pairs, or [CLS] A [SEP]: token ids and segments, int32 (B, L).

    `a`: where A begins in `ids`, and its number of tokens; `lengths`: of the rows, with special tokens. A row
    that ends with the [SEP] of A has no B.
    """
    a_start, a_length = (each.astype(np.int64) for each in a)
    place = np.arange(padded_length)
    after_a = place >= (a_length + 2)[:, None]
    outside = place >= lengths[:, None]
    source = np.where(after_a, (b_start.astype(np.int64) - a_length - 2)[:, None], (a_start - 1)[:, None])
    source += place
    # Places of special tokens and padding point beside the texts; they are overwritten below.
    some = ids if len(ids) else np.zeros(1, np.int32)
    input_ids = some.take(source, mode="clip").astype(np.int32)
    rows = np.arange(len(lengths))
    input_ids[:, 0] = vocab.cls_id
    input_ids[rows, a_length + 1] = vocab.sep_id
    input_ids[rows, lengths - 1] = vocab.sep_id
    input_ids[outside] = vocab.pad_id
    return input_ids, (after_a & ~outside).astype(np.int32)


def _chunk_place(number: np.ndarray) -> np.ndarray:
    """The place of a chunk's first word in its document's sequence."""
    return (number.astype(np.uint64) + np.uint64(1)) * np.uint64(_CHUNK_WORDS)


def _chances(keys: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Four uniform numbers for each chunk, float64 of shape (4, n), rows as _SPLIT to _OTHER_SENTENCE say."""
    words = np.arange(4, dtype=np.uint64)[:, None]
    return fractions(draw(keys, _chunk_place(number) + words))


def _reach(offsets: np.ndarray, value: np.ndarray, first: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """The first index from first + 1 to limit - 1 whose offset is `value` or more, else `limit`; all (n,).

    Every value must be above offsets[first].
    """
    value = np.minimum(value, offsets[limit])
    # Offsets rise by one at least, so that an index cannot go further than its value does.
    most = min(int((value - offsets[first]).max(initial=0)), int((limit - first).max(initial=0)))
    before = first  # the last index known to be below its value
    for step in range(most.bit_length() - 1, -1, -1):
        probe = before + (1 << step)
        before = np.where(offsets.take(probe, mode="clip") < value, probe, before)
    return before + 1
