"""Questions in SQuAD's format out of plain text, by a cloze rule.

    python -m data.questions.cloze --input 'corpus/train-*.txt' --dev_input corpus/eval.txt --output questions

A question is a sentence with one or two of its words replaced by "what"; its context is the paragraph that
holds the sentence, whole, so that the answer is found by matching the two. An unanswerable question is asked
about a paragraph of another document that does not hold its answer. Writes train.json and dev.json; no
document is in both.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple, Sequence

import numpy as np

from base.command_line import (
    OptionParser,
    code_of,
    count,
    path_name,
    path_names,
    positive_int,
    probability,
    rate,
)
from base.errors import InputError
from base.files import replacing
from base.options import add_options, option, options_in, taken
from data.text.corpus import documents, expand_inputs

PLACEHOLDER = "what"
TRAIN_FILE, DEV_FILE = "train.json", "dev.json"
_FEWEST_WORDS = 6  # of a sentence that becomes a question: fewer say too little about its place
_TRIES = 20  # paragraphs looked at for one that lacks an answer
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9'-]+")
# Words that are in any paragraph, or that no answer begins or ends with
_NO_ANSWERS = frozenset(
    re.findall(
        r"\w+",
        """
a about after all also an and any are as at be because been before being between both but by can could did
do does each either else for from had has have how i if in into is it its itself may might more most must
neither no nor not of on only or other otherwise out over same shall should since so some such than that the
their them then there these they this those through thus to under until up upon used using was we were what
when where whether which while who whose why will with within without would you your
""",
    )
)


@dataclass(frozen=True)
class ClozeSettings:
    """Rules of the questions; everything random depends on the seed alone. A paragraph is as many sentences
    that follow each other as stay within `context_words`."""

    unanswerable: float = option(
        "share of questions about another paragraph; SQuAD 2.0 has a third, 0 makes SQuAD 1.1",
        probability,
        default=0.33,
    )
    context_words: int = option("words of a context; a word is about 1.5 tokens", positive_int, default=40)
    sentences: int = option("fewest sentences of a context", positive_int, default=2)
    question_words: int = option("words of a question", positive_int, default=16)
    answer_words: int = option("words of an answer", positive_int, default=2)
    per_sentence: int = option(
        "most questions about a sentence, each with another answer", positive_int, default=1
    )
    seed: int = option("of all choices", count, default=0)


class _Cloze(NamedTuple):
    """A question, and its answer's place in its paragraph; `home`: numbers of document and paragraph."""

    home: tuple[int, int]
    question: str
    answer: str
    start: int


def make_questions(
    texts: Sequence[Sequence[str]], most: int, settings: ClozeSettings, name: str
) -> dict[str, Any]:
    """The content of a SQuAD file of up to `most` questions about documents, each a list of sentences.

    `name` begins the questions' ids and goes into the seed. Raises InputError where the text has no sentence
    to ask about, or unanswerable questions are wanted of one document.
    """
    generator = np.random.default_rng([settings.seed, *name.encode("utf-8")])
    paragraphs = [_paragraphs(sentences, settings) for sentences in texts]
    clozes = [
        cloze
        for document, each in enumerate(paragraphs)
        for number, sentences in enumerate(each)
        for cloze in _clozes((document, number), sentences, settings, generator)
    ]
    if not clozes:
        raise InputError(
            f"{name}: the text has no sentence of {_FEWEST_WORDS} to {settings.question_words} words to ask "
            "about; a line is a sentence, and a blank line ends a document"
        )
    chosen = np.sort(generator.permutation(len(clozes))[:most])
    asked = [clozes[index] for index in chosen.tolist()]
    contexts = [(document, number) for document, each in enumerate(paragraphs) for number in range(len(each))]
    if settings.unanswerable and len(texts) < 2:
        raise InputError(
            f"{name}: unanswerable questions take a paragraph of another document; there is one only"
        )
    of_context: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for place, cloze in enumerate(asked):
        entry: dict[str, Any] = {"question": cloze.question, "id": f"{name}-{place:06d}"}
        home = cloze.home
        if settings.unanswerable:
            other = None
            if generator.random() < settings.unanswerable:
                for _ in range(_TRIES):
                    document, number = contexts[int(generator.integers(len(contexts)))]
                    context = " ".join(paragraphs[document][number])
                    if document != home[0] and cloze.answer.lower() not in context.lower():
                        other = document, number
                        break
            entry["is_impossible"] = other is not None
            home = other or home
        answerable = not entry.get("is_impossible", False)
        entry["answers"] = [{"text": cloze.answer, "answer_start": cloze.start}] if answerable else []
        of_context.setdefault(home, []).append(entry)
    articles: dict[int, list[dict[str, Any]]] = {}
    for document, number in sorted(of_context):
        paragraph = {"context": " ".join(paragraphs[document][number]), "qas": of_context[document, number]}
        articles.setdefault(document, []).append(paragraph)
    data = [{"title": f"{name} {document}", "paragraphs": each} for document, each in articles.items()]
    return {"version": "v2.0" if settings.unanswerable else "1.1", "data": data}


