"""Tables of the options for the data that is read and the batches made of it (base.options).

The training scripts and the commands of data/ take their options from here; docs/data.md is the guide to
them. Standard library only.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

from base.command_line import (
    MOST_PROCESSES,
    count,
    path_name,
    path_names,
    positive,
    positive_int,
    probability,
    share,
    whole,
)
from base.errors import InputError
from base.options import RANK, flag, option, options_in, taken
from lamb_paper import default_max_predictions

MAX_POSITIONS = 512  # rows of BERT's position embedding
MIN_SEQ_LENGTH = 5  # [CLS] a [SEP] b [SEP]
TEXT_FORMATS = ("auto", "lines", "books", "wikiextractor", "wikitext")


@dataclass(frozen=True)
class TextConfig:
    """Reading of text files.

    text_format: "wikiextractor": <doc> elements or JSON lines with a "text". "wikitext": " = Title = " begins
        a document. "auto": whichever of them, except "books", each file's content shows.
    split_sentences: for "lines" and "books": a line is a paragraph, to be split into sentences; otherwise it
        is one sentence. Wikipedia's text is always split.
    """

    text_format: str = option(
        "form of the text. lines: a sentence a line, a blank line between documents; books: every file is "
        "one document; wikiextractor, wikitext: Wikipedia; auto: by each file's content, but never books",
        choices=TEXT_FORMATS,
        default="auto",
    )
    split_sentences: bool = flag("the lines of the text are running text, to be split into sentences")
    skip_bad_records: bool = flag(
        "leave out, and count, lines and sequences that are damaged; without it they end the run"
    )


@dataclass(frozen=True)
class TokenizerConfig:
    """A vocabulary's file, WordPiece (`vocab`) or SentencePiece, and the tokenizer's options."""

    vocab: str | None = option(
        "a BERT vocab.txt, one token a line; python -m data.train_vocab makes one", path_name
    )
    sentencepiece: str | None = option(
        "a SentencePiece .model file, used as tokenizer and vocabulary", path_name
    )
    cased: bool = flag("keep upper case and accents")
    sp_nbest: int = option(
        "SentencePiece candidates to sample from, -1 all; tokenizes anew for ten epochs. 0 does not sample",
        whole(-1, 512, "SentencePiece's limit"),
        default=0,
    )
    sp_alpha: float = option(
        "inverse temperature of SentencePiece's sampling (default: 1.0)", positive, default=1.0
    )
    sp_seed: int = option("seed of that sampling", count, default=0)

    @property
    def flag(self) -> str:
        """The option that names the vocabulary."""
        return "--vocab" if self.vocab else "--sentencepiece"


@dataclass(frozen=True)
class MaskingConfig:
    """Pairs and masks made from text. A length of None is BERT's 512 tokens, predictions of None are the
    published runs' for the length."""

    max_seq_length: int | None = option(
        "tokens a sequence, at most 512; 128 in stage 1 (default: 512, or what files with masks hold)",
        positive_int,
        staged=True,
    )
    short_seq_prob: float = option("share of shortened sequences", probability, default=0.1, staged=True)
    masked_lm_prob: float = option("share of masked tokens", share, default=0.15, staged=True)
    max_predictions_per_seq: int | None = option(
        "masked positions a sequence, no fewer than files with masks hold (default: 20 at 128 tokens, 80 at "
        "512, else 15%% rounded up)",
        whole(1, MAX_POSITIONS, "the positions that BERT has"),
        staged=True,
    )
    whole_word_mask: bool = flag("mask whole words rather than single pieces")
    static_masks: bool = flag(
        "the pairs and masks of the first epoch in every epoch; by default they are drawn anew"
    )
    single_sentences: bool = flag(
        "each sequence is one sentence of the text, and nothing is learned about the next one: for models "
        "that judge single sentences (score.py)"
    )

    @property
    def length(self) -> int:
        """Most tokens of a sequence."""
        return self.max_seq_length or MAX_POSITIONS

    @property
    def predictions(self) -> int:
        """Most masked positions of a sequence."""
        return self.max_predictions_per_seq or default_max_predictions(self.length)

    def check(self) -> None:
        """Raises InputError for a length that is out of range."""
        length = self.max_seq_length
        if length is not None and not MIN_SEQ_LENGTH <= length <= MAX_POSITIONS:
            raise InputError(
                f"--max_seq_length {length}: must be from {MIN_SEQ_LENGTH} to {MAX_POSITIONS}, the positions "
                "that BERT has"
            )


