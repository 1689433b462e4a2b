#!/usr/bin/env python3
"""Fine-tune a pretrained BERT on SQuAD 1.1 or 2.0, evaluate it and write its predictions.

    python finetune_squad.py --init_from ckpt --train_file train-v1.1.json --dev_file dev-v1.1.json \\
        --output_dir squad

`mpirun -np 4 python finetune_squad.py ...` divides each step over four processes by Horovod, `bpslaunch`
and hosts/launch.py by BytePS. docs/finetuning.md is the guide.
"""

from __future__ import annotations

from training.stopping import end_at_signals

if __name__ == "__main__":
    end_at_signals()  # until all is imported, which takes a second

import argparse
import os
import sys
from dataclasses import dataclass, replace
from typing import Sequence

from base.command_line import finite, path_name, positive_int, rate
from base.errors import InputError
from bert.configuration import REMOVE
from comm.backends import choose_backend, open_communicator
from comm.options import CommunicationConfig, communication_config
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
from tasks.squad.examples import Asked, EvaluationWindows, Scoring, TrainingWindows
from training.checkpoint import PARAMS
from training.entry import exit_code
from training.finetuning.beginning import Found, TaskParameters, find_beginning, take_initial
from training.finetuning.inputs import FinetuningInputs
from training.finetuning.options import (
    Defaults,
    beginning_config,
    finetuning_config,
    make_parser,
    parse,
)
from training.finetuning.several import Prepared, fine_tune
from training.run_inputs import About, Part
from training.start.decision import check_start
from training.start.directory import newest_manifest
from training.start.initial import Wanted
from training.start.weights import NUMBERED

DEFAULTS = Defaults(epochs=3, batch_size=32, batch_size_eval=24, max_seq_length=384)
_LISTED = 5  # ids in a message
DATA_OPTIONS = (
    "train_file",
    "tune_threshold",
    "max_seq_length",
    "doc_stride",
    "max_query_length",
    "batch_size",
    "accumulate",
    "loss_over",
)
TOKENS, PADDED = "tokens", "padded"  # of --loss_over


@dataclass(frozen=True)
class SquadConfig:
    """Files, windows and answers. `tune_threshold`: share of the training file held out for it, by `seed`;
    `over_padding`: all windows are padded to the full length for the loss."""

    trains: bool
    train_file: str | None
    dev_file: str | None
    predict_file: str | None
    windows: WindowSettings
    answers: AnswerSettings
    null_threshold: float
    first_answer: bool
    tune_threshold: float | None
    seed: int
    over_padding: bool


