#!/usr/bin/env python3
"""Fine-tune a pretrained BERT on a task of GLUE, on XNLI, or on your own texts with labels or numbers.

    python finetune_classifier.py --init_from ckpt --task_name MRPC --data_dir glue --output_dir mrpc
    python finetune_classifier.py --init_from ckpt --train_file train.tsv --dev_file dev.tsv

`mpirun -np 4 python finetune_classifier.py ...` divides each step over four processes by Horovod,
`bpslaunch` and hosts/launch.py by BytePS. docs/finetuning.md is the guide.
"""

from __future__ import annotations

from training.stopping import end_at_signals

if __name__ == "__main__":
    end_at_signals()  # until all is imported, which takes a second

import argparse
import os
import sys
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

from base.command_line import path_name
from base.errors import InputError
from comm.backends import choose_backend, open_communicator
from comm.options import CommunicationConfig, communication_config
from data.classification.examples import Examples, check_files_differ
from data.classification.features import featurize
from data.classification.glue import GlueFolder, find_task
from data.classification.metrics import own_metrics
from data.classification.own import Columns, OwnFiles, parse_columns, read_own
from tasks.base import Task
from tasks.classification.examples import (
    HEADLINE,
    EvaluationSet,
    EvaluationTexts,
    Labelling,
    TrainingTexts,
    joined,
)
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
from training.start.initial import Wanted

DEFAULTS = Defaults(epochs=3, batch_size=32, batch_size_eval=32, max_seq_length=128)
FILES = ("task_name", "data_dir", "language", "train_file", "dev_file", "test_file")
DATA_OPTIONS = (*FILES, "max_seq_length", "batch_size", "accumulate")


@dataclass(frozen=True)
class TextsConfig:
    """Files of GLUE or one's own, and what is done with them."""

    task_name: str | None
    data_dir: str | None
    language: str
    own: OwnFiles
    columns: Columns
    labels: tuple[str, ...]
    regression: bool
    predict_test: bool
    max_length: int
    trains: bool


@dataclass(frozen=True)
class Texts:
    """All examples of a run: to train on, and sets to evaluate on by name, of which `tests` name those with
    a submission."""

    labelling: Labelling
    train: Examples
    evaluated: Mapping[str, Examples]
    tests: Sequence[str]
    name: str | None


