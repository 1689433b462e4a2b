"""Lines to token ids by looking up their words.

BERT's basic tokenization and everything after it is a function of each white-space separated word alone, so a
table from words to ids turns tokenizing into look-ups: in real text nearly every word was seen before.
"""

from __future__ import annotations

from typing import Callable, Iterator, Sequence

import numpy as np

# str.split() also splits at these, which BERT's cleaning removes as control characters; they join words.
# Whatever else str.split() splits at, the cleaning turns into spaces; tests go through all of Unicode.
NOT_BETWEEN_WORDS = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"

# Two generations of this many words are kept: about 50 MB when full.
GENERATION_WORDS = 1 << 17
MAX_KEPT_CHARS = 64  # longer words hardly ever come back

_BLOCK_LINES = 512
_BLOCK_CHARS = 1 << 18
_ID_BYTES = 4


class WordTable:
    """Turns lines to ids word by word, and remembers the ids of words.

    `encode_words` gives the ids of each of some distinct words, which hold no white space. The words are kept
    in two generations: when the young one is full it becomes the old one, whose words move back to the young
    one as they are met again, so that memory is bounded and frequent words stay. For one thread at a time.
    """

    def __init__(
        self,
        encode_words: Callable[[Sequence[str]], Sequence[Sequence[int]]],
        generation_words: int = GENERATION_WORDS,
    ) -> None:
        self._encode_words = encode_words
        self._generation_words = generation_words
        # word -> its ids as the bytes of int32, so that a line is one join
        self._young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}

    def __len__(self) -> int:
        """Words kept."""
        return len(self._young) + len(self._old)

    def encode_flat(self, lines: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """All ids of the lines, int32 (tokens,), and where each line ends in them, int64 (lines,)."""
        encoded: list[bytes] = []
        lengths: list[int] = []
        for block in _blocks(lines):
            parts = self._encode_block(block)
            lengths.extend(map(len, parts))
            encoded.append(b"".join(parts))
        ends = np.cumsum(np.array(lengths, dtype=np.int64)) // _ID_BYTES
        return np.frombuffer(b"".join(encoded), dtype=np.int32), ends

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line."""
        return lists_of(*self.encode_flat(lines))

    def _encode_block(self, lines: list[str]) -> list[bytes]:
        look_up, join = self._young.__getitem__, b"".join
        parts: list[bytes] = []
        unfinished: list[int] = []
        for line in lines:
            try:
                parts.append(join(map(look_up, line.split())))
            except KeyError:
                unfinished.append(len(parts))
                parts.append(b"")
        if unfinished:
            fresh = self._fresh(lines[index] for index in unfinished)
            for index in unfinished:
                parts[index] = join(
                    [fresh[word] if word in fresh else look_up(word) for word in lines[index].split()]
                )
            self._keep(fresh)
        return parts

    def _fresh(self, lines: Iterator[str]) -> dict[str, bytes]:
        """The ids of those words of the lines that are not in the young generation."""
        # A dict, not a set: the order must not depend on the randomized hash of strings.
        wanted = dict.fromkeys(word for line in lines for word in line.split() if word not in self._young)
        unknown = [word for word in wanted if word not in self._old]
        fresh = {word: self._old.pop(word) for word in wanted if word in self._old}
        for word, ids in zip(unknown, self._encode_words(unknown) if unknown else ()):
            fresh[word] = np.array(ids, dtype=np.int32).tobytes()
        return fresh

    def _keep(self, fresh: dict[str, bytes]) -> None:
        for word, ids in fresh.items():
            if len(word) > MAX_KEPT_CHARS:
                continue
            if len(self._young) >= self._generation_words:
                self._young, self._old = {}, self._young
            self._young[word] = ids


def lists_of(ids: np.ndarray, ends: np.ndarray) -> list[list[int]]:
    """One list of ids for each line, of what `encode_flat` returns."""
    flat, borders = ids.tolist(), [0, *ends.tolist()]
    return [flat[start:end] for start, end in zip(borders, borders[1:])]


def _blocks(lines: Sequence[str]) -> Iterator[list[str]]:
    """The lines in blocks of bounded size, without the characters that only str.split() takes for spaces."""
    start = 0
    while start < len(lines):
        end, chars = start, 0
        while end < len(lines) and end - start < _BLOCK_LINES and chars < _BLOCK_CHARS:
            chars += len(lines[end])
            end += 1
        block = list(lines[start:end])
        text = "\n".join(block)
        for character in NOT_BETWEEN_WORDS:
            if character in text:
                block = [line.replace(character, "") for line in block]
        yield block
        start = end
