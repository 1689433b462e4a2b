"""Text in WikiText's form, made of the embedded corpus; and the real one where it lies beside the project.

Tests that need such text run on the first everywhere. The second adds cases, and nothing depends on it.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Sequence

SHARED = Path(__file__).parents[3] / "shared" / "data"
SHARED_WIKITEXT = SHARED / "wikitext2-valid.txt"
TEXTS = ["generated", *(["shared"] if SHARED_WIKITEXT.exists() else [])]
DOCUMENTS = 60  # of either
_MIN_WORDS = 12  # the corpus has more short sentences than an encyclopedia
_UNKNOWN_SHARE = 0.03
_SECTION, _PARAGRAPH = 40, 6  # sentences


def write_wikitext(path: Path, sources: Sequence[Path], seed: int = 0) -> None:
    """DOCUMENTS articles of sentences of `sources` (one a line), which all end in a full stop.

    As WikiText has it: punctuation set apart but for the dots inside of words, " @-@ ", " @,@ " and " @.@ "
    inside of words and numbers, some words replaced by <unk>, titles and headings on lines of their own.
    """
    generator = random.Random(seed)
    sentences = []
    for source in [*sources, *sources]:  # once is little: WikiText-2's validation part is twice as long
        for line in source.read_text("utf-8").splitlines():
            # No mark-up of its own, and nothing that ends a sentence elsewhere or may be read as a heading.
            if re.fullmatch(r"[A-Z][^=@<>.?!\u2026]*\.", line) and len(line.split()) >= _MIN_WORDS:
                sentences.append(_set_apart(line, generator))
    each = len(sentences) // DOCUMENTS
    with open(path, "w", encoding="utf-8") as handle:
        for number in range(DOCUMENTS):
            article = sentences[number * each : (number + 1) * each]
            handle.write(f" \n = Article {number} of {generator.choice(['<unk>', 'the corpus'])} = \n \n")
            for start in range(0, each, _PARAGRAPH):
                if start % _SECTION < _PARAGRAPH and start:
                    level = generator.choice(["= =", "= = ="])
                    handle.write(f" \n {level} Part {start} {level} \n \n")
                handle.write(" " + " ".join(article[start : start + _PARAGRAPH]) + " \n")


def _set_apart(sentence: str, generator: random.Random) -> str:
    text = re.sub(r"(?<=\w)-(?=\w)", " @-@ ", sentence)
    text = re.sub(r"([,;:()\"\[\]/])", r" \1 ", text[:-1]) + " ."
    words = text.split()
    for place in range(1, len(words) - 1):
        if words[place].isalpha() and generator.random() < _UNKNOWN_SHARE:
            words[place] = "<unk>"
    if generator.random() < 0.1:
        words[-1:-1] = generator.choice(["in 3 @,@ 200 cases", "by 1 @.@ 5 times"]).split()
    return " ".join(words)
