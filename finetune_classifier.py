#!/usr/bin/env python3
"""Fine-tune a pretrained BERT on a task of GLUE, on XNLI, or on your own texts with labels or numbers.

    python finetune_classifier.py --init_from ckpt --task_name MRPC --data_dir glue --output_dir mrpc
    python finetune_classifier.py --init_from ckpt --train_file train.tsv --dev_file dev.tsv

`mpirun -np 4 python finetune_classifier.py ...` divides each step over four processes by Horovod,
`bpslaunch` and hosts/launch.py by BytePS. docs/finetuning.md is the guide.
"""

from __future__ import annotations

from base.errors import explain_missing
from training.stopping import end_at_signals

if __name__ == "__main__":
    explain_missing()  # a library that is not installed
    end_at_signals()  # until all is imported, which takes a second

import argparse
import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import Mapping, Sequence

from base.command_line import path_name
from base.errors import InputError
from base.options import flag, option, taken
from comm.backends import open_communicator
from data.classification.examples import Examples, check_files_differ
from data.classification.features import featurize
from data.classification.glue import GlueFolder, find_task
from data.classification.metrics import own_metrics
from data.classification.own import Columns, parse_columns, read_own
from data.tokenizing.tokenizer import TokenizerSettings
from tasks.base import Task
from tasks.classification.examples import HEADLINE, EvaluationSet, EvaluationTexts, Labelling, joined
from training.entry import exit_code
from training.finetuning.beginning import Found, TaskParameters, manifest_before
from training.finetuning.inputs import Read, TaskFiles
from training.finetuning.options import Script
from training.finetuning.several import fine_tune
from training.run_inputs import About

FILES = ("task_name", "data_dir", "language", "train_file", "dev_file", "test_file")


@dataclass(frozen=True)
class TextsConfig:
    """Files of GLUE or one's own, and what is done with them."""

    max_seq_length: int
    only_predict: bool
    task_name: str | None = option(
        "CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI or XNLI", metavar="TASK"
    )
    data_dir: str | None = option(
        "with the task's official TSV files, or a folder TASK with them", path_name, "FOLDER"
    )
    language: str = option("of XNLI", default="en")
    train_file: str | None = option(
        "own examples: .tsv, .csv or .jsonl, one or two texts and a label", path_name, "FILE"
    )
    dev_file: str | None = option("own examples to evaluate on", path_name, "FILE")
    test_file: str | None = option("own examples to predict; labels are not needed", path_name, "FILE")
    text_columns: str | None = option(
        "names or positions of the texts (default: the usual names)", metavar="A,B"
    )
    label_column: str | None = option(
        "name or position of the label (default: the usual names)", metavar="NAME"
    )
    labels: str | None = option(
        "the classes in their order (default: the fine-tuned model's, else those of --train_file)",
        metavar="A,B,...",
    )
    regression: bool = flag("labels of own files are numbers to predict")
    predict_test: bool = flag("predict the task's test files, for a submission")


def check(options: argparse.Namespace) -> None:
    """Raises InputError for files that exclude each other, or are none."""
    columns = parse_columns(options.text_columns, options.label_column)
    own = options.train_file or options.dev_file or options.test_file
    if options.task_name:
        if not options.data_dir:
            raise InputError("--task_name needs --data_dir, the folder with its files; nothing is downloaded")
        if own or columns != Columns() or options.labels or options.regression:
            raise InputError("--task_name brings files and labels; leave out those of own files")
        return
    if not options.train_file:
        raise InputError("nothing to do: give --task_name and --data_dir, or --train_file")
    if options.data_dir or options.predict_test:
        raise InputError("--data_dir and --predict_test are for --task_name; name own files one by one")


@dataclass(frozen=True)
class Texts:
    """All examples of a run: to train on, and sets to evaluate on by name, of which `tests` name those with
    a submission."""

    labelling: Labelling
    train: Examples
    evaluated: Mapping[str, Examples]
    tests: Sequence[str]
    name: str | None


def check_classes(theirs: Sequence[str] | None, ours: Sequence[str]) -> None:
    """Raises InputError where the head of a fine-tuned model has other classes than the run, or in another
    order: its answers would have the wrong names. None: a model that does not say them."""
    if theirs is not None and [*theirs] != [*ours]:
        raise InputError(
            f"the fine-tuned model knows {', '.join(theirs) or 'numbers'}, this run has "
            f"{', '.join(ours) or 'numbers'}; give the same in the same order (--labels), or take BERT alone "
            "with --init_from and another --output_dir"
        )