def options_of(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line, checked against each other. Raises InputError."""
    parser = make_parser(__doc__ or "", DEFAULTS)
    _add_files(parser.add_argument_group("texts").add_argument)
    return parse(parser, argv)


def prepare(argv: Sequence[str] | None) -> tuple[Part, Labelling, str, CommunicationConfig]:
    """The run of a command line: everything is read and checked, MXNet is not imported.

    Returns:
        the run's settings and inputs, what is predicted, the backend, and the exchange between processes.

    Raises:
        InputError: bad options, files or weights.
    """
    options = options_of(argv)
    backend = choose_backend(options.backend, os.environ)
    config = TextsConfig(
        options.task_name,
        options.data_dir,
        options.language,
        OwnFiles(options.train_file or "", options.dev_file or "", options.test_file or ""),
        parse_columns(options.text_columns, options.label_column),
        tuple(options.labels.split(",")) if options.labels else (),
        options.regression,
        options.predict_test,
        options.max_seq_length,
        trains=not options.only_predict,
    )
    _check_files(config)
    found = find_beginning(beginning_config(options))
    if found.bert.positions < config.max_length:
        raise InputError(
            f"--max_seq_length {config.max_length}: the model has {found.bert.positions} positions"
        )
    run = finetuning_config(options, found)
    texts = read_glue(config) if config.task_name else read_own_files(config)
    if options.only_predict and not texts.evaluated:
        raise InputError("--only_predict needs something to evaluate: give --dev_file or --test_file")
    head = (max(1, len(texts.labelling.labels)), found.bert.units)
    parameters = TaskParameters(True, {"label_classifier.weight": head, "label_classifier.bias": head[:1]})
    wanted = Wanted(found.bert, found.vocab_size, found.tokenizer.vocabulary)
    start = check_start(run, wanted, lambda: take_initial(found, parameters))
    training, evaluation, messages = features(texts, config, found, run.checkpoint.ckpt_dir)
    inputs = FinetuningInputs(
        found.tokenizer.vocabulary,
        found.vocab_size,
        config.max_length,
        start,
        messages,
        About(
            texts.name,
            None if options.num_steps or options.only_predict else options.epochs,
            HEADLINE,
            is_result=True,
            data_options=DATA_OPTIONS,
            evaluation_options=FILES if evaluation else (),
        ),
        training,
        evaluation,
        options.epochs,
    )
    return Part(run, inputs), texts.labelling, backend, communication_config(options)


def _add_files(add: Callable[..., Any]) -> None:
    add("--task_name", metavar="TASK", help="CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI or XNLI")
    add(
        "--data_dir",
        type=path_name,
        metavar="FOLDER",
        help="with the task's official TSV files, or a folder TASK with them",
    )
    add("--language", default="en", help="of XNLI (default: en)")
    add(
        "--train_file",
        type=path_name,
        metavar="FILE",
        help="own examples: .tsv, .csv or .jsonl, one or two texts and a label",
    )
    add("--dev_file", type=path_name, metavar="FILE", help="own examples to evaluate on")
    add("--test_file", type=path_name, metavar="FILE", help="own examples to predict; labels are not needed")
    add("--text_columns", metavar="A,B", help="names or positions of the texts (default: the usual names)")
    add("--label_column", metavar="NAME", help="name or position of the label (default: the usual names)")
    add("--labels", metavar="A,B,...", help="the classes in their order (default: those of --train_file)")
    add("--regression", action="store_true", help="labels of own files are numbers to predict")
    add("--predict_test", action="store_true", help="predict the task's test files, for a submission")


def _check_files(config: TextsConfig) -> None:
    if config.task_name:
        if not config.data_dir:
            raise InputError("--task_name needs --data_dir, the folder with its files; nothing is downloaded")
        if any(config.own) or config.labels or config.regression:
            raise InputError("--task_name brings files and labels; leave out those of own files")
        return
    if not config.own.train:
        raise InputError("nothing to do: give --task_name and --data_dir, or --train_file")
    if config.data_dir or config.predict_test:
        raise InputError("--data_dir and --predict_test are for --task_name; name own files one by one")


def read_glue(config: TextsConfig) -> Texts:
    """The examples of a task of GLUE or XNLI. Raises InputError for bad files."""
    task = find_task(str(config.task_name))
    folder = GlueFolder(task, str(config.data_dir), config.language)
    check_files_differ(folder.files())
    dev = folder.dev()
    tests = folder.test() if config.predict_test else {}
    labelling = Labelling(task.labels, task.metrics, task.least, task.most)
    return Texts(labelling, folder.train(), {**dev, **tests}, tuple(tests), task.name)


def read_own_files(config: TextsConfig) -> Texts:
    """The examples of own files. Raises InputError for bad files."""
    data = read_own(config.own, config.columns, config.labels, config.regression)
    sets = {"dev": data.dev, "test": data.test}
    labelling = Labelling(data.labels, own_metrics(len(data.labels)))
    evaluated = {name: examples for name, examples in sets.items() if examples is not None}
    return Texts(labelling, data.train, evaluated, ("test",) if data.test else (), None)


def features(
    texts: Texts, config: TextsConfig, found: Found, folder: str
) -> tuple[TrainingTexts | None, EvaluationTexts | None, tuple[str, ...]]:
    """Tokenizes the examples; and messages about lines left out and texts cut. Predictions are written
    into `folder`."""
    cores, training, evaluation = os.cpu_count() or 1, None, None
    messages = [each for examples in (texts.train, *texts.evaluated.values()) for each in examples.skipped]
    if config.trains:
        made = featurize(texts.train, found.tokenizer, config.max_length, cores, "--max_seq_length")
        training = TrainingTexts(made)
        if made.truncated:
            messages.append(
                f"{texts.train.path}: {made.truncated} of {len(made)} examples are cut to "
                f"{config.max_length} tokens (--max_seq_length, --max_len)"
            )
    if texts.evaluated:
        first = next(iter(texts.evaluated))
        sets = tuple(
            EvaluationSet(
                "" if name == first else f"{name}_",
                len(examples),
                examples.ids,
                examples.labels,
                name if name in texts.tests else _file_of_dev(name),
            )
            for name, examples in texts.evaluated.items()
        )
        made = featurize(
            joined(texts.evaluated), found.tokenizer, config.max_length, cores, "--max_seq_length"
        )
        evaluation = EvaluationTexts(made, sets, texts.labelling, folder)
    return training, evaluation, tuple(messages)


def _file_of_dev(name: str) -> str:
    """The name of a development set's predictions: "dev", or "m" or "mm" of MNLI, makes dev_m_predictions."""
    return "dev_predictions" if name == "dev" else f"dev_{name}_predictions"


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit code. Raises InputError."""
    return fine_tune(argv, _prepared, open_communicator)


def _prepared(argv: Sequence[str]) -> Prepared:
    part, labelling, backend, communication = prepare(argv)

    def task() -> Task:
        from tasks.classification.task import Classification

        return Classification(len(labelling.labels), (HEADLINE, *labelling.metrics))

    return Prepared(part, task, backend, communication)


if __name__ == "__main__":
    sys.exit(exit_code(main, leaves=True))
