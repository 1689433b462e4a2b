"""Train a vocabulary on raw text: WordPiece's vocab.txt or a SentencePiece model.

python -m data.train_vocab --input 'corpus/*.txt' --output vocab.txt --vocab_size 30522 [--cased]
python -m data.train_vocab --type sentencepiece --input corpus/ --output m.model --vocab_size 30000
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import sys
import unicodedata
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Iterator, Sequence

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.trainers import WordPieceTrainer

from base.command_line import OptionParser, code_of, count, path_name, path_names, whole
from base.errors import InputError
from base.files import replacing
from base.options import add_options, taken
from base.progress import SILENT, Printed, Progress
from data.options import TABLE, TextConfig
from data.store.build import Skipped
from data.text.corpus import TextUnit, expand_inputs, read_unit, text_units
from data.text.sentences import UNKNOWN
from data.tokenizing.tokenizer import (
    MAX_CHARS_PER_WORD,
    bert_normalizer,
    load_sentencepiece,
    sentencepiece_package,
    without_surrogates,
)
from data.tokenizing.vocab import (
    KINDS,
    MAX_VOCAB_SIZE,
    SENTENCEPIECE,
    SPECIAL_TOKENS,
    WORD_START,
    WORDPIECE,
    load_vocab,
)

_MESSAGES_SHOWN = 5


@dataclass(eq=False)
class TrainingText:
    """Sentences of text files, to be gone through as often as needed.

    If there are more than `max_sentences` (0: no limit), just as many are drawn by `seed`, uniformly and in
    the order of the text; every pass draws the same ones. Nothing is held in memory. `skipped` tells of the
    bad records that the last pass left out, if `settings` says so.
    Raises InputError for bad text while iterating.
    """

    paths: Sequence[str]
    settings: TextConfig = TextConfig()
    max_sentences: int = 0
    seed: int = 0
    progress: Progress = SILENT
    skipped: Skipped = field(default_factory=Skipped, init=False)

    @cached_property
    def _units(self) -> Sequence[TextUnit]:
        return text_units(self.paths, self.settings)

    @cached_property
    def sentences(self) -> int:
        """Number of sentences in the files; the first use reads them."""
        return sum(1 for _ in self._all("counting sentences"))

    def passes(self, what: str) -> Iterator[str]:
        """The sentences, one pass; `what` is what the progress calls it."""
        if not self.max_sentences or self.sentences <= self.max_sentences:
            yield from self._all(what)
            return
        generator = random.Random(self.seed)
        left, wanted = self.sentences, self.max_sentences
        for sentence in self._all(what):
            if generator.random() * left < wanted:  # Knuth's selection sampling: exactly `wanted` of `left`
                wanted -= 1
                yield sentence
            left -= 1
        if left:
            raise InputError(f"the text changed while it was read: {', '.join(self.paths)}; start again")

    def _all(self, what: str) -> Iterator[str]:
        self.skipped = Skipped()
        self.progress.begin(what, sum(unit.size for unit in self._units))
        done = 0
        try:
            for unit in self._units:
                for sentence in read_unit(unit, self.settings, self.skipped):
                    if sentence is not None:
                        # A word that the text's makers took out teaches nothing.
                        yield without_surrogates(sentence.replace(UNKNOWN, " "))
                done += unit.size
                self.progress.update(done, {})
        finally:
            self.progress.end()


MIN_VOCAB_SIZE = 100
# Rarer characters become [UNK]; Hugging Face's BertWordPieceTokenizer has the same limit.
ALPHABET_LIMIT = 1000


def check_size(vocab_size: int) -> None:
    """Raises InputError for a --vocab_size that no WordPiece vocabulary can have."""
    if vocab_size < MIN_VOCAB_SIZE:
        raise InputError(f"--vocab_size {vocab_size}: must be at least {MIN_VOCAB_SIZE}")


def train_wordpiece(text: TrainingText, output: str, vocab_size: int, cased: bool = False) -> int:
    """Train and write `output`, a vocab.txt with the special tokens first. Returns its number of tokens,
    fewer than `vocab_size` if the text has no more.

    The same text gives the same file. Memory grows with the number of distinct words, not with the text.
    `vocab_size` is one that `check_size` accepts. Raises InputError for bad text or none.
    """
    normalizer = bert_normalizer(cased)
    counts: Counter[str] = Counter()
    for line in text.passes("counting characters"):
        counts.update(normalizer.normalize_str(line))
    frequent = sorted((c for c in counts if not c.isspace()), key=lambda c: (-counts[c], c))
    alphabet = sorted(frequent[: min(ALPHABET_LIMIT, vocab_size // 8)])
    if not alphabet:
        raise InputError("--input: no text to train a vocabulary on")
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = BertPreTokenizer()
    # Left alone, the trainer numbers characters in the order of a randomized hash table, and its merges break
    # ties by these numbers. Naming all characters beforehand, the continuing ones as if special, makes it
    # repeatable.
    continuing = []
    for character in alphabet:  # those that basic tokenization leaves in words: no punctuation, no ideographs
        ascii_punctuation = character.isascii() and not character.isalnum()
        ideograph = "CJK" in unicodedata.name(character, "")
        if not (ascii_punctuation or ideograph or unicodedata.category(character).startswith("P")):
            continuing.append("##" + character)
    trainer = WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[*SPECIAL_TOKENS, *continuing],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        continuing_subword_prefix="##",
    )
    tokenizer.train_from_iterator(text.passes("counting words"), trainer)
    ids = tokenizer.get_vocab()
    with replacing(output) as handle:
        handle.write("".join(token + "\n" for token in sorted(ids, key=ids.__getitem__)).encode("utf-8"))
    return len(load_vocab(output))


MODEL_TYPES = ("unigram", "bpe")
_MAX_SENTENCE_BYTES = 1 << 24  # the trainer leaves out longer ones; sentences here have 1 MiB at most
# The trainer divides its sums among threads, so that their number, not the cores', decides the last bits.
_THREADS = 16


def train_sentencepiece(
    text: TrainingText, output: str, vocab_size: int, cased: bool = False, model_type: str = "unigram"
) -> int:
    """Train and write `output`, a SentencePiece model with [PAD], [UNK], [CLS], [SEP], [MASK] as pieces 0 to
    4. Returns its number of pieces.

    It is trained on basic tokens, as SentencePieceTokenizer uses it. The same text gives the same bytes with
    the same release of SentencePiece. Memory grows with the text.
    Raises InputError for bad text or none, and when `vocab_size` does not fit the text.
    """
    trainer = sentencepiece_package("--type sentencepiece").SentencePieceTrainer
    normalizer, pre_tokenizer = bert_normalizer(cased), BertPreTokenizer()
    given, failures = 0, []  # type: int, list[BaseException]

    def sentences() -> Iterator[str]:
        # SentencePiece must not see an exception of its iterator; what it makes of one depends on its release
        nonlocal given
        try:
            for line in text.passes("reading sentences"):
                # SentencePiece reserves its mark of a word's start and would leave out the whole sentence.
                normal = normalizer.normalize_str(line.replace(WORD_START, " "))
                words = [word for word, _ in pre_tokenizer.pre_tokenize_str(normal)]
                sentence = " ".join(word for word in words if len(word) <= MAX_CHARS_PER_WORD)
                if sentence:
                    given += 1
                    yield sentence
        except BaseException as error:
            failures.append(error)

    model = io.BytesIO()
    try:
        trainer.train(
            sentence_iterator=sentences(),
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
        if not failures:
            raise InputError(_explain(str(error), vocab_size, given)) from error
    if failures:
        raise failures[0]
    with replacing(output) as handle:
        handle.write(model.getvalue())
    return len(load_sentencepiece(output))


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


def _parser() -> OptionParser:
    arguments = OptionParser(
        prog="python -m data.train_vocab",
        description="Train a WordPiece vocabulary or a SentencePiece model on raw text.",
        epilog="Memory: about 1 KB for each distinct word of the sentences trained on, such as 1 GB for 10 "
        "million sentences with a million distinct words; SentencePiece holds the sentences as well.",
    )
    add = arguments.add_argument
    add("--input", type=path_names, required=True, help="text: files, globs and directories, comma-separated")
    add(
        "--output",
        type=path_name,
        required=True,
        help="the vocab.txt or .model file to write; must not exist",
    )
    add("--type", choices=KINDS, default=WORDPIECE, help="default: %(default)s")
    add(
        "--vocab_size",
        type=whole(1, MAX_VOCAB_SIZE, "four times the largest vocabulary in use"),
        default=30522,
        help="tokens at most (default: %(default)s)",
    )
    add_options(add, TABLE, "cased")
    add("--sp_model_type", choices=MODEL_TYPES, default="unigram", help="of SentencePiece")
    add_options(add, TABLE, "text_format split_sentences skip_bad_records")
    add(
        "--max_sentences",
        type=count,
        default=10_000_000,
        help="train on so many sentences drawn from a larger text, 0 for all (default: %(default)s)",
    )
    add("--seed", type=count, default=0, help="of the draw of --max_sentences")
    return arguments


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    try:
        options = _parser().parse_args(arguments)
        _train(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # such as a full disk; the output is not there then
        print(f"error: --output: cannot write {options.output}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


def _train(options: argparse.Namespace) -> None:
    output: str = options.output
    directory = os.path.dirname(os.path.abspath(output))
    if not os.path.isdir(directory):
        raise InputError(f"--output: no such directory: {directory}")
    if os.path.lexists(output):
        raise InputError(f"--output: {output} is there already; name another file or remove it")
    if options.type == WORDPIECE:  # before sentences are counted
        check_size(options.vocab_size)
    progress = Printed()
    paths = expand_inputs(options.input, "--input")
    text = TrainingText(paths, taken(TextConfig, options), options.max_sentences, options.seed, progress)
    if 0 < options.max_sentences < text.sentences:
        progress.note(f"training on {options.max_sentences} of {text.sentences} sentences (--max_sentences)")
    if options.type == SENTENCEPIECE:
        size = train_sentencepiece(text, output, options.vocab_size, options.cased, options.sp_model_type)
    else:
        size = train_wordpiece(text, output, options.vocab_size, options.cased)
    for message in text.skipped.messages[:_MESSAGES_SHOWN]:
        print(f"skipped: {message}", file=sys.stderr)
    if text.skipped.count:
        print(f"skipped {text.skipped.count} bad records in all", file=sys.stderr)
    fewer = size < options.vocab_size
    reason = f", fewer than --vocab_size {options.vocab_size}: the text has no more" if fewer else ""
    print(f"wrote {output}: {size} tokens{reason}")


if __name__ == "__main__":
    sys.exit(code_of(main))
