"""Questions to windows over their contexts: the features of Google's run_squad.py, as flat arrays.

A window is [CLS] question [SEP] part of the context [SEP]. Nothing is stored for each window but where it
begins and ends: its tokens are put together when a batch is made.

Tokens come with the characters of the text that each stands for. As in data.tokenizing.tokenizer, a table of
words saves nearly all of the work: everything that BERT's tokenizers do is a function of each white-space
separated word, and so are the places of its tokens in it.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Callable, NamedTuple, Sequence

import numpy as np
from tokenizers import PreTokenizedString, Regex
from tokenizers.pre_tokenizers import BertPreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

from base.errors import InputError
from data.finetuning.batching import ragged_places
from data.options import MAX_POSITIONS
from data.questions.squad_files import Questions
from data.text.sentences import UNKNOWN
from data.tokenizing.tokenizer import (
    NOT_BETWEEN_WORDS,
    TokenizerSettings,
    bert_normalizer,
    hugging_face,
    load_processor,
)
from data.tokenizing.vocab import Vocabulary

_SPACES = "".join(
    character
    for character in map(chr, range(sys.maxunicode + 1))
    if character.isspace() and character not in NOT_BETWEEN_WORDS
)
_BETWEEN_WORDS = re.compile(f"([{re.escape(_SPACES)}]+)")
# Halves of surrogate pairs, which JSON's escapes can hold and UTF-8 cannot. U+FFFD is removed by BERT's
# cleaning like them, and has their length.
_SURROGATES = re.compile("[\ud800-\udfff]")
_REMOVED = "\ufffd"
_WORDS_PER_STRING = 128
_ROW_BYTES = 3 * 4


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokens of several texts, one after the other.

    ids: int32 (tokens,). starts, ends: int32 (tokens,); token t stands for the characters
    [starts[t], ends[t]) of its text. bounds: int64 (texts + 1,); text i has the tokens
    bounds[i] : bounds[i + 1].
    """

    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    bounds: np.ndarray


class OffsetEncoder:
    """Encodes texts with the ids of the project's tokenizers, and with offsets.

    An accent that stands alone after its letter belongs to the letter's token, though BERT's cleaning may
    remove it; other removed characters (controls, zero-width ones) belong to no token, except inside one.
    WordPiece and SentencePiece, which may not sample. For one thread at a time; words are encoded by all
    cores unless TOKENIZERS_PARALLELISM=false is set.
    """

    def __init__(self, settings: TokenizerSettings) -> None:
        if settings.samples:
            raise InputError(
                "--sp_nbest: answers have places in the text only without sampling; leave it out"
            )
        self._pieces: Callable[[Sequence[str]], list[list[tuple[int, int, int]]]]
        if settings.sentencepiece is None:
            self._pieces = _WordPieces(settings.vocabulary, settings.cased)
        else:
            self._pieces = _SentencePieces(settings.sentencepiece, settings.vocabulary, settings.cased)
        self._table: dict[str, bytes] = {}

    def encode(self, texts: Sequence[str]) -> Tokens:
        """The tokens of each text, without special ones; a text may have none."""
        # Words are the even parts, what is between them the odd ones; the first and last may be empty.
        parts = [_BETWEEN_WORDS.split(text) for text in texts]
        unknown = [
            word
            for word in dict.fromkeys(chain.from_iterable(each[::2] for each in parts))
            if word not in self._table
        ]
        for word, pieces in zip(unknown, self._pieces(unknown) if unknown else ()):
            self._table[word] = np.array(pieces, dtype=np.int32).reshape(-1, 3).tobytes()
        looked_up = [list(map(self._table.__getitem__, each[::2])) for each in parts]
        counts = np.fromiter(map(len, chain.from_iterable(looked_up)), np.int64) // _ROW_BYTES
        rows = np.frombuffer(b"".join(chain.from_iterable(looked_up)), dtype=np.int32).reshape(-1, 3)
        words = np.array([len(each) for each in looked_up], dtype=np.int64)
        # The first character of each word in its text
        starts = (list(accumulate(map(len, each), initial=0))[:-1:2] for each in parts)
        places = np.repeat(np.fromiter(chain.from_iterable(starts), np.int64), counts)
        bounds = np.concatenate([[0], np.cumsum(counts)])[np.concatenate([[0], np.cumsum(words)])]
        return Tokens(
            np.ascontiguousarray(rows[:, 0]),
            (rows[:, 1] + places).astype(np.int32),
            (rows[:, 2] + places).astype(np.int32),
            bounds,
        )


