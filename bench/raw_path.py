"""GluonNLP's way from text to batches with `--raw`, to measure against and to compare with.

Each epoch it tokenizes every line again and runs Google's create_pretraining_data algorithm (Devlin et al.,
arXiv:1810.04805, sections A.1 and A.2) over Python lists, document by document. This is that algorithm
written out plainly with Python's `random`, independent of `data/` but for its settings: documents are lists
of sentences, which are lists of tokens. GluonNLP itself is imported only where its tokenizer is made: that
takes seconds, and imports MXNet.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Callable, Iterable, Iterator, Sequence

import numpy as np

from data.options import MaskingConfig

Document = Sequence[Sequence[str]]


@dataclass
class Instance:
    """A sentence pair with its masks, as tokens."""

    tokens: list[str]
    b_begins: int  # place of the first token of B
    is_random: bool
    positions: list[int]
    labels: list[str]


def gluonnlp_tokenizer(tokens: Sequence[str], lower: bool = True) -> Callable[[str], list[str]]:
    """GluonNLP's BERTTokenizer with a WordPiece vocabulary given as its tokens in order."""
    import gluonnlp

    counter = gluonnlp.data.count_tokens(tokens)
    ids = {token: index for index, token in enumerate(tokens)}
    return gluonnlp.data.BERTTokenizer(gluonnlp.vocab.BERTVocab(counter, token_to_idx=ids), lower=lower)


def read_documents(lines: Iterable[str], tokenize: Callable[[str], list[str]]) -> list[Document]:
    """Documents of lines, one sentence each, with blank lines between documents."""
    documents: list[list[list[str]]] = [[]]
    for line in lines:
        if not line.strip():
            if documents[-1]:
                documents.append([])
            continue
        tokens = tokenize(line.strip())
        if tokens:
            documents[-1].append(tokens)
    return [document for document in documents if document]


def pairs_of_document(
    documents: Sequence[Document],
    number: int,
    settings: MaskingConfig,
    generator: random.Random,
) -> Iterator[tuple[list[str], list[str], bool]]:
    """A, B and whether B is from another document, for each chunk of document `number`."""
    document = documents[number]
    assert settings.max_seq_length is not None
    room = settings.max_seq_length - 3  # for [CLS] and two [SEP]
    wanted = generator.randint(2, room) if generator.random() < settings.short_seq_prob else room
    chunk: list[Sequence[str]] = []
    size = place = 0
    while place < len(document):
        chunk.append(document[place])
        size += len(document[place])
        if place + 1 == len(document) or size >= wanted:
            a_sentences = generator.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
            a = [token for sentence in chunk[:a_sentences] for token in sentence]
            b: list[str] = []
            is_random = len(chunk) == 1 or generator.random() < 0.5
            if is_random:
                other = number
                while other == number:
                    other = generator.randrange(len(documents))
                first = generator.randrange(len(documents[other]))
                for sentence in documents[other][first:]:
                    b.extend(sentence)
                    if len(b) >= wanted - len(a):
                        break
                place -= len(chunk) - a_sentences  # what B did not use comes again
            else:
                b = [token for sentence in chunk[a_sentences:] for token in sentence]
            while len(a) + len(b) > room:
                longer = a if len(a) > len(b) else b
                if generator.random() < 0.5:
                    del longer[0]
                else:
                    longer.pop()
            yield a, b, is_random
            chunk, size = [], 0
        place += 1


def masked_instance(
    a: list[str],
    b: list[str],
    is_random: bool,
    vocab_words: Sequence[str],
    settings: MaskingConfig,
    generator: random.Random,
) -> Instance:
    """[CLS] A [SEP] B [SEP] with tokens chosen in random order: 80% [MASK], 10% kept, 10% any token."""
    tokens = ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
    words: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token in ("[CLS]", "[SEP]"):
            continue
        if settings.whole_word_mask and words and token.startswith("##"):
            words[-1].append(place)
        else:
            words.append([place])
    generator.shuffle(words)
    assert settings.max_predictions_per_seq is not None
    wanted = min(settings.max_predictions_per_seq, max(1, int(round(len(tokens) * settings.masked_lm_prob))))
    chosen: list[int] = []
    for word in words:
        if len(chosen) >= wanted:
            break
        if len(chosen) + len(word) <= wanted:
            chosen.extend(word)
    chosen.sort()
    labels = [tokens[place] for place in chosen]
    for place in chosen:
        if generator.random() < 0.8:
            tokens[place] = "[MASK]"
        elif generator.random() >= 0.5:
            tokens[place] = vocab_words[generator.randrange(len(vocab_words))]
    return Instance(tokens, len(a) + 2, is_random, chosen, labels)


def create_instances(
    documents: Sequence[Document],
    vocab_words: Sequence[str],
    settings: MaskingConfig,
    generator: random.Random,
) -> list[Instance]:
    """One epoch's instances of all documents, by document."""
    return [
        masked_instance(a, b, is_random, vocab_words, settings, generator)
        for number in range(len(documents))
        for a, b, is_random in pairs_of_document(documents, number, settings, generator)
    ]


def batches(
    instances: list[Instance], ids: dict[str, int], tokens_per_batch: int, generator: random.Random
) -> Iterator[tuple[np.ndarray, ...]]:
    """Ready batches of about equally long instances, padded, in random order: ids, segments, lengths, masked
    positions, ids and weights, next sentence labels."""
    order = sorted(
        range(len(instances)), key=lambda index: (len(instances[index].tokens), generator.random())
    )
    groups: list[list[int]] = [[]]
    for index in order:  # rising, so the last of a group is its longest
        if (len(groups[-1]) + 1) * len(instances[index].tokens) > tokens_per_batch and groups[-1]:
            groups.append([])
        groups[-1].append(index)
    generator.shuffle(groups)
    most = max(len(instance.positions) for instance in instances)
    for group in groups:
        chosen = [instances[index] for index in group]
        shape = len(chosen), max(len(instance.tokens) for instance in chosen)
        input_ids, segment_ids = (np.zeros(shape, dtype=np.int32) for _ in range(2))
        positions, masked_ids = (np.zeros((len(chosen), most), dtype=np.int32) for _ in range(2))
        weights = np.zeros((len(chosen), most), dtype=np.float32)
        for row, instance in enumerate(chosen):
            count = len(instance.positions)
            input_ids[row, : len(instance.tokens)] = [ids[token] for token in instance.tokens]
            segment_ids[row, instance.b_begins : len(instance.tokens)] = 1
            positions[row, :count] = instance.positions
            masked_ids[row, :count] = [ids[token] for token in instance.labels]
            weights[row, :count] = 1
        lengths = np.array([len(instance.tokens) for instance in chosen], dtype=np.int32)
        next_sentence = np.array([instance.is_random for instance in chosen], dtype=np.int32)
        yield input_ids, segment_ids, lengths, positions, masked_ids, weights, next_sentence
