"""The token store: text tokenized once, then memory-mapped by every process that trains on it.

A store is a directory: `ids.bin` (uint16 if the vocabulary fits, else uint32), `sentences.bin` and
`documents.bin` (int64: sentence i is ids[sentences[i]:sentences[i+1]], document d is sentences documents[d]
to documents[d+1]), and `manifest.json`. It is written beside its final name and renamed, so a directory of
that name is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from array import array
from dataclasses import dataclass
from typing import IO, Any, Callable, Iterator, Sequence

import numpy as np

from data.errors import InputError
from data.files import sha256_of, sync_directory
from data.text import sentences
from data.tokenizer import Tokenizer
from data.vocab import Vocabulary

FORMAT = "token-store-1"
_FILES = ("ids.bin", "sentences.bin", "documents.bin")
_LINES_PER_BATCH = 4096
_CHARACTERS_PER_BATCH = 1 << 20
_CHECK_BLOCK = 1 << 22

Progress = Callable[[int, int], None]  # lines done, tokens done


@dataclass(frozen=True, eq=False)
class TokenStore:
    """A memory-mapped store.

    `ids` has shape (tokens,), `sentences` (number of sentences + 1,) and `documents` (number of documents +
    1,), the last two int64 offsets, strictly increasing: no sentence and no document is empty.
    """

    ids: np.ndarray
    sentences: np.ndarray
    documents: np.ndarray
    vocabulary_sha256: str

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    @property
    def num_sentences(self) -> int:
        return len(self.sentences) - 1

    @property
    def num_documents(self) -> int:
        return len(self.documents) - 1

    @staticmethod
    def open(directory: str, verify: bool = True) -> TokenStore:
        """Map the store in `directory`, with `verify` after checking every checksum and offset.

        Raises InputError when the store is missing, incomplete or damaged.
        """
        manifest = _read_manifest(directory)
        arrays = []
        for name in _FILES:
            path = os.path.join(directory, name)
            try:
                expected = manifest["files"][name]
                size, checksum, dtype = expected["size"], expected["sha256"], np.dtype(expected["dtype"])
            except (KeyError, TypeError) as error:
                raise _damaged(directory, "its manifest is incomplete") from error
            if not os.path.isfile(path) or os.path.getsize(path) != size or size % dtype.itemsize or not size:
                raise _damaged(directory, f"{name} is missing or has the wrong size")
            if verify and sha256_of(path) != checksum:
                raise _damaged(directory, f"{name} does not have its checksum")
            # A plain array view: indexing a np.memmap itself costs several times more.
            arrays.append(np.asarray(np.memmap(path, dtype=dtype, mode="r")))
        store = TokenStore(arrays[0], arrays[1], arrays[2], str(manifest.get("vocabulary_sha256")))
        if verify:
            _check_structure(store, directory, manifest)
        return store


def build_store(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    vocab: Vocabulary,
    directory: str,
    progress: Progress | None = None,
    sources: list[dict[str, Any]] | None = None,
) -> None:
    """Tokenize the text files `paths` into a store at `directory`, which must not exist or be empty.

    Memory does not depend on the size of the text. `sources` is `describe_sources(paths)` if already known.
    Raises InputError for bad text (see `data.text.sentences`) or when no sentence has a token.
    """
    parent = os.path.dirname(os.path.abspath(directory))
    os.makedirs(parent, exist_ok=True)
    temporary = os.path.join(
        parent, f".{os.path.basename(directory)}.tmp-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    )
    os.mkdir(temporary)
    try:
        counts = _write_arrays(paths, tokenizer, vocab, temporary, progress)
        if not counts["tokens"]:
            raise InputError(f"no sentence in {paths[0]}{' and the other files' if len(paths) > 1 else ''}")
        manifest = {
            "format": FORMAT,
            "vocabulary_sha256": vocab.sha256,
            "vocabulary_size": len(vocab),
            "tokenizer": tokenizer.fingerprint,
            "counts": counts,
            "sources": sources if sources is not None else describe_sources(paths),
            "files": {
                name: {
                    "size": os.path.getsize(os.path.join(temporary, name)),
                    "sha256": sha256_of(os.path.join(temporary, name)),
                    "dtype": _id_dtype(vocab).str if name == "ids.bin" else "<i8",
                }
                for name in _FILES
            },
        }
        with open(os.path.join(temporary, "manifest.json"), "w", encoding="utf-8") as handle:
            json.dump(manifest, handle, indent=1)
            _sync(handle)
        sync_directory(temporary)
        os.rename(temporary, directory)
        sync_directory(parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def cached_store(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    vocab: Vocabulary,
    cache_dir: str,
    progress: Progress | None = None,
) -> TokenStore:
    """The store of these texts under `cache_dir`, built if it is not there.

    Its name is a hash of the texts' content, the vocabulary and the tokenizer, so moved files find it again
    and changed ones do not. Safe to call from several processes and hosts at once: each may build, one wins
    the rename. A damaged store is built again.
    """
    sources = describe_sources(paths)
    identity = [FORMAT, vocab.sha256, tokenizer.fingerprint, [source["sha256"] for source in sources]]
    name = "tokens-" + hashlib.sha256(json.dumps(identity).encode("utf-8")).hexdigest()[:32]
    directory = os.path.join(os.path.expanduser(cache_dir), name)
    if os.path.isdir(directory):
        try:
            return TokenStore.open(directory)
        except InputError:
            _discard(directory)
    try:
        build_store(paths, tokenizer, vocab, directory, progress, sources)
    except OSError:
        # Another process may have been first; then its store is there and as good as ours.
        if not os.path.isdir(directory):
            raise
    return TokenStore.open(directory)


def describe_sources(paths: Sequence[str]) -> list[dict[str, Any]]:
    """Name, size in bytes and SHA-256 of each file. Raises InputError for one that cannot be read."""
    try:
        return [
            {"name": os.path.basename(path), "size": os.path.getsize(path), "sha256": sha256_of(path)}
            for path in paths
        ]
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from error


def _write_arrays(
    paths: Sequence[str],
    tokenizer: Tokenizer,
    vocab: Vocabulary,
    directory: str,
    progress: Progress | None,
) -> dict[str, int]:
    dtype = _id_dtype(vocab)
    lines = tokens = num_sentences = num_documents = 0
    last_document_end = 0
    with open(os.path.join(directory, "ids.bin"), "wb") as ids_file, open(
        os.path.join(directory, "sentences.bin"), "wb"
    ) as sentences_file, open(os.path.join(directory, "documents.bin"), "wb") as documents_file:
        sentences_file.write(array("q", [0]).tobytes())
        documents_file.write(array("q", [0]).tobytes())
        for batch, ends in _batches(paths):
            encoded = iter(tokenizer.encode_batch(batch))
            flat: list[int] = []
            sentence_ends, document_ends = array("q"), array("q")
            for is_end in ends:
                if is_end:
                    if num_sentences > last_document_end:
                        document_ends.append(num_sentences)
                        last_document_end = num_sentences
                    continue
                ids = next(encoded)
                if ids:
                    flat.extend(ids)
                    num_sentences += 1
                    sentence_ends.append(tokens + len(flat))
            block = np.array(flat, dtype=np.int64)
            if len(block) and not 0 <= block.min() <= block.max() < len(vocab):
                raise InputError(
                    f"the tokenizer gives ids up to {block.max()}, outside the vocabulary of {len(vocab)}"
                )
            ids_file.write(block.astype(dtype).tobytes())
            sentences_file.write(sentence_ends.tobytes())
            documents_file.write(document_ends.tobytes())
            lines += len(batch)
            tokens += len(flat)
            num_documents += len(document_ends)
            if progress is not None:
                progress(lines, tokens)
        for handle in (ids_file, sentences_file, documents_file):
            _sync(handle)
    return {"tokens": tokens, "sentences": num_sentences, "documents": num_documents}


def _batches(paths: Sequence[str]) -> Iterator[tuple[list[str], list[bool]]]:
    """Batches of lines, each with flags in text order: False is the next line, True a document's end."""
    batch: list[str] = []
    ends: list[bool] = []
    characters = 0
    for line in sentences(paths):
        ends.append(line is None)
        if line is not None:
            batch.append(line)
            characters += len(line)
        if len(batch) >= _LINES_PER_BATCH or characters >= _CHARACTERS_PER_BATCH:
            yield batch, ends
            batch, ends, characters = [], [], 0
    if ends:
        yield batch, ends


