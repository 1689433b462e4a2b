"""Sentences to token ids: WordPiece and SentencePiece, as GluonNLP's BERT scripts tokenize.

Both first clean and split as Google's BasicTokenizer: drop control characters, isolate CJK characters and
punctuation, and for uncased models lower-case and strip accents. (GluonNLP 0.10's BERTTokenizer strips
accents even with lower=False, which no published cased vocabulary was made with; here a cased text keeps its
accents, as in Google's code.)

Beyond that, the cleaning is that of Hugging Face. Through all of Unicode 14 it differs from Google's and
GluonNLP's Python code in this: a capital sigma at the end of a word becomes U+03C3, where str.lower makes
U+03C2; private-use characters are removed, where Google's code leaves them to become [UNK]; 256 ideographs
from U+2B820 are not isolated; and some 500 punctuation marks, accents and control characters of recent
Unicode versions are letters to it. Its tables are its own, not those of the Python that runs it, so that a
text has the same tokens everywhere.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import threading
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Callable, Protocol, Sequence

import numpy as np
from google.protobuf.message import DecodeError
from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from base.errors import InputError
from base.files import sha256_of
from data.protobuf import message_types
from data.text.sentences import UNKNOWN
from data.tokenizing.vocab import SPECIAL_TOKENS, Vocabulary, vocabulary_from_pieces

# str.split() also splits at these, which BERT's cleaning removes as control characters; they join words.
# Whatever else str.split() splits at, the cleaning turns into spaces; tests go through all of Unicode.
NOT_BETWEEN_WORDS = "\x0b\x0c\x1c\x1d\x1e\x1f\x85"

# Two generations of this many words are kept: about 50 MB when full.
GENERATION_WORDS = 1 << 17
MAX_KEPT_CHARS = 64  # longer words hardly ever come back

_ID_BYTES = 4


class WordTable:
    """Turns lines to ids word by word, and remembers the ids of words.

    `encode_words` gives the ids of each of some distinct words, which hold no white space. The words are kept
    in two generations: when the young one is full it becomes the old one, whose words move back to the young
    one as they are met again, so that memory is bounded and frequent words stay. For one thread at a time.
    """

    def __init__(self, encode_words: Callable[[Sequence[str]], Sequence[Sequence[int]]]) -> None:
        self._encode_words = encode_words
        # word -> its ids as the bytes of int32, so that a line is one join
        self._young: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}

    def encode(self, lines: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """All ids of the lines, int32 (tokens,), and where each line ends in them, int64 (lines,)."""
        text = "\n".join(lines)
        for character in NOT_BETWEEN_WORDS:
            if character in text:
                lines = [line.replace(character, "") for line in lines]
        look_up, join = self._young.__getitem__, b"".join
        parts: list[bytes] = []
        unfinished: list[int] = []
        for line in lines:
            try:
                parts.append(join(map(look_up, line.split())))
            except KeyError:
                unfinished.append(len(parts))
                parts.append(b"")
        if unfinished:
            # A dict, not a set: the order must not depend on the randomized hash of strings.
            words = (word for index in unfinished for word in lines[index].split())
            wanted = dict.fromkeys(word for word in words if word not in self._young)
            unknown = [word for word in wanted if word not in self._old]
            fresh = {word: self._old.pop(word) for word in wanted if word in self._old}
            for word, ids in zip(unknown, self._encode_words(unknown) if unknown else ()):
                fresh[word] = np.array(ids, dtype=np.int32).tobytes()
            for index in unfinished:
                parts[index] = join(
                    [fresh[word] if word in fresh else look_up(word) for word in lines[index].split()]
                )
            self._keep(fresh)
        ends = np.cumsum(np.array([len(part) for part in parts], dtype=np.int64)) // _ID_BYTES
        return np.frombuffer(join(parts), dtype=np.int32), ends

    def _keep(self, fresh: dict[str, bytes]) -> None:
        for word, ids in fresh.items():
            if len(word) > MAX_KEPT_CHARS:
                continue
            if len(self._young) >= GENERATION_WORDS:
                self._young, self._old = {}, self._young
            self._young[word] = ids


def lists_of(ids: np.ndarray, ends: np.ndarray) -> list[list[int]]:
    """One list of ids for each line, of what a tokenizer's `encode` returns."""
    flat, borders = ids.tolist(), [0, *ends.tolist()]
    return [flat[start:end] for start, end in zip(borders, borders[1:])]


