"""English prose out of text that also holds code, tables and mark-up, and whole sentences out of prose."""

from __future__ import annotations

import re
from typing import Iterator

MIN_WORDS = 3
MIN_LETTERS = 0.72  # share of letters and spaces in a sentence; below it is code, a table or a signature
MAX_CHARACTERS = 800

# A sentence ends at . ! or ? (and closing quotes or brackets) before white space and the beginning of
# another.
_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[A-Z0-9]|[\"'(\[`*]+\w)")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|Mr|Mrs|Dr|St|No|Fig|Eq|resp|approx|incl|[A-Z])\.)$")
_WORD = re.compile(r"[A-Za-z]{2,}|\b[aAI]\b")
_CODE = re.compile(
    r"::=|==|->|\w = |[{};]"
    r"|^(?:if|elif|else|for|while|def|class|import|from|return|try|except|with|print)\b.*[:(=]"
)
_RULE = re.compile(r"^[\s=~^*+|#\-_.]{3,}$")
_FIELD = re.compile(r"^\s*(?::\w[^:]*:|@\w+|\.\. )")
_BULLET = re.compile(r"^(?:[*\-+o\u2022]|\d+[.)])\s+")
_MARKUP = re.compile(r":[a-z:]+:`~?([^`]*)`|``([^`]*)``|\*\*([^*\n]+)\*\*|(?<!\w)\*([^*\n]+)\*(?!\w)")


def prose_sentences(text: str) -> Iterator[str]:
    """The sentences of the running text in `text`, one line each.

    Dropped: doctest blocks, blocks indented more than the paragraph before them that announced code by ending
    in ':', rules, field lists, and sentences that look like code, are short, very long or mostly not letters.
    """
    for paragraph in _paragraphs(text):
        # Without the marks of reStructuredText
        plain = _MARKUP.sub(
            lambda match: next(each for each in match.groups() if each is not None), paragraph
        )
        for sentence in _split(" ".join(plain.split())):
            if is_prose(sentence):
                yield sentence


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs as single lines: runs of lines between blank lines, and list items, without code blocks."""
    code_indent = -1  # blocks indented more than this are code
    for block in re.split(r"\n\s*\n", text.expandtabs()):
        lines = [line for line in block.split("\n") if line.strip()]
        if not lines:
            continue
        indent = len(lines[0]) - len(lines[0].lstrip())
        if 0 <= code_indent < indent and not _BULLET.match(lines[0].lstrip()):
            continue
        code_indent = -1
        if any(line.lstrip().startswith((">>>", "...", "$ ")) for line in lines[:2]):
            continue
        lines = [line for line in lines if not _RULE.match(line) and not _FIELD.match(line)]
        if lines and lines[-1].rstrip().endswith(":"):
            code_indent = indent
        gathered: list[str] = []
        for line in (line.strip() for line in lines):
            item = _BULLET.sub("", line)
            if item != line and gathered:
                yield " ".join(gathered)
                gathered = []
            gathered.append(item)
        if gathered:
            yield " ".join(gathered)


def _split(paragraph: str) -> Iterator[str]:
    start = 0
    for match in _END.finditer(paragraph):
        if _ABBREVIATION.search(paragraph[start : match.start()]):
            continue
        yield paragraph[start : match.end()].strip()
        start = match.end()
    yield paragraph[start:].strip()


def is_prose(sentence: str) -> bool:
    """Whether a sentence has words enough, is not too long, and is no code, table or signature."""
    if len(sentence) > MAX_CHARACTERS or len(_WORD.findall(sentence)) < MIN_WORDS:
        return False
    if _CODE.search(sentence) or "\0" in sentence:  # a docstring of Python 3.14 has one
        return False
    letters = sum(character.isalpha() or character == " " for character in sentence)
    return letters >= MIN_LETTERS * len(sentence)


MOST_CHARACTERS = 400  # of a whole sentence: about 80 tokens
_TYPOGRAPHY = str.maketrans(
    {"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2013": "-", "\u2014": "-"}
)
_WHOLE = re.compile(r"[A-Z\"'(].*[.!?][\"')\]]*")
_PLACEHOLDER = re.compile(r"[<>{}@$|\\]")
# A word that only a clause with a verb has: an auxiliary, or the pronoun of a subject.
_CLAUSE = re.compile(
    r"\b(?:is|are|was|were|am|has|have|had|do|does|did|can|could|will|would|shall|should|may|might|must|cannot"
    r"|be|been|hath|doth|said|says|i|he|she|it|we|you|they|who)\b|n't\b|'(?:s|re|ll|ve|d|m)\b",
    re.IGNORECASE,
)


def plain_punctuation(text: str) -> str:
    """ASCII quotation marks and dashes, single spaces."""
    return " ".join(text.translate(_TYPOGRAPHY).split())


def whole_sentence(sentence: str) -> str | None:
    """The sentence, without quotation marks that have no partner or enclose it, if it is a whole one.

    That is one of MIN_WORDS words at least and MOST_CHARACTERS characters at most, from a capital to a full
    stop, a question or an exclamation mark, mostly letters and spaces, without a sign of a program.
    """
    if sentence.count('"') % 2:
        sentence = sentence[1:] if sentence.startswith('"') else sentence
        sentence = sentence[:-1] if sentence.endswith('"') and sentence.count('"') % 2 else sentence
    elif sentence.startswith('"') and sentence.endswith('"') and sentence.count('"') == 2:
        sentence = sentence[1:-1]
    sentence = sentence.strip()
    letters = sum(character.isalpha() or character == " " for character in sentence)
    suitable = (
        len(sentence) <= MOST_CHARACTERS
        and letters >= MIN_LETTERS * len(sentence)
        and len(_WORD.findall(sentence)) >= MIN_WORDS
        and _WHOLE.fullmatch(sentence) is not None
        and _PLACEHOLDER.search(sentence) is None
    )
    return sentence if suitable else None


def has_clause(sentence: str) -> bool:
    """Whether an auxiliary verb or the pronoun of a subject is in it.

    That tells most definitions and phrases ("The act of abolishing.") from sentences; it misses some.
    """
    return _CLAUSE.search(sentence) is not None
