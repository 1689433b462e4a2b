"""Questions to windows over their contexts: the features of Google's run_squad.py, as flat arrays.

A window is [CLS] question [SEP] part of the context [SEP]. Nothing is stored for each window but where it
begins and ends: its tokens are put together when a batch is made.

Tokens come with the characters of the text that each stands for. As in data.tokenizing.tokenizer, a table of
words saves nearly all of the work: everything that BERT's tokenizers do is a function of each white-space
separated word, and so are the places of its tokens in it.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Callable, NamedTuple, Sequence

import numpy as np
from tokenizers import PreTokenizedString, Regex
from tokenizers.pre_tokenizers import BertPreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers

from base.errors import InputError
from data.options import MAX_POSITIONS
from data.pretraining.pairs import joined
from data.questions.squad_files import Questions
from data.text.sentences import UNKNOWN
from data.tokenizing.tokenizer import (
    NOT_BETWEEN_WORDS,
    SURROGATES,
    TokenizerSettings,
    bert_normalizer,
    hugging_face,
    load_processor,
)
from data.tokenizing.vocab import Vocabulary

_SPACES = "".join(  # U+3000 is the last in Unicode; to look at all of it would take a tenth of a second
    character
    for character in map(chr, range(0x3001))
    if character.isspace() and character not in NOT_BETWEEN_WORDS
)
_BETWEEN_WORDS = re.compile(f"([{re.escape(_SPACES)}]+)")
_REMOVED = "\ufffd"  # by BERT's cleaning, like SURROGATES, and as long
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
        strings = [SURROGATES.sub(_REMOVED, " ".join(group)) for group in groups]
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
        return [_with_accents(word, self._pieces(SURROGATES.sub(_REMOVED, word))) for word in words]

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
_TEXTS_PER_CALL = 512


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
        if self.max_query_length + SPECIAL >= self.max_seq_length:
            raise InputError(
                f"--max_seq_length {self.max_seq_length} leaves no room for text after a question of "
                f"--max_query_length {self.max_query_length} tokens; lengthen the one or shorten the other"
            )


@dataclass(frozen=True, eq=False)
class Windows:
    """All windows of some questions, in the order of the questions, from left to right.

    tokens: of all contexts, then of all questions. context_of: int64 (Q,). The following are int64 (W,):
    question; first, the window's first token of the context; count, its tokens of the context; lengths, all
    its tokens. starts, ends: int32 (W,), the answer's first and last token in the window, counted from [CLS],
    0 where the window has no whole answer.
    without_tokens: numbers of questions that have an answer of which the tokenizer leaves nothing; they have
    no windows when they are for training.
    """

    tokens: Tokens
    context_of: np.ndarray
    question: np.ndarray
    first: np.ndarray
    count: np.ndarray
    lengths: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    vocabulary: Vocabulary
    without_tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.question)


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

    Raises:
        InputError: no question can be trained on.
    """
    encoder = OffsetEncoder(tokenizer)
    tokens = _encode_parts(encoder, (*questions.contexts, *questions.texts))
    sizes = np.diff(tokens.bounds)
    query_lengths = np.minimum(sizes[len(questions.contexts) :], settings.max_query_length)
    totals = sizes[questions.context_of]
    kept = np.ones(len(questions), dtype=bool)
    answers = None
    if training:
        answers = answer_tokens(questions, tokens, encoder)
        kept = (answers[1] >= answers[0]) | (questions.answer_starts < 0)
        if not kept.any():
            raise InputError(f"{questions.name}: no answer has a token, so there is nothing to train on")
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
    return Windows(
        tokens,
        questions.context_of,
        question,
        first,
        count,
        count + query_lengths[question] + SPECIAL,
        starts,
        ends,
        tokenizer.vocabulary,
        np.flatnonzero(~kept),
    )


