"""Training a SentencePiece model that BERT can use."""

from __future__ import annotations

import io
import re
from typing import Iterator

from tokenizers.pre_tokenizers import BertPreTokenizer

from base.errors import InputError
from data.tokenizing.training_text import TrainingText
from data.tokenizing.vocab import WORD_START
from data.tokenizing.wordpiece import MAX_CHARS_PER_WORD, bert_normalizer

MODEL_TYPES = ("unigram", "bpe")
_MAX_SENTENCE_BYTES = 1 << 24  # the trainer leaves out longer ones; sentences here have 1 MiB at most
# The trainer divides its sums among threads, so that their number, not the cores', decides the last bits.
_THREADS = 16


def sentencepiece_model(
    text: TrainingText, vocab_size: int, cased: bool = False, model_type: str = "unigram"
) -> bytes:
    """The content of a .model file with [PAD], [UNK], [CLS], [SEP], [MASK] as pieces 0 to 4.

    It is trained on basic tokens, as SentencePieceTokenizer uses it. The same text gives the same bytes with
    the same release of SentencePiece. Memory grows with the text.
    Raises InputError for bad text or none, and when `vocab_size` does not fit the text.
    """
    if model_type not in MODEL_TYPES:
        raise InputError(f"--sp_model_type {model_type}: must be one of {', '.join(MODEL_TYPES)}")
    try:
        import sentencepiece  # only SentencePiece vocabularies need it
    except ImportError as error:
        raise InputError(
            "--type sentencepiece needs the sentencepiece package: pip install sentencepiece"
        ) from error
    sentences = _Sentences(text, cased)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size,
            pad_id=0,
            pad_piece="[PAD]",
            unk_id=1,
            unk_piece="[UNK]",
            bos_id=-1,
            eos_id=-1,
            user_defined_symbols=["[CLS]", "[SEP]", "[MASK]"],
            max_sentence_length=_MAX_SENTENCE_BYTES,
            num_threads=_THREADS,
            minloglevel=2,
        )
    except (RuntimeError, SystemError) as error:
        if sentences.error is not None:
            raise sentences.error from None
        raise InputError(_explain(str(error), vocab_size, sentences.given)) from error
    if sentences.error is not None:
        raise sentences.error
    return model.getvalue()


class _Sentences:
    """The text's sentences as basic tokens between spaces.

    SentencePiece must not see an exception of its iterator: what it makes of one depends on its release. The
    iterator ends instead, and `error` keeps the exception.
    """

    def __init__(self, text: TrainingText, cased: bool) -> None:
        self._text = text
        self._normalizer, self._pre_tokenizer = bert_normalizer(cased), BertPreTokenizer()
        self.given = 0
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[str]:
        try:
            for line in self._text.passes("reading sentences"):
                # SentencePiece reserves its mark of a word's start and would leave out the whole sentence.
                normal = self._normalizer.normalize_str(line.replace(WORD_START, " "))
                words = [word for word, _ in self._pre_tokenizer.pre_tokenize_str(normal)]
                sentence = " ".join(word for word in words if len(word) <= MAX_CHARS_PER_WORD)
                if sentence:
                    self.given += 1
                    yield sentence
        except BaseException as error:
            self.error = error


def _explain(message: str, vocab_size: int, given: int) -> str:
    """One line for what the trainer says of the user's input."""
    if not given:
        return "--input: no text to train a vocabulary on"
    most = re.search(r"size too high.*<= (\d+)", message)
    if most:
        return f"--vocab_size {vocab_size}: too large for this text, which gives at most {most[1]} pieces"
    least = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if least:
        return (
            f"--vocab_size {vocab_size}: too small for this text; its characters alone are {least[1]} pieces"
        )
    return f"SentencePiece cannot train on this text: {' '.join(message.split())}"