def _read_manifest(directory: str) -> dict[str, Any]:
    try:
        with open(os.path.join(directory, "manifest.json"), encoding="utf-8") as handle:
            manifest = json.load(handle)
    except OSError as error:
        raise InputError(f"{directory} is not a token store: it has no readable manifest.json") from error
    except ValueError as error:
        raise _damaged(directory, "its manifest is not JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise InputError(
            f"{directory} is not a token store of the form {FORMAT}; delete it to have it rebuilt"
        )
    return manifest


def _check_structure(store: TokenStore, directory: str, manifest: dict[str, Any]) -> None:
    levels = (
        ("sentences.bin", store.sentences, store.num_tokens),
        ("documents.bin", store.documents, store.num_sentences),
    )
    for name, offsets, end in levels:
        increasing = all(
            (np.diff(offsets[start : start + _CHECK_BLOCK + 1]) > 0).all()
            for start in range(0, len(offsets) - 1, _CHECK_BLOCK)
        )
        if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != end or not increasing:
            raise _damaged(directory, f"the offsets in {name} do not fit")
    size = manifest.get("vocabulary_size", 0)
    for start in range(0, store.num_tokens, _CHECK_BLOCK):
        if not isinstance(size, int) or store.ids[start : start + _CHECK_BLOCK].max() >= size:
            raise _damaged(directory, "ids.bin holds ids outside the vocabulary")


def _damaged(directory: str, what: str) -> InputError:
    return InputError(f"the token store {directory} is damaged: {what}; delete it to have it rebuilt")


def _discard(directory: str) -> None:
    """Move a damaged store out of the way, then delete it; a process that did so first is no error."""
    aside = f"{directory}.damaged-{uuid.uuid4().hex[:8]}"
    try:
        os.rename(directory, aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside, ignore_errors=True)


def _id_dtype(vocab: Vocabulary) -> np.dtype:
    return np.dtype("<u2" if len(vocab) <= 1 << 16 else "<u4")


def _sync(handle: IO[Any]) -> None:
    handle.flush()
    os.fsync(handle.fileno())