@dataclass(frozen=True)
class BatchingConfig:
    """Division of an epoch into batches: `batch_size` sequences of a rank, or with `use_avg_len` tokens, in
    `num_buckets` length buckets at most."""

    batch_size: int = option(
        "sequences per process and micro-batch; with --use_avg_len tokens. A V100 with 16 GB takes 8192 "
        "tokens of BERT-large in float16 at 128",
        positive_int,
        default=8,
        staged=True,
    )
    use_avg_len: bool = flag("batch_size counts tokens, so short sequences come in larger batches")
    num_buckets: int = option(
        "length buckets; more means less padding",
        whole(1, MAX_POSITIONS, "as many as there are lengths"),
        default=32,
        staged=True,
    )


@dataclass(frozen=True)
class DataConfig:
    """The data to train on and to evaluate on, and how batches are made of it."""

    data: str | None = option(
        "what to train on: a token store of data.prepare; or files with sequences and masks (npz, HDF5, "
        "TFRecord, OFRecord, identified by their content); or with --raw text. Globs and folders, separated "
        "by commas; no training when left out",
        path_names,
    )
    data_eval: str | None = option(
        "what to evaluate on, in the same forms; no evaluation when left out", path_names
    )
    raw: bool = flag(
        "the files are text, tokenized once into --cache_dir: one sentence a line, a blank line between "
        "documents, or as --text_format says"
    )
    eval_use_npz: bool = flag("with --raw: --data_eval names files with masks all the same")
    cache_dir: str | None = option(  # None: decided by the command
        "where tokenized text and converted files are kept, named by their content (default: tokens in "
        "ckpt_dir)",
        path_name,
        scope=RANK,
    )
    num_data_workers: int = option(
        "batches made ahead of the step in the background; 0 makes them in the step",
        whole(0, MOST_PROCESSES, "more than any machine has cores"),
        default=8,
        scope=RANK,
    )
    eval_masked_lm_prob: float = option(
        "share of masked tokens in the text of --data_eval, whatever --masked_lm_prob is, so that figures of "
        "runs compare",
        share,
        default=0.15,
    )
    dummy_data_len: int | None = option(
        "train on random tokens of this length; for measuring speed and memory only",
        positive_int,
        staged=True,
    )
    text: TextConfig = field(default_factory=TextConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)


TABLE = options_in(DataConfig)


def check_tokenizer(config: TokenizerConfig) -> None:
    """Raises InputError for options of the tokenizer that contradict each other."""
    if config.vocab and config.sentencepiece:
        raise InputError("--vocab and --sentencepiece exclude each other: each brings its own vocabulary")
    if config.sp_nbest and not config.sentencepiece:
        raise InputError("--sp_nbest needs --sentencepiece: WordPiece has nothing to sample")


def check_data_options(options: argparse.Namespace) -> None:
    """Checks the options of `DataConfig` for a training against each other.

    Raises:
        InputError: one that is out of range, does nothing, or contradicts another.
    """
    config = taken(DataConfig, options)
    lengths = {"max_seq_length": config.masking.max_seq_length, "dummy_data_len": config.dummy_data_len}
    for name, length in lengths.items():
        if length is not None and not 8 <= length <= MAX_POSITIONS:
            raise InputError(
                f"--{name} {length}: use 8 to {MAX_POSITIONS}, BERT has {MAX_POSITIONS} positions"
            )
    check_tokenizer(config.tokenizer)
    if not config.raw:
        for name in ("text_format", "split_sentences"):
            if getattr(config.text, name) != getattr(TextConfig(), name):
                raise InputError(f"--{name} needs --raw: it says how text is read")
    if config.masking.static_masks and config.tokenizer.sp_nbest not in (0, 1):
        raise InputError("--static_masks and --sp_nbest exclude each other: other tokens need other masks")
    if not (config.data or config.data_eval or config.dummy_data_len):
        raise InputError("nothing to do: give --data to train, --data_eval to evaluate, or --dummy_data_len")
