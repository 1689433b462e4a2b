"""The options that both fine-tuning scripts share, and the settings of a run made of them.

The names are those of GluonNLP v0.10's scripts/bert, so that a command line for those is understood; what
cannot be done here is an error. Standard library only, and YAML where --options_file is given.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import dataclass
from typing import Any, Callable, Sequence

from base.command_line import (
    MOST_PROCESSES,
    OptionParser,
    count,
    not_negative,
    path_name,
    positive,
    positive_int,
    probability,
    rate,
    seed,
    whole,
)
from base.errors import InputError
from base.launchers import BACKENDS
from bert.configuration import BFLOAT16X3, DROPOUT, INITIAL_STDEV, KEEP, PADDING
from comm.options import add_communication_options, communication_config
from data.options import DataConfig
from training.config import (
    BatchConfig,
    CheckpointConfig,
    ModelConfig,
    OptimizationConfig,
    ReportConfig,
    RunConfig,
)
from training.deadline import DeadlineConfig, add_deadline_options, check_deadline
from training.finetuning.beginning import BeginningConfig, Found
from training.gluonnlp_options import add_not_here, reject_not_here
from training.options_file import OPTION, expand, given_file
from training.pairs import accumulation
from training.pretrained_options import add_pretrained_options, pretrained_config
from training.report_options import add_report_options
from training.results.members import add_members_options
from training.start_options import StartConfig

# GluonNLP's options that cannot be followed, with what to do instead.
NOT_HERE = {
    "gpu": "a process takes the GPU of its place on its host, if there is one; see CUDA_VISIBLE_DEVICES",
    "bert_dataset": "nothing is downloaded; --init_from names the weights, which bring their vocabulary",
    "dataset": "nothing is downloaded; --init_from names the weights, which bring their vocabulary",
    "round_to": "batches are made of windows of similar length, padded to multiples of 8",
    "pad": "padding follows the lengths",
    "debug": "--training_steps 10 makes a short run",
    "deploy": "the checkpoint is GluonNLP's .params; convert.py writes other formats",
    "model_prefix": "the checkpoint is GluonNLP's .params; convert.py writes other formats",
    "only_calibration": "there is no quantisation to integers; --dtype bfloat16 is fast",
    "num_calib_batches": "there is no quantisation to integers; --dtype bfloat16 is fast",
    "quantized_dtype": "there is no quantisation to integers; --dtype bfloat16 is fast",
    "calib_mode": "there is no quantisation to integers; --dtype bfloat16 is fast",
    "early_stop": "--keep_checkpoints 0 keeps every epoch's checkpoint; --only_predict evaluates any of them",
}
_ALIASES = {"--model": ("--bert_model", "--model_name")}


@dataclass(frozen=True)
class Defaults:
    """Defaults that differ between the scripts, as GluonNLP's do."""

    epochs: float
    batch_size: int
    batch_size_eval: int
    max_seq_length: int


def make_parser(description: str, defaults: Defaults) -> OptionParser:
    """A parser with all options but those that only one script has."""
    parser = OptionParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        OPTION,
        type=path_name,
        metavar="FILE",
        help="YAML file of options, such as the run.yaml that every run leaves; the command line wins",
    )
    _add_model(parser.add_argument_group("model").add_argument)
    _add_training(parser.add_argument_group("training").add_argument, defaults)
    group = parser.add_argument_group("communication")
    group.add_argument(
        *("--backend", "--comm_backend"),
        choices=BACKENDS,
        help="default: by the launcher: mpirun and horovodrun hvd, bpslaunch byteps, none local",
    )
    add_communication_options(group.add_argument)
    _add_output(parser.add_argument_group("checkpoints and output").add_argument)
    add_not_here(parser.add_argument, NOT_HERE)
    return parser


def _with_aliases(add: Callable[..., Any]) -> Callable[..., Any]:
    """`add` for options of which some have GluonNLP's names too."""
    return lambda name, **words: add(name, *_ALIASES.get(name, ()), **words)


def _add_model(add: Callable[..., Any]) -> None:
    add(
        *("--init_from", "--pretrained_bert_parameters"),
        type=path_name,
        metavar="WEIGHTS",
        help="pretrained weights: a checkpoint folder (its newest, or FOLDER:STEP), a .params file, a "
        "Hugging Face folder, a TensorFlow checkpoint, NVIDIA's .pt; without, "
        "--model and --vocab begin at random",
    )
    add(
        "--model_parameters",
        type=path_name,
        metavar="WEIGHTS",
        help="a model fine-tuned by this script, with its head: to evaluate, or to go on training",
    )
    add_pretrained_options(_with_aliases(add))
    add(
        "--sentencepiece",
        type=path_name,
        metavar="MODEL",
        help="the SentencePiece model that the weights were trained with",
    )
    add("--uncased", action="store_true", help="expect weights that ignore case; they say so by themselves")
    add(
        "--dtype",
        choices=["float32", "float16", "bfloat16", BFLOAT16X3],
        help="float16 is for GPUs, bfloat16 for CPUs that multiply it, bfloat16x3, nearly float32, for "
        "CPUs with AMX (default: float16 on "
        "GPUs, else float32)",
    )
    add("--operators", choices=["auto", "fused", "mxnet"], default="auto", help="as in pretraining")
    add("--padding", choices=PADDING, default=KEEP, help="as in pretraining")
    add("--dropout", type=rate, default=DROPOUT, help="of activations and attention (default: 0.1)")


