#!/usr/bin/env python3
"""Fine-tune a pretrained BERT on SQuAD 1.1 or 2.0, evaluate it and write its predictions.

    python finetune_squad.py --init_from ckpt --train_file train-v1.1.json --dev_file dev-v1.1.json \\
        --output_dir squad

`mpirun -np 4 python finetune_squad.py ...` divides each step over four processes by Horovod, `bpslaunch`
and hosts/launch.py by BytePS. docs/finetuning.md is the guide.
"""

from __future__ import annotations

from base.errors import explain_missing
from training.stopping import end_at_signals

if __name__ == "__main__":
    explain_missing()  # a library that is not installed
    end_at_signals()  # until all is imported, which takes a second

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from typing import Sequence

from base.command_line import finite, path_name, positive_int, rate
from base.errors import InputError
from base.options import flag, option, taken
from bert.configuration import REMOVE
from comm.backends import open_communicator
from data.questions.answers import AnswerSettings
from data.questions.squad_files import (
    PREDICT,
    SCORE,
    TRAIN,
    Questions,
    check_disjoint,
    read_questions,
    split_by_article,
)
from data.questions.windows import WindowSettings, make_windows
from tasks.base import Task
from tasks.squad.examples import Asked, EvaluationWindows, TrainingWindows
from training.entry import exit_code
from training.finetuning.beginning import Found, TaskParameters, manifest_before
from training.finetuning.inputs import Read, TaskFiles
from training.finetuning.options import Script
from training.finetuning.several import fine_tune
from training.run_inputs import About

_LISTED = 5  # ids in a message
DATA_OPTIONS = (
    *("train_file", "tune_threshold", "max_seq_length", "doc_stride", "max_query_length"),
    *("batch_size", "accumulate", "loss_over"),
)
TOKENS, PADDED = "tokens", "padded"  # of --loss_over


@dataclass(frozen=True)
class SquadConfig:
    """Files, windows and answers. With `only_predict` nothing is trained; by `seed` the articles of
    --tune_threshold are held out."""

    max_seq_length: int
    only_predict: bool
    train_file: str | None = option("SQuAD file to train on", path_name, "JSON")
    dev_file: str | None = option("SQuAD file to evaluate on, with answers", path_name, "JSON")
    predict_file: str | None = option(
        "in place of --dev_file: questions, answers are not looked at", path_name, "JSON"
    )
    version_2: bool = flag("SQuAD 2.0: questions may have no answer")
    doc_stride: int = option("tokens between windows", positive_int, default=128)
    max_query_length: int = option("tokens of a question", positive_int, default=64)
    n_best_size: int = option("answers kept of each question", positive_int, default=20)
    max_answer_length: int = option("tokens of an answer", positive_int, default=30)
    null_score_diff_threshold: float = option(
        "SQuAD 2.0: no answer where its score is above the best one's by more", finite, default=0.0
    )
    tune_threshold: float | None = option(
        "in place of it: the best one on this share of the training file's articles, which are not trained "
        "on; 0.1 will do",
        rate,
        "SHARE",
    )
    loss_over: str = option(
        "positions among which the loss seeks start and end: the window's tokens, or all of "
        "--max_seq_length, padding too, as in Google's run_squad.py; that takes longer",
        choices=(TOKENS, PADDED),
        default=TOKENS,
    )
    first_answer: bool = flag("train on the first where a question has several answers")
    seed: int = 0

    @property
    def windows(self) -> WindowSettings:
        """The division of contexts into windows."""
        return WindowSettings(self.max_seq_length, self.doc_stride, self.max_query_length)


def check(options: argparse.Namespace) -> None:
    """Raises InputError for options that exclude each other."""
    if options.dev_file and options.predict_file:
        raise InputError("--dev_file and --predict_file exclude each other: both are evaluated on")
    if options.keep_best and not options.dev_file:
        raise InputError("--keep_best: nothing is scored; name a file to score with --dev_file")
    if options.tune_threshold is not None and not (options.version_2 and options.train_file):
        raise InputError("--tune_threshold needs --version_2 and --train_file, whose articles it divides")
    if options.tune_threshold == 0 or (options.tune_threshold and options.null_score_diff_threshold):
        raise InputError("--tune_threshold: give a share above 0, and no --null_score_diff_threshold")
    if options.loss_over == PADDED and options.padding == REMOVE:
        raise InputError("--loss_over padded needs the rows that --padding remove leaves out: give one")
    if not (options.train_file or options.dev_file or options.predict_file):
        raise InputError("nothing to do: give --train_file, and --dev_file to evaluate on")
    if options.only_predict and not (options.dev_file or options.predict_file):
        raise InputError("--only_predict needs --dev_file or --predict_file")
    if not options.only_predict and not options.train_file:
        raise InputError("--train_file is needed to train; --only_predict evaluates --model_parameters")


