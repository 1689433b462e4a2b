"""Questions and sentence pairs to the batches that bench/finetune.py measures on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Sequence

import numpy as np

from base.errors import InputError
from bench.trainings import (
    ANSWERS,
    EVALUATION,
    FULL,
    FULL_ANSWERS,
    PAIRS,
    WINDOWS,
    training_name,
    write_batches,
)
from data.classification.examples import Examples
from data.classification.features import featurize
from data.finetuning.batching import EvaluationOrder, Grouping, TrainingOrder
from data.questions.squad_files import SCORE, TRAIN, Questions, read_questions
from data.questions.windows import QuestionBatch, Windows, WindowSettings, collate
from data.text.sentences import split_sentences
from data.tokenizing.tokenizer import TokenizerSettings

SIZES = WindowSettings()  # Google's: 384, 128, 64
BATCH, EVALUATED = 12, 24  # windows of a training step, of an evaluation's batch
FULL_BATCH = 8
STEPS = 2  # of a case
PAIR_BATCH, PAIR_TOKENS = 32, 128
_GROUPING = Grouping(max_length=SIZES.max_seq_length)


def read_split(train_file: str, dev_file: str | None, version_2: bool) -> tuple[Questions, Questions]:
    """Questions to train on and to evaluate on; without `dev_file` the last article of the other is held out.

    Without `version_2` those that have no answer are left out. Raises InputError as `read_questions`, and
    where one article would have to be divided.
    """
    train = read_questions(train_file, "--train_file", TRAIN, first_gold=True)
    asked = read_questions(dev_file or train_file, "--dev_file" if dev_file else "--train_file", SCORE)
    if not dev_file:
        last = max(asked.article_of)
        if min(train.article_of) == last:
            raise InputError(f"{train.name}: it has one article; give --dev_file to evaluate on")
        train = train.select(np.flatnonzero(train.article_of != last))
        asked = asked.select(np.flatnonzero(asked.article_of == last))
    if not version_2:
        train, asked = (
            replace(each.select(np.flatnonzero(each.answerable)), version_2=False) for each in (train, asked)
        )
    if not len(train) or not len(asked):
        raise InputError(f"{train.name}: no questions with answers; --version_2 takes the others too")
    return train, asked


def write_evaluation(folder: str, windows: Windows) -> None:
    """Writes the batches of windows to evaluate on."""
    order = EvaluationOrder(windows.lengths, EVALUATED, 0, 1, grouping=_GROUPING)
    write_batches(folder, EVALUATION, [collate(windows, *rows)._asdict() for rows in order.batches()])


def write_trainings(folder: str, windows: Windows, seeds: Sequence[int], epochs: float) -> int:
    """Writes the batches of each training: by length, in an order of the seed. Returns their number."""
    num_steps = _order(windows, seed=0).num_steps(epochs)
    for seed in seeds:
        order = _order(windows, seed)
        batches = [collate(windows, *order.micro_batches(step)[0]) for step in range(num_steps)]
        write_batches(folder, training_name(seed), [each._asdict() for each in batches])
    return num_steps


def write_cases(
    folder: str, train: Questions, windows: Windows, tokenizer: TokenizerSettings
) -> dict[str, int]:
    """Writes the batches of the cases, from questions drawn at random; returns their tokens without padding,
    by the name of the case. `windows`: of the questions `train`."""
    generator = np.random.default_rng(0)
    full = _full(windows, generator)
    cases = {
        FULL: [full],
        FULL_ANSWERS: STEPS * [full],
        WINDOWS: _sample(windows, BATCH, generator),
        ANSWERS: _sample(windows, EVALUATED, generator),
        PAIRS: _pairs(train, tokenizer, generator),
    }
    for name, batches in cases.items():
        write_batches(folder, name, [each._asdict() for each in batches])
    return {name: sum(int(each.valid_lengths.sum()) for each in batches) for name, batches in cases.items()}


def _order(windows: Windows, seed: int) -> TrainingOrder:
    return TrainingOrder(windows.lengths, min(BATCH, len(windows)), seed, 0, 1, _GROUPING)


def _drawn(count: int, wanted: int, generator: np.random.Generator) -> np.ndarray:
    """Numbers below `count`, each once where there are enough."""
    times = -(-wanted // count)
    return np.concatenate([generator.permutation(count) for _ in range(times)])[:wanted]


def _by_length(lengths: np.ndarray, batch_size: int) -> list[tuple[np.ndarray, int]]:
    """Examples in batches of similar lengths, as training groups them, and the lengths they are padded to."""
    order = np.argsort(-lengths, kind="stable")
    parts = [order[begin : begin + batch_size] for begin in range(0, len(order), batch_size)]
    return [(part, -(-int(lengths[part[0]]) // 8) * 8) for part in parts]


def _sample(windows: Windows, batch_size: int, generator: np.random.Generator) -> list[QuestionBatch]:
    chosen = _drawn(len(windows), STEPS * batch_size, generator)
    batches = _by_length(windows.lengths[chosen], batch_size)
    return [collate(windows, chosen[part], padded) for part, padded in batches]


def _full(windows: Windows, generator: np.random.Generator) -> QuestionBatch:
    """Windows without padding: the contexts of the longest ones, again and again."""
    longest = np.argsort(-windows.lengths, kind="stable")[:FULL_BATCH]
    chosen = longest[_drawn(len(longest), FULL_BATCH, generator)]
    batch = collate(windows, chosen, SIZES.max_seq_length)
    ids, segments = batch.input_ids.copy(), batch.segment_ids.copy()
    for row, valid in enumerate(batch.valid_lengths.tolist()):
        missing = SIZES.max_seq_length - valid
        body = ids[row, 1 : valid - 1]
        ids[row, valid - 1 : -1] = np.resize(body, missing)
        ids[row, -1] = batch.input_ids[row, valid - 1]
        segments[row, valid - 1 :] = 1
    lengths = np.full(len(chosen), SIZES.max_seq_length, np.int32)
    return batch._replace(input_ids=ids, segment_ids=segments, valid_lengths=lengths)


def _pairs(train: Questions, tokenizer: TokenizerSettings, generator: np.random.Generator) -> list[Any]:
    """Questions with a sentence of their context, as in QNLI; the label says whether it holds the answer."""
    first, second, labels = [], [], []
    for number in _drawn(len(train), STEPS * PAIR_BATCH, generator).tolist():
        sentences = list(split_sentences(train.contexts[train.context_of[number]]))
        sentence = sentences[int(generator.integers(len(sentences)))]
        answer = train.answer(number)
        first.append(train.texts[number])
        second.append(sentence)
        labels.append(int(not (answer and answer in sentence)))
    names = [str(number) for number in range(len(first))]
    examples = Examples("pairs", first, second, np.array(labels, np.int32), names)
    features = featurize(examples, tokenizer, PAIR_TOKENS)
    return [features.collate(*each) for each in _by_length(features.lengths(), PAIR_BATCH)]


def shown_sizes(train: Questions, asked: Questions, steps: int) -> str:
    """The data of the trainings, for people."""
    taught = f"{len(train)} questions of {_articles(train)} to train on, {steps} steps of {BATCH}"
    return f"{taught}; {len(asked)} of {_articles(asked)} to evaluate on"


def _articles(questions: Questions) -> str:
    count = len(np.unique(questions.article_of))
    return f"{count} article{'s' if count != 1 else ''}"
