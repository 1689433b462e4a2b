"""Fine-tuning on this machine's CPU against Hugging Face on PyTorch: scores over seeds, and speed.

    python -m bench.finetune --weights MODEL --train_file train.json [--dev_file dev.json] [--json FILE]
    python -m bench.finetune --quick

Scores: both begin with the same weights and heads, and take the same batches in the same order at the same
rates, with AdamW, clipping and dropout; they differ in dropout's masks and in rounding, with --dropout 0 in
rounding alone. Every seed is trained by both, in turns, and its answers are scored by the same code. The
table has means, standard deviations, the difference with its 95% confidence interval (paired by seed), and
half the width of that: a difference that is smaller so many seeds do not show.

Losses: before that both take the first steps without dropout, with losses in which no place of padding can
be an answer (the peer's own loss takes those for wrong answers). They then do the same in exact arithmetic,
so that a difference beyond rounding is a defect in one of them.

Speed: contestants take each case in turns, and "to ours" is how many times as long as ours one takes, by
medians and quartiles over rounds. A case is the same examples for all: full windows of 384 tokens; windows
and pairs of texts as they are, which ours batches by length, and which PyTorch's examples pad to 384 and 128
tokens, or with a collator to the longest one of a batch. The peer has malloc keep freed memory, the same
number of threads and the faster of its implementations of attention.

Without --weights the model has random ones, without --train_file questions are made of the embedded text. The
peer needs an environment of its own with torch and transformers; without one it is left out. bfloat16 is
measured where the processor multiplies it; the scores are of float32, with --score_dtype bfloat16 of that.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Mapping, Sequence

import numpy as np

from base.command_line import count, path_name, positive, positive_int, rate
from base.errors import InputError
from base.tables import Row, Table, terminal
from bench.harness import (
    Measurement,
    Spread,
    begin,
    default_text,
    finish,
    in_turns,
    note,
    ratio_shown,
    spread,
    take_rounds,
    to_ours,
    write_questions,
)
from bench.trainings import (
    ANSWERS,
    CASES,
    EVALUATION,
    FULL,
    FULL_ANSWERS,
    INITIAL_STDEV,
    LIMIT,
    LOSSES,
    MODEL,
    MODULES,
    OURS,
    PAIRS,
    SHORT,
    TITLES,
    TORCH,
    WINDOWS,
    WITHOUT_PADDING,
    Settings,
    logits_name,
    read_batches,
    training_name,
    write_batches,
    write_settings,
)
from bench.work import DTYPES, native_dtypes
from bench.workers import Contestants
from bert.configuration import named_config
from bert.weights.bare_params import distinct_shapes
from bert.weights.exporting import export
from bert.weights.names import MASKED_LM, NEXT_SENTENCE, part_of
from bert.weights.opening import open_weights
from bert.weights.tensors import Tensor, Weights
from data.classification.examples import Examples
from data.classification.features import featurize
from data.finetuning.batching import EvaluationOrder, Grouping, TrainingOrder
from data.questions.answers import AnswerSettings
from data.questions.cloze import split_documents
from data.questions.squad_files import SCORE, TRAIN, Questions, read_questions
from data.questions.windows import QuestionBatch, Windows, WindowSettings, collate, make_windows
from data.text.corpus import documents
from data.text.sentences import split_sentences
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import SPECIAL_TOKENS, load_vocab, vocabulary_from_tokens
from tasks.seeds import FEWEST_SEEDS, compare_models, summarize
from tasks.squad.examples import Asked, EvaluationWindows
from training.entry import exit_code

SIZES = WindowSettings()  # Google's: 384, 128, 64
BATCH, EVALUATED = 12, 24  # windows of a training step, of an evaluation's batch
FULL_BATCH = 8
STEPS = 2  # of a case
PAIR_BATCH, PAIR_TOKENS = 32, 128
GROUPING = Grouping(max_length=SIZES.max_seq_length)
SCORES = ("f1", "exact_match")
WARM_UPS = 1


def prepare(options: argparse.Namespace, folder: str) -> tuple[Settings, Asked, dict[str, int], str]:
    """Writes model, settings and batches into `folder`; returns the settings, what is evaluated on, the
    tokens of each case without padding, and the sizes for people. Raises InputError for files that cannot be
    used."""
    weights = open_weights(options.weights, "--weights") if options.weights else None
    files = options.train_file, options.dev_file
    if weights is None or not options.train_file:
        paths, vocab_path = default_text(os.path.join(folder, "text"))
        if not options.train_file:
            # Of the questions to train on so many, half as many to evaluate on.
            files = os.path.join(folder, "train.json"), os.path.join(folder, "dev.json")
            halves = split_documents(list(documents(paths)), 0.3, 0)
            for path, part, share in zip(files, halves, (1, 2)):
                write_questions(path, part, options.questions // share, unanswerable=0.0)
        if weights is None:
            weights = random_weights(options.model, list(load_vocab(vocab_path).tokens))
    if weights.vocabulary is None:
        raise InputError(f"--weights {options.weights}: there is no vocabulary; put its vocab.txt beside it")
    os.makedirs(os.path.join(folder, MODEL))
    export(weights, os.path.join(folder, MODEL), "huggingface")
    tokenizer = TokenizerSettings(
        vocabulary_from_tokens(weights.vocabulary, weights.source), cased=bool(weights.cased)
    )
    train, asked = read_split(*files, options.version_2)
    windows = make_windows(asked, tokenizer, SIZES)
    evaluation = by_length(windows.lengths, EVALUATED, partial(collate, windows))
    write_batches(folder, EVALUATION, [each._asdict() for each in evaluation])
    taught = make_windows(train, tokenizer, SIZES, training=True)
    for seed in range(options.seeds):  # by length, in an order of the seed
        order = TrainingOrder(taught.lengths, min(BATCH, len(taught)), seed, 0, 1, GROUPING)
        num_steps = order.num_steps(options.epochs)
        batches = [collate(taught, *order.micro_batches(step)[0]) for step in range(num_steps)]
        write_batches(folder, training_name(seed), [each._asdict() for each in batches])
    settings = Settings(num_steps, list(range(options.seeds)), options.lr, options.dropout)
    write_settings(folder, settings)
    tokens = write_cases(folder, train, taught, tokenizer)
    articles = (len(np.unique(each.article_of)) for each in (train, asked))
    said = [f"{count} article{'s' if count != 1 else ''}" for count in articles]
    sizes = (
        f"{weights.config.description}; {len(train)} questions of {said[0]} to train on, {num_steps} steps "
        f"of {BATCH}; {len(asked)} of {said[1]} to evaluate on"
    )
    return settings, Asked(asked, windows), tokens, sizes


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


def by_length(lengths: np.ndarray, batch_size: int, make: Callable[[np.ndarray, int], Any]) -> list[Any]:
    """Results of `make` for the examples of each batch by length, and the length that they are padded to."""
    return [make(*rows) for rows in EvaluationOrder(lengths, batch_size, 0, 1, GROUPING).batches()]


def write_cases(
    folder: str, train: Questions, windows: Windows, tokenizer: TokenizerSettings
) -> dict[str, int]:
    """Writes the batches of the cases, from questions drawn at random; returns their tokens without padding,
    by the name of the case. `windows`: of the questions `train`."""
    generator = np.random.default_rng(0)

    def drawn(count: int, wanted: int) -> np.ndarray:
        """Numbers below `count`, each once where there are enough."""
        return np.resize(generator.permutation(count), wanted)

    def sample(batch_size: int) -> list[QuestionBatch]:
        chosen = drawn(len(windows), STEPS * batch_size)
        lengths = windows.lengths[chosen]
        return by_length(lengths, batch_size, lambda rows, padded: collate(windows, chosen[rows], padded))

    full = full_windows((FULL_BATCH, SIZES.max_seq_length), len(tokenizer.vocabulary), generator)
    # Questions with a sentence of their context, as in QNLI; no figure depends on their labels.
    numbers = drawn(len(train), STEPS * PAIR_BATCH).tolist()
    sentences = [list(split_sentences(train.contexts[train.context_of[number]])) for number in numbers]
    second = [each[int(generator.integers(len(each)))] for each in sentences]
    labels = np.arange(len(numbers), dtype=np.int32) % 2
    examples = Examples("pairs", [train.texts[number] for number in numbers], second, labels, [])
    pairs = featurize(examples, tokenizer, PAIR_TOKENS)
    cases = {
        FULL: [full],
        FULL_ANSWERS: STEPS * [full],
        WINDOWS: sample(BATCH),
        ANSWERS: sample(EVALUATED),
        PAIRS: by_length(pairs.lengths, PAIR_BATCH, pairs.collate),
    }
    for name, batches in cases.items():
        write_batches(folder, name, [each._asdict() for each in batches])
    return {name: sum(int(each.valid_lengths.sum()) for each in batches) for name, batches in cases.items()}


def full_windows(shape: tuple[int, int], vocab_size: int, generator: np.random.Generator) -> QuestionBatch:
    """Random tokens without padding, which have no answer."""
    ids = generator.integers(len(SPECIAL_TOKENS), vocab_size, shape, np.int32)
    none = np.zeros(shape[0], np.int32)
    return QuestionBatch(ids, np.zeros_like(ids), none + shape[1], none, none, none.astype(np.int64))


def random_weights(model: str, vocabulary: Sequence[str], seed: int = 0, heads: bool = False) -> Weights:
    """A BERT of normally distributed weights, with its pooler, and with `heads` those of pretraining. Raises
    InputError for an unknown model."""
    config = named_config(model)
    generator = np.random.default_rng(seed)
    tensors = {}
    for name, shape in distinct_shapes(config, len(vocabulary)).items():
        if not heads and part_of(name) in (MASKED_LM, NEXT_SENTENCE):
            continue
        if name.endswith("weight"):
            array = generator.normal(scale=INITIAL_STDEV, size=shape).astype(np.float32)
        else:
            array = np.full(shape, float(name.endswith("gamma")), np.float32)
        tensors[name] = Tensor(shape, array.dtype, lambda array=array: array)  # type: ignore[misc]
    return Weights("random numbers", "huggingface", tensors, config, vocabulary, cased=False)


def losses_line(losses: Mapping[str, Sequence[float]]) -> str:
    """The largest difference of the losses, for people."""
    if len(losses) < 2:
        return ""
    differences = np.abs(np.subtract(losses[OURS], losses[TORCH]))
    begun, ended = losses[OURS][0], losses[OURS][-1]
    return (
        f"losses of the first {len(differences)} steps without dropout, {begun:.3f} to {ended:.3f}: "
        f"largest difference {differences.max():.1e}, at step {differences.argmax() + 1}\n"
    )


def measure_scores(
    folder: str, settings: Settings, asked: Asked, contestants: Contestants
) -> dict[str, dict[str, dict[int, float]]]:
    """Trains every seed by every contestant, in turns; score -> contestant -> seed -> value."""
    found: dict[str, dict[str, dict[int, float]]] = {score: {} for score in SCORES}
    answers = AnswerSettings(version_2=asked.questions.version_2)
    batches = [QuestionBatch(**batch) for batch in read_batches(folder, EVALUATION)]
    for seed in settings.seeds:
        for key in in_turns(contestants.keys, seed):
            taken = contestants.step(key, LIMIT, training_name(seed))
            if taken is None:
                continue
            collector = EvaluationWindows(asked, answers, folder).collector()
            for batch, written in zip(batches, read_batches(folder, logits_name(key, seed))):
                collector.add(batch, [written["logits"]])
            scores: dict[str, Any] = collector.scores(collector.arrays())
            for name, of_contestants in found.items():
                of_contestants.setdefault(key, {})[seed] = scores[name]
            note(
                f"  seed {seed}, {TITLES[key]}: F1 {scores['f1']:.2f}, EM {scores['exact_match']:.2f}, "
                f"loss {taken['loss']:.3f}, {taken['seconds']:.1f} s"
            )
    return found


def measure_speed(contestants: Contestants, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Seconds of each case, by contestant, in every round; the peer's cases with short padding are
    contestants of their own."""

    def take(name: str, key: str, number: int) -> float | None:
        contestant, short, _ = key.partition(SHORT)
        answered = contestants.step(contestant, LIMIT, name + short)
        return None if answered is None else answered["seconds"]

    found = {}
    for name in CASES:
        keys = contestants.keys
        if TORCH in keys and name not in WITHOUT_PADDING:
            keys.append(TORCH + SHORT)
        found[name] = take_rounds(keys, rounds, partial(take, name), WARM_UPS)
    return found


