"""The options for what a run reads. docs/data.md is the guide to them. Standard library only."""

from __future__ import annotations

import argparse
from typing import Any, Callable

from base.command_line import count, positive, positive_int, probability, share
from base.errors import InputError

MAX_POSITIONS = 512  # rows of BERT's position embedding
TEXT_FORMATS = ("auto", "lines", "books", "wikiextractor", "wikitext")


def add_data_options(add: Callable[..., Any]) -> None:
    """Adds the options of the group "data". add: `add_argument` of a parser or group."""
    add(
        "--data",
        help="what to train on: a token store of data.prepare; or files with sequences and masks (npz, HDF5, "
        "TFRecord, OFRecord, told by their content); or with --raw text. Globs and folders, separated by "
        "commas; no training when left out",
    )
    add("--data_eval", help="what to evaluate on, in the same forms; no evaluation when left out")
    add(
        "--raw",
        action="store_true",
        help="the files are text, tokenized once into --cache_dir: one sentence a line, a blank line between "
        "documents, or as --text_format says",
    )
    add(
        "--eval_use_npz",
        action="store_true",
        help="with --raw: --data_eval names files with masks all the same",
    )
    add(
        "--text_format",
        choices=TEXT_FORMATS,
        default="auto",
        help="with --raw: auto looks at each file and knows lines, WikiExtractor output, WikiText; books: "
        "every file is one document (default: auto)",
    )
    add(
        "--split_sentences",
        action="store_true",
        help="with --raw: the lines are running text, to be split into sentences",
    )
    add(
        "--skip_bad_records",
        action="store_true",
        help="leave out, and count, lines and sequences that are damaged; without it they end the run",
    )
    add(
        "--cache_dir",
        help="where tokenized text and converted files are kept, named by their content (default: tokens in "
        "ckpt_dir)",
    )
    add(
        "--max_seq_length",
        type=positive_int,
        help="tokens a sequence, at most 512; 128 in stage 1 (default: 512, or what files with masks hold)",
    )
    add(
        "--max_predictions_per_seq",
        type=positive_int,
        help="masked positions a sequence, no fewer than files with masks hold (default: 20 at 128 tokens, "
        "80 at 512, else 15%% rounded up)",
    )
    add("--short_seq_prob", type=probability, default=0.1, help="share of shortened sequences (default: 0.1)")
    add("--masked_lm_prob", type=share, default=0.15, help="share of masked tokens (default: 0.15)")
    add("--whole_word_mask", action="store_true", help="mask whole words rather than single pieces")
    add(
        "--static_masks",
        action="store_true",
        help="the pairs and masks of the first epoch in every epoch; by default they are drawn anew",
    )
    add("--cased", action="store_true", help="keep upper case and accents")
    add(
        "--sp_nbest",
        type=int,
        default=0,
        help="SentencePiece candidates to sample from, below 0 all; tokenizes anew for ten epochs. 0 does "
        "not sample (default: 0)",
    )
    add("--sp_alpha", type=positive, default=1.0, help="SentencePiece sampling temperature (default: 1.0)")
    add(
        "--num_buckets",
        type=positive_int,
        default=32,
        help="length buckets; more means less padding (default: 32)",
    )
    add(
        "--num_data_workers",
        type=count,
        default=8,
        help="batches made ahead of the step in the background; 0 makes them in the step (default: 8)",
    )
    add(
        "--dummy_data_len",
        type=positive_int,
        help="train on random tokens of this length; for measuring speed and memory only",
    )


def check_data_options(options: argparse.Namespace) -> None:
    """Checks the options of this group against each other.

    Raises:
        InputError: one that is out of range, does nothing, or contradicts another.
    """
    for flag in ("max_seq_length", "dummy_data_len"):
        value = getattr(options, flag)
        if value is not None and not 8 <= value <= MAX_POSITIONS:
            raise InputError(
                f"--{flag} {value}: use 8 to {MAX_POSITIONS}, BERT has {MAX_POSITIONS} positions"
            )
    if options.vocab and options.sentencepiece:
        raise InputError("--vocab and --sentencepiece exclude each other: each brings its own vocabulary")
    if options.sp_nbest and not options.sentencepiece:
        raise InputError("--sp_nbest needs --sentencepiece")
    if not options.raw:
        for flag, idle in (
            ("text_format", options.text_format != "auto"),
            ("split_sentences", options.split_sentences),
        ):
            if idle:
                raise InputError(f"--{flag} needs --raw: it says how text is read")
    if options.static_masks and options.sp_nbest not in (0, 1):
        raise InputError("--static_masks and --sp_nbest exclude each other: other tokens need other masks")
    if not (options.data or options.data_eval or options.dummy_data_len):
        raise InputError("nothing to do: give --data to train, --data_eval to evaluate, or --dummy_data_len")