def collate(windows: Windows, examples: np.ndarray, padded: int | None = None) -> QuestionBatch:
    """The windows with these numbers as a batch; `padded` tokens long, by default as long as the longest."""
    examples = np.asarray(examples, dtype=np.int64)
    lengths = windows.lengths[examples]
    width = int(lengths.max()) if padded is None else padded
    question, bounds = windows.question[examples], windows.tokens.bounds
    num_contexts = len(bounds) - 1 - len(windows.context_of)
    query = bounds[num_contexts + question], lengths - windows.count[examples] - SPECIAL
    part = bounds[windows.context_of[question]] + windows.first[examples]
    input_ids, segment_ids = joined(windows.tokens.ids, query, part, lengths, width, windows.vocabulary)
    return QuestionBatch(
        input_ids,
        segment_ids,
        lengths.astype(np.int32),
        windows.starts[examples],
        windows.ends[examples],
        examples,
    )


def max_context(windows: Windows, own: range) -> list[np.ndarray]:
    """Tokens of the context for which each of a question's windows is the best one, bool (its count,).

    Google's rule: the best window is that with the most context on the poorer side of the token, plus 0.01 of
    the window's size; the first one of equals. `own`: all windows of a question.
    """
    if len(own) == 1:  # as most questions have
        return [np.ones(windows.count[own[0]], dtype=bool)]
    spans = [slice(first, first + count) for first, count in zip(windows.first[own], windows.count[own])]
    scores = np.full(max(span.stop for span in spans), -np.inf)
    winner = np.zeros(len(scores), dtype=np.int64)
    for window, span in zip(own, spans):
        count = span.stop - span.start
        left = np.arange(count)
        # In Google's own float64 arithmetic, so that equals are equal
        score = np.minimum(left, count - 1 - left) + 0.01 * count
        better = score > scores[span]
        scores[span][better], winner[span][better] = score[better], window
    return [winner[span] == window for window, span in zip(own, spans)]


def answer_tokens(
    questions: Questions, tokens: Tokens, encoder: OffsetEncoder
) -> tuple[np.ndarray, np.ndarray]:
    """The first and last context token of each question's first answer, int64 (Q,), (Q,).

    -1 and -2 for questions without one, and for answers of which the tokenizer leaves nothing. As by
    `_improve_answer_span` of Google's code: the tokens of the answer itself where they are those that the
    context has at its place, else all tokens of the words that it touches ("Japan" where
    "japanese" is one token).
    """
    answers = encoder.encode([questions.answer(number) for number in range(len(questions))])
    found = np.full((2, len(questions)), [[-1], [-2]], dtype=np.int64)
    for number in np.flatnonzero(questions.answer_starts >= 0).tolist():
        start, end = int(questions.answer_starts[number]), int(questions.answer_ends[number])
        of = int(questions.context_of[number])
        context, inside = questions.contexts[of], slice(*tokens.bounds[of : of + 2])
        first, last = _sharing(tokens, inside, start, end)
        own = answers.ids[slice(*answers.bounds[number : number + 2])]
        if not np.array_equal(tokens.ids[inside][first : last + 1], own):
            while start > 0 and context[start - 1] not in _GOOGLES_SPACES:
                start -= 1
            while end < len(context) and context[end] not in _GOOGLES_SPACES:
                end += 1
            first, last = _sharing(tokens, inside, start, end)
        if first <= last:
            found[:, number] = first, last
    return found[0], found[1]


def _sharing(tokens: Tokens, inside: slice, start: int, end: int) -> tuple[int, int]:
    """The first and last token of a text that share a character with [start, end); last < first for none."""
    first = np.searchsorted(tokens.ends[inside], start, side="right")
    return int(first), int(np.searchsorted(tokens.starts[inside], end, side="left")) - 1


def _encode_parts(encoder: OffsetEncoder, texts: Sequence[str]) -> Tokens:
    """As `encoder.encode`, in parts, so that memory is theirs."""
    parts = [
        encoder.encode(texts[first : first + _TEXTS_PER_CALL])
        for first in range(0, len(texts), _TEXTS_PER_CALL)
    ]
    sizes = np.concatenate([np.diff(part.bounds) for part in parts])
    return Tokens(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.starts for part in parts]),
        np.concatenate([part.ends for part in parts]),
        np.concatenate([[0], np.cumsum(sizes)]),
    )