class _WordPieces:
    """Pieces of words by Hugging Face `tokenizers`, many words to a string."""

    def __init__(self, vocab: Vocabulary, cased: bool) -> None:
        self._tokenizer = hugging_face(vocab.ids(), vocab.tokens[vocab.unk_id], cased)

    def __call__(self, words: Sequence[str]) -> list[list[tuple[int, int, int]]]:
        groups = [
            words[first : first + _WORDS_PER_STRING] for first in range(0, len(words), _WORDS_PER_STRING)
        ]
        strings = [_SURROGATES.sub(_REMOVED, " ".join(group)) for group in groups]
        encoded: list[list[tuple[int, int, int]]] = []
        for group, encoding in zip(groups, self._tokenizer.encode_batch(strings, add_special_tokens=False)):
            ids, offsets = encoding.ids, encoding.offsets
            place = number = 0
            for word in group:
                end, pieces = place + len(word), []
                while number < len(ids) and offsets[number][0] < end:
                    first, last = offsets[number]
                    pieces.append((ids[number], first - place, last - place))
                    number += 1
                encoded.append(_with_accents(word, pieces))
                place = end + 1
        return encoded


class _SentencePieces:
    """Pieces of words by SentencePiece.

    It is given basic tokens after BERT's cleaning, so that its own places are in the cleaned token; the
    cleaned token's characters are followed back into the word one by one.
    """

    def __init__(self, path: str, vocab: Vocabulary, cased: bool) -> None:
        self._processor = load_processor(path)
        self._normalizer = bert_normalizer(cased)
        self._words = BertPreTokenizer()
        self._characters = PreTokenizers([BertPreTokenizer(), Split(Regex(r"[\s\S]"), "isolated")])
        self._unk_id = vocab.unk_id

    def __call__(self, words: Sequence[str]) -> list[list[tuple[int, int, int]]]:
        return [_with_accents(word, self._pieces(_SURROGATES.sub(_REMOVED, word))) for word in words]

    def _pieces(self, word: str) -> list[tuple[int, int, int]]:
        places = [place for _, place in self._split(word, self._characters)]
        pieces, first = [], 0
        for token, (start, end) in self._split(word, self._words):
            own = places[first : first + len(token)]
            first += len(token)
            if UNKNOWN in token:
                pieces.append((self._unk_id, start, end))
                continue
            for piece in self._processor.encode(token, out_type="immutable_proto").pieces:
                begin, stop = piece.begin, piece.end
                if begin < stop:
                    pieces.append((piece.id, own[begin][0], own[stop - 1][1]))
                else:  # the mark of a word's start, alone, or what normalization made of nothing
                    place = own[begin][0] if begin < len(own) else end
                    pieces.append((piece.id, place, place))
        return pieces

    def _split(self, word: str, how: PreTokenizers | BertPreTokenizer) -> list[tuple[str, tuple[int, int]]]:
        text = PreTokenizedString(word)
        text.normalize(self._normalizer.normalize)
        how.pre_tokenize(text)
        return [(token, place) for token, place, _ in text.get_splits("original", "char")]