def split_documents(
    texts: Sequence[Sequence[str]], share: float, seed: int
) -> tuple[list[Sequence[str]], list[Sequence[str]]]:
    """Documents to train on and, about `share` of them but one at least, to evaluate on, in their order.

    Raises InputError for fewer than two documents.
    """
    if len(texts) < 2:
        raise InputError("--input: one document cannot be divided; a blank line ends a document")
    held_out = np.random.default_rng(seed).permutation(len(texts))[: max(1, round(share * len(texts)))]
    kept = set(range(len(texts))) - set(held_out[: len(texts) - 1].tolist())
    return (
        [text for number, text in enumerate(texts) if number in kept],
        [text for number, text in enumerate(texts) if number not in kept],
    )


def _paragraphs(sentences: Sequence[str], settings: ClozeSettings) -> list[list[str]]:
    """Runs of enough sentences, of up to `context_words` words; what is left over is left out."""
    most_words = settings.context_words
    paragraphs: list[list[str]] = []
    current: list[str] = []
    words = 0
    for sentence in sentences:
        size = len(sentence.split())
        if words + size > most_words:
            paragraphs.append(current)
            current, words = [], 0
        if size <= most_words:
            current.append(sentence)
            words += size
    return [each for each in [*paragraphs, current] if len(each) >= settings.sentences]


def _clozes(
    home: tuple[int, int], sentences: list[str], settings: ClozeSettings, generator: np.random.Generator
) -> list[_Cloze]:
    """Up to `per_sentence` questions about each sentence of a paragraph, of as many answers."""
    context = " ".join(sentences)
    found, place = [], 0
    for sentence in sentences:
        spans = []
        size = len(sentence.split())
        if _FEWEST_WORDS <= size <= settings.question_words and PLACEHOLDER not in sentence.lower().split():
            spans = _spans(sentence, context, settings.answer_words)
        for index in generator.permutation(len(spans))[: settings.per_sentence].tolist():
            start, end = spans[index]
            question = f"{sentence[:start]}{PLACEHOLDER}{sentence[end:]}"
            found.append(_Cloze(home, question, sentence[start:end], place + start))
        place += len(sentence) + 1
    return found


def _spans(sentence: str, context: str, most_words: int) -> list[tuple[int, int]]:
    """Places of possible answers: words with one space between them, that the context holds once."""
    words = [match.span() for match in _WORD.finditer(sentence)]
    lower = context.lower()
    spans = []
    for first in range(len(words)):
        for last in range(first, min(len(words), first + most_words)):
            if last > first and sentence[words[last - 1][1] : words[last][0]] != " ":
                break
            start, end = words[first][0], words[last][1]
            ends = (sentence[slice(*words[index])].lower() for index in (first, last))
            if not _NO_ANSWERS.intersection(ends) and lower.count(sentence[start:end].lower()) == 1:
                spans.append((start, end))
    return spans


def _write(path: str, content: dict[str, Any]) -> None:
    """Writes a file that is not there; InputError where there is another one."""
    written = (json.dumps(content, indent=1) + "\n").encode("ascii")
    if os.path.exists(path):
        with open(path, "rb") as handle:
            if handle.read() != written:
                raise InputError(f"--output: {path} has other questions; name another folder or remove it")
        return
    with replacing(path) as handle:
        handle.write(written)


def _summary(content: dict[str, Any]) -> str:
    questions = [
        each for article in content["data"] for part in article["paragraphs"] for each in part["qas"]
    ]
    without = sum(not each["answers"] for each in questions)
    return f"{len(questions)} questions ({without} unanswerable) about {len(content['data'])} documents"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = OptionParser(
        prog="python -m data.questions.cloze",
        description="Questions in SQuAD's format out of plain text, by replacing words of its sentences.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--input",
        type=path_names,
        required=True,
        help="text: a sentence a line, a blank line between documents; globs, folders",
    )
    add(
        "--dev_input", type=path_names, help="text for dev.json; without it documents of --input are held out"
    )
    add("--dev_share", type=rate, default=0.1, help="share of documents held out (default: 0.1)")
    add("--output", type=path_name, required=True, help=f"folder for {TRAIN_FILE} and {DEV_FILE}")
    add("--train_questions", type=positive_int, default=8000, help="most to train on (default: 8000)")
    add("--dev_questions", type=positive_int, default=500, help="most to evaluate on (default: 500)")
    table = options_in(ClozeSettings)
    add_options(add, table, " ".join(table))
    try:
        print(_run(parser.parse_args(arguments)))
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(options: argparse.Namespace) -> str:
    settings = taken(ClozeSettings, options)
    texts: Sequence[Sequence[str]] = list(documents(expand_inputs(options.input, "--input")))
    if options.dev_input:
        held_out: Sequence[Sequence[str]] = list(documents(expand_inputs(options.dev_input, "--dev_input")))
        same = {tuple(text) for text in texts} & {tuple(text) for text in held_out}
        if same:
            raise InputError(f"--dev_input: {len(same)} of its documents are those of --input too")
    else:
        texts, held_out = split_documents(texts, options.dev_share, options.seed)
    train = make_questions(texts, options.train_questions, settings, "train")
    dev = make_questions(held_out, options.dev_questions, settings, "dev")
    os.makedirs(options.output, exist_ok=True)
    for name, content in ((TRAIN_FILE, train), (DEV_FILE, dev)):
        _write(os.path.join(options.output, name), content)
    return f"{options.output}: to train on {_summary(train)}; to evaluate on {_summary(dev)}"


if __name__ == "__main__":
    sys.exit(code_of(main))
