"""The data that options name: its kind, its vocabulary, and the samples that batches are made of.

Training, data.inspect and data.prepare decide and open here. Text is tokenized and files with masks are
converted into a cache; stores are mapped as they are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.progress import Progress
from data.formats.read import check_limits, identify, peek
from data.options import DataConfig, TextConfig, TokenizerConfig, check_tokenizer
from data.pretraining.sources import InstanceSource, Source, TextSource
from data.store.build import unfinished_build
from data.store.instances import InstanceStore, cached_instances, instance_columns, is_instance_store
from data.store.manifest import EXPORT_FORMAT, MANIFEST, read_json
from data.store.tokens import TokenStore, cached_store, is_store, token_columns
from data.text.corpus import expand_inputs
from data.tokenizing.tokenizer import TokenizerSettings, load_sentencepiece
from data.tokenizing.vocab import Vocabulary, load_vocab

NOTHING, TEXT, TOKEN_STORE, INSTANCES, INSTANCE_STORE = "", "text", "store", "instances", "instance store"
# Ids of files that come without a vocabulary must be below some bound; no vocabulary is larger.
ANY_VOCABULARY = 1 << 20
SAMPLED_STORES = 10  # segmentations kept when SentencePiece samples, then they repeat
# A store whose manifest cannot be read has two first shards or more, one of them not of the other kind.
_TOKEN_NAMES = {f"{column.name}-00000.bin" for column in token_columns(1)}
_INSTANCE_NAMES = {f"{column.name}-00000.bin" for column in instance_columns(1)}


class DataFiles(NamedTuple):
    """Files of one kind, or the directory of a store."""

    kind: str  # NOTHING, TEXT, TOKEN_STORE, INSTANCES (sequences with their masks) or INSTANCE_STORE
    paths: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class OpenedData:
    """Samples, and the store that they come from: `tokens` (that of epoch 0 where the tokenizer samples) for
    text and token stores, `instances` for files with masks."""

    source: Source
    vocabulary: Vocabulary | None
    tokens: TokenStore | None = None
    instances: InstanceStore | None = None

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The manifest of the store."""
        store = self.tokens if self.tokens is not None else self.instances
        assert store is not None
        return store.manifest


def named_data(patterns: str | None, flag: str, raw: bool) -> DataFiles:
    """The data that `patterns` (globs, files and folders, separated by commas) name; `raw` says that files
    are text.

    Raises InputError naming `flag` where nothing is there, and for parts of stores.
    """
    return _store_or_files(patterns, flag, TEXT if raw else INSTANCES) if patterns else DataFiles(NOTHING)


def inspected_data(names: Sequence[str], raw: bool) -> DataFiles:
    """As `named_data` for names of a command line, which may also be an instance store of a cache.

    Raises InputError as `named_data`, and for a store with something beside it.
    """
    patterns = ",".join(names)
    directory = os.path.expanduser(patterns.strip())
    if is_instance_store(directory):
        return DataFiles(INSTANCE_STORE, (directory,))
    for name in names:
        path = os.path.expanduser(name)
        if len(names) > 1 and (is_store(path) or is_instance_store(path)):
            raise InputError(f"{name} is a store, which is looked at alone; name nothing beside it")
    return _store_or_files(patterns, "PATH", TEXT if raw else INSTANCES)


def identified_data(patterns: str, flag: str) -> DataFiles:
    """As `named_data`, with text and files with masks identified by their content.

    Raises InputError as `named_data`, and for files of both kinds.
    """
    data = _store_or_files(patterns, flag, TEXT)
    if data.kind != TEXT:
        return data
    instances = [path for path in data.paths if _holds_instances(path)]
    if not instances:
        return data
    if len(instances) < len(data.paths):
        other = next(path for path in data.paths if path not in set(instances))
        raise InputError(
            f"{flag}: {instances[0]} holds instances and {other} does not; prepare them separately"
        )
    return DataFiles(INSTANCES, data.paths)


def check_text(paths: Sequence[str]) -> None:
    """Raises InputError for a file that is of another kind by its beginning.

    Lines are checked when they are tokenized, and no more where the text is in the cache already.
    """
    for path in paths:
        try:
            kind = identify(path)
        except InputError:
            continue
        raise InputError(
            f"{path} is not text but {kind.format}, which is read without --raw "
            "(as --data_eval beside text: with --eval_use_npz)"
        )


