"""Make a small data set of sentence pairs from the embedded text: does the second sentence follow the first?

    python -m data.classification.embedded --corpus runs/embedded/corpus --output runs/embedded/pairs

writes train.tsv, of the documents in train-*.txt, and dev.tsv, of the held-out ones in eval.txt: columns
sentence1, sentence2 and label ("follows", or "elsewhere" where the second one is of another document).
"""

from __future__ import annotations

import os
import random
import sys
from typing import Sequence

from base.command_line import OptionParser, code_of, count, path_name, positive_int
from base.errors import InputError
from base.files import replacing
from data.text.corpus import documents, expand_inputs

LABELS = ("elsewhere", "follows")
HEADER = ("sentence1", "sentence2", "label")
TRAIN_PAIRS, DEV_PAIRS = 4000, 800
FEWEST_WORDS = 4  # shorter sentences say too little


def pairs_of(texts: Sequence[Sequence[str]], wanted: int, seed: int) -> list[tuple[str, str, str]]:
    """At most `wanted` pairs of the documents `texts`, half of each label, in a random order.

    A pair that follows is two neighbours of a document; no sentence begins two pairs. Raises InputError
    where the documents hold no such pair, or there is only one document.
    """
    rng = random.Random(seed)
    long = [[each for each in text if len(each.split()) >= FEWEST_WORDS] for text in texts]
    long = [text for text in long if text]
    if len(long) < 2:
        raise InputError("--corpus: pairs need two documents or more")
    places = [(number, place) for number, text in enumerate(long) for place in range(len(text) - 1)]
    rng.shuffle(places)
    if len(places) < 2:
        raise InputError("--corpus: no document has two sentences in a row")
    pairs = []
    for turn, (number, place) in enumerate(places[: wanted - wanted % 2]):
        first = long[number][place]
        if turn % 2:
            pairs.append((first, long[number][place + 1], LABELS[1]))
        else:
            other = rng.randrange(len(long) - 1)
            pairs.append((first, rng.choice(long[other + (other >= number)]), LABELS[0]))
    rng.shuffle(pairs)
    return pairs


def write_tsv(path: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Writes a TSV file, whole or not at all; tabs and line breaks in a cell become spaces."""
    lines = ["\t".join(" ".join(cell.split()) for cell in row) for row in (header, *rows)]
    with replacing(path) as handle:
        handle.write(("\n".join(lines) + "\n").encode("utf-8"))


def build(corpus: str, output: str, train_pairs: int, dev_pairs: int, seed: int = 0) -> dict[str, int]:
    """Writes both files under `output`; returns their numbers of pairs. Raises InputError and OSError."""
    files = {"train": ("train-*.txt", train_pairs), "dev": ("eval.txt", dev_pairs)}
    made = {
        name: pairs_of(
            list(documents(expand_inputs(os.path.join(corpus, pattern), "--corpus"))), wanted, seed
        )
        for name, (pattern, wanted) in files.items()
    }
    os.makedirs(output, exist_ok=True)
    for name, pairs in made.items():
        write_tsv(os.path.join(output, f"{name}.tsv"), HEADER, pairs)
    return {name: len(pairs) for name, pairs in made.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = OptionParser(
        description="Make a small data set of sentence pairs from the embedded text (of data.embedded)."
    )
    parser.add_argument(
        "--corpus", type=path_name, required=True, help="folder with train-*.txt and eval.txt"
    )
    parser.add_argument("--output", type=path_name, required=True, help="folder for train.tsv and dev.tsv")
    parser.add_argument("--train_pairs", type=positive_int, default=TRAIN_PAIRS)
    parser.add_argument("--dev_pairs", type=positive_int, default=DEV_PAIRS)
    parser.add_argument("--seed", type=count, default=0)
    try:
        options = parser.parse_args(arguments)
        found = build(options.corpus, options.output, options.train_pairs, options.dev_pairs, options.seed)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{options.output}: {found['train']} pairs to train on, {found['dev']} to evaluate")
    return 0


if __name__ == "__main__":
    sys.exit(code_of(main))