MAX_CHARS_PER_WORD = 200  # longer words become [UNK], as in Google's code
# Encoding a string has a price of its own, so new words are encoded many at a time, with this Unicode
# noncharacter between them as a token of its own.
_SEPARATOR = "\ufdd1"
_WORDS_PER_STRING = 128
SURROGATES = re.compile("[\ud800-\udfff]")  # halves of pairs, which JSON's escapes can hold and UTF-8 cannot


def bert_normalizer(cased: bool) -> BertNormalizer:
    """Google's cleaning, CJK isolation and, unless cased, lower-casing and accent stripping."""
    return BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=not cased, lowercase=not cased
    )


def hugging_face(ids: dict[str, int], unknown: str, cased: bool) -> HuggingFaceTokenizer:
    """The tokenizer of `tokenizers` with this vocabulary. No special token is registered, so "[MASK]" written
    in a text is punctuation and a word, not the token."""
    model = WordPiece(ids, unk_token=unknown, max_input_chars_per_word=MAX_CHARS_PER_WORD)
    tokenizer = HuggingFaceTokenizer(model)
    tokenizer.normalizer = bert_normalizer(cased)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    return tokenizer


def without_surrogates(word: str) -> str:
    """The word without SURROGATES, removed like control characters: Hugging Face takes no string with one."""
    return word if word.isascii() else SURROGATES.sub("", word)