def _with_accents(word: str, pieces: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Pieces of a word, each up to the last combining mark between it and the next one."""
    if word.isascii():
        return pieces
    extended = []
    for number, (index, start, end) in enumerate(pieces):
        following = pieces[number + 1][1] if number + 1 < len(pieces) else len(word)
        for place in range(following - 1, end - 1, -1):
            if unicodedata.category(word[place]) == "Mn":
                end = place + 1
                break
        extended.append((index, start, end))
    return extended


SPECIAL = 3  # [CLS] and two [SEP]
_GOOGLES_SPACES = " \t\r\n\u202f"
_CONTEXTS_PER_CALL = 512


@dataclass(frozen=True)
class WindowSettings:
    """Sizes in tokens: of a window, of the step from one window to the next, of the longest question.

    Raises InputError for sizes that leave no room.
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64

    def __post_init__(self) -> None:
        if not 0 < self.max_seq_length <= MAX_POSITIONS:
            raise InputError(f"--max_seq_length {self.max_seq_length}: must be 1 to {MAX_POSITIONS}")
        if self.doc_stride < 1 or self.max_query_length < 1:
            raise InputError("--doc_stride and --max_query_length: must be 1 or more")
        if self.max_query_length + SPECIAL >= self.max_seq_length:
            raise InputError(
                f"--max_seq_length {self.max_seq_length} leaves no room for text after a question of "
                f"--max_query_length {self.max_query_length} tokens; lengthen the one or shorten the other"
            )


@dataclass(frozen=True, eq=False)
class Windows:
    """All windows of some questions, in the order of the questions, from left to right.

    queries: the questions' tokens, cut. contexts: the contexts' tokens; their `starts` and `ends` are
    characters of the context. context_of: int64 (Q,). The following are int64 (W,): question; first, the
    window's first token of the context; count, its tokens of the context; lengths, all its tokens.
    starts, ends: int32 (W,), the answer's first and last token in the window, counted from [CLS], 0 where the
    window has no whole answer. special_ids: those of [CLS], [SEP] and [PAD].
    without_tokens: numbers of questions that have an answer of which the tokenizer leaves nothing; they have
    no windows when they are for training.
    """

    queries: Tokens
    contexts: Tokens
    context_of: np.ndarray
    question: np.ndarray
    first: np.ndarray
    count: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    special_ids: tuple[int, int, int]
    without_tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.question)

    @property
    def offset(self) -> np.ndarray:
        """Position of the first context token in each window, int64 (W,)."""
        return self.lengths - self.count - 1


class QuestionBatch(NamedTuple):
    """Windows as arrays (B, L) and (B,), int32 but for `examples`, which are the windows' numbers, int64."""

    input_ids: np.ndarray
    segment_ids: np.ndarray
    valid_lengths: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    examples: np.ndarray


