"""What data.inspect is pointed at, opened: a token store, an instance store, files with masks, or text."""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Sequence

from base.errors import InputError
from base.progress import Printed
from data.formats.find import expand_instances
from data.formats.read import check_limits, peek
from data.pretraining.instance_source import StoredSource
from data.pretraining.sources import Source
from data.pretraining.text_source import RawSource
from data.store.from_files import cached_instances
from data.store.instances import InstanceStore, is_instance_store
from data.store.tokens import TokenStore, cached_store, is_store
from data.text.corpus import TextSettings
from data.tokenizing.tokenizer import TokenizerSettings, load_sentencepiece
from data.tokenizing.vocab import Vocabulary, load_vocab
from lamb_paper import default_max_predictions

TOKEN_STORE, INSTANCE_STORE, INSTANCES, TEXT = "token store", "instance store", "files with masks", "text"
# Ids of files that come without a vocabulary must be below some bound; no vocabulary is larger.
_ANY_VOCABULARY = 1 << 20
_PAIR_OPTIONS = (
    "short_seq_prob",
    "masked_lm_prob",
    "whole_word_mask",
    "static_masks",
)
_TEXT_OPTIONS = ("text_format", "split_sentences", "cased")


@dataclass(frozen=True, eq=False)
class Opened:
    """What was found. `tokens` is there for token stores and text, `instances` for all else."""

    kind: str
    name: str  # of the first file or the directory, without folders
    source: Source
    vocab: Vocabulary | None
    tokens: TokenStore | None
    instances: InstanceStore | None

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What was written down when the store was built."""
        store = self.tokens if self.tokens is not None else self.instances
        assert store is not None
        return store.manifest

    def file_of(self, index: int) -> str | None:
        """Name of the file that an instance was read from; None where instances are made from text."""
        return None if self.instances is None else self.instances.source_of(index)


@contextmanager
def opened(options: argparse.Namespace) -> Iterator[Opened]:
    """What the options name, for as long as the block runs.

    Text is tokenized and files are converted first, as a training would: into --cache_dir, where a training
    finds them, or into a temporary directory that is removed at the end. All of it is checked.
    Raises InputError for what cannot be read or is damaged, and for options that do nothing here.
    """
    patterns = ",".join(options.path)
    directory = os.path.expanduser(patterns.strip())
    vocab = _vocabulary(options)
    if is_store(directory):
        _refuse(options, (*_TEXT_OPTIONS, "raw", "skip_bad_records", "cache_dir"), "is a token store")
        store = TokenStore.open(directory)
        if vocab is not None and vocab.sha256 != store.vocabulary_sha256:
            raise InputError(
                f"{directory} was tokenized with another vocabulary; leave out --vocab and --sentencepiece: "
                "the store has its own"
            )
        yield _of_tokens(TOKEN_STORE, directory, store, options)
    elif is_instance_store(directory):
        _refuse(
            options, (*_PAIR_OPTIONS, *_TEXT_OPTIONS, "raw", "skip_bad_records", "cache_dir"), "has its masks"
        )
        ready = InstanceStore.open(directory)
        limits = options.max_seq_length, options.max_predictions_per_seq
        check_limits(directory, ready.width, ready.prediction_width, *limits)
        yield _of_instances(INSTANCE_STORE, directory, ready, vocab)
    else:
        for path in options.path:
            if is_store(os.path.expanduser(path)) or is_instance_store(os.path.expanduser(path)):
                raise InputError(f"{path} is a store, which is looked at alone; name nothing beside it")
        paths = expand_instances(patterns, "PATH")
        with _cache(options) as cache:
            if options.raw:
                yield _of_tokens(TEXT, paths[0], _tokenized(options, paths, vocab, cache), options)
                return
            _refuse(options, (*_PAIR_OPTIONS, *_TEXT_OPTIONS), "has its masks")
            for path in paths:  # before the first of them is converted
                found = peek(path)
                limits = options.max_seq_length, options.max_predictions_per_seq
                check_limits(path, found.width, found.num_predictions, *limits)
            size = len(vocab) if vocab is not None else _ANY_VOCABULARY
            converted = cached_instances(
                paths, size, cache, options.num_workers, options.skip_bad_records, Printed()
            )
            yield _of_instances(INSTANCES, paths[0], converted, vocab)


def _of_tokens(kind: str, path: str, store: TokenStore, options: argparse.Namespace) -> Opened:
    length = 512 if options.max_seq_length is None else options.max_seq_length
    predictions = options.max_predictions_per_seq
    source = RawSource(
        store,
        store.vocabulary,
        length,
        0.1 if options.short_seq_prob is None else options.short_seq_prob,
        0.15 if options.masked_lm_prob is None else options.masked_lm_prob,
        default_max_predictions(length) if predictions is None else predictions,
        options.whole_word_mask,
        options.static_masks,
    )
    return Opened(kind, _base(path), source, store.vocabulary, store, None)


def _of_instances(kind: str, path: str, store: InstanceStore, vocab: Vocabulary | None) -> Opened:
    if vocab is not None and len(vocab) < store.vocab_size < _ANY_VOCABULARY:
        raise InputError(
            f"{path} was made for {store.vocab_size} tokens, the vocabulary given has {len(vocab)}; name the "
            "vocabulary that its files were made with"
        )
    source = StoredSource(store, vocab.pad_id if vocab is not None else 0)
    return Opened(kind, _base(path), source, vocab, None, store)


def _tokenized(
    options: argparse.Namespace, paths: Sequence[str], vocab: Vocabulary | None, cache: str
) -> TokenStore:
    if vocab is None:
        raise InputError("--raw: give --vocab or --sentencepiece, to tokenize the text with")
    model = os.path.expanduser(options.sentencepiece) if options.sentencepiece else None
    text = TextSettings(options.text_format or "auto", options.split_sentences, options.skip_bad_records)
    settings = TokenizerSettings(vocab, model, options.cased)
    return cached_store(paths, settings, cache, options.num_workers, text, Printed())


def _vocabulary(options: argparse.Namespace) -> Vocabulary | None:
    if options.vocab and options.sentencepiece:
        raise InputError("--vocab and --sentencepiece exclude each other: each brings its own vocabulary")
    if options.vocab:
        return load_vocab(os.path.expanduser(options.vocab))
    if options.sentencepiece:
        return load_sentencepiece(os.path.expanduser(options.sentencepiece))
    return None


def _refuse(options: argparse.Namespace, names: Sequence[str], reason: str) -> None:
    """Options that would do nothing are an error: whoever gives one believes that it counts."""
    given = [name for name in names if getattr(options, name) not in (None, False)]
    if given:
        raise InputError(f"--{given[0]} does nothing here: {options.path[0]} {reason}")


@contextmanager
def _cache(options: argparse.Namespace) -> Iterator[str]:
    if options.cache_dir:
        yield os.path.expanduser(options.cache_dir)
        return
    with tempfile.TemporaryDirectory(prefix="inspect-") as directory:
        yield directory


def _base(path: str) -> str:
    return os.path.basename(os.path.abspath(path))
