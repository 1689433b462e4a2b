"""Options for the data that is read and the batches made of it, and the configurations made from them.

The training scripts and the commands of data/ take their options from here; docs/data.md is the guide to
them. Standard library only.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields
from typing import Any, Callable, TypeVar

from base.command_line import (
    MOST_PROCESSES,
    path_name,
    path_names,
    positive,
    positive_int,
    probability,
    share,
    whole,
)
from base.errors import InputError

MAX_POSITIONS = 512  # rows of BERT's position embedding
MIN_SEQ_LENGTH = 5  # [CLS] a [SEP] b [SEP]
MASKED_LM_PROB = 0.15  # the share of masked tokens that held-out text is judged with
TEXT_FORMATS = ("auto", "lines", "books", "wikiextractor", "wikitext")
Add = Callable[..., Any]  # `add_argument` of a parser or a group

_VOCABULARY = ("vocab", "sentencepiece")
_DEFINITIONS: dict[str, dict[str, Any]] = {
    "vocab": {
        "type": path_name,
        "help": "a BERT vocab.txt, one token a line; python -m data.train_vocab makes one",
    },
    "sentencepiece": {
        "type": path_name,
        "help": "a SentencePiece .model file, used as tokenizer and vocabulary",
    },
    "data": {
        "type": path_names,
        "help": "what to train on: a token store of data.prepare; or files with sequences and masks (npz, "
        "HDF5, TFRecord, OFRecord, identified by their content); or with --raw text. Globs and folders, "
        "separated by commas; no training when left out",
    },
    "data_eval": {
        "type": path_names,
        "help": "what to evaluate on, in the same forms; no evaluation when left out",
    },
    "raw": {
        "action": "store_true",
        "help": "the files are text, tokenized once into --cache_dir: one sentence a line, a blank line "
        "between documents, or as --text_format says",
    },
    "eval_use_npz": {
        "action": "store_true",
        "help": "with --raw: --data_eval names files with masks all the same",
    },
    "text_format": {
        "choices": TEXT_FORMATS,
        "default": "auto",
        "help": "form of the text. lines: a sentence a line, a blank line between documents; books: every "
        "file is one document; wikiextractor, wikitext: Wikipedia; auto: by each file's content, but never "
        "books (default: auto)",
    },
    "split_sentences": {
        "action": "store_true",
        "help": "the lines of the text are running text, to be split into sentences",
    },
    "skip_bad_records": {
        "action": "store_true",
        "help": "leave out, and count, lines and sequences that are damaged; without it they end the run",
    },
    "cache_dir": {
        "type": path_name,
        "help": "where tokenized text and converted files are kept, named by their content (default: tokens "
        "in ckpt_dir)",
    },
    "max_seq_length": {
        "type": positive_int,
        "help": "tokens a sequence, at most 512; 128 in stage 1 (default: 512, or what files with masks "
        "hold)",
    },
    "max_predictions_per_seq": {
        "type": whole(1, MAX_POSITIONS, "the positions that BERT has"),
        "help": "masked positions a sequence, no fewer than files with masks hold (default: 20 at 128 "
        "tokens, 80 at 512, else 15%% rounded up)",
    },
    "short_seq_prob": {
        "type": probability,
        "default": 0.1,
        "help": "share of shortened sequences (default: 0.1)",
    },
    "masked_lm_prob": {"type": share, "default": 0.15, "help": "share of masked tokens (default: 0.15)"},
    "whole_word_mask": {"action": "store_true", "help": "mask whole words rather than single pieces"},
    "static_masks": {
        "action": "store_true",
        "help": "the pairs and masks of the first epoch in every epoch; by default they are drawn anew",
    },
    "cased": {"action": "store_true", "help": "keep upper case and accents"},
    "sp_nbest": {
        "type": whole(-1, 512, "SentencePiece's limit"),
        "default": 0,
        "help": "SentencePiece candidates to sample from, -1 all; tokenizes anew for ten epochs. 0 does "
        "not sample (default: 0)",
    },
    "sp_alpha": {
        "type": positive,
        "default": 1.0,
        "help": "inverse temperature of SentencePiece's sampling (default: 1.0)",
    },
    "num_buckets": {
        "type": whole(1, MAX_POSITIONS, "as many as there are lengths"),
        "default": 32,
        "help": "length buckets; more means less padding (default: 32)",
    },
    "num_data_workers": {
        "type": whole(0, MOST_PROCESSES, "more than any machine has cores"),
        "default": 8,
        "help": "batches made ahead of the step in the background; 0 makes them in the step (default: 8)",
    },
    "dummy_data_len": {
        "type": positive_int,
        "help": "train on random tokens of this length; for measuring speed and memory only",
    },
}


@dataclass(frozen=True)
class TextConfig:
    """Reading of text files.

    text_format: one of TEXT_FORMATS. "lines": a blank line ends a document. "books": every file is one
        document, blank lines are nothing. "wikiextractor": <doc> elements or JSON lines with a "text".
        "wikitext": " = Title = " begins a document. "auto": whichever of them, except "books", each file's
        content shows.
    split_sentences: for "lines" and "books": a line is a paragraph, to be split into sentences; otherwise it
        is one sentence. Wikipedia's text is always split.
    skip_bad_records: leave out bad lines or documents instead of raising InputError.
    """

    text_format: str = "auto"
    split_sentences: bool = False
    skip_bad_records: bool = False

    def __post_init__(self) -> None:
        if self.text_format not in TEXT_FORMATS:
            raise InputError(f"--text_format {self.text_format}: must be one of {', '.join(TEXT_FORMATS)}")


@dataclass(frozen=True)
class TokenizerConfig:
    """A vocabulary's file, WordPiece (`vocab`) or SentencePiece, and the tokenizer's options."""

    vocab: str | None = None
    sentencepiece: str | None = None
    cased: bool = False
    sp_nbest: int = 0
    sp_alpha: float = 1.0
    sp_seed: int = 0

    @property
    def flag(self) -> str:
        """The option that names the vocabulary."""
        return "--vocab" if self.vocab else "--sentencepiece"


@dataclass(frozen=True)
class MaskingConfig:
    """Pairs and masks made from text. A length of None is BERT's 512 tokens, predictions of None are the
    published runs' for the length."""

    max_seq_length: int | None = None
    short_seq_prob: float = 0.1
    masked_lm_prob: float = MASKED_LM_PROB
    max_predictions_per_seq: int | None = None
    whole_word_mask: bool = False
    static_masks: bool = False

    def check(self) -> None:
        """Raises InputError naming the option that is out of range."""
        length, predictions = self.max_seq_length, self.max_predictions_per_seq
        if length is not None and not MIN_SEQ_LENGTH <= length <= MAX_POSITIONS:
            raise InputError(
                f"--max_seq_length {length}: must be from {MIN_SEQ_LENGTH} to {MAX_POSITIONS}, the positions "
                "that BERT has"
            )
        if not 0 <= self.short_seq_prob <= 1:
            raise InputError(f"--short_seq_prob {self.short_seq_prob}: must be from 0 to 1")
        if not 0 < self.masked_lm_prob <= 1:
            raise InputError(f"--masked_lm_prob {self.masked_lm_prob}: must be above 0 and at most 1")
        if predictions is not None and predictions < 1:
            raise InputError(f"--max_predictions_per_seq {predictions}: must be at least 1")