def options_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line, checked against each other. Raises InputError."""
    parser = make_parser(__doc__ or "", DEFAULTS)
    add = parser.add_argument_group("questions").add_argument
    add("--train_file", type=path_name, metavar="JSON", help="SQuAD file to train on")
    add("--dev_file", type=path_name, metavar="JSON", help="SQuAD file to evaluate on, with answers")
    add(
        "--predict_file",
        type=path_name,
        metavar="JSON",
        help="in place of --dev_file: questions, answers are not looked at",
    )
    add("--version_2", action="store_true", help="SQuAD 2.0: questions may have no answer")
    add("--doc_stride", type=positive_int, default=128, help="tokens between windows (default: 128)")
    add("--max_query_length", type=positive_int, default=64, help="tokens of a question (default: 64)")
    add("--n_best_size", type=positive_int, default=20, help="answers kept of each question (default: 20)")
    add("--max_answer_length", type=positive_int, default=30, help="tokens of an answer (default: 30)")
    add(
        "--null_score_diff_threshold",
        type=finite,
        default=0.0,
        help="SQuAD 2.0: no answer where its score is above the best one's by more (default: 0)",
    )
    add(
        "--tune_threshold",
        type=rate,
        metavar="SHARE",
        help="in place of it: the best one on this share of the training file's articles, which are not "
        "trained on; 0.1 will do",
    )
    add(
        "--loss_over",
        choices=(TOKENS, PADDED),
        default=TOKENS,
        help="positions among which the loss seeks start and end: the window's tokens, or all of "
        "--max_seq_length, padding too, as in Google's run_squad.py; that takes longer (default: tokens)",
    )
    add("--first_answer", action="store_true", help="train on the first where a question has several answers")
    options = parse(parser, argv)
    if options.dev_file and options.predict_file:
        raise InputError("--dev_file and --predict_file exclude each other: both are evaluated on")
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
    return options


def prepare(argv: Sequence[str] | None) -> tuple[Part, str, CommunicationConfig]:
    """The run of a command line: everything is read and checked, MXNet is not imported.

    Returns:
        the run's settings and inputs, its backend, and the exchange between its processes.

    Raises:
        InputError: bad options, files or weights.
    """
    options = options_of(argv)
    backend = choose_backend(options.backend, os.environ)
    found = find_beginning(beginning_config(options))
    messages = _take_seed(options, found) if options.tune_threshold else []
    squad = SquadConfig(
        not options.only_predict,
        options.train_file if options.tune_threshold or not options.only_predict else None,
        options.dev_file,
        options.predict_file,
        WindowSettings(options.max_seq_length, options.doc_stride, options.max_query_length),
        AnswerSettings(options.n_best_size, options.max_answer_length, options.version_2),
        options.null_score_diff_threshold,
        options.first_answer,
        options.tune_threshold,
        options.seed or 0,
        options.loss_over == PADDED,
    )
    config = finetuning_config(options, found)
    if found.bert.positions < squad.windows.max_seq_length:
        raise InputError(
            f"--max_seq_length {squad.windows.max_seq_length}: the model has {found.bert.positions} positions"
        )
    wanted = Wanted(found.bert, found.vocab_size, found.tokenizer.vocabulary)
    parameters = TaskParameters(False, _head(found))
    start = check_start(config, wanted, lambda: take_initial(found, parameters))
    inputs = read_inputs(squad, found, config.checkpoint.ckpt_dir)
    inputs = replace(
        inputs,
        messages=(*messages, *inputs.messages),
        epochs=options.epochs,
        start=start,
        about=About(
            data="SQuAD 2.0" if options.version_2 else "SQuAD 1.1",
            epochs=None if options.num_steps or options.only_predict else options.epochs,
            main_score="f1",
            is_result=True,
            data_options=DATA_OPTIONS,
            evaluation_options=("dev_file", "predict_file") if inputs.evaluation else (),
        ),
    )
    return Part(config, inputs), backend, communication_config(options)


def _take_seed(options: argparse.Namespace, found: Found) -> list[str]:
    """Sets --seed to that of the run that goes on, or whose model is evaluated: by it --tune_threshold's
    articles were held out. Returns a warning where some of them were trained on.

    Raises:
        InputError: another seed is given, or nothing says which one it was.
    """
    place, step = options.ckpt_dir, 0
    if options.only_predict:
        place, name = os.path.split(found.weights.source)  # type: ignore[union-attr]
        step = int(name[: -len(PARAMS)]) if NUMBERED.fullmatch(name) else -1
    elif not options.resume:
        return []
    manifest = newest_manifest(place or ".", step)
    if manifest is None or "seed" not in manifest:
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


def read_inputs(squad: SquadConfig, found: Found, folder: str) -> FinetuningInputs:
    """Reads the files and makes their windows; predictions are written into `folder`.

    Raises:
        InputError: a file that is damaged, of another version, or both to train and to evaluate on.
    """
    training = evaluation = tuning = asked = None
    messages: list[str] = []
    evaluated = squad.dev_file or squad.predict_file
    if evaluated:
        flag = "--dev_file" if squad.dev_file else "--predict_file"
        asked = read_questions(evaluated, flag, SCORE if squad.dev_file else PREDICT)
        _check_version(squad, asked)
    if squad.train_file:
        train = read_questions(squad.train_file, "--train_file", TRAIN, squad.first_answer)
        _check_version(squad, train)
        messages += _left_out(train.name, "whose answers do not stand at their answer_start", train.misplaced)
        if asked is not None:
            check_disjoint(train, asked)
        if squad.tune_threshold:
            train, held_out = split_by_article(train, squad.tune_threshold, squad.seed)
            tuning = Asked(held_out, make_windows(held_out, found.tokenizer, squad.windows))
        if squad.trains:
            windows = make_windows(train, found.tokenizer, squad.windows, training=True)
            training = TrainingWindows(windows, squad.over_padding * squad.windows.max_seq_length)
            lost = [train.ids[number] for number in windows.without_tokens]
            messages += _left_out(train.name, "of whose answers the tokenizer leaves nothing", lost)
    if asked is not None:
        scoring = Scoring(squad.answers, squad.null_threshold, folder, scored=squad.dev_file is not None)
        windows = make_windows(asked, found.tokenizer, squad.windows)
        evaluation = EvaluationWindows(Asked(asked, windows), scoring, tuning)
    return FinetuningInputs(
        found.tokenizer.vocabulary,
        found.vocab_size,
        squad.windows.max_seq_length,
        messages=tuple(messages),
        training=training,
        evaluation=evaluation,
    )


def _check_version(squad: SquadConfig, questions: Questions) -> None:
    if questions.version_2 and not (squad.answers.version_2 or questions.answerable.all()):
        raise InputError(f"{questions.name} has unanswerable questions, as SQuAD 2.0; give --version_2")


def _left_out(name: str, why: str, ids: Sequence[str]) -> list[str]:
    if not ids:
        return []
    more = ", ..." if len(ids) > _LISTED else ""
    return [f"{name}: {len(ids)} questions are left out, {why}: {', '.join(ids[:_LISTED])}{more}"]


def _head(found: Found) -> dict[str, tuple[int, ...]]:
    return {"span_classifier.weight": (2, found.bert.units), "span_classifier.bias": (2,)}


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code. Raises InputError."""
    return fine_tune(argv, _prepared, open_communicator)


def _prepared(argv: Sequence[str]) -> Prepared:
    part, backend, communication = prepare(argv)

    def task() -> Task:
        from tasks.squad.task import QuestionAnswering

        return QuestionAnswering(part.config.options["loss_over"] == PADDED)

    return Prepared(part, task, backend, communication)


if __name__ == "__main__":
    sys.exit(exit_code(main, leaves=True))
