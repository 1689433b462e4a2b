"""SentencePiece models: their vocabulary and their tokenizer."""

from __future__ import annotations

import hashlib
import threading
from itertools import chain
from typing import Sequence

import numpy as np
from tokenizers.pre_tokenizers import BertPreTokenizer

from base.errors import InputError
from base.files import sha256_of
from data.text.corpus import UNKNOWN
from data.tokenizing.sentencepiece_model import load_processor, sentencepiece_release
from data.tokenizing.vocab import Vocabulary, vocabulary_from_pieces
from data.tokenizing.wordpiece import bert_normalizer, without_surrogates
from data.tokenizing.words import WordTable, lists_of


class SentencePieceTokenizer:
    """SentencePiece over each basic token, as GluonNLP's BERTSPTokenizer.

    `nbest` 0 or 1 takes the best segmentation. Above 1 it samples from the `nbest` best, below 0 from all,
    with inverse temperature `alpha`. What is sampled depends on `seed`, the `stream` of the call and its
    lines only. A basic token that has data.text.corpus.UNKNOWN becomes the unknown piece, as in WordPiece.
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
        self._processor = load_processor(path)
        self._normalizer = bert_normalizer(cased)
        self._pre_tokenizer = BertPreTokenizer()
        self._nbest, self._alpha, self._seed = nbest, alpha, seed
        self._unk_id = vocab.unk_id
        self._table = WordTable(self._best)
        self.fingerprint = sentencepiece_fingerprint(path, vocab, cased, nbest, alpha, seed)

    @property
    def samples(self) -> bool:
        """True if segmentations are sampled, so that a text may give other tokens under another seed."""
        return samples(self._nbest)

    def encode_batch(self, lines: Sequence[str], stream: int = 0) -> list[list[int]]:
        """The ids of each line, without special tokens.

        When sampling, the same `stream` and lines give the same ids, whatever was encoded before; give each
        part of a text a stream of its own.
        """
        return lists_of(*self.encode_flat(lines, stream))

    def encode_flat(self, lines: Sequence[str], stream: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """As `encode_batch`, in two arrays: all ids, int32, and where each line ends in them, int64."""
        return self._sampled(lines, stream) if self.samples else self._table.encode_flat(lines)

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
            encode, nbest, alpha = self._processor.encode, self._nbest, self._alpha
            for group in pieces:
                for piece in group:
                    if UNKNOWN in piece:
                        ids.append(self._unk_id)
                    else:
                        ids.extend(encode(piece, enable_sampling=True, nbest_size=nbest, alpha=alpha))
                ends.append(len(ids))

        digest = hashlib.sha256(f"{self._seed} {stream}".encode("ascii")).digest()
        sentencepiece.set_random_generator_seed(int.from_bytes(digest[:4], "little"))
        thread = threading.Thread(target=sample)
        thread.start()
        thread.join()
        if len(ends) != len(lines):
            raise RuntimeError("SentencePiece failed while sampling; its own message is above")
        return np.array(ids, dtype=np.int32), np.array(ends, dtype=np.int64)


def samples(nbest: int) -> bool:
    """True if SentencePiece samples segmentations with this --sp_nbest."""
    return nbest not in (0, 1)


def sentencepiece_fingerprint(
    path: str, vocab: Vocabulary, cased: bool, nbest: int, alpha: float, seed: int
) -> str:
    """Identity of a SentencePiece tokenizer: another one may give other tokens. Reads the model's file.

    Raises InputError when it cannot be read.
    """
    sampling = ""
    if samples(nbest):
        # Releases draw differently; the best segmentation is the same in all.
        sampling = f" nbest={nbest} alpha={alpha} seed={seed} release={sentencepiece_release()}"
    try:
        model = sha256_of(path)
    except OSError as error:
        raise InputError(f"--sentencepiece: cannot read {path}: {error.strerror}") from error
    return f"sentencepiece-1 cased={cased} model={model} vocab={vocab.sha256}{sampling}"


def load_sentencepiece(path: str) -> Vocabulary:
    """The vocabulary of the SentencePiece model at `path`.

    Raises InputError for a file that is no model, or a model without BERT's special pieces.
    """
    processor = load_processor(path)
    pieces = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
    return vocabulary_from_pieces(pieces, processor.unk_id(), processor.pad_id(), path)