@dataclass(frozen=True)
class BatchingConfig:
    """Division of an epoch into batches: `batch_size` sequences of a rank, or with `use_avg_len` tokens, in
    `num_buckets` length buckets at most."""

    batch_size: int = 8
    use_avg_len: bool = False
    num_buckets: int = 32


@dataclass(frozen=True)
class DataConfig:
    """The options of the group "data", with those for the vocabulary and the size of batches."""

    data: str | None = None
    data_eval: str | None = None
    raw: bool = False
    eval_use_npz: bool = False
    cache_dir: str | None = None  # None: decided by the command
    num_data_workers: int = 8
    dummy_data_len: int | None = None
    text: TextConfig = field(default_factory=TextConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    masking: MaskingConfig = field(default_factory=MaskingConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)


def data_config(options: argparse.Namespace) -> DataConfig:
    """The configuration that parsed options make up; options that are missing or None keep its defaults."""
    groups = {
        "text": _from_options(TextConfig, options),
        "tokenizer": _from_options(TokenizerConfig, options),
        "masking": _from_options(MaskingConfig, options),
        "batching": _from_options(BatchingConfig, options),
    }
    return _from_options(DataConfig, options, **groups)


Config = TypeVar("Config")


def _from_options(kind: Callable[..., Config], options: argparse.Namespace, **groups: Any) -> Config:
    names = [each.name for each in fields(kind) if each.name not in groups]  # type: ignore[arg-type]
    given = {name: getattr(options, name, None) for name in names}
    return kind(**{name: value for name, value in given.items() if value is not None}, **groups)


def add_option(add: Add, name: str, **changes: Any) -> None:
    """Adds one of the options; `changes` are keywords of `add_argument` that differ here."""
    add(f"--{name}", **{**_DEFINITIONS[name], **changes})


def add_options(add: Add, *names: str) -> None:
    """Adds options as they are defined."""
    for name in names:
        add_option(add, name)


def add_vocabulary_options(add: Add) -> None:
    """Adds --vocab and --sentencepiece."""
    add_options(add, *_VOCABULARY)


def add_data_options(add: Add) -> None:
    """Adds the options of the group "data" of the training scripts."""
    add_options(add, *(name for name in _DEFINITIONS if name not in _VOCABULARY))


def check_tokenizer(config: TokenizerConfig) -> None:
    """Raises InputError for options of the tokenizer that contradict each other."""
    if config.vocab and config.sentencepiece:
        raise InputError("--vocab and --sentencepiece exclude each other: each brings its own vocabulary")
    if config.sp_nbest and not config.sentencepiece:
        raise InputError("--sp_nbest needs --sentencepiece: WordPiece has nothing to sample")


def check_data_options(options: argparse.Namespace) -> None:
    """Checks the options of the group "data" against each other.

    Raises:
        InputError: one that is out of range, does nothing, or contradicts another.
    """
    config = data_config(options)
    for flag, length in (
        ("max_seq_length", config.masking.max_seq_length),
        ("dummy_data_len", config.dummy_data_len),
    ):
        if length is not None and not 8 <= length <= MAX_POSITIONS:
            raise InputError(
                f"--{flag} {length}: use 8 to {MAX_POSITIONS}, BERT has {MAX_POSITIONS} positions"
            )
    check_tokenizer(config.tokenizer)
    if not config.raw:
        for flag, idle in (
            ("text_format", config.text.text_format != "auto"),
            ("split_sentences", config.text.split_sentences),
        ):
            if idle:
                raise InputError(f"--{flag} needs --raw: it says how text is read")
    if config.masking.static_masks and config.tokenizer.sp_nbest not in (0, 1):
        raise InputError("--static_masks and --sp_nbest exclude each other: other tokens need other masks")
    if not (config.data or config.data_eval or config.dummy_data_len):
        raise InputError("nothing to do: give --data to train, --data_eval to evaluate, or --dummy_data_len")