def read_glue(config: TextsConfig) -> Texts:
    """The examples of a task of GLUE or XNLI. Raises InputError for bad files."""
    task = find_task(str(config.task_name))
    folder = GlueFolder(task, str(config.data_dir), config.language)
    check_files_differ(folder.files())
    dev = folder.dev()
    tests = folder.test() if config.predict_test else {}
    labelling = Labelling(task.labels, task.metrics, task.least, task.most)
    return Texts(labelling, folder.train(), {**dev, **tests}, tuple(tests), task.name)


def read_own_files(config: TextsConfig, classes: Sequence[str] | None) -> Texts:
    """The examples of own files, of `classes` where --labels names none. Raises InputError for bad files."""
    files = (config.train_file or "", config.dev_file or "", config.test_file or "")
    columns = parse_columns(config.text_columns, config.label_column)
    labels = config.labels.split(",") if config.labels else ([] if config.regression else classes or [])
    data = read_own(*files, columns, labels, config.regression)
    sets = {"dev": data.dev, "test": data.test}
    labelling = Labelling(data.labels, own_metrics(len(data.labels)))
    evaluated = {name: examples for name, examples in sets.items() if examples is not None}
    return Texts(labelling, data.train, evaluated, ("test",) if data.test else (), None)


def open_files(options: argparse.Namespace, found: Found) -> TaskFiles:
    """The examples of the files that the options name. Raises InputError."""
    config = taken(TextsConfig, options)
    classes = manifest_before(options, found).get("classes")
    texts = read_glue(config) if config.task_name else read_own_files(config, classes)
    check_classes(classes, texts.labelling.labels)
    if config.only_predict and not texts.evaluated:
        raise InputError("--only_predict needs something to evaluate: give --dev_file or --test_file")
    if options.keep_best and all(each.labels is None for each in texts.evaluated.values()):
        raise InputError("--keep_best: nothing is scored; name a file to score with --dev_file")
    labelling = texts.labelling
    head = (max(1, len(labelling.labels)), found.bert.units)

    def task() -> Task:
        from tasks.classification.task import Classification

        return Classification(len(labelling.labels), (HEADLINE, *labelling.metrics))

    return TaskFiles(
        about=About(
            data=texts.name,
            main_score=HEADLINE,
            data_options=(*FILES, "max_seq_length", "batch_size", "accumulate"),
            evaluation_options=FILES,
            classes=labelling.labels,
        ),
        parameters=TaskParameters(True, {"label_classifier.weight": head, "label_classifier.bias": head[:1]}),
        read=partial(read, texts, config, found.tokenizer),
        task=task,
    )


def read(texts: Texts, config: TextsConfig, tokenizer: TokenizerSettings, folder: str) -> Read:
    """Tokenizes the examples, with messages about lines left out and texts cut."""
    cores, length = os.cpu_count() or 1, config.max_seq_length
    training = evaluation = None
    messages = [each for examples in (texts.train, *texts.evaluated.values()) for each in examples.skipped]
    if not config.only_predict:
        training = featurize(texts.train, tokenizer, length, cores, "--max_seq_length")
        if training.truncated:
            messages.append(
                f"{texts.train.path}: {training.truncated} of {len(training)} examples are cut to {length} "
                "tokens (--max_seq_length, --max_len)"
            )
    if texts.evaluated:
        first = next(iter(texts.evaluated))
        sets = []
        for name, examples in texts.evaluated.items():
            # Of development sets, "dev", or "m" or "mm" of MNLI, makes dev_m_predictions.
            file = name if name in texts.tests else f"dev{'' if name == 'dev' else f'_{name}'}_predictions"
            prefix = "" if name == first else f"{name}_"
            sets.append(EvaluationSet(prefix, examples, file))
        together = joined([*texts.evaluated.values()], bool(texts.labelling.labels))
        made = featurize(together, tokenizer, length, cores, "--max_seq_length")
        evaluation = EvaluationTexts(made, tuple(sets), texts.labelling, folder)
    return Read(training, evaluation, tuple(messages))


SCRIPT = Script(__doc__, "texts", TextsConfig, {"max_seq_length": 128}, check, open_files)
main = partial(fine_tune, SCRIPT, open_communicator)

if __name__ == "__main__":
    sys.exit(exit_code(main, leaves=True))
