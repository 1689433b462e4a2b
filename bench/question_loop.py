"""Features, answers and scores of SQuAD as a pure-Python loop: question by question, token by token.

The algorithms of Google's run_squad.py and of the official scripts, on the offsets of a Hugging Face
tokenizer. bench.questions measures it; tests take it as the definition.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from dataclasses import dataclass
from typing import Iterator, NamedTuple, Sequence

from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer

from data.questions.answers import AnswerSettings
from data.questions.squad_files import Questions
from data.questions.windows import WindowSettings
from data.tokenizing.tokenizer import MAX_CHARS_PER_WORD, bert_normalizer
from data.tokenizing.vocab import Vocabulary

_SPACES = " \t\r\n\u202f"


@dataclass
class Feature:
    """One window, padded to max_seq_length; both dictionaries are by position in it."""

    question: int
    input_ids: list[int]
    input_mask: list[int]
    segment_ids: list[int]
    token_to_orig_map: dict[int, int]
    token_is_max_context: dict[int, bool]
    offsets: list[tuple[int, int]]
    start_position: int
    end_position: int


class Entry(NamedTuple):
    """An answer of the n-best."""

    text: str
    start_logit: float
    end_logit: float
    probability: float = 0.0


def hugging_face(vocab: Vocabulary, cased: bool) -> HuggingFaceTokenizer:
    """BERT's tokenizer of Hugging Face `tokenizers` without special tokens."""
    model = WordPiece(
        vocab.ids(), unk_token=vocab.tokens[vocab.unk_id], max_input_chars_per_word=MAX_CHARS_PER_WORD
    )
    tokenizer = HuggingFaceTokenizer(model)
    tokenizer.normalizer = bert_normalizer(cased)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


def features(
    questions: Questions,
    tokenizer: HuggingFaceTokenizer,
    vocab: Vocabulary,
    settings: WindowSettings,
    training: bool = False,
) -> Iterator[Feature]:
    """convert_examples_to_features of run_squad.py."""
    for number, text in enumerate(questions.texts):
        query = tokenizer.encode(text).ids[: settings.max_query_length]
        context = questions.contexts[questions.context_of[number]]
        encoding = tokenizer.encode(context)
        ids, offsets = encoding.ids, encoding.offsets
        answer = None
        if training and questions.answer_starts[number] >= 0:
            span = int(questions.answer_starts[number]), int(questions.answer_ends[number])
            answer = _answer_tokens(context, span, encoding.tokens, offsets, tokenizer)
        room = settings.max_seq_length - len(query) - 3
        spans, start = [], 0
        while True:
            length = min(len(ids) - start, room)
            spans.append((start, length))
            if start + length == len(ids):
                break
            start += min(length, settings.doc_stride)
        for index, (start, length) in enumerate(spans):
            first = len(query) + 2
            input_ids = [vocab.cls_id, *query, vocab.sep_id, *ids[start : start + length], vocab.sep_id]
            segment_ids = [0] * first + [1] * (length + 1)
            origin = dict(enumerate(range(start, start + length), first))
            best = {at: _is_max_context(spans, index, place) for at, place in origin.items()}
            padding = settings.max_seq_length - len(input_ids)
            mask = [1] * len(input_ids) + [0] * padding
            input_ids += [vocab.pad_id] * padding
            segment_ids += [0] * padding
            begin = end = 0
            if answer is not None and answer[0] >= start and answer[1] < start + length:
                begin, end = answer[0] - start + first, answer[1] - start + first
            yield Feature(number, input_ids, mask, segment_ids, origin, best, offsets, begin, end)


def _is_max_context(spans: list[tuple[int, int]], current: int, place: int) -> bool:
    best_score, best_index = -math.inf, None
    for index, (start, length) in enumerate(spans):
        end = start + length - 1
        if place < start or place > end:
            continue
        score = min(place - start, end - place) + 0.01 * length
        if score > best_score:
            best_score, best_index = score, index
    return current == best_index


