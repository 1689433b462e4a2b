"""Parts that all measurements share: their command line and its end, progress, numbers, and their text."""

from __future__ import annotations

import argparse
import glob
import json
import os
import signal
import statistics
import sys
from types import FrameType
from typing import Any, Iterator, Mapping, NamedTuple, NoReturn, Sequence, TypeVar

from tqdm import tqdm

from base.command_line import OptionParser, path_name, path_names
from base.errors import InputError
from base.files import replacing
from data.embedded import build as build_embedded
from data.text.corpus import expand_inputs

NOTICE = "--quick: small sizes and few repeats; these figures are for trying out only"
VOCAB_SIZE = 4000

T = TypeVar("T")
Round = Mapping[str, float]  # contestant -> seconds in this round


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float

    def shown(self, digits: int) -> str:
        """`median (low to high)`."""
        median, low, high = (f"{value:.{digits}f}" for value in self)
        return f"{median} ({low} to {high})"


def spread(values: Sequence[float]) -> Spread:
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def ratios(rounds: Sequence[Round], key: str, base: str) -> list[float]:
    """Seconds of `key` for one of `base`, in every round that has both."""
    return [each[key] / each[base] for each in rounds if key in each and base in each]


def in_turns(items: Sequence[T], number: int) -> list[T]:
    """The items in the order of round `number`: nothing is always the next after the same one."""
    first = number % max(1, len(items))
    return [*items[first:], *items[:first]]


def note(text: str) -> None:
    """Shows progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def end_at(*numbers: int) -> None:
    """Has these signals end this process by SystemExit, and with it all that its `with` blocks hold."""

    def leave(number: int, frame: FrameType | None) -> NoReturn:
        raise SystemExit(128 + number)

    for number in numbers:
        signal.signal(number, leave)


def with_progress(items: Sequence[T]) -> Iterator[T]:
    """Yields `items` with a bar on a terminal, and in a log with a line before each, on standard error."""
    if sys.stderr.isatty():
        yield from tqdm(items)
        return
    for number, item in enumerate(items, 1):
        note(f"{number}/{len(items)}: {item}")
        yield item


def measurement(name: str, description: str | None, quick: str) -> OptionParser:
    """The command line of `python -m bench.NAME`, described by its module's text, with the options --quick,
    which here means `quick`, and --json."""
    parser = OptionParser(
        prog=f"python -m bench.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--quick", action="store_true", help=f"does everything run? ({quick})")
    parser.add_argument("--json", type=path_name, metavar="FILE", help="write all figures there")
    return parser


def finish(options: argparse.Namespace, figures: Mapping[str, Any]) -> None:
    """Writes the figures where --json has them, and prints what those of --quick are good for."""
    if options.json:
        write_figures(options.json, {"quick": options.quick, **figures})
    if options.quick:
        print(NOTICE, flush=True)


def settle(options: argparse.Namespace, usual: Mapping[str, Any], quick: Mapping[str, Any]) -> None:
    """Gives every option that was left out (None) its value: that of `quick`, where --quick is given and has
    one, else the usual one. What is named on the command line stays."""
    values = {**usual, **(quick if options.quick else {})}
    for name, value in values.items():
        if getattr(options, name) is None:
            setattr(options, name, value)


def write_figures(path: str, figures: Mapping[str, Any]) -> None:
    """Writes the JSON file that --json names. InputError where the disk does not take it."""
    try:
        with replacing(path) as file:
            file.write(json.dumps(figures, indent=1).encode() + b"\n")
    except OSError as error:
        raise InputError(f"the figures cannot be written to {path}: {error.strerror}") from error


def default_text(folder: str) -> tuple[list[str], str]:
    """Writes the embedded English text and its vocabulary under `folder`, or under the folder that the
    variable BENCH_TEXT names, which several measurements share: the first that needs it writes it, in 4 s.

    Returns:
        The training files in order, and the vocabulary.

    Raises:
        InputError: this Python carries too little text.
    """
    folder = os.environ.get("BENCH_TEXT") or folder
    build_embedded(folder, vocab_size=VOCAB_SIZE)  # does nothing where it is whole
    return sorted(glob.glob(os.path.join(folder, "corpus", "train-*.txt"))), os.path.join(folder, "vocab.txt")


def add_text_options(parser: OptionParser, text: str = "text files, a sentence a line") -> None:
    """Adds --input and --vocab, for `given_text`."""
    parser.add_argument("--input", type=path_names, metavar="GLOB", help=text)
    parser.add_argument("--vocab", type=path_name, metavar="FILE", help="BERT vocab.txt, needed with --input")


def given_text(options: argparse.Namespace, folder: str) -> tuple[list[str], str]:
    """Files of --input and the vocabulary of --vocab; without them those of `default_text`.

    Raises:
        InputError: one of the two is given alone.
    """
    if bool(options.input) != bool(options.vocab):
        raise InputError("--input and --vocab belong together; without both the embedded text is taken")
    if options.input:
        return expand_inputs(options.input, "--input"), options.vocab
    return default_text(folder)
