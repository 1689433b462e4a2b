"""How fast and how well running text is split into sentences: data.text_sentences against libraries.

    python -m bench.split_sentences TEXT [--repeats 3]

TEXT is a UTF-8 file of paragraphs, one a line. Compared with those of blingfire, pysbd, sentencex and syntok
that are installed; the project needs none, so install them into a scratch environment.
Speed is in MB of UTF-8 a second of CPU time, the median of interleaved repeats. Quality is on the paragraphs
of tests/data/split_cases.txt: how many are split exactly as written there, and F1 of the borders. That list
was written along with our rules, so it favours them; it shows that no library is clearly better.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from pathlib import Path
from typing import Callable, Sequence

from data.text_sentences import split_sentences

CASES = Path(__file__).resolve().parent.parent / "tests" / "data" / "split_cases.txt"
SECONDS = 3.0  # of CPU time for one repeat of one splitter

Splitter = Callable[[str], "list[str]"]


def splitters() -> dict[str, Splitter]:
    """Name and function of each splitter that can be had here."""
    found: dict[str, Splitter] = {"ours": lambda text: list(split_sentences(text))}
    for name, make in (
        ("blingfire", lambda m: lambda text: m.text_to_sentences(text).split("\n")),
        ("sentencex", lambda m: lambda text: [s.strip() for s in m.segment("en", text)]),
        ("pysbd", lambda m: _pysbd(m.Segmenter(language="en", clean=False))),
        ("syntok.segmenter", lambda m: lambda text: _syntok(m, text)),
    ):
        try:
            found[name.split(".")[0]] = make(importlib.import_module(name))
        except ImportError:
            print(f"{name} is not installed", file=sys.stderr)
    return found


def quality(splitter: Splitter) -> tuple[int, int, float]:
    """Paragraphs split exactly, paragraphs in all, F1 of the borders between sentences."""
    cases = [case.split("\n") for case in CASES.read_text("utf-8").strip().split("\n\n")]
    exact = right = given = wanted = 0
    for case in cases:
        result = splitter(" ".join(case))
        exact += result == case
        mine, truth = _borders(result), _borders(case)
        right, given, wanted = right + len(mine & truth), given + len(mine), wanted + len(truth)
    return exact, len(cases), 2 * right / (given + wanted)


def speed(splitter: Splitter, lines: Sequence[str]) -> float:
    """MB of UTF-8 a second of CPU time."""
    start = time.process_time()
    size = 0
    while True:
        for line in lines:
            splitter(line)
            size += len(line.encode("utf-8"))
            if time.process_time() - start > SECONDS:
                return size / 1e6 / (time.process_time() - start)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("text")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    lines = [line.strip() for line in Path(options.text).read_text("utf-8").split("\n") if line.strip()]
    if not lines:
        parser.error(f"{options.text} has no text")
    found = splitters()
    speeds: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(options.repeats):
        for name, splitter in found.items():
            speeds[name].append(speed(splitter, lines))
    print(f"{'splitter':<12}{'MB/s':>8}{'exact':>10}{'F1':>8}{'sentences':>11}")
    for name, splitter in found.items():
        exact, cases, f1 = quality(splitter)
        count = sum(len(splitter(line)) for line in lines)
        print(f"{name:<12}{statistics.median(speeds[name]):8.2f}{exact:7}/{cases}{f1:8.3f}{count:11}")
    return 0


def _borders(sentences: Sequence[str]) -> set[int]:
    """Where sentences end, in characters that are no white space."""
    ends, position = set(), 0
    for sentence in sentences[:-1]:
        position += len("".join(sentence.split()))
        ends.add(position)
    return ends


def _pysbd(segmenter) -> Splitter:  # type: ignore[no-untyped-def]
    return lambda text: [sentence.strip() for sentence in segmenter.segment(text)]


def _syntok(module, text: str) -> list[str]:  # type: ignore[no-untyped-def]
    return [
        "".join(token.spacing + token.value for token in sentence).strip()
        for paragraph in module.process(text)
        for sentence in paragraph
    ]


if __name__ == "__main__":
    sys.exit(main())
