"""Sequences of tokens that make up more of a text than words of a language do: mark-up, boilerplate."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from data.inspection.sampling import evenly
from data.store.tokens import TokenStore
from data.tokenizing.vocab import WORD_START, Vocabulary

SAMPLED_TOKENS = 1 << 19
LONGEST = 5  # tokens of a sequence: a vocabulary may need as many to spell <unk>
MARKER_SHARE = 0.005  # of the tokens, from which on something that looks like mark-up is reported
SINGLE_SHARE = 0.15  # of one token; "the", commas and full stops have 4 to 7% in English
SEQUENCE_SHARE = 0.05  # of two tokens or more that follow each other; "of the" has below 2%
_BLOCK = 1 << 14
_CANDIDATES = 40  # of each length
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MARKER = re.compile(r"</?[a-z]{1,8}/?>|\[[a-z]{2,8}\]|@[-,.]@|&[a-z]{2,6};")


def repeated_sequences(
    store: TokenStore, vocab: Vocabulary, limit: int = SAMPLED_TOKENS
) -> list[dict[str, Any]]:
    """The sequences of 1 to 5 tokens with an implausible share of the text, the largest share first.

    Each has its "text" (as it stands in the vocabulary, spaces between tokens), "joined" (without them),
    "share" of the tokens and "marker": whether it looks like mark-up (<unk>, @-@, [int]). One that is a part
    of another is left out, and so is [UNK]. Counted in `limit` tokens spread evenly over the store.
    """
    blocks = evenly(-(-store.num_tokens // _BLOCK), max(1, limit // _BLOCK)).tolist()
    parts = [store.ids[number * _BLOCK : (number + 1) * _BLOCK] for number in blocks]
    store.check()
    total = sum(map(len, parts))
    found: list[dict[str, Any]] = []
    for length in range(1, LONGEST + 1):
        for ids, count in _most_frequent(parts, length):
            if vocab.unk_id in ids or (length > 1 and len(set(ids)) == 1):  # "- - -" is one token's share
                continue
            tokens = [vocab.tokens[index] for index in ids]
            joined = "".join(_bare(token) for token in tokens)
            share = count * length / total
            marker = length > 1 and _MARKER.fullmatch(joined.lower()) is not None
            least = MARKER_SHARE if marker else SINGLE_SHARE if length == 1 else SEQUENCE_SHARE
            if share >= least:
                text = " ".join(tokens)
                found.append({"text": text, "joined": joined, "share": share, "marker": marker})
    found.sort(key=lambda each: (not each["marker"], -each["share"]))
    kept: list[dict[str, Any]] = []
    for each in found:
        if not any(_overlap(each["text"], other["text"]) for other in kept):
            kept.append(each)
    return sorted(kept, key=lambda each: -each["share"])


def _most_frequent(parts: list[np.ndarray], length: int) -> list[tuple[tuple[int, ...], int]]:
    """The sequences of `length` ids that occur most often in the parts, and how often."""
    hashes, places = [], []
    for number, part in enumerate(parts):
        count = len(part) - length + 1
        if count < 1:
            continue
        key = np.zeros(count, dtype=np.uint64)
        for offset in range(length):
            key = key * _FACTOR + part[offset : offset + count].astype(np.uint64) + np.uint64(1)
        hashes.append(key)
        places.append(number * _BLOCK + np.arange(count))
    if not hashes:
        return []
    _, first, counts = np.unique(np.concatenate(hashes), return_index=True, return_counts=True)
    at = np.concatenate(places)[first]
    result = []
    for index in np.argsort(-counts, kind="stable")[:_CANDIDATES].tolist():
        number, offset = divmod(int(at[index]), _BLOCK)
        ids = tuple(parts[number][offset : offset + length].tolist())
        result.append((ids, int(counts[index])))
    return result


def _bare(token: str) -> str:
    return token[2:] if token.startswith("##") and len(token) > 2 else token.replace(WORD_START, "")


def _overlap(one: str, other: str) -> bool:
    """Whether one of two sequences is a part of the other, or begins where the other ends."""
    first, second = one.split(" "), other.split(" ")
    short, long = sorted((first, second), key=len)
    if any(long[start : start + len(short)] == short for start in range(len(long) - len(short) + 1)):
        return True
    return any(
        first[-size:] == second[:size] or second[-size:] == first[:size] for size in range(1, len(short) + 1)
    )
