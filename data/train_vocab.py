"""Train a vocabulary on raw text: WordPiece's vocab.txt or a SentencePiece model.

python -m data.train_vocab --input 'corpus/*.txt' --output vocab.txt --vocab_size 30522 [--cased]
python -m data.train_vocab --type sentencepiece --input corpus/ --output m.model --vocab_size 30000
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Sequence

from base.command_line import OptionParser, count, path_name, path_names, whole
from base.errors import InputError
from base.files import replacing
from base.progress import Printed
from data.options import add_options, data_config
from data.text.corpus import expand_inputs
from data.tokenizing.tokenizer import load_sentencepiece
from data.tokenizing.train_sentencepiece import MODEL_TYPES, sentencepiece_model
from data.tokenizing.train_wordpiece import MIN_VOCAB_SIZE, wordpiece_tokens
from data.tokenizing.training_text import TrainingText
from data.tokenizing.vocab import KINDS, MAX_VOCAB_SIZE, SENTENCEPIECE, WORDPIECE, load_vocab

__all__ = ["MIN_VOCAB_SIZE", "train_sentencepiece", "train_wordpiece"]


def train_wordpiece(
    paths: Sequence[str], output: str, vocab_size: int, cased: bool = False, text: TrainingText | None = None
) -> int:
    """Train and write `output`, a vocab.txt with the special tokens first. Returns its number of tokens.

    The text is that of the files at `paths`, or `text` if given. The same text gives the same file. Errors as
    in `wordpiece_tokens`.
    """
    tokens = wordpiece_tokens(text if text is not None else TrainingText(paths), vocab_size, cased)
    with replacing(output) as handle:
        handle.write("".join(token + "\n" for token in tokens).encode("utf-8"))
    return len(load_vocab(output))


def train_sentencepiece(
    text: TrainingText, output: str, vocab_size: int, cased: bool = False, model_type: str = "unigram"
) -> int:
    """Train and write `output`, a SentencePiece model. Returns its number of pieces.

    Errors as in `sentencepiece_model`.
    """
    content = sentencepiece_model(text, vocab_size, cased, model_type)
    with replacing(output) as handle:
        handle.write(content)
    return len(load_sentencepiece(output))


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    arguments = OptionParser(
        prog="python -m data.train_vocab",
        description="Train a WordPiece vocabulary or a SentencePiece model on raw text.",
        epilog="Memory: about 1 KB for each distinct word of the sentences trained on, such as 1 GB for 10 "
        "million sentences with a million distinct words; SentencePiece holds the sentences as well.",
    )
    add = arguments.add_argument
    add(
        "--input",
        type=path_names,
        required=True,
        help="text: files, globs and directories, comma-separated",
    )
    add(
        "--output",
        type=path_name,
        required=True,
        help="the vocab.txt or .model file to write; must not exist",
    )
    add("--type", choices=KINDS, default=WORDPIECE, help="default: %(default)s")
    add(
        "--vocab_size",
        type=whole(1, MAX_VOCAB_SIZE, "four times the largest vocabulary in use"),
        default=30522,
        help="tokens at most (default: %(default)s)",
    )
    add_options(add, "cased")
    add("--sp_model_type", choices=MODEL_TYPES, default="unigram", help="of SentencePiece")
    add_options(add, "text_format", "split_sentences", "skip_bad_records")
    add(
        "--max_sentences",
        type=count,
        default=10_000_000,
        help="train on so many sentences drawn from a larger text, 0 for all (default: %(default)s)",
    )
    add("--seed", type=count, default=0, help="of the draw of --max_sentences")
    return arguments


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    try:
        options = parser().parse_args(arguments)
        _train(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # such as a full disk; the output is not there then
        print(f"error: --output: cannot write {options.output}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


def _train(options: argparse.Namespace) -> None:
    output: str = options.output
    directory = os.path.dirname(os.path.abspath(output))
    if not os.path.isdir(directory):
        raise InputError(f"--output: no such directory: {directory}")
    if os.path.lexists(output):
        raise InputError(f"--output: {output} is there already; name another file or remove it")
    progress = Printed()
    paths = expand_inputs(options.input, "--input")
    text = TrainingText(paths, data_config(options).text, options.max_sentences, options.seed, progress)
    if 0 < options.max_sentences < text.sentences:
        progress.note(f"training on {text.drawn} of {text.sentences} sentences (--max_sentences)")
    if options.type == SENTENCEPIECE:
        size = train_sentencepiece(text, output, options.vocab_size, options.cased, options.sp_model_type)
    else:
        size = train_wordpiece(paths, output, options.vocab_size, options.cased, text)
    for message in text.messages:
        print(f"skipped: {message}", file=sys.stderr)
    if text.skipped:
        print(f"skipped {text.skipped} bad records in all", file=sys.stderr)
    fewer = size < options.vocab_size
    reason = f", fewer than --vocab_size {options.vocab_size}: the text has no more" if fewer else ""
    print(f"wrote {output}: {size} tokens{reason}")


if __name__ == "__main__":
    sys.exit(main())
