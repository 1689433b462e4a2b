"""The sentences that a vocabulary is trained on."""

from __future__ import annotations

import random
from typing import Iterator, Sequence

from base.errors import InputError
from base.progress import Progress, Silent
from data.options import TextConfig
from data.text.corpus import UNKNOWN, read_unit, text_units
from data.tokenizing.wordpiece import without_surrogates

MESSAGES_KEPT = 5


class TrainingText:
    """Sentences of text files, to be gone through as often as needed.

    If there are more than `max_sentences` (0: no limit), just as many are drawn by `seed`, uniformly and in
    the order of the text; every pass draws the same ones. Nothing is held in memory. `skipped` and `messages`
    tell of the bad records that the last pass left out, if `settings` says so.
    Raises InputError for bad text while iterating.
    """

    def __init__(
        self,
        paths: Sequence[str],
        settings: TextConfig = TextConfig(),
        max_sentences: int = 0,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> None:
        self._paths, self._settings = paths, settings
        self._units = text_units(paths, settings)
        self._max_sentences, self._seed = max_sentences, seed
        self._progress = progress if progress is not None else Silent()
        self._sentences: int | None = None
        self.skipped = 0
        self.messages: list[str] = []

    @property
    def sentences(self) -> int:
        """Number of sentences in the files; the first use reads them."""
        if self._sentences is None:
            self._sentences = sum(1 for _ in self._all("counting sentences"))
        return self._sentences

    @property
    def drawn(self) -> int:
        """Number of sentences that a pass gives."""
        return min(self.sentences, self._max_sentences) if self._max_sentences else self.sentences

    def passes(self, what: str) -> Iterator[str]:
        """The sentences, one pass; `what` is what the progress calls it."""
        if not self._max_sentences or self.sentences <= self._max_sentences:
            yield from self._all(what)
            return
        generator = random.Random(self._seed)
        left, wanted = self.sentences, self._max_sentences
        for sentence in self._all(what):
            if generator.random() * left < wanted:  # Knuth's selection sampling: exactly `wanted` of `left`
                wanted -= 1
                yield sentence
            left -= 1
        if left:
            raise InputError(f"the text changed while it was read: {', '.join(self._paths)}; start again")

    def _all(self, what: str) -> Iterator[str]:
        self.skipped, self.messages = 0, []
        self._progress.begin(what, sum(unit.size for unit in self._units))
        done = 0
        try:
            for unit in self._units:
                for sentence in read_unit(unit, self._settings, self._on_bad):
                    if sentence is not None:
                        # A word that the text's makers took out teaches nothing.
                        yield without_surrogates(sentence.replace(UNKNOWN, " "))
                done += unit.size
                self._progress.update(done, {})
        finally:
            self._progress.end()

    def _on_bad(self, message: str) -> None:
        self.skipped += 1
        if len(self.messages) < MESSAGES_KEPT:
            self.messages.append(message)
