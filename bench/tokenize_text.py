"""Tokens a second of WordPiece tokenizers on the same text, taken in turns, in CPU time.

    python -m bench.tokenize_text [--input 'text/*.txt' --vocab vocab.txt] [--rounds 5] [--json]
    python -m bench.tokenize_text --quick

CPU time is that of all threads of this process: a tokenizer that runs on two cores has it counted twice.
Without --input the text is the embedded English, which `make pretrain` trains on too.
"First" is the first round, in which the table of words is empty; the other rounds' best is "best".
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import time
from typing import Callable, Sequence

from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer

from base.command_line import OptionParser, at_least, path_name, path_names
from base.errors import InputError
from bench.quick import NOTICE, default_text, settle
from data.text.corpus import expand_inputs, sentences
from data.tokenizing.vocab import Vocabulary, load_vocab
from data.tokenizing.wordpiece import MAX_CHARS_PER_WORD, WordPieceTokenizer, bert_normalizer, lists_of
from training.entry import exit_code

LINES_PER_CALL = 1000
QUICK_LINES = 5000
GLUONNLP = "gluonnlp BERTTokenizer"


def hugging_face(vocab: Vocabulary, cased: bool) -> Callable[[list[str]], int]:
    """Hugging Face `tokenizers`, whole lines in batches; returns a counter of tokens."""
    model = WordPiece(vocab.ids(), unk_token="[UNK]", max_input_chars_per_word=MAX_CHARS_PER_WORD)
    tokenizer = HuggingFaceTokenizer(model)
    tokenizer.normalizer = bert_normalizer(cased)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    return lambda lines: sum(len(encoding.ids) for encoding in encode(lines, add_special_tokens=False))


def gluonnlp(vocab: Vocabulary, cased: bool) -> Callable[[list[str]], int] | None:
    """GluonNLP's BERTTokenizer, or None where it is not installed."""
    try:
        import gluonnlp as nlp
    except ImportError:
        return None
    ids = vocab.ids()
    theirs = nlp.vocab.BERTVocab(nlp.data.count_tokens(vocab.tokens), token_to_idx=ids)
    tokenize = nlp.data.BERTTokenizer(theirs, lower=not cased)
    return lambda lines: sum(len([ids[token] for token in tokenize(line)]) for line in lines)


def measure(lines: Sequence[str], vocab: Vocabulary, cased: bool, rounds: int) -> list[dict[str, object]]:
    """One row for each tokenizer: tokens, and millions of tokens a CPU second first and at best.

    Raises RuntimeError when the tokenizers do not agree in the number of tokens.
    """
    flat = WordPieceTokenizer(vocab, cased)
    lists = WordPieceTokenizer(vocab, cased)
    tokenizers: dict[str, Callable[[list[str]], int] | None] = {
        GLUONNLP: gluonnlp(vocab, cased),
        "Hugging Face tokenizers": hugging_face(vocab, cased),
        "ours, as lists": lambda block: sum(map(len, lists_of(*lists.encode(block)))),
        "ours": lambda block: len(flat.encode(block)[0]),
    }
    seconds: dict[str, list[float]] = {name: [] for name, count in tokenizers.items() if count is not None}
    tokens = dict.fromkeys(seconds, 0)
    for _ in range(rounds):
        for name, count in tokenizers.items():
            if count is None:
                continue
            started, total = time.process_time(), 0
            for start in range(0, len(lines), LINES_PER_CALL):
                total += count(list(lines[start : start + LINES_PER_CALL]))
            seconds[name].append(time.process_time() - started)
            tokens[name] = total
    if not cased and len(set(tokens.values())) != 1:
        raise RuntimeError(f"the tokenizers disagree: {tokens}")
    return [
        {
            "tokenizer": name,
            "tokens": tokens[name],
            "first": tokens[name] / took[0] / 1e6,
            "best": tokens[name] / min(took[1:]) / 1e6,
        }
        for name, took in seconds.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = OptionParser(
        prog="python -m bench.tokenize_text",
        description="Tokens a CPU second of WordPiece tokenizers on the same text.",
        epilog="Without --input it measures on the default corpus, which `make pretrain` trains on too.",
        allow_abbrev=False,
    )
    parser.add_argument("--input", type=path_names, help="text: files, globs, directories, comma-separated")
    parser.add_argument("--vocab", type=path_name, help="a BERT vocab.txt, needed with --input")
    parser.add_argument("--cased", action="store_true")
    parser.add_argument("--rounds", type=at_least(2), help="at least 2 (default: 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    means = f"2 rounds of the first {QUICK_LINES} sentences"
    parser.add_argument("--quick", action="store_true", help=f"does everything run? ({means})")
    options = parser.parse_args(arguments)
    settle(options, {"rounds": 5}, {"rounds": 2})
    if bool(options.input) != bool(options.vocab):
        raise InputError("--input and --vocab belong together; without both the embedded text is taken")
    with tempfile.TemporaryDirectory() as folder:
        if options.input:
            paths, vocab_path = expand_inputs(options.input, "--input"), options.vocab
        else:
            paths, vocab_path = default_text(folder)
        texts = (line for line in sentences(paths) if line is not None)
        lines = list(itertools.islice(texts, QUICK_LINES if options.quick else None))
        vocab = load_vocab(vocab_path)
    if not lines:
        raise InputError(f"--input: no text in {options.input}")
    rows = measure(lines, vocab, options.cased, options.rounds)
    if options.json:
        print(json.dumps({"lines": len(lines), "quick": options.quick, "rows": rows}, indent=1))
        return 0
    print(f"{len(lines)} sentences; millions of tokens a CPU second")
    print(f"{'':26}{'tokens':>10}{'first':>8}{'best':>8}")
    for row in rows:
        print(f"{row['tokenizer']:26}{row['tokens']:>10}{row['first']:>8.2f}{row['best']:>8.2f}")
    if GLUONNLP not in [row["tokenizer"] for row in rows]:
        print(f"{GLUONNLP}: left out: gluonnlp is not installed here")
    if options.quick:
        print(NOTICE)
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