def check_instances(paths: Sequence[str], max_seq_length: int | None, max_predictions: int | None) -> int:
    """Tokens that the widest of the files pads its rows to, from their headers.

    Raises InputError for a file of no known form, or wider than a limit (None: no limit).
    """
    widest = 0
    for path in paths:
        facts = peek(path)
        check_limits(path, facts.width, facts.num_predictions, max_seq_length, max_predictions)
        widest = max(widest, facts.width)
    return widest


def load_vocabulary(config: TokenizerConfig) -> Vocabulary | None:
    """The vocabulary of --vocab or --sentencepiece, None without either. Raises InputError for a bad one."""
    check_tokenizer(config)
    if config.vocab:
        return load_vocab(os.path.expanduser(config.vocab))
    if config.sentencepiece:
        return load_sentencepiece(os.path.expanduser(config.sentencepiece))
    return None


def common_vocabulary(config: TokenizerConfig, *data: DataFiles) -> Vocabulary | None:
    """The vocabulary that the options name; without, that of a token store.

    Raises InputError where they differ, and for sampling (--sp_nbest) from a token store.
    """
    chosen = load_vocabulary(config)
    origin = config.flag
    for each in data:
        if each.kind == TOKEN_STORE:
            stored = TokenStore.open(each.paths[0], verify=False).vocabulary
            if chosen is not None and chosen.sha256 != stored.sha256:
                raise InputError(
                    f"{each.paths[0]} was tokenized with another vocabulary than that of {origin}; leave out "
                    f"{origin}, or prepare the text again"
                )
            chosen, origin = chosen or stored, origin if chosen else each.paths[0]
    if config.sp_nbest not in (0, 1) and any(each.kind == TOKEN_STORE for each in data):
        raise InputError("--sp_nbest: a token store is tokenized already; give the text, with --raw")
    return chosen


def tokenizer_settings(config: TokenizerConfig, vocabulary: Vocabulary, seed: int = 0) -> TokenizerSettings:
    """The tokenizer that the options describe; `seed` is added to theirs."""
    model = os.path.expanduser(config.sentencepiece) if config.sentencepiece else None
    return TokenizerSettings(
        vocabulary, model, config.cased, config.sp_nbest, config.sp_alpha, config.sp_seed + seed
    )


def open_data(
    data: DataFiles,
    config: DataConfig,
    vocabulary: Vocabulary | None,
    vocab_size: int,
    num_workers: int,
    progress: Progress,
) -> OpenedData:
    """The samples of `data`.

    Args:
        config: `cache_dir` must name a directory if `data` is text or files with masks.
        vocabulary: needed for text; else that of the data, if it is known.
        vocab_size: bounds the ids of files with masks.
        num_workers: processes that tokenize or convert.

    Raises:
        InputError: bad data, with the file and the line or record; text without a vocabulary.
    """
    cache = os.path.expanduser(config.cache_dir or "")
    if data.kind == TOKEN_STORE:
        store = TokenStore.open(data.paths[0])
        words = store.vocabulary if vocabulary is None else vocabulary
        return OpenedData(TextSource(store, words, config.masking), words, tokens=store)
    if data.kind == TEXT:
        if vocabulary is None:
            raise InputError("--raw: give --vocab or --sentencepiece, to tokenize the text with")
        stores = epoch_stores(
            data.paths,
            partial(tokenizer_settings, config.tokenizer, vocabulary),
            cache,
            num_workers,
            config.text,
            progress,
        )
        first = stores if isinstance(stores, TokenStore) else stores(0)
        return OpenedData(TextSource(stores, vocabulary, config.masking), vocabulary, tokens=first)
    if data.kind == INSTANCE_STORE:
        instances = InstanceStore.open(data.paths[0])
        limits = config.masking.max_seq_length, config.masking.max_predictions_per_seq
        check_limits(data.paths[0], instances.width, instances.prediction_width, *limits)
    else:
        skip = config.text.skip_bad_records
        instances = cached_instances(data.paths, vocab_size, cache, num_workers, skip, progress)
    if vocabulary is not None and len(vocabulary) < instances.vocab_size < ANY_VOCABULARY:
        raise InputError(
            f"{data.paths[0]} was made for {instances.vocab_size} tokens, the vocabulary given has "
            f"{len(vocabulary)}; name the vocabulary that its files were made with"
        )
    pad_id = vocabulary.pad_id if vocabulary is not None else 0
    return OpenedData(InstanceSource(instances, pad_id), vocabulary, instances=instances)


