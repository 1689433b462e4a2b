"""The token store: text tokenized once, then memory-mapped by every process that trains on it.

A store is a directory with the columns (see `data.store.columns`) `ids` (uint16 if the vocabulary fits,
else uint32), `sentences` and `documents` (int64: sentence i is ids[sentences[i]:sentences[i+1]], document d
is sentences documents[d] to documents[d+1]), and `manifest.json` with checksums, counts, the vocabulary and
how the text was read. It is built beside its final name and renamed, so a directory of that name is complete.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Iterable, Iterator, Mapping, Sequence

import numpy as np

from base.errors import InputError
from base.json_files import read_json_object
from base.progress import SILENT, Progress
from data.options import TextConfig
from data.store.build import BuildPlan, Skipped, Writers, open_or_build
from data.store.cache import check_unchanged, describe_sources, verify_once
from data.store.columns import Column, MappedFiles, map_columns
from data.store.manifest import MANIFEST, check_figures, checksum_of, naming_damage, read_json, write_json
from data.text.corpus import TextUnit, read_unit, text_units
from data.text.sentences import UNKNOWN
from data.tokenizing.tokenizer import Tokenizer, TokenizerSettings
from data.tokenizing.vocab import Vocabulary, save_vocabulary, vocabulary_from_saved

FORMAT = "token-store-2"
_KIND = "token-store-"
_BLOCK = 1 << 22
LINES_PER_BATCH = 4096
CHARACTERS_PER_BATCH = 1 << 20


@dataclass(frozen=True, eq=False)
class TokenStore:
    """A memory-mapped store.

    `ids` has shape (tokens,), `sentences` (number of sentences + 1,) and `documents` (number of documents +
    1,), the last two int64 offsets, strictly increasing: no sentence and no document is empty. `manifest` is
    the content of manifest.json and `directory` where the store lies, both empty for one made in memory, that
    has no mapped `files`.
    """

    ids: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    vocabulary_sha256: str
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)
    directory: str = ""
    files: MappedFiles | None = field(default=None, repr=False)

    def check(self) -> None:
        """To be called after reading: raises InputError if a file was cut meanwhile, which reads as zeros."""
        if self.files is not None:
            self.files.check()

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_sentences(self) -> int:
        return len(self.sentences) - 1

    @property
    def num_documents(self) -> int:
        return len(self.documents) - 1

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the ids. Raises InputError if the manifest has no good one."""
        return vocabulary_from_saved(self.manifest.get("vocabulary", {}), self.directory or "the token store")

    @staticmethod
    def open(directory: str, verify: bool = True) -> TokenStore:
        """Map the store in `directory`, with `verify` after checking every checksum and offset.

        A successful check is remembered beside the store (verified.json) and not repeated while the files are
        the same ones. Raises InputError when the store is missing, incomplete or damaged.
        """
        path = os.path.join(directory, MANIFEST)
        manifest, there = read_json(path), os.path.isfile(path)
        version = str(manifest.get("format"))
        if manifest and version.startswith(_KIND) and version != FORMAT:
            raise InputError(
                f"{directory} is a {version}, but this version reads {FORMAT}: prepare the text again with "
                "python -m data.prepare (the token store of a cache may just be deleted)"
            )
        if manifest and version != FORMAT:
            raise InputError(f"{directory} is not a token store; make one with python -m data.prepare")
        if not there and not os.path.isfile(os.path.join(directory, "ids-00000.bin")):
            raise InputError(f"{directory} is not a token store: it has no {MANIFEST}")
        with naming_damage(f"the token store {directory}", "delete it to have it rebuilt"):
            if not manifest:
                raise InputError("its manifest cannot be read" if there else f"it has no {MANIFEST}")
            check_figures(manifest)
            columns = token_columns(len(manifest["vocabulary"]["tokens"]))
            arrays, files = map_columns(directory, manifest["columns"], columns)
            words = str(manifest.get("vocabulary_sha256"))
            store = TokenStore(
                **arrays, vocabulary_sha256=words, manifest=manifest, directory=directory, files=files
            )
            if verify:
                verify_once(directory, manifest["columns"], files, lambda: _check_structure(store))
        return store


def is_store(directory: str) -> bool:
    """True if the directory is a token store of any version; it may be damaged."""
    return str(read_json(os.path.join(directory, MANIFEST)).get("format", "")).startswith(_KIND)