def open_files(options: argparse.Namespace, found: Found) -> TaskFiles:
    """The files that the options name. Raises InputError for a --seed that is not the checkpoint's."""
    messages = _take_seed(options, found) if options.tune_threshold else []
    squad = taken(SquadConfig, options)
    head = {"span_classifier.weight": (2, found.bert.units), "span_classifier.bias": (2,)}

    def task() -> Task:
        from tasks.squad.task import QuestionAnswering

        return QuestionAnswering(squad.loss_over == PADDED)

    return TaskFiles(
        about=About(
            data="SQuAD 2.0" if squad.version_2 else "SQuAD 1.1",
            main_score="f1",
            data_options=DATA_OPTIONS,
            evaluation_options=("dev_file", "predict_file"),
        ),
        parameters=TaskParameters(False, head),
        read=partial(read, squad, found, messages),
        task=task,
    )


def read(squad: SquadConfig, found: Found, warnings: Sequence[str], folder: str) -> Read:
    """All windows, and `warnings` with those of the files. Raises InputError for a file that is damaged, of
    another version, or both to train and to evaluate on."""
    training = evaluation = tuning = asked = None
    messages = [*warnings]
    if squad.dev_file or squad.predict_file:
        flag, use = ("--dev_file", SCORE) if squad.dev_file else ("--predict_file", PREDICT)
        asked = read_questions(str(squad.dev_file or squad.predict_file), flag, use)
        _check_version(squad, asked)
    if squad.train_file and (squad.tune_threshold or not squad.only_predict):
        train = read_questions(squad.train_file, "--train_file", TRAIN, squad.first_answer)
        _check_version(squad, train)
        why = "whose answers do not stand at their answer_start"
        messages += _left_out(train.name, why, train.misplaced)
        if asked is not None:
            check_disjoint(train, asked)
        if squad.tune_threshold:
            train, held_out = split_by_article(train, squad.tune_threshold, squad.seed)
            tuning = Asked(held_out, make_windows(held_out, found.tokenizer, squad.windows))
        if not squad.only_predict:
            windows = make_windows(train, found.tokenizer, squad.windows, training=True)
            training = TrainingWindows(windows, squad.max_seq_length if squad.loss_over == PADDED else 0)
            lost = [train.ids[number] for number in windows.without_tokens]
            messages += _left_out(train.name, "of whose answers the tokenizer leaves nothing", lost)
    if asked is not None:
        answers = AnswerSettings(squad.n_best_size, squad.max_answer_length, squad.version_2)
        own = Asked(asked, make_windows(asked, found.tokenizer, squad.windows))
        threshold, scored = squad.null_score_diff_threshold, squad.dev_file is not None
        evaluation = EvaluationWindows(own, answers, folder, threshold, scored, tuning)
    return Read(training, evaluation, tuple(messages))


def _take_seed(options: argparse.Namespace, found: Found) -> list[str]:
    """Sets --seed to that of the run that goes on, or whose model is evaluated: by it --tune_threshold's
    articles were held out. Returns a warning where some of them were trained on.

    Raises:
        InputError: another seed is given, or nothing says which one it was.
    """
    if not (options.only_predict or options.resume):
        return []
    manifest = manifest_before(options, found)
    if "seed" not in manifest:
        if options.only_predict and options.seed is None:
            raise InputError(
                "--tune_threshold: nothing beside --model_parameters says by which seed articles were held "
                "out of its training; give it with --seed"
            )
        return []
    if options.seed not in (None, manifest["seed"]):
        raise InputError(
            f"--seed {options.seed}: the articles of --tune_threshold were held out by seed "
            f"{manifest['seed']}, others were trained on; leave --seed out"
        )
    options.seed = manifest["seed"]
    share = manifest.get("options", {}).get("tune_threshold") or 0
    if options.tune_threshold <= share:
        return []
    return [
        f"--tune_threshold {options.tune_threshold:g}: the checkpoint's run held out {share:g} of the "
        "articles, so that others of the same --train_file were trained on"
    ]


def _check_version(squad: SquadConfig, questions: Questions) -> None:
    if questions.version_2 and not (squad.version_2 or questions.answerable.all()):
        raise InputError(f"{questions.name} has unanswerable questions, as SQuAD 2.0; give --version_2")


def _left_out(name: str, why: str, ids: Sequence[str]) -> list[str]:
    if not ids:
        return []
    more = ", ..." if len(ids) > _LISTED else ""
    return [f"{name}: {len(ids)} questions are left out, {why}: {', '.join(ids[:_LISTED])}{more}"]


SCRIPT = Script(
    __doc__,
    "questions",
    SquadConfig,
    {"batch_size_eval": 24, "max_seq_length": 384},
    check,
    open_files,
)
main = partial(fine_tune, SCRIPT, open_communicator)

if __name__ == "__main__":
    sys.exit(exit_code(main, leaves=True))