def epoch_stores(
    paths: Sequence[str],
    settings_of: Callable[[int], TokenizerSettings],
    cache_dir: str,
    num_workers: int = 1,
    text: TextConfig = TextConfig(),
    progress: Progress | None = None,
) -> TokenStore | Callable[[int], TokenStore]:
    """The `store` of a TextSource: one store, or for a tokenizer that samples one for each of ten epochs.

    `settings_of` gives the tokenizer's settings for a seed. Sampling (--sp_nbest other than 0 and 1) costs
    one tokenization for each of the first ten epochs, in the background while the epoch before it is in use;
    from the eleventh epoch on the ten stores are used again. Measured on one core: 0.2 million tokens a
    second with --sp_nbest -1, 0.1 with 64 (without sampling 0.7). Disk: ten times about 2.5 bytes a token,
    and low --sp_alpha makes more tokens of the same text (0.1: nearly twice as many).
    """
    first = settings_of(0)
    if not first.samples:
        return cached_store(paths, first, cache_dir, num_workers, text, progress)

    def store_of(epoch: int) -> TokenStore:
        settings = settings_of(epoch % SAMPLED_STORES)
        return cached_store(paths, settings, cache_dir, num_workers, text, progress)

    return store_of


def _store_or_files(patterns: str, flag: str, kind: str) -> DataFiles:
    directory = os.path.expanduser(patterns.strip())
    if is_store(directory):
        return DataFiles(TOKEN_STORE, (directory,))
    paths = expand_inputs(patterns, flag)
    paths = [path for path in paths if not _is_export_manifest(path)]
    _check_no_stores(paths, flag)
    return DataFiles(kind, paths)


def _is_export_manifest(path: str) -> bool:
    return os.path.basename(path) == MANIFEST and read_json(path).get("format") == EXPORT_FORMAT


def _holds_instances(path: str) -> bool:
    try:
        identify(path)
    except InputError:  # text; or something else, which the reader of text says
        return False
    return True


def _check_no_stores(paths: Sequence[str], flag: str) -> None:
    """Raises InputError if one of the files is a part of a store, saying what to name or to do instead.

    A store whose manifest.json is missing or damaged, or that is unfinished, is identified by its other
    files. `flag` is what messages call the source of the paths.
    """
    for directory in dict.fromkeys(os.path.dirname(path) or "." for path in paths):
        part = next(path for path in paths if (os.path.dirname(path) or ".") == directory)
        if is_store(directory):
            raise InputError(
                f"{flag}: {part} is a part of a token store; name the folder {directory}, and nothing beside "
                "it"
            )
        if is_instance_store(directory):
            raise InputError(
                f"{flag}: {part} is a part of an instance store, which a cache holds; name the files that it "
                f"was made from (data.inspect {directory} lists them)"
            )
        unfinished, kind = unfinished_build(directory)
        names = set(os.listdir(directory))
        for each, own, other in (
            ("token store", _TOKEN_NAMES, _INSTANCE_NAMES),
            ("instance store", _INSTANCE_NAMES, _TOKEN_NAMES),
        ):
            if not kind and names & (own - other) and len(names & own) > 1:
                kind = each
        if not kind:
            continue
        again = "prepare the text again with data.prepare"
        if kind != "token store":
            again = "name the files that it was made from"
        if unfinished:
            raise InputError(
                f"{flag}: {unfinished} is an unfinished {kind}: {again}; a build that is given the same way "
                "goes on where it was"
            )
        manifest = os.path.join(directory, MANIFEST)
        if not os.path.exists(manifest):
            fault = f"without its {MANIFEST}"
        elif not read_json(manifest):
            fault = f"whose {MANIFEST} is damaged"
        else:
            fault = f"whose {MANIFEST} is damaged or of another version"
        raise InputError(
            f"{flag}: {directory} is {'a' if kind == 'token store' else 'an'} {kind} {fault}: copy that file "
            f"anew if there is a copy, or delete the folder and {again}"
        )