def token_store_plan(
    paths: Sequence[str],
    settings: TokenizerSettings,
    text: TextConfig = TextConfig(),
    cache_dir: str | None = None,
    progress: Progress = SILENT,
) -> BuildPlan:
    """The tokenizing of text files into a store; its `identity` is all that decides what the store holds.

    Neither memory nor the result depend on the number of processes that build; memory not on the size of the
    text either. `cache_dir`: as for `describe_sources`.
    Raises InputError for files that cannot be read; so does the build for bad text (see
    `data.text.corpus.read_unit`), for text without two documents, and for text that changes meanwhile.
    """
    sources = describe_sources(paths, cache_dir, progress)
    vocabulary = settings.vocabulary
    common = {"tokenizer": settings.fingerprint, "text": asdict(text)}
    checksums = [source.sha256 for source in sources]
    named = f"{paths[0]}{' and the other files' if len(paths) > 1 else ''}"
    # Exports know a store by its manifest's SHA-256, which the order of the keys is a part of.
    identity = {"format": FORMAT, "vocabulary": vocabulary.sha256, **common, "sources": checksums}
    manifest = {
        "format": FORMAT,
        "vocabulary_sha256": vocabulary.sha256,
        **common,
        "sources": [source.described for source in sources],
        "vocabulary": save_vocabulary(vocabulary),
    }

    def check(counts: Mapping[str, int], lengths: Mapping[str, int]) -> dict[str, int]:
        check_unchanged(sources, "tokenized")
        if not counts.get("tokens"):
            raise InputError(f"no sentence in {named}")
        if lengths["documents"] < 2:
            raise InputError(
                f"a single document in {named}, but next-sentence prediction needs two or more: "
                "separate documents by blank lines, or give each its own file"
            )
        return {"documents": lengths["documents"]}

    return BuildPlan(
        token_columns(len(vocabulary)),
        lambda: text_units(paths, text),
        TokenizeUnit(settings, text),
        identity,
        manifest,
        check,
        "tokenizing",
    )


def cached_store(
    paths: Sequence[str],
    settings: TokenizerSettings,
    cache_dir: str,
    num_workers: int = 1,
    text: TextConfig = TextConfig(),
    progress: Progress = SILENT,
) -> TokenStore:
    """The store of these texts under `cache_dir`, built if it is not there.

    Its name is a hash of the texts' content, the vocabulary, the tokenizer and the text settings, so moved
    files find it again and changed ones do not. Safe to call from several processes and hosts at once: one
    builds, the others wait. A damaged store is built again. Raises InputError as the build.
    """
    plan = token_store_plan(paths, settings, text, cache_dir, progress)
    return open_or_build(cache_dir, "tokens", plan, TokenStore.open, num_workers, progress)


def _check_structure(store: TokenStore) -> None:
    """Raises InputError if a store's columns and its vocabulary do not fit each other."""
    levels = (
        ("sentences", store.sentences, store.num_tokens),
        ("documents", store.documents, store.num_sentences),
    )
    for name, offsets, end in levels:
        increasing = all(
            (np.diff(offsets[start : start + _BLOCK + 1]) > 0).all()
            for start in range(0, len(offsets) - 1, _BLOCK)
        )
        if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != end or not increasing:
            raise InputError(f"the offsets of its {name} do not fit")
    if store.vocabulary.sha256 != store.vocabulary_sha256:
        raise InputError("its vocabulary is another one than the manifest says")
    for start in range(0, store.num_tokens, _BLOCK):
        if store.ids[start : start + _BLOCK].max() >= len(store.vocabulary):
            raise InputError("it holds ids outside the vocabulary")


def token_columns(vocab_size: int) -> list[Column]:
    """The columns of a token store; ids are 16 bits wide if the vocabulary fits, else 32."""
    return [
        Column("ids", "<u2" if vocab_size <= 1 << 16 else "<u4"),
        Column("sentences", "<i8", ends_of="ids"),
        Column("documents", "<i8", ends_of="sentences", drop_repeated=True),
    ]


