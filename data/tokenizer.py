"""Sentences to token ids: WordPiece and SentencePiece, as GluonNLP's BERT scripts tokenize.

Both first clean and split as Google's BasicTokenizer: drop control characters, isolate CJK characters and
punctuation, and for uncased models lower-case and strip accents. (GluonNLP 0.10's BERTTokenizer strips
accents even with lower=False, which no published cased vocabulary was made with; here a cased text keeps its
accents, as in Google's code.)
"""

from __future__ import annotations

import os
import threading
from typing import Protocol, Sequence

from tokenizers import Tokenizer as HuggingFaceTokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from data.errors import InputError
from data.files import sha256_of
from data.vocab import Vocabulary, vocabulary_from_pieces

MAX_CHARS_PER_WORD = 200  # longer words become [UNK], as in Google's code


class Tokenizer(Protocol):
    """What the token store needs of a tokenizer.

    `fingerprint` changes whenever the same text may give other tokens; it is part of a store's identity.
    """

    fingerprint: str

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, without special tokens; possibly none."""
        ...


def bert_normalizer(cased: bool) -> BertNormalizer:
    """Google's cleaning, CJK isolation and, unless cased, lower-casing and accent stripping."""
    return BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=not cased, lowercase=not cased
    )


class WordPieceTokenizer:
    """Greedy longest-match-first WordPiece through Hugging Face `tokenizers`, which uses all cores."""

    def __init__(self, vocab: Vocabulary, cased: bool = False) -> None:
        unknown = vocab.tokens[vocab.unk_id]
        model = WordPiece(vocab.ids(), unk_token=unknown, max_input_chars_per_word=MAX_CHARS_PER_WORD)
        # No special token is registered, so "[MASK]" written in a text is punctuation and a word, not the
        # token.
        tokenizer = HuggingFaceTokenizer(model)
        tokenizer.normalizer = bert_normalizer(cased)
        tokenizer.pre_tokenizer = BertPreTokenizer()
        # Releases since 0.20 skip the offsets that nobody here reads.
        self._encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
        self.fingerprint = f"wordpiece-1 cased={cased} max_chars={MAX_CHARS_PER_WORD} vocab={vocab.sha256}"

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, without special tokens."""
        return [encoding.ids for encoding in self._encode(list(lines), add_special_tokens=False)]


class SentencePieceTokenizer:
    """SentencePiece over each basic token, as GluonNLP's BERTSPTokenizer.

    `nbest` 0 or 1 takes the best segmentation. Above 1 it samples from the `nbest` best, below 0 from all,
    with inverse temperature `alpha`. What is sampled depends on `seed` and on the order of the calls only.
    """

    def __init__(
        self,
        path: str,
        vocab: Vocabulary,
        cased: bool = False,
        nbest: int = 0,
        alpha: float = 1.0,
        seed: int = 0,
    ) -> None:
        self._processor = _processor(path)
        self._normalizer = bert_normalizer(cased)
        self._pre_tokenizer = BertPreTokenizer()
        self._nbest, self._alpha, self._seed = nbest, alpha, seed
        self._batches = 0
        sampling = f" nbest={nbest} alpha={alpha} seed={seed}" if self.samples else ""
        self.fingerprint = (
            f"sentencepiece-1 cased={cased} model={sha256_of(path)} vocab={vocab.sha256}{sampling}"
        )

    @property
    def samples(self) -> bool:
        """Whether segmentations are sampled, so that a text may give other tokens under another seed."""
        return self._nbest not in (0, 1)

    def encode_batch(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, without special tokens."""
        words: list[str] = []
        owners: list[int] = []
        for owner, line in enumerate(lines):
            pieces = self._pre_tokenizer.pre_tokenize_str(self._normalizer.normalize_str(line))
            words.extend(word for word, _ in pieces)
            owners.extend([owner] * len(pieces))
        encoded: list[list[int]] = [[] for _ in lines]
        for owner, ids in zip(owners, self._sample(words) if self.samples else self._processor.encode(words)):
            encoded[owner].extend(ids)
        return encoded

    def _sample(self, words: list[str]) -> list[list[int]]:
        """Sample in a new thread: SentencePiece seeds a thread's generator when the thread first uses it."""
        import sentencepiece

        self._batches += 1
        sampled: list[list[int]] = []

        def sample() -> None:
            for word in words:
                sampled.append(
                    self._processor.encode(
                        word, enable_sampling=True, nbest_size=self._nbest, alpha=self._alpha
                    )
                )

        sentencepiece.set_random_generator_seed((self._seed * 1_000_003 + self._batches) % 2**32)
        thread = threading.Thread(target=sample)
        thread.start()
        thread.join()
        if len(sampled) != len(words):
            raise RuntimeError("SentencePiece failed while sampling; its own message is above")
        return sampled


def load_sentencepiece(path: str) -> Vocabulary:
    """The vocabulary of the SentencePiece model at `path`.

    Raises InputError for a file that is no model, or a model without BERT's special pieces.
    """
    processor = _processor(path)
    pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
    return vocabulary_from_pieces(pieces, processor.unk_id(), processor.pad_id(), path)


def _processor(path: str):  # type: ignore[no-untyped-def]
    try:
        import sentencepiece  # only --sentencepiece needs it
    except ImportError as error:
        raise InputError(
            "--sentencepiece needs the sentencepiece package: pip install sentencepiece"
        ) from error
    if not os.path.isfile(path):
        raise InputError(f"--sentencepiece: no such file: {path}")
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.load(path)
    except (RuntimeError, OSError) as error:
        raise InputError(f"--sentencepiece: {path} is not a SentencePiece model") from error
    return processor
