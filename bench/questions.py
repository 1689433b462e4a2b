"""Speed of SQuAD's features, answers and scores, against a pure-Python loop with the same tokenizer.

    python -m bench.questions [--squad dev.json --vocab vocab.txt] [--questions 10000] [--repeats 3]
    python -m bench.questions --quick

Seconds of wall time, both in one process, which may use all cores: features and batches of all questions,
then answers of given logits (the same random numbers for both), then F1. The loop does what Google's
run_squad.py does, question by question (bench/question_loop.py); it makes no batches. Without --squad
questions are made of the embedded text, with contexts of 120 words as SQuAD has them. A file with fewer
questions is taken again and again, its contexts too: ours encodes a context once, for all of its questions.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from typing import Any, Sequence

import numpy as np

from base.command_line import path_name, positive_int
from base.errors import InputError
from base.tables import Row, Table, terminal
from bench.harness import Measurement, default_text, finish, ratios, take_rounds, write_questions
from bench.question_loop import best_answers, features, hugging_face, mean_f1
from data.questions.answers import AnswerSettings, Logits, answer
from data.questions.score import score_v2
from data.questions.squad_files import Questions, read_questions
from data.questions.windows import WindowSettings, collate, make_windows
from data.text.corpus import documents
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import Vocabulary, load_vocab
from training.entry import exit_code

PARTS = ("features", "answers", "F1")
BATCH = 32
SIZES, ANSWERS = WindowSettings(), AnswerSettings(version_2=True)


def repeated(questions: Questions, wanted: int) -> Questions:
    """The first `wanted` questions, again and again if need be, each time with other contexts and ids."""
    times = -(-wanted // len(questions))
    every = questions.select(np.arange(wanted) % len(questions))
    time_of = np.arange(wanted) // len(questions)
    return replace(
        every,
        ids=tuple(f"{number}-{each}" for number, each in enumerate(every.ids)),
        contexts=every.contexts * times,
        context_of=every.context_of + time_of * len(every.contexts),
    )


def ours(questions: Questions, vocab: Vocabulary, logits: Logits) -> tuple[list[float], list[float]]:
    """The times at which the parts begin and the last one ends; null odds and F1 for comparison."""
    times = [time.perf_counter()]
    windows = make_windows(questions, TokenizerSettings(vocab), SIZES, training=True)
    order = np.argsort(windows.lengths, kind="stable")
    for begin in range(0, len(order), BATCH):
        collate(windows, order[begin : begin + BATCH])
    times.append(time.perf_counter())
    answers = answer(questions, windows, logits, ANSWERS)
    times.append(time.perf_counter())
    scores = score_v2(questions, answers.predictions())
    return [*times, time.perf_counter()], [*answers.null_odds.tolist(), scores["f1"]]


def loop(questions: Questions, vocab: Vocabulary, logits: Logits) -> tuple[list[float], list[float]]:
    """The same of the pure-Python loop."""
    bounds = logits.bounds.tolist()
    windows_logits = [
        (logits.start[begin:end].tolist(), logits.end[begin:end].tolist())
        for begin, end in zip(bounds, bounds[1:])
    ]
    times = [time.perf_counter()]
    windows = list(features(questions, hugging_face(vocab, False), vocab, SIZES, training=True))
    times.append(time.perf_counter())
    entries, odds = best_answers(questions, windows, windows_logits, ANSWERS)
    times.append(time.perf_counter())
    best = [next((entry.text for entry in each if entry.text), "") for each in entries]
    f1 = mean_f1(questions, ["" if null > 0 else text for null, text in zip(odds, best)])
    return [*times, time.perf_counter()], [*odds, f1]


def measure(questions: Questions, vocab: Vocabulary, repeats: int) -> list[dict[str, Any]]:
    """One row for each part and for all: median seconds of both, and ratios within a repeat.

    Raises RuntimeError where the two differ in more than a hundredth of the null odds (in the n-best of
    windows with too few logits of the context among the largest they may), or in the number of windows.
    """
    logits = Logits(make_windows(questions, TokenizerSettings(vocab), SIZES))
    generator = np.random.default_rng(0)
    for store in (logits.start, logits.end):
        store[:] = generator.normal(scale=3.0, size=len(store))
    logits.filled[:] = 1
    contestants = {"loop": loop, "ours": ours}
    results: dict[str, list[float]] = {}

    def take(name: str, repeat: int) -> dict[str, float]:
        times, results[name] = contestants[name](questions, vocab, logits)
        return {**dict(zip(PARTS, np.diff(times).tolist())), "all": times[-1] - times[0]}

    rounds = take_rounds(list(contestants), repeats, take)
    differing = np.mean(~np.isclose(results["ours"], results["loop"], rtol=0, atol=1e-4))
    if differing > 0.01:
        raise RuntimeError(f"{differing:.1%} of the results differ from the loop's")
    rows = []
    for part in (*PARTS, "all"):
        of_part = [{name: each[name][part] for name in each} for each in rounds]
        to_ours = ratios(of_part, "loop", "ours")
        row = {name: statistics.median(each[name] for each in of_part) for name in ("ours", "loop")}
        rows.append({"part": part, **row, "ratio": statistics.median(to_ours), "lowest": min(to_ours)})
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = Measurement("questions", __doc__, "300 questions, 1 repeat")
    parser.add_argument("--squad", type=path_name, metavar="FILE", help="questions in SQuAD's format")
    text = "a BERT vocab.txt, needed with --squad"
    parser.add_argument("--vocab", type=path_name, metavar="FILE", help=text)
    parser.option("--questions", 10_000, 300, "how many", type=positive_int)
    parser.option("--repeats", 3, 1, "of both", type=positive_int)
    options = parser.settle(parser.parse_args(arguments))
    if bool(options.squad) != bool(options.vocab):
        raise InputError("--squad and --vocab belong together; without both the embedded text is taken")
    with tempfile.TemporaryDirectory() as folder:
        path, vocab_path = options.squad, options.vocab
        if not path:
            texts, vocab_path = default_text(folder)
            path = os.path.join(folder, "bench.json")
            write_questions(path, list(documents(texts)), options.questions)
        questions = repeated(read_questions(path, "--squad"), options.questions)
        rows = measure(questions, load_vocab(vocab_path), options.repeats)
    cores = len(os.sched_getaffinity(0))
    title = f"{len(questions)} questions about {len(questions.contexts)} contexts; seconds, {cores} cores"
    shown = []
    for each in rows:
        ratio = f"{each['ratio']:.1f} ({each['lowest']:.1f})"
        shown.append(Row([each["part"], *(f"{each[name]:.2f}" for name in ("loop", "ours")), ratio]))
    print(terminal(Table(title, ("", "loop", "ours", "ratio (lowest)"), shown)))
    finish(options, {"questions": len(questions), "cores": cores, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))