class WordPieceTokenizer:
    """WordPiece by a table of words; the words it has not met go to Hugging Face `tokenizers`.

    Gives what `tokenizers` gives for the same line, at over ten times its speed.
    """

    def __init__(self, vocab: Vocabulary, cased: bool = False) -> None:
        unknown = vocab.tokens[vocab.unk_id]
        # To any sane vocabulary the separator is a character it has not, like the one it is replaced by.
        self._joins = not any(_SEPARATOR in token or UNKNOWN in token for token in vocab.tokens)
        self._separator_id = len(vocab)
        ids = {**vocab.ids(), _SEPARATOR: self._separator_id} if self._joins else vocab.ids()
        tokenizer = hugging_face(ids, unknown, cased)
        self._encode = tokenizer.encode_batch_fast  # without the offsets, which nobody here reads
        self._table = WordTable(self._encode_words)

    def encode(self, lines: Sequence[str], stream: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """All ids of the lines, and where each line ends in them; `stream` makes no difference."""
        return self._table.encode(lines)

    def _encode_words(self, words: Sequence[str]) -> list[list[int]]:
        cleaned = [without_surrogates(word) for word in words]
        if not self._joins:
            return [encoding.ids for encoding in self._encode(cleaned, add_special_tokens=False)]
        cleaned = [word.replace(_SEPARATOR, UNKNOWN) for word in cleaned]
        strings = [
            f" {_SEPARATOR} ".join(cleaned[start : start + _WORDS_PER_STRING])
            for start in range(0, len(cleaned), _WORDS_PER_STRING)
        ]
        encoded: list[list[int]] = []
        for encoding in self._encode(strings, add_special_tokens=False):
            encoded.append([])
            for index in encoding.ids:
                if index == self._separator_id:
                    encoded.append([])
                else:
                    encoded[-1].append(index)
        return encoded


MAX_MODEL_BYTES = 256 << 20  # the model of mT5's 250,000 pieces has 4 MiB
# Of sentencepiece_model.proto's ModelProto, the two tables of text normalization (precompiled_charsmap) alone
_MODEL = {
    "Model": {"normalizer": (3, "Normalizer"), "denormalizer": (5, "Normalizer")},
    "Normalizer": {"table": (2, "bytes")},
}


def load_processor(path: str) -> Any:
    """The sentencepiece.SentencePieceProcessor of the model at `path`; InputError for what is no model."""
    sentencepiece = sentencepiece_package()
    if not os.path.isfile(path):
        raise InputError(f"--sentencepiece: no such file: {path}")
    try:
        with open(path, "rb") as handle:
            content = handle.read(MAX_MODEL_BYTES + 1)
    except OSError as error:
        raise InputError(f"--sentencepiece: cannot read {path}: {error.strerror}") from error
    check_model(content, path)
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(content)
        for index in range(processor.get_piece_size()):
            processor.id_to_piece(index)
    except (RuntimeError, UnicodeDecodeError) as error:
        raise InputError(f"--sentencepiece: {path} is not a SentencePiece model") from error
    return processor


def sentencepiece_package(option: str = "--sentencepiece") -> Any:
    """The package, which only some options need; InputError where there is none."""
    try:
        import sentencepiece
    except ImportError as error:
        raise InputError(f"{option} needs the sentencepiece package: pip install sentencepiece") from error
    return sentencepiece


def check_model(content: bytes, path: str) -> None:
    """Rejects a model whose normalization tables lead outside themselves.

    SentencePiece checks most of a model itself and raises. Older releases (0.2.0, 0.2.1) trust one part of
    it: the table of the text normalization is a double-array trie (darts-clone) that they walk without
    looking where steps lead, so that a damaged table ends the process with a segmentation fault.
    Raises InputError naming `path`, also for what is no model at all.
    """
    sound = False
    if 0 < len(content) <= MAX_MODEL_BYTES:
        with contextlib.suppress(DecodeError):
            model = message_types(_MODEL)["Model"].FromString(content)
            tables = (model.normalizer.table, model.denormalizer.table)
            sound = all(_is_sound(table) for table in tables if table)
    if not sound:
        raise InputError(f"--sentencepiece: {path} is not a SentencePiece model")


def _is_sound(table: bytes) -> bool:
    """Whether a precompiled_charsmap leads nowhere outside: size of the trie in bytes, the trie's uint32
    units, NUL-ended strings."""
    if len(table) < 8:
        return False
    size = int.from_bytes(table[:4], "little")
    strings = table[4 + size :]
    if size < 4 or size % 4 or not strings or strings[-1]:
        return False
    units = np.frombuffer(table, dtype="<u4", count=size // 4, offset=4).astype(np.int64)
    # From unit i a step on byte c leads to i ^ offset ^ c, if that unit's label is c. Units with the top bit
    # are values, which no step can enter; the walk starts at unit 0 whatever it holds.
    inner = np.flatnonzero(units < 1 << 31)
    inner = np.union1d(inner, [0])
    offset = (units[inner] >> 10) << ((units[inner] & 512) >> 6)
    child = inner ^ offset
    if int((child | 255).max()) >= len(units):
        return False
    leaf = child[(units[inner] & 256) != 0]
    return int((units[leaf] & 0x7FFFFFFF).max(initial=0)) < len(strings)


class SentencePieceTokenizer:
    """SentencePiece over each basic token, as GluonNLP's BERTSPTokenizer.

    `nbest` 0 or 1 takes the best segmentation. Above 1 it samples from the `nbest` best, below 0 from all,
    with inverse temperature `alpha`. What is sampled depends on `seed`, the `stream` of the call and its
    lines only. A basic token that has data.text.sentences.UNKNOWN becomes the unknown piece, as in WordPiece.
    """

    def __init__(self, path: str, settings: TokenizerSettings) -> None:
        self._processor = load_processor(path)
        self._normalizer = bert_normalizer(settings.cased)
        self._pre_tokenizer = BertPreTokenizer()
        self._settings = settings
        self._unk_id = settings.vocabulary.unk_id
        self._table = WordTable(self._best)

    def encode(self, lines: Sequence[str], stream: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """All ids of the lines, and where each line ends in them (see Tokenizer)."""
        return self._sampled(lines, stream) if self._settings.samples else self._table.encode(lines)

    def _pieces(self, text: str) -> list[str]:
        """The basic tokens of a word or a line."""
        normal = self._normalizer.normalize_str(without_surrogates(text))
        return [piece for piece, _ in self._pre_tokenizer.pre_tokenize_str(normal)]

    def _best(self, words: Sequence[str]) -> list[list[int]]:
        pieces = [self._pieces(word) for word in words]
        distinct = [piece for piece in dict.fromkeys(chain.from_iterable(pieces)) if UNKNOWN not in piece]
        ids = dict(zip(distinct, self._processor.encode(distinct, num_threads=1)))
        unknown = [self._unk_id]
        return [[index for piece in group for index in ids.get(piece, unknown)] for group in pieces]

    def _sampled(self, lines: Sequence[str], stream: int) -> tuple[np.ndarray, np.ndarray]:
        """Sample in a new thread: SentencePiece seeds a thread's generator when the thread first uses it."""
        import sentencepiece

        pieces = [self._pieces(line) for line in lines]
        ids: list[int] = []
        ends: list[int] = []

        def sample() -> None:
            encode, nbest, alpha = self._processor.encode, self._settings.nbest, self._settings.alpha
            for group in pieces:
                for piece in group:
                    if UNKNOWN in piece:
                        ids.append(self._unk_id)
                    else:
                        ids.extend(encode(piece, enable_sampling=True, nbest_size=nbest, alpha=alpha))
                ends.append(len(ids))

        digest = hashlib.sha256(f"{self._settings.seed} {stream}".encode("ascii")).digest()
        sentencepiece.set_random_generator_seed(int.from_bytes(digest[:4], "little"))
        thread = threading.Thread(target=sample)
        thread.start()
        thread.join()
        if len(ends) != len(lines):
            raise RuntimeError("SentencePiece failed while sampling; its own message is above")
        return np.array(ids, dtype=np.int32), np.array(ends, dtype=np.int64)


def load_sentencepiece(path: str) -> Vocabulary:
    """The vocabulary of the SentencePiece model at `path`.

    Raises InputError for a file that is no model, or a model without BERT's special pieces.
    """
    processor = load_processor(path)
    pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
    return vocabulary_from_pieces(pieces, processor.unk_id(), processor.pad_id(), path)


class Tokenizer(Protocol):
    """Interface of a tokenizer."""

    def encode(self, lines: Sequence[str], stream: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """All ids of the lines, int32 (tokens,), without special tokens, and where each line ends in them,
        int64 (lines,): line i has ids[ends[i - 1] : ends[i]], the first ids[: ends[0]]; possibly none.

        The result depends on the settings, `stream` and the lines alone, not on earlier calls; only a
        tokenizer that samples looks at `stream`, so give each unit of a text its own.
        """
        ...


@dataclass(frozen=True, eq=False)
class TokenizerSettings:
    """Settings from which a worker process builds a tokenizer; may be pickled.

    `sentencepiece` is the path of a model, or None for WordPiece. `cased` keeps case and accents. `nbest`,
    `alpha` and `seed` are those of SentencePieceTokenizer and mean nothing for WordPiece.
    """

    vocabulary: Vocabulary
    sentencepiece: str | None = None
    cased: bool = False
    nbest: int = 0
    alpha: float = 1.0
    seed: int = 0

    @property
    def samples(self) -> bool:
        """True if the ids of a line are sampled anew under another seed."""
        return self.sentencepiece is not None and self.nbest not in (0, 1)

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the tokenizer, part of that of a store: another one may give other tokens. It travels
        with the settings, so that `build` can compare.

        Raises InputError when the SentencePiece model cannot be read.
        """
        words = f"vocab={self.vocabulary.sha256}"
        if self.sentencepiece is None:
            return f"wordpiece-1 cased={self.cased} max_chars={MAX_CHARS_PER_WORD} {words}"
        sampling = ""
        if self.samples:
            # Releases draw differently; the best segmentation is the same in all.
            release = sentencepiece_package().__version__
            sampling = f" nbest={self.nbest} alpha={self.alpha} seed={self.seed} release={release}"
        try:
            model = sha256_of(self.sentencepiece)
        except OSError as error:
            raise InputError(
                f"--sentencepiece: cannot read {self.sentencepiece}: {error.strerror}"
            ) from error
        return f"sentencepiece-1 cased={self.cased} model={model} {words}{sampling}"

    def build(self) -> Tokenizer:
        """The tokenizer. Raises InputError for a SentencePiece model that is not, or no longer, the one."""
        if self.sentencepiece is None:
            return WordPieceTokenizer(self.vocabulary, self.cased)
        expected = self.fingerprint
        tokenizer = SentencePieceTokenizer(self.sentencepiece, self)
        if replace(self).fingerprint != expected:  # of the file as it is now
            raise InputError(f"--sentencepiece: {self.sentencepiece} changed during the run; start again")
        return tokenizer


_SPECIAL = re.compile("(" + "|".join(map(re.escape, SPECIAL_TOKENS)) + ")")


def encode_marked(texts: Sequence[str], tokenizer: Tokenizer, vocabulary: Vocabulary) -> list[list[int]]:
    """The ids of each text, [PAD], [UNK], [CLS], [SEP] and [MASK] in it being those tokens, whatever the
    case of the rest, as in Hugging Face's tokenizers. (Tokenizers take "[MASK]" for punctuation and a word,
    as a text that is trained on may well contain it.)"""
    special = dict(zip(SPECIAL_TOKENS, vocabulary.special_ids))
    parts = [_SPECIAL.split(text) for text in texts]  # text and special tokens in turns
    plain = [part for each in parts for part in each if part not in special]
    encoded = iter(lists_of(*tokenizer.encode(plain)))
    return [
        [token for part in each for token in ([special[part]] if part in special else next(encoded))]
        for each in parts
    ]
