"""The data that options name: its kind, its vocabulary, and the samples that batches are made of.

Training, data.inspect and data.prepare decide and open here. Text is tokenized and files with masks are
converted into a cache; stores are mapped as they are.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple, Sequence

from base.errors import InputError
from base.progress import Progress
from data.formats.files import check_limits, identify, peek
from data.options import DataConfig, TokenizerConfig, check_tokenizer
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
DIGITS = 16  # of fingerprints
SAMPLE = 4096  # bytes, of each file's beginning, middle and end
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


def named_data(patterns: str | None, flag: str, raw: bool | None) -> DataFiles:
    """The data that `patterns` (globs, files and folders, separated by commas) name.

    `raw` says that files are text (True) or have masks (False); with None their content says it.
    Raises InputError naming `flag` where nothing is there, for parts of stores, and for files of both kinds.
    """
    if not patterns:
        return DataFiles(NOTHING)
    directory = os.path.expanduser(patterns.strip())
    if is_store(directory):
        return DataFiles(TOKEN_STORE, (directory,))

    def is_report(path: str) -> bool:  # of data.export, beside its files
        return os.path.basename(path) == MANIFEST and read_json(path).get("format") == EXPORT_FORMAT

    paths = [path for path in expand_inputs(patterns, flag) if not is_report(path)]
    _check_no_stores(paths, flag)
    if raw is not None:
        return DataFiles(TEXT if raw else INSTANCES, paths)
    instances = [path for path in paths if _instances_format(path)]
    if instances and len(instances) < len(paths):
        other = next(path for path in paths if path not in set(instances))
        raise InputError(
            f"{flag}: {instances[0]} holds instances and {other} does not; prepare them separately"
        )
    return DataFiles(INSTANCES if instances else TEXT, paths)


def inspected_data(names: Sequence[str], raw: bool) -> DataFiles:
    """As `named_data` for names of a command line, which may also be an instance store of a cache.

    Raises InputError as `named_data`, and for a store with something beside it.
    """
    for name in names:
        path = os.path.expanduser(name.strip())
        if len(names) > 1 and (is_store(path) or is_instance_store(path)):
            raise InputError(f"{name} is a store, which is looked at alone; name nothing beside it")
        if is_instance_store(path):
            return DataFiles(INSTANCE_STORE, (path,))
    return named_data(",".join(names), "PATH", raw)


def check_text(paths: Sequence[str]) -> None:
    """Raises InputError for a file that is of another kind by its beginning.

    Lines are checked when they are tokenized, and no more where the text is in the cache already.
    """
    for path in paths:
        known = _instances_format(path)
        if known:
            raise InputError(
                f"{path} is not text but {known}, which is read without --raw "
                "(as --data_eval beside text: with --eval_use_npz)"
            )


def check_instances(paths: Sequence[str], max_seq_length: int | None, max_predictions: int | None) -> int:
    """Tokens that the widest of the files pads its rows to, from their headers.

    Raises InputError for a file of no known form, or wider than a limit (None: no limit).
    """
    widest = 0
    for path in paths:
        width, predictions = peek(path)
        check_limits(path, width, predictions, max_seq_length, max_predictions)
        widest = max(widest, width)
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
    text, masking = config.text, config.masking
    if data.kind == TOKEN_STORE:
        store = TokenStore.open(data.paths[0])
        words = store.vocabulary if vocabulary is None else vocabulary
        return OpenedData(TextSource(store, words, masking), words, tokens=store)

    if data.kind == TEXT:
        if vocabulary is None:
            raise InputError("--raw: give --vocab or --sentencepiece, to tokenize the text with")

        def store_of(epoch: int) -> TokenStore:
            # Where SentencePiece samples, each of the first ten epochs has a segmentation of its own, made
            # while the epoch before it is in use; from the eleventh on they are used again. One core makes
            # 0.2 million tokens a second with --sp_nbest -1, 0.1 with 64 (without sampling 0.7). Low
            # --sp_alpha makes more tokens of a text (0.1: nearly twice as many).
            settings = tokenizer_settings(config.tokenizer, vocabulary, epoch % SAMPLED_STORES)
            return cached_store(data.paths, settings, cache, num_workers, text, progress)

        first = store_of(0)
        samples = tokenizer_settings(config.tokenizer, vocabulary).samples
        return OpenedData(
            TextSource(store_of if samples else first, vocabulary, masking), vocabulary, tokens=first
        )

    if data.kind == INSTANCE_STORE:
        instances = InstanceStore.open(data.paths[0])
        limits = masking.max_seq_length, masking.max_predictions_per_seq
        check_limits(data.paths[0], instances.width, instances.prediction_width, *limits)
    else:
        skip = text.skip_bad_records
        instances = cached_instances(data.paths, vocab_size, cache, num_workers, skip, progress)
    if vocabulary is not None and len(vocabulary) < instances.vocab_size < ANY_VOCABULARY:
        raise InputError(
            f"{data.paths[0]} was made for {instances.vocab_size} tokens, the vocabulary given has "
            f"{len(vocabulary)}; name the vocabulary that its files were made with"
        )
    pad_id = vocabulary.pad_id if vocabulary is not None else 0
    return OpenedData(InstanceSource(instances, pad_id), vocabulary, instances=instances)


def fingerprint(data: DataFiles) -> str:
    """A short text: the kind, and what tells this data from other data of its kind, without reading all of
    it: whether two hosts have the same.

    A store has the checksums of its columns in its manifest: its fingerprint is exact. Of other files sizes
    and samples count; those that training reads are compared exactly by the store that they become in the
    cache. Raises InputError for a file that cannot be read.
    """
    if data.kind in (TOKEN_STORE, INSTANCE_STORE):
        manifest = read_json(os.path.join(data.paths[0], MANIFEST))
        return f"{data.kind} {fingerprint_of_store(manifest)}"
    digest, total = hashlib.sha256(), 0
    for path in data.paths:
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(f"{size} ".encode("ascii"))
                for place in (0, size // 2, max(0, size - SAMPLE)):
                    file.seek(place)
                    digest.update(file.read(SAMPLE))
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from error
        total += size
    return f"{data.kind}, {len(data.paths)} files of {total} bytes, {digest.hexdigest()[:DIGITS]}"


def fingerprint_of_store(manifest: Mapping[str, Any]) -> str:
    """The digest of all of a store's columns, from the checksums in its manifest."""
    columns = json.dumps(manifest.get("columns"), sort_keys=True)
    return hashlib.sha256(columns.encode()).hexdigest()[:DIGITS]