def _add_training(add: Callable[..., Any], defaults: Defaults) -> None:
    add(
        "--epochs",
        type=positive,
        default=defaults.epochs,
        help=f"passes over the training data; 2 to 4 are usual (default: {defaults.epochs:g})",
    )
    add("--num_steps", "--training_steps", type=positive_int, help="optimizer steps in place of --epochs")
    add(
        "--batch_size",
        type=positive_int,
        default=defaults.batch_size,
        help="examples per process and micro-batch; 16 or 32 in a step are usual "
        f"(default: {defaults.batch_size})",
    )
    add("--accumulate", type=accumulation, default=1, help="micro-batches per step (default: 1)")
    add(
        *("--batch_size_eval", "--test_batch_size", "--dev_batch_size"),
        type=positive_int,
        default=defaults.batch_size_eval,
        help=f"examples per process in evaluation (default: {defaults.batch_size_eval})",
    )
    add(
        "--optimizer",
        choices=["bertadam", "adamw", "lamb"],
        default="bertadam",
        help="Adam with decoupled decay, without or with bias correction, or LAMB (default: bertadam)",
    )
    add("--lr", type=positive, default=5e-5, help="peak; 2e-5 to 5e-5 are usual (default: 5e-5)")
    add("--epsilon", type=positive, default=1e-6, help="of Adam (default: 1e-6)")
    add(
        "--warmup_ratio",
        type=probability,
        default=0.1,
        help="share of the steps that warm up; the rate then falls linearly to 0 (default: 0.1)",
    )
    add("--clip_norm", type=not_negative, default=1.0, help="norm of the gradient; 0: off (default: 1)")
    add("--seed", type=seed, help="of head, order and dropout (default: the checkpoint's, else 0)")
    add_members_options(add)
    add(
        *("--max_seq_length", "--max_len"),
        type=positive_int,
        default=defaults.max_seq_length,
        help=f"most tokens of an example (default: {defaults.max_seq_length})",
    )
    add(
        "--num_data_workers",
        type=whole(0, MOST_PROCESSES, "more than any machine has cores"),
        default=2,
        help="batches made ahead in the background; 0 makes them in the step (default: 2)",
    )


def _add_output(add: Callable[..., Any]) -> None:
    add(
        *("--ckpt_dir", "--output_dir"),
        type=path_name,
        default="./output_dir",
        help="checkpoints, metrics, plots, predictions, results.json (default: %(default)s)",
    )
    add(
        *("--only_predict", "--only_inference"),
        action="store_true",
        help="no training: --model_parameters is evaluated",
    )
    add(
        "--ckpt_interval",
        type=positive_int,
        help="steps between checkpoints, each with an evaluation (default: an epoch)",
    )
    add("--keep_checkpoints", type=count, default=1, help="keep the newest so many; 0: all (default: 1)")
    add("--resume", action="store_true", help="continue from the newest complete checkpoint, if any")
    add_deadline_options(add)
    add_report_options(add, log_interval=50)


def parse(parser: OptionParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line and of its --options_file, checked against each other.

    Raises:
        InputError: an unknown option, a value out of its range, options that exclude each other, or one of
            GluonNLP's that is not followed here.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    options = parser.parse_args(expand(words, vars(parser.parse_args([])), parser.parse_args))
    options.options_file = given_file(words)
    reject_not_here(options, NOT_HERE)
    if options.only_predict and not options.model_parameters:
        raise InputError("--only_predict needs --model_parameters, the fine-tuned model to evaluate")
    if options.only_predict and options.resume:
        raise InputError("--only_predict and --resume exclude each other: nothing is trained")
    if options.uncased and options.cased:
        raise InputError("--uncased and --cased exclude each other")
    communication_config(options)
    check_deadline(DeadlineConfig(options.max_hours, options.save_before), os.environ)
    options.ckpt_dir = os.path.expanduser(options.ckpt_dir)
    return options


def beginning_config(options: argparse.Namespace) -> BeginningConfig:
    """The options about weights and vocabulary. Raises InputError as `pretrained_config`."""
    return BeginningConfig(
        options.init_from,
        options.model_parameters,
        options.sentencepiece,
        pretrained_config(options),
        options.uncased,
    )


def finetuning_config(options: argparse.Namespace, found: Found) -> RunConfig:
    """The settings of a run that begins with what was found."""
    stdev = options.config_file and pretrained_config(options).config_file.initial_stdev  # type: ignore[union-attr]
    named = {**vars(options), "cased": found.tokenizer.cased}  # as a checkpoint records it
    return RunConfig(
        ModelConfig(
            bert=found.bert,
            vocab_size=found.vocab_size,
            initial_stdev=stdev or INITIAL_STDEV,
            source=None,
            unknown_keys=(),
            dtype=options.dtype,
            operators=options.operators,
            dropout=options.dropout,
            pretrained=False,
            dataset_name="",
            padding=options.padding,
        ),
        DataConfig(tokenizer=found.tokenizer_config, num_data_workers=options.num_data_workers),
        BatchConfig(options.batch_size, False, options.accumulate, options.batch_size_eval, None),
        OptimizationConfig(
            num_steps=options.num_steps,
            lr=options.lr,
            warmup_ratio=options.warmup_ratio,
            end_lr=0.0,
            schedule="polynomial",
            cooldown_ratio=None,
            decay_power=1.0,
            budget_hours=None,
            optimizer=options.optimizer,
            bias_correction=False,
            lower_bound=None,
            upper_bound=None,
            clip_norm=options.clip_norm,
            seed=options.seed,
            epsilon=options.epsilon,
        ),
        CheckpointConfig(
            options.ckpt_dir, options.ckpt_interval, options.keep_checkpoints, options.resume, start_step=0
        ),
        StartConfig(init_from=options.model_parameters or options.init_from),
        ReportConfig(
            options.log_interval,
            options.progress,
            options.verbose,
            options.profile,
            options.peak_tflops,
            options.compression,
        ),
        named,
        named,
        deadline=DeadlineConfig(options.max_hours, options.save_before),
    )
