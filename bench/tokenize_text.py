"""Tokens a second of WordPiece tokenizers on the same text, taken in turns, in CPU time.

    python -m bench.tokenize_text [--input 'text/*.txt' --vocab vocab.txt] [--rounds 5] [--json]
    python -m bench.tokenize_text --quick

CPU time is that of all threads of this process: a tokenizer that runs on two cores has it counted twice.
Without --input the text is the embedded English, which `make pretrain` trains on too.
"First" is the first round, in which the table of words is empty; the other rounds' best is "best".
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import tempfile
import time
from functools import partial
from typing import Callable, Sequence

from base.command_line import at_least
from base.errors import InputError
from base.tables import Row, Table, terminal
from bench.harness import NOTICE, Measurement, given_text, take_rounds
from bench.question_loop import hugging_face
from bench.raw_path import gluonnlp_tokenizer
from data.text.corpus import sentences
from data.tokenizing.tokenizer import WordPieceTokenizer, lists_of
from data.tokenizing.vocab import Vocabulary, load_vocab
from training.entry import exit_code

LINES_PER_CALL = 1000
QUICK_LINES = 5000
GLUONNLP = "gluonnlp BERTTokenizer"


def counters(vocab: Vocabulary, cased: bool) -> dict[str, Callable[[list[str]], int]]:
    """Functions that count the tokens of lines, by tokenizer; GluonNLP's where it is installed."""
    flat, lists = (WordPieceTokenizer(vocab, cased) for _ in range(2))
    theirs = hugging_face(vocab, cased)
    encode = partial(getattr(theirs, "encode_batch_fast", theirs.encode_batch), add_special_tokens=False)
    found: dict[str, Callable[[list[str]], int]] = {}
    with contextlib.suppress(ImportError):
        tokenize, ids = gluonnlp_tokenizer(vocab.tokens, not cased), vocab.ids()
        found[GLUONNLP] = lambda lines: sum(len([ids[token] for token in tokenize(line)]) for line in lines)
    found["Hugging Face tokenizers"] = lambda lines: sum(len(each.ids) for each in encode(lines))
    found["ours, as lists"] = lambda lines: sum(map(len, lists_of(*lists.encode(lines))))
    found["ours"] = lambda lines: len(flat.encode(lines)[0])
    return found


def measure(lines: Sequence[str], vocab: Vocabulary, cased: bool, rounds: int) -> list[dict[str, object]]:
    """One row for each tokenizer: tokens, and millions of tokens a CPU second first and at best.

    Raises RuntimeError when the tokenizers do not agree in the number of tokens.
    """
    tokenizers = counters(vocab, cased)
    tokens = {}

    def take(name: str, number: int) -> float:
        started, total = time.process_time(), 0
        for start in range(0, len(lines), LINES_PER_CALL):
            total += tokenizers[name](list(lines[start : start + LINES_PER_CALL]))
        tokens[name] = total
        return time.process_time() - started

    found = take_rounds(list(tokenizers), rounds, take)
    if not cased and len(set(tokens.values())) != 1:
        raise RuntimeError(f"the tokenizers disagree: {tokens}")
    return [
        {
            "tokenizer": name,
            "tokens": tokens[name],
            "first": tokens[name] / found[0][name] / 1e6,
            "best": tokens[name] / min(each[name] for each in found[1:]) / 1e6,
        }
        for name in tokenizers
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    means = f"2 rounds of the first {QUICK_LINES} sentences"
    parser = Measurement("tokenize_text", __doc__, means, writes=False)
    parser.text_options("text: files, globs, directories, comma-separated")
    parser.add_argument("--cased", action="store_true")
    parser.option("--rounds", 5, 2, "at least 2", type=at_least(2))
    options = parser.settle(parser.parse_args(arguments))
    with tempfile.TemporaryDirectory() as folder:
        paths, vocab_path = given_text(options, folder)
        texts = (line for line in sentences(paths) if line is not None)
        lines = list(itertools.islice(texts, QUICK_LINES if options.quick else None))
        vocab = load_vocab(vocab_path)
    if not lines:
        raise InputError(f"--input: no text in {options.input}")
    rows = measure(lines, vocab, options.cased, options.rounds)
    if options.json:
        print(json.dumps({"lines": len(lines), "quick": options.quick, "rows": rows}, indent=1))
        return 0
    title = f"{len(lines)} sentences; millions of tokens a CPU second"
    shown = [
        Row([str(row["tokenizer"]), str(row["tokens"]), f"{row['first']:.2f}", f"{row['best']:.2f}"])
        for row in rows
    ]
    print(terminal(Table(title, ("", "tokens", "first", "best"), shown)))
    if GLUONNLP not in [row["tokenizer"] for row in rows]:
        print(f"{GLUONNLP}: left out: gluonnlp is not installed here")
    if options.quick:
        print(NOTICE)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
