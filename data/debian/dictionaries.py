"""Dictionaries: the definitions and quotations of GCIDE, the glosses and examples of WordNet."""

from __future__ import annotations

import gzip
import os
import re
from typing import Iterator

from data.text.prose import has_clause
from data.text.sentences import split_sentences

# GCIDE as dictd has it: a headword at the beginning of a line, below it blocks of indented lines.
_BRACKETS = re.compile(r"\[[^\[\]]*\]")  # origins of words, sources, marks such as [Obs.]
_HEAD = re.compile(r"^[^\\]*\\[^\\]*\\")  # the headword and, between backslashes, how it is pronounced
_LABELS = re.compile(
    r"^(?:[\s,;&.]|\([^()]*\)|(?:n|a|v|t|i|adv|prep|conj|interj|pron|p|pr|imp|pl|superl|compar|vb|sing|fem|masc)\.)+"
)
_NUMBER = re.compile(r"^(?:\d+\.|\([a-z0-9]\)|\([A-Z][\w. &]*\.\))\s*")
_AUTHOR = re.compile(r"\s*--\s?(?:[A-Z(][\w.'()]*[\s,&]*)+")
_REFERENCE = re.compile(r"^(?:Syn|Note|See|Cf|Usage)\b:?")


def gcide_documents(folder: str) -> Iterator[list[str]]:
    """Sentences of dict-gcide below `folder`; those with the same first three letters are a document.

    Left out: headwords, pronunciations, origins, sources, authors of quotations, synonyms, and what has no
    clause, which are most definitions.
    """
    path = os.path.join(folder, "usr/share/dictd/gcide.dict.dz")
    with gzip.open(path, "rt", encoding="utf-8", errors="replace") as handle:
        text = handle.read()
    document: list[str] = []
    letters = ""
    for block in re.split(r"\n[ \t]*\n", text):
        if block.startswith("00-database") or not block.strip():
            continue
        if not block.lstrip("\n")[:1].isspace():
            start = re.sub(r"[^a-z]", "", block[:12].lower())[:3]
            if start != letters and document:
                yield document
                document = []
            letters = start
        document += filter(has_clause, split_sentences(_plain_entry(block)))
    if document:
        yield document


def _plain_entry(block: str) -> str:
    text = " ".join(block.split())
    for _ in range(2):  # brackets inside brackets
        text = _BRACKETS.sub("", text)
    if not block.lstrip("\n")[:1].isspace():
        text = _HEAD.sub("", text, count=1) if "\\" in text else ""
        text = _LABELS.sub("", text)
    text = _NUMBER.sub("", text.strip())
    text = _NUMBER.sub("", text)
    if _REFERENCE.match(text):
        return ""
    text = _AUTHOR.sub(" ", text).replace("{", "").replace("}", "").replace("``", '"').replace("''", '"')
    return " ".join(text.split())


_GLOSS_PARTS = re.compile(r'"([^"]*)"')
_WORDNET_FILES = ("data.noun", "data.verb", "data.adj", "data.adv")


def wordnet_documents(folder: str) -> Iterator[list[str]]:
    """Examples of wordnet-base below `folder`, as sentences; a lexicographer file is a document."""
    wordnet = os.path.join(folder, "usr/share/wordnet")
    for name in _WORDNET_FILES:
        groups: dict[str, list[str]] = {}
        with open(os.path.join(wordnet, name), encoding="utf-8", errors="replace") as handle:
            for line in handle:
                if line.startswith("  "):
                    continue  # the licence
                fields, _, gloss = line.partition(" | ")
                group = groups.setdefault(fields.split(" ", 2)[1], [])
                examples = _GLOSS_PARTS.findall(gloss)
                # A verb's are sentences or commands ("start afresh"); others are often phrases.
                group += map(_as_sentence, examples if name == "data.verb" else filter(has_clause, examples))
        yield from groups.values()
    yield list(_verb_sentences(wordnet))


def _verb_sentences(wordnet: str) -> Iterator[str]:
    """The sentences that WordNet has for its verbs: patterns such as "The children %s to the playground"."""
    with open(os.path.join(wordnet, "sents.vrb"), encoding="utf-8") as handle:
        patterns = dict(line.rstrip("\n").split(" ", 1) for line in handle if " " in line)
    with open(os.path.join(wordnet, "sentidx.vrb"), encoding="utf-8") as handle:
        for line in handle:
            key, _, numbers = line.strip().partition(" ")
            verb = key.partition("%")[0].replace("_", " ")
            for number in filter(None, numbers.split(",")):
                yield _as_sentence(patterns[number.strip()].replace("%s", verb))


def _as_sentence(example: str) -> str:
    text = " ".join(example.split()).rstrip(";,: ")
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."