def _answer_tokens(
    context: str,
    span: tuple[int, int],
    tokens: list[str],
    offsets: list[tuple[int, int]],
    tokenizer: HuggingFaceTokenizer,
) -> tuple[int, int] | None:
    """The tokens of the whole words, then _improve_answer_span: the first part of them, longest first, that
    reads like the answer."""
    start, end = span
    while start > 0 and context[start - 1] not in _SPACES:
        start -= 1
    while end < len(context) and context[end] not in _SPACES:
        end += 1
    inside = [place for place, (first, last) in enumerate(offsets) if first < end and last > start]
    if not inside:
        return None
    wanted = tokenizer.encode(context[slice(*span)]).tokens
    for new_start in range(inside[0], inside[-1] + 1):
        for new_end in range(inside[-1], new_start - 1, -1):
            if tokens[new_start : new_end + 1] == wanted:
                return new_start, new_end
    return inside[0], inside[-1]


def best_answers(
    questions: Questions,
    windows: Sequence[Feature],
    logits: Sequence[tuple[list[float], list[float]]],
    settings: AnswerSettings,
    only_context: bool = False,
) -> tuple[list[list[Entry]], list[float]]:
    """write_predictions of run_squad.py: n-best and null odds of each question.

    `logits` are each window's, start and end, without padding. With `only_context` the largest logits are
    taken among those that an answer can begin and end at.
    """
    of_question: list[list[int]] = [[] for _ in questions.ids]
    for index, window in enumerate(windows):
        of_question[window.question].append(index)
    everything, odds = [], []
    for number, indexes in enumerate(of_question):
        context = questions.contexts[questions.context_of[number]]
        found = []
        null = (math.inf, 0.0, 0.0)
        for index in indexes:
            window, (start_logits, end_logits) = windows[index], logits[index]
            starts, ends = range(len(start_logits)), range(len(end_logits))
            if start_logits[0] + end_logits[0] < null[0]:
                null = (start_logits[0] + end_logits[0], start_logits[0], end_logits[0])
            allowed = list(starts), list(ends)
            if only_context:
                allowed = (
                    [place for place in starts if window.token_is_max_context.get(place, False)],
                    [place for place in ends if place in window.token_to_orig_map],
                )
            best_starts = sorted(allowed[0], key=lambda place: -start_logits[place])[: settings.n_best]
            best_ends = sorted(allowed[1], key=lambda place: -end_logits[place])[: settings.n_best]
            for start in best_starts:
                for end in best_ends:
                    if start not in window.token_to_orig_map or end not in window.token_to_orig_map:
                        continue
                    if not window.token_is_max_context.get(start, False):
                        continue
                    if end < start or end - start + 1 > settings.max_answer_length:
                        continue
                    found.append((start_logits[start] + end_logits[end], index, start, end))
        if settings.version_2:
            found.append((null[0], -1, 0, 0))
        found.sort(key=lambda each: -each[0])
        entries: list[Entry] = []
        seen = set()
        for _, index, start, end in found:
            if len(entries) == settings.n_best:
                break
            if index < 0:
                entries.append(Entry("", null[1], null[2]))
                seen.add("")
                continue
            window = windows[index]
            first = window.offsets[window.token_to_orig_map[start]][0]
            text = context[first : window.offsets[window.token_to_orig_map[end]][1]]
            if text not in seen:
                seen.add(text)
                entries.append(Entry(text, logits[index][0][start], logits[index][1][end]))
        if settings.version_2 and "" not in seen:
            entries.append(Entry("", null[1], null[2]))
        best = next((entry for entry in entries if entry.text), None)
        odds.append(null[0] - best.start_logit - best.end_logit if best else math.inf)
        scores = [entry.start_logit + entry.end_logit for entry in entries]
        powers = [math.exp(score - max(scores)) for score in scores]
        everything.append([each._replace(probability=p / sum(powers)) for each, p in zip(entries, powers)])
    return everything, odds


def mean_f1(questions: Questions, predictions: Sequence[str]) -> float:
    """F1 in percent by the official script for SQuAD 2.0."""
    total = 0.0
    for golds, prediction in zip(questions.golds, predictions):
        total += max(_f1(gold, prediction) for gold in golds or ("",))
    return 100.0 * total / len(questions)


def _f1(gold: str, prediction: str) -> float:
    gold_words, words = _normalize(gold).split(), _normalize(prediction).split()
    shared = sum((Counter(gold_words) & Counter(words)).values())
    if not gold_words or not words:
        return float(gold_words == words)
    if not shared:
        return 0.0
    precision, recall = shared / len(words), shared / len(gold_words)
    return 2 * precision * recall / (precision + recall)


def _normalize(text: str) -> str:
    without = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", without).split())
