"""The command line of data.prepare: its options, and which of them fit together."""

from __future__ import annotations

import argparse
import os
from typing import Any, Sequence

from base.command_line import OptionParser, count, positive, positive_int, probability, share
from base.errors import InputError
from data.formats.export import INSTANCES_PER_FILE, FileSettings, MaskSettings
from data.formats.write import FORMATS
from data.pretraining.pairs import MIN_SEQ_LENGTH
from data.pretraining.sources import MAX_SEQ_LENGTH
from data.text.corpus import TEXT_FORMATS, TextSettings
from data.tokenizing.tokenizer import TokenizerSettings, load_sentencepiece
from data.tokenizing.vocab import Vocabulary, load_vocab
from lamb_paper import default_max_predictions

STORE = "store"
_DESCRIPTION = """Prepare data for pretraining: tokenize text once into a token store, or write files of
masked instances for this and other projects (--format)."""
_EPILOG = """A build that was stopped or whose disk was full goes on where it stopped when the same command is
given again. Rules of thumb: one core tokenizes 4 million tokens a second of
text with a sentence a line, 1.5 million of text that has to be split into sentences: a GB of English in one
to two minutes; a token store takes 2.3 bytes a token (4.3 for vocabularies above 65,536), half the size
of the text; memory is about 100 MB a worker, whatever the size of the text. Files of instances take as
much again for every copy (--dupe_factor), and twice that while they are made."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options, checked as far as they can be without reading files. Raises InputError."""
    parser = OptionParser(
        prog="python -m data.prepare", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False
    )
    _add_common(parser)
    _add_text(parser.add_argument_group("text"))
    _add_files(parser.add_argument_group("files of instances (--format other than store)"))
    options = parser.parse_args(arguments)
    _check(options)
    return options


def _add_common(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--input",
        required=True,
        help="text: files, folders and globs, separated by commas; with --format also a token store, or "
        "files of instances (npz, HDF5, TFRecord, OFRecord)",
    )
    add("--output", required=True, help="the directory to make")
    add("--vocab", help="vocab.txt of WordPiece tokens, one a line (data.train_vocab makes one)")
    add("--sentencepiece", help="a SentencePiece model instead of --vocab")
    add(
        "--num_workers",
        type=positive_int,
        default=len(os.sched_getaffinity(0)),
        help="processes; the result does not depend on it (default: the cores, here %(default)s)",
    )
    add(
        "--skip_bad_records",
        action="store_true",
        help="leave out, count and name damaged lines, documents and instances; without it they are errors",
    )


def _add_text(group: Any) -> None:
    add = group.add_argument
    add("--cased", action="store_true", help="keep case and accents, for cased vocabularies")
    add(
        "--text_format",
        choices=TEXT_FORMATS,
        default="auto",
        help="lines: a sentence a line, a blank line between documents; books: every file is one document; "
        "wikiextractor, wikitext: Wikipedia; auto: by each file's content, but never books (default: auto)",
    )
    add("--split_sentences", action="store_true", help="lines are running text, to be split into sentences")
    add(
        "--sp_nbest",
        type=int,
        default=0,
        help="sample SentencePiece segmentations from this many, below 0 from all (default: 0, the best one)",
    )
    add("--sp_alpha", type=positive, default=1.0, help="inverse temperature of that sampling (default: 1.0)")
    add("--sp_seed", type=count, default=0, help="seed of that sampling (default: 0)")


def _add_files(group: Any) -> None:
    add = group.add_argument
    add(
        "--format",
        choices=[STORE, *FORMATS],
        default=STORE,
        help="store: a token store, from which training draws new pairs and masks each epoch; the others: "
        "instances with their masks, for this and other projects (default: store)",
    )
    add("--max_seq_length", type=int, default=128, help="tokens of an instance (default: 128)")
    add(
        "--max_predictions_per_seq",
        type=positive_int,
        help="masked tokens of an instance (default: 20 at 128 tokens, 80 at 512, else 15%% rounded up)",
    )
    add("--short_seq_prob", type=probability, default=0.1, help="share of shortened instances (default: 0.1)")
    add("--masked_lm_prob", type=share, default=0.15, help="share of masked tokens (default: 0.15)")
    add("--whole_word_mask", action="store_true", help="mask all pieces of a word together")
    add(
        "--dupe_factor",
        type=positive_int,
        default=5,
        help="copies of the text, each with other pairs and masks (default: 5)",
    )
    add("--seed", type=count, default=0, help="seed of pairs, masks and order (default: 0)")
    add("--gzip", action="store_true", help="compress TFRecord and OFRecord (npz and HDF5 always are)")
    add(
        "--instances_per_file",
        type=positive_int,
        default=INSTANCES_PER_FILE,
        help=f"(default: {INSTANCES_PER_FILE:,})",
    )


def _check(options: argparse.Namespace) -> None:
    if options.vocab and options.sentencepiece:
        raise InputError("--vocab and --sentencepiece exclude each other: each brings its own vocabulary")
    if options.sp_nbest not in (0, 1) and not options.sentencepiece:
        raise InputError("--sp_nbest needs --sentencepiece: WordPiece has nothing to sample")
    if not MIN_SEQ_LENGTH <= options.max_seq_length <= MAX_SEQ_LENGTH:
        raise InputError(
            f"--max_seq_length {options.max_seq_length}: must be from {MIN_SEQ_LENGTH} to {MAX_SEQ_LENGTH}, "
            "the positions that BERT has"
        )
    if options.max_predictions_per_seq is None:
        options.max_predictions_per_seq = default_max_predictions(options.max_seq_length)


def vocabulary(options: argparse.Namespace) -> Vocabulary:
    """The vocabulary that --vocab or --sentencepiece names. Raises InputError if neither is given, or bad."""
    if options.vocab:
        return load_vocab(os.path.expanduser(options.vocab))
    if options.sentencepiece:
        return load_sentencepiece(os.path.expanduser(options.sentencepiece))
    raise InputError(
        "give --vocab (WordPiece; data.train_vocab makes one from a text) or --sentencepiece for the tokens"
    )


def tokenizer_settings(options: argparse.Namespace, copy: int = 0) -> TokenizerSettings:
    """How to tokenize; `copy` gives a tokenizer that samples another seed."""
    model = os.path.abspath(os.path.expanduser(options.sentencepiece)) if options.sentencepiece else None
    return TokenizerSettings(
        vocabulary(options),
        model,
        options.cased,
        options.sp_nbest,
        options.sp_alpha,
        options.sp_seed + copy,
    )


def text_settings(options: argparse.Namespace) -> TextSettings:
    """How to read text."""
    return TextSettings(options.text_format, options.split_sentences, options.skip_bad_records)


def mask_settings(options: argparse.Namespace) -> MaskSettings:
    """How to make instances."""
    return MaskSettings(
        options.max_seq_length,
        options.short_seq_prob,
        options.masked_lm_prob,
        options.max_predictions_per_seq,
        options.whole_word_mask,
        options.dupe_factor,
        options.seed,
    )


def file_settings(options: argparse.Namespace) -> FileSettings:
    """Which files to write."""
    return FileSettings(options.format, options.gzip, options.instances_per_file)