def summarize_speed(rounds: Mapping[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """A row for each case and contestant: seconds, and ratios to ours within a round."""
    rows = []
    for name, measured in rounds.items():
        for key in dict.fromkeys(key for each in measured for key in each):
            seconds = spread([each[key] for each in measured if key in each])._asdict()
            row = {"case": name, "contestant": key, "seconds": seconds}
            rows.append({**row, **to_ours(measured, key)})
    return rows


def scores_table(scores: Mapping[str, Mapping[str, Mapping[int, float]]]) -> str:
    """Means and spreads of both, and what so many seeds show."""
    lines = []
    for name, by_contestant in scores.items():
        for key, of_seeds in by_contestant.items():
            lines.append(f"{name:12} {TITLES[key]:8} {summarize(of_seeds).line('.2f')}")
        if len(by_contestant) > 1:
            (verdict,) = compare_models({TITLES[key]: each for key, each in by_contestant.items()})
            lines.append(f"{'':12} {verdict.sentence('.2f')}")
            if verdict.low is not None and verdict.high is not None:
                half = (verdict.high - verdict.low) / 2
                lines.append(f"{'':12} {verdict.seeds} seeds show a difference from {half:.2f} points on")
    return "\n".join(lines)


def speed_table(rows: Sequence[Mapping[str, Any]], tokens: Mapping[str, int], title: str) -> Table:
    """Seconds and ratios by case, for people."""
    shown = []
    for row in rows:
        name, key = row["case"], row["contestant"].replace(SHORT, "")
        short = key != row["contestant"]
        padding = "the longest" if short else str(CASES[name].padded)
        cells = [f"{CASES[name].title} ({tokens[name]:,} tokens)", TITLES[key]]
        cells.append("" if key == OURS or name in WITHOUT_PADDING else padding)
        cells += [Spread(**row["seconds"]).shown(3), ratio_shown(row)]
        shown.append(Row(cells))
    head = ("", "", "padded to", "seconds (quartiles)", "to ours")
    return Table(title, head, shown, names=3)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Measurement("finetune", __doc__, "bert_2_128_2, 40 questions, 1 seed, 1 epoch, 2 rounds")
    add, option = parser.add_argument, parser.option
    text = "a BERT of any format that convert.py reads, with its vocabulary"
    add("--weights", type=path_name, metavar="PATH", help=text)
    option("--model", "bert_6_384_12", "bert_2_128_2", "of random weights", metavar="NAME")
    add("--train_file", type=path_name, metavar="JSON", help="questions in SQuAD's format")
    add("--dev_file", type=path_name, metavar="JSON", help="default: the last article of --train_file")
    add("--version_2", action="store_true", help="take questions without an answer too")
    option("--questions", 500, 40, "without --train_file", type=positive_int, metavar="N")
    option("--seeds", 5, 1, f"trainings; {FEWEST_SEEDS} for a verdict", type=positive_int, metavar="N")
    option("--epochs", 2.0, 1.0, "of a training", type=positive)
    option("--lr", 1e-4, None, "peak", type=positive)
    text = "of trainings and cases; with 0 the contestants differ by rounding alone"
    option("--dropout", 0.1, None, text, type=rate)
    option("--rounds", 5, 2, "of every case; 0 leaves speed out", type=count, metavar="N")
    add("--dtypes", nargs="+", choices=DTYPES, help="of the cases; default: what the CPU multiplies")
    text = "of the trainings for the scores (default: the first of --dtypes)"
    add("--score_dtype", choices=DTYPES, help=text)
    parser.contestants_options()
    options = parser.settle(parser.parse_args(arguments))
    if options.dev_file and not options.train_file:
        parser.error("--dev_file: give --train_file too")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    options = _options(arguments)
    here = begin(options)
    dtypes = options.dtypes or native_dtypes(here)
    if options.score_dtype not in (None, *dtypes):
        raise InputError(f"--score_dtype {options.score_dtype}: name it in --dtypes too")
    results, failed = [], False
    with tempfile.TemporaryDirectory() as folder:
        settings, asked, tokens, sizes = prepare(options, folder)
        print(sizes + "\n", flush=True)
        scores: Mapping[str, Any] = {}
        losses: Mapping[str, Any] = {}
        for dtype in dtypes:
            with Contestants(options.torch_python) as contestants:
                for key in (OURS, TORCH):
                    name, words = f"{TITLES[key]} ({dtype})", ["finetune", folder, dtype]
                    contestants.start(key, name, MODULES[key], words)
                if dtype == (options.score_dtype or dtypes[0]):
                    first = {key: contestants.step(key, LIMIT, LOSSES) for key in contestants.keys}
                    losses = {key: each["losses"] for key, each in first.items() if each is not None}
                    print(losses_line(losses), end="", flush=True)
                    scores = measure_scores(folder, settings, asked, contestants)
                    print(f"{dtype}\n{scores_table(scores)}\n", flush=True)
                rounds = measure_speed(contestants, options.rounds) if options.rounds else {}
            rows = summarize_speed(rounds)
            if rounds:
                shown = speed_table(rows, tokens, f"{dtype}, {options.rounds} rounds")
                print(f"{terminal(shown)}\n", flush=True)
            failed |= bool(contestants.left_out)
            results.append({"dtype": dtype, "rows": rows, "rounds": rounds, "facts": contestants.facts})
    figures = {"machine": here, "work": sizes, "losses": losses, "scores": scores}
    finish(options, {**figures, "threads": options.threads, "speed": results})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