def make_windows(
    questions: Questions, tokenizer: TokenizerSettings, settings: WindowSettings, training: bool = False
) -> Windows:
    """The windows of all questions. With `training` they have the answers' positions (else 0).

    As in Google's code the next window begins `doc_stride` tokens later, the last one ends with the context,
    and an answer counts for a window that holds all of it.
    """
    encoder = OffsetEncoder(tokenizer)
    contexts = _encode_parts(encoder, questions.contexts)
    queries = _cut(encoder.encode(questions.texts), settings.max_query_length)
    query_lengths = np.diff(queries.bounds)
    totals = np.diff(contexts.bounds)[questions.context_of]
    kept = np.ones(len(questions), dtype=bool)
    answers = None
    if training:
        answers = answer_tokens(questions, contexts, encoder)
        kept = (answers[1] >= answers[0]) | (questions.answer_starts < 0)
    # Windows of each question
    room = settings.max_seq_length - SPECIAL - query_lengths
    step = np.minimum(settings.doc_stride, room)
    numbers = np.where(kept, 1 + np.maximum(0, -(-(totals - room) // step)), 0)
    question = np.repeat(np.arange(len(questions)), numbers)
    place = np.arange(len(question)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    first = place * step[question]
    count = np.minimum(room[question], totals[question] - first)
    starts = np.zeros(len(question), dtype=np.int32)
    ends = np.zeros(len(question), dtype=np.int32)
    if answers is not None:
        begin, last = (each[question] for each in answers)
        inside = (begin >= first) & (last < first + count) & (questions.answer_starts[question] >= 0)
        shift = query_lengths[question] + 2 - first
        starts[inside], ends[inside] = (begin + shift)[inside], (last + shift)[inside]
    vocab = tokenizer.vocabulary
    return Windows(
        queries,
        contexts,
        questions.context_of,
        question,
        first,
        count,
        count + query_lengths[question] + SPECIAL,
        starts,
        ends,
        (vocab.cls_id, vocab.sep_id, vocab.pad_id),
        np.flatnonzero(~kept),
    )


def collate(windows: Windows, examples: np.ndarray, padded: int | None = None) -> QuestionBatch:
    """The windows with these numbers as a batch; `padded` tokens long, by default as long as the longest."""
    examples = np.asarray(examples, dtype=np.int64)
    lengths, counts = windows.lengths[examples], windows.count[examples]
    queries = lengths - counts - SPECIAL
    cls_id, sep_id, pad_id = windows.special_ids
    width = int(lengths.max()) if padded is None else padded
    position = np.arange(width)[None, :]
    of_query = (position >= 1) & (position <= queries[:, None])
    of_context = (position >= queries[:, None] + 2) & (position < lengths[:, None] - 1)
    input_ids = np.full((len(examples), width), pad_id, dtype=np.int32)
    question = windows.question[examples]
    input_ids[of_query] = windows.queries.ids[ragged_places(windows.queries.bounds[question], queries)]
    begin = windows.contexts.bounds[windows.context_of[question]] + windows.first[examples]
    input_ids[of_context] = windows.contexts.ids[ragged_places(begin, counts)]
    rows = np.arange(len(examples))
    input_ids[:, 0] = cls_id
    input_ids[rows, queries + 1] = sep_id
    input_ids[rows, lengths - 1] = sep_id
    segment_ids = (position >= queries[:, None] + 2) & (position < lengths[:, None])
    return QuestionBatch(
        input_ids,
        segment_ids.astype(np.int32),
        lengths.astype(np.int32),
        windows.starts[examples],
        windows.ends[examples],
        examples,
    )


def max_context(windows: Windows, chosen: np.ndarray) -> np.ndarray:
    """Tokens of the context for which a window is the best of its question's windows, bool.

    All tokens of the windows `chosen`, one window after the other: shape (sum of `windows.count[chosen]`,).
    Google's rule: the best window is that with the most context on the poorer side of the token, plus 0.01 of
    the window's size; the first one of equals.
    """
    counts, first = windows.count[chosen], windows.first[chosen]
    best = np.ones(int(counts.sum()), dtype=bool)
    # Most questions have one window, whose tokens have no choice.
    question = windows.question
    several = np.zeros(len(windows), dtype=bool)
    several[1:] = question[1:] == question[:-1]
    several[:-1] |= several[1:]
    rows = np.flatnonzero(several[chosen])
    if not rows.size:
        return best
    flat = ragged_places((np.cumsum(counts) - counts)[rows], counts[rows])
    of_row = np.repeat(rows, counts[rows])
    token = ragged_places(first[rows], counts[rows])
    window = np.asarray(chosen)[of_row]
    own = _context_score(windows, window, token)
    wins = np.ones(len(flat), dtype=bool)
    for direction in (-1, 1):
        distance = 0
        while True:
            distance += 1
            other = window + direction * distance
            near = (other >= 0) & (other < len(windows))
            other = np.where(near, other, window)
            near &= question[other] == question[window]
            near &= (token >= windows.first[other]) & (token < windows.first[other] + windows.count[other])
            if not near.any():
                break
            theirs = _context_score(windows, other, token)
            wins &= ~near | ((own > theirs) if direction < 0 else (own >= theirs))
    best[flat] = wins
    return best


def answer_tokens(
    questions: Questions, contexts: Tokens, encoder: OffsetEncoder
) -> tuple[np.ndarray, np.ndarray]:
    """The first and last context token of each question's first answer, int64 (Q,), (Q,).

    -1 and -2 for questions without one, and for answers of which the tokenizer leaves nothing. As by
    `_improve_answer_span` of Google's code: the tokens of the answer itself where they are those that the
    context has at its place, else all tokens of the words that it touches ("Japan" where
    "japanese" is one token).
    """
    answered = np.flatnonzero(questions.answer_starts >= 0)
    starts, ends = questions.answer_starts[answered], questions.answer_ends[answered]
    # Characters of all contexts one after the other, so that all tokens are found in one search.
    sizes = np.array([len(context) + 1 for context in questions.contexts], dtype=np.int64)
    before = np.cumsum(sizes) - sizes
    of_token = np.repeat(before, np.diff(contexts.bounds))
    token_starts, token_ends = contexts.starts + of_token, contexts.ends + of_token
    context_of = questions.context_of[answered]
    shift, base = before[context_of], contexts.bounds[context_of]

    def locate(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first and last token that share a character with [start, end); last < first for none."""
        first = np.searchsorted(token_ends, starts + shift, side="right")
        last = np.searchsorted(token_starts, ends + shift, side="left") - 1
        return first - base, last - base

    first, last = locate(starts, ends)
    own = encoder.encode([questions.answer(number) for number in answered.tolist()])
    sizes = np.diff(own.bounds)
    same = sizes == last - first + 1
    # Compared in the answers that have as many tokens as their place
    rows = np.flatnonzero(same & (sizes > 0))
    equal = (
        own.ids[ragged_places(own.bounds[rows], sizes[rows])]
        == contexts.ids[ragged_places((base + first)[rows], sizes[rows])]
    )
    differing = np.repeat(rows, sizes[rows])[~equal]
    same[differing] = False
    for row in np.flatnonzero(~same).tolist():
        context = questions.contexts[context_of[row]]
        while starts[row] > 0 and context[starts[row] - 1] not in _GOOGLES_SPACES:
            starts[row] -= 1
        while ends[row] < len(context) and context[ends[row]] not in _GOOGLES_SPACES:
            ends[row] += 1
    first, last = locate(starts, ends)
    nothing = last < first
    tokens = np.full((2, len(questions)), [[-1], [-2]], dtype=np.int64)
    tokens[0, answered[~nothing]], tokens[1, answered[~nothing]] = first[~nothing], last[~nothing]
    return tokens[0], tokens[1]


def _context_score(windows: Windows, window: np.ndarray, token: np.ndarray) -> np.ndarray:
    """Google's score, in its own float64 arithmetic, so that equals are equal."""
    count = windows.count[window]
    left = token - windows.first[window]
    return np.minimum(left, count - 1 - left) + 0.01 * count


def _encode_parts(encoder: OffsetEncoder, texts: tuple[str, ...]) -> Tokens:
    """As `encoder.encode`, in parts, so that memory is theirs."""
    parts = [
        encoder.encode(texts[first : first + _CONTEXTS_PER_CALL])
        for first in range(0, len(texts), _CONTEXTS_PER_CALL)
    ]
    sizes = np.concatenate([np.diff(part.bounds) for part in parts])
    return Tokens(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.ends for part in parts]),
        np.concatenate([[0], np.cumsum(sizes)]),
    )


def _cut(tokens: Tokens, most: int) -> Tokens:
    """The first `most` tokens of each text."""
    sizes = np.minimum(np.diff(tokens.bounds), most)
    kept = ragged_places(tokens.bounds[:-1], sizes)
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    return Tokens(tokens.ids[kept], tokens.starts[kept], tokens.ends[kept], bounds)
