"""Parts that all measurements share: their command line and its end, progress, numbers, and their text."""

from __future__ import annotations

import argparse
import glob
import json
import os
import signal
import statistics
import sys
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Sequence, TypeVar

from base import machine
from base.command_line import ScriptParser, path_name, path_names
from base.errors import InputError
from base.files import replacing
from base.threads import set_threads
from bench.trainings import OURS
from bench.workers import KEEPS_MEMORY, NO_TORCH, ROOT, find_torch_python
from data.embedded import build as build_embedded
from data.questions.cloze import ClozeSettings, make_questions
from data.text.corpus import expand_inputs

NOTICE = "--quick: small sizes and few repeats; these figures are for trying out only"
VOCAB_SIZE = 4000

T = TypeVar("T")
U = TypeVar("U")
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


def to_ours(rounds: Sequence[Round], key: str) -> dict[str, Any]:
    """{"to_ours": spread of the ratios}, for a row of JSON; {} for ours itself and where there are none."""
    found = ratios(rounds, key, OURS) if key != OURS else []
    return {"to_ours": spread(found)._asdict()} if found else {}


def ratio_shown(row: Mapping[str, Any]) -> str:
    """The same of such a row, for people."""
    return Spread(**row["to_ours"]).shown(2) if "to_ours" in row else ""


def in_turns(items: Sequence[T], number: int) -> list[T]:
    """The items in the order of round `number`: nothing is always the next after the same one."""
    first = number % max(1, len(items))
    return [*items[first:], *items[:first]]


def take_rounds(
    keys: Sequence[T], rounds: int, take: Callable[[T, int], U | None], warm_ups: int = 0
) -> list[dict[T, U]]:
    """Results of `take(key, number)` for every contestant in each round, in turns; None is left out. So many
    `warm_ups` go before the rounds, with negative numbers, and do not count."""
    found = []
    for number in range(-warm_ups, rounds):
        taken = {key: take(key, number) for key in in_turns(keys, number)}
        found.append({key: value for key, value in taken.items() if value is not None})
    return found[warm_ups:]


def note(text: str) -> None:
    """Shows progress on standard error."""
    print(text, file=sys.stderr, flush=True)


def end_at(*numbers: int) -> None:
    """Has these signals end this process by SystemExit, and with it all that its `with` blocks hold."""
    for number in numbers:
        signal.signal(number, lambda number, frame: sys.exit(128 + number))


class Measurement(ScriptParser):
    """The command line of `python -m bench.NAME`, described by its module's text, with the options --quick,
    which here means `quick`, and --json FILE (without `writes`: --json, which prints)."""

    def __init__(self, name: str, description: str | None, quick: str, writes: bool = True):
        super().__init__(
            prog=f"python -m bench.{name}",
            description=description,
        )
        self._values: dict[str, tuple[Any, Any]] = {}
        self.add_argument("--quick", action="store_true", help=f"does everything run? ({quick})")
        if writes:
            self.add_argument("--json", type=path_name, metavar="FILE", help="write all figures there")
        else:
            self.add_argument("--json", action="store_true", help="print JSON instead of a table")

    def option(self, flag: str, usual: Any, quick: Any = None, help: str = "", **keywords: Any) -> None:
        """Adds an option for `settle`: its value where it is left out, which the help then has too, and that
        with --quick (None: the same)."""
        shown = " ".join(map(str, usual)) if isinstance(usual, list) else usual
        name = self.add_argument(flag, help=f"{help} (default: {shown})".lstrip(), **keywords).dest
        self._values[name] = usual, usual if quick is None else quick

    def text_options(self, text: str = "text files, a sentence a line") -> None:
        """Adds --input and --vocab, for `given_text`."""
        self.add_argument("--input", type=path_names, metavar="GLOB", help=text)
        vocab = "BERT vocab.txt, needed with --input"
        self.add_argument("--vocab", type=path_name, metavar="FILE", help=vocab)

    def contestants_options(self) -> None:
        """Adds --torch_python; `settle` then finds the interpreter, None where there is none, and has this
        process and all that it starts compute in `threads` threads."""
        text = "interpreter with torch and transformers"
        self.add_argument("--torch_python", type=path_name, metavar="PATH", help=text)

    def settle(self, options: argparse.Namespace) -> argparse.Namespace:
        """Gives every option that was left out (None) its value. What is named on the command line stays.

        Raises:
            InputError: no file can be where --json or --plot has one; of contestants, the interpreter that is
                named does not exist.
        """
        for name, values in self._values.items():
            if getattr(options, name) is None:
                setattr(options, name, values[options.quick])
        for name in ("json", "plot"):
            path = getattr(options, name, None)
            if not isinstance(path, str):  # left out, or a --json that prints
                continue
            if os.path.isdir(path) or not os.path.isdir(os.path.dirname(path) or "."):
                self.error(f"--{name} {path}: no file can be there; name a file in a folder that exists")
        if hasattr(options, "torch_python"):
            try:
                options.torch_python = find_torch_python(options.torch_python, os.environ)
            except ValueError as error:
                self.error(str(error))
            options.threads = set_threads()
        return options


def begin(options: argparse.Namespace) -> dict[str, Any]:
    """Prints what contestants are measured on, and returns the machine's description. From now on SIGTERM
    ends this process with all workers."""
    end_at(signal.SIGTERM)
    here = machine.describe(ROOT)
    kept = " ".join(f"{name}={value}" for name, value in KEEPS_MEMORY.items())
    heading = f"{machine.line(here)}\nevery contestant has {options.threads} threads; peers also {kept}"
    print(heading + f"; load before the start {here['load_before']}\n", flush=True)
    return here


def finish(options: argparse.Namespace, figures: Mapping[str, Any]) -> None:
    """Writes the figures where --json has them, and prints what was left out without PyTorch, and what those
    of --quick are good for."""
    if getattr(options, "torch_python", "") is None:
        print(NO_TORCH)
    if options.json:
        write_figures(options.json, {"quick": options.quick, **figures})
    if options.quick:
        print(NOTICE, flush=True)


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


def write_questions(path: str, texts: Sequence[Sequence[str]], wanted: int, **settings: Any) -> None:
    """Writes so many questions about documents, with contexts of 120 words, in SQuAD's format; the file's
    name goes into their seed. `settings`: more of ClozeSettings."""
    like_squad = ClozeSettings(context_words=120, question_words=30, **settings)
    content = make_questions(texts, wanted, like_squad, Path(path).stem)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file)