def _instances_format(path: str) -> str:
    """The format of a file with masks; empty for text, and for something else, which the reader of text
    rejects."""
    try:
        return identify(path).format
    except InputError:
        return ""


def _check_no_stores(paths: Sequence[str], flag: str) -> None:
    """Raises InputError if one of the files is a part of a store, saying what to name or to do instead.

    A store whose manifest.json is missing or damaged, or that is unfinished, is identified by its other
    files. `flag` is what messages call the source of the paths.
    """
    for directory, part in {os.path.dirname(path) or ".": path for path in reversed(paths)}.items():
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
        if not kind and names & (_TOKEN_NAMES - _INSTANCE_NAMES) and len(names & _TOKEN_NAMES) > 1:
            kind = "token store"
        if not kind and names & (_INSTANCE_NAMES - _TOKEN_NAMES) and len(names & _INSTANCE_NAMES) > 1:
            kind = "instance store"
        if not kind:
            continue
        article, again = "an", "name the files that it was made from"
        if kind == "token store":
            article, again = "a", "prepare the text again with data.prepare"
        if unfinished:
            raise InputError(
                f"{flag}: {unfinished} is an unfinished {kind}: {again}; a build that is given the same way "
                "goes on where it was"
            )
        fault = f"without its {MANIFEST}"
        manifest = os.path.join(directory, MANIFEST)
        if os.path.exists(manifest):
            fault = f"whose {MANIFEST} is damaged{' or of another version' if read_json(manifest) else ''}"
        raise InputError(
            f"{flag}: {directory} is {article} {kind} {fault}: copy that file anew if there is a copy, or "
            f"delete the folder and {again}"
        )