@dataclass(frozen=True)
class TokenizeUnit:
    """Tokenizes one unit of text at a time. Picklable; the tokenizer is made in the process that works."""

    settings: TokenizerSettings
    text: TextConfig

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return self.settings.build()

    def __call__(self, unit: TextUnit, place: int, writers: Writers) -> dict[str, Any]:
        skipped = Skipped()
        lines = sentences = tokens = unknown_marks = 0
        batches = _batches(read_unit(unit, self.text, skipped))
        for number, (batch, document_ends) in enumerate(batches):
            # A tokenizer that samples draws from this stream: it depends on the place in the text alone.
            ids, ends = self._tokenizer.encode(batch, (place << 32) + number)
            kept = np.diff(ends, prepend=0) > 0  # sentences without tokens are left out
            before = np.concatenate([[0], np.cumsum(kept)])  # sentences kept before each line
            writers["ids"].append(ids.astype(np.uint32))
            writers["sentences"].append(tokens + ends[kept])
            writers["documents"].append(sentences + before[document_ends])
            lines, tokens, sentences = lines + len(batch), tokens + len(ids), sentences + int(before[-1])
            # Words that the text's makers took out: <unk> in WikiText.
            unknown_marks += sum(line.count(UNKNOWN) for line in batch)
        counts = {
            "lines": lines,
            "sentences": sentences,
            "tokens": tokens,
            "skipped": skipped.count,
            "unknown_marks": unknown_marks,
        }
        return {"counts": counts, "messages": skipped.messages}


def _batches(sentences: Iterable[str | None]) -> Iterator[tuple[list[str], list[int]]]:
    """Lines for one call of the tokenizer each, and how many of them are before each document's end."""
    batch: list[str] = []
    document_ends: list[int] = []
    characters = 0
    for sentence in sentences:
        if sentence is None:
            document_ends.append(len(batch))
            continue
        batch.append(sentence)
        characters += len(sentence)
        if len(batch) >= LINES_PER_BATCH or characters >= CHARACTERS_PER_BATCH:
            yield batch, document_ends
            batch, document_ends, characters = [], [], 0
    yield batch, document_ends


_FILE = "statistics.json"  # beside the store's own files, and none of them


def token_counts(store: TokenStore) -> np.ndarray:
    """Occurrences of each token in the store, int64 of shape (vocabulary size,).

    Counting takes about 5 s for a billion tokens, so the counts are kept with the store, as long as that can
    be written to. Raises InputError if what is kept does not have its checksum.
    """
    path = os.path.join(store.directory, _FILE)
    ids = store.manifest["columns"]["ids"]["shards"]  # with their checksums
    size = len(store.vocabulary)
    known = _read(path)
    if known.get("ids") == ids and len(known.get("counts", ())) == size:
        return np.array(known["counts"], dtype=np.int64)
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, store.num_tokens, _BLOCK):
        counts += np.bincount(store.ids[start : start + _BLOCK], minlength=size)
    store.check()
    with contextlib.suppress(OSError):
        write_json(path, {"counts": counts.tolist(), "ids": ids})
    return counts


def entropy(counts: np.ndarray) -> float:
    """Entropy in nats of the frequencies in `counts`, an array of any shape and of any numbers >= 0."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


def loss_without_context(counts: np.ndarray, known: np.ndarray | None = None) -> float:
    """The masked-LM loss in nats on a text of a model that sees the masked places alone, not their context.

    By the rule of data.pretraining.masks there stands [MASK] in 80% of cases, in 10% the token itself, in 10%
    any token of the vocabulary. (The entropy of the frequencies alone is no bound: a model that repeats what
    it sees where that is not [MASK] is about 0.5 nats below it.)

    Args:
        counts: how often each token of the vocabulary occurs in the text, shape (vocabulary size,).
        known: the same of the text that the model knows, where each token is taken to occur once more than it
            does. None: the model knows `counts` itself, and nothing without context can be better.
    """
    size = len(counts)
    share = counts / counts.sum()
    model = share if known is None else (known + 1) / (known.sum() + size)
    seen, expected = ((each + 1 / size) / 2 for each in (share, model))  # frequencies of what stands unmasked
    occurs = share > 0
    share, model = share[occurs], model[occurs]
    masked = -(share * np.log(model)).sum()
    # Where no [MASK] stands, half of the places have their token, half any: joint probabilities of both.
    itself, another = (1 + 1 / size) / 2, 1 / size / 2
    joint = itself * np.log(itself * model) + (size - 1) * another * np.log(another * model)
    unmasked = (seen * np.log(expected)).sum() - (share * joint).sum()
    return float(0.8 * masked + 0.2 * unmasked)


def _read(path: str) -> dict[str, Any]:
    """The figures in a file, without their checksum; empty if there is none, or none with a checksum."""
    if not os.path.exists(path):
        return {}
    try:
        content = read_json_object(path)
    except InputError:
        content = {}
    checksum = content.pop("sha256", None)
    if checksum is None and content:
        return {}
    if checksum != checksum_of(content):
        raise InputError(
            f"{path} is damaged: it does not have its checksum; delete it, and the tokens are counted again"
        )
    return content
