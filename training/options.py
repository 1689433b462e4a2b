"""The command line of both training scripts. It is read before mxnet is imported: standard library only, and
YAML where --options_file is given.

The options of GluonNLP v0.8.3's `run_pretraining_hvd.py` keep their names and meanings, so an existing
command line runs unchanged; for later ones see training.gluonnlp_options. Where a default had to change, the
help text says so.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Sequence

from base.command_line import (
    OptionParser,
    count,
    not_negative,
    path_name,
    positive,
    positive_int,
    probability,
    rate,
    seed,
    share,
    within,
)
from base.errors import InputError
from bert.configuration import BFLOAT16X3, GELU_FORMS, KEEP, PADDING, REMOVE
from comm.options import add_communication_options, communication_config
from data.options import add_data_options, add_vocabulary_options, check_data_options
from training.config import DEFAULT_MODEL, model_config
from training.deadline import DeadlineConfig, add_deadline_options, check_deadline
from training.gluonnlp_options import add_gluonnlp_options, take_gluonnlp_options
from training.optimizer.schedule import COOLDOWN_RATIO, DECAY_POWERS
from training.options_file import OPTION, expand, given_file
from training.pairs import StageOptions, accumulation, allow_pairs, options_of_stages
from training.pipeline.options import add_pipeline_options, decay_schedule, pipeline_config
from training.report_options import add_report_options
from training.start_options import add_start_options, check_start_options

PUBLISHED_MODELS = ("bert_12_768_12", "bert_24_1024_16")  # of --pretrained
PUBLISHED_VOCABULARIES = {  # --dataset_name: number of tokens, of the vocabularies that GluonNLP downloads
    "book_corpus_wiki_en_uncased": 30522,
    "book_corpus_wiki_en_cased": 28996,
    "wiki_multilingual_uncased": 105879,
    "wiki_multilingual_cased": 119547,
    "wiki_cn_cased": 21128,
}


def parse_options(argv: Sequence[str] | None, description: str) -> argparse.Namespace:
    """The options of one run, each checked by itself and against the others. `stage_options` gives those of
    a stage.

    Raises:
        InputError: an unknown option, a value out of its range, or options that exclude each other.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(description)
    options = parser.parse_args(expand_options(words, parser))
    options.options_file = given_file(words)
    take_gluonnlp_options(options)
    stage_options(options)
    return options


def stage_options(options: argparse.Namespace) -> list[StageOptions]:
    """The options of each stage, checked; those given, completed, for a run without --stages.

    Raises:
        InputError: as `parse_options`.
    """
    stages = options_of_stages(options)
    for each in stages:
        try:
            _check(each.options)
        except InputError as error:
            if len(stages) == 1:
                raise
            raise InputError(f"stage {each.stage}: {error}") from error
    return stages


def expand_options(words: Sequence[str], parser: argparse.ArgumentParser | None = None) -> list[str]:
    """The words of a command line with the content of its --options_file in place of that option, for
    commands that pass options on.

    Raises:
        InputError: as `training.options_file.expand`.
    """
    parser = parser or _parser("")
    return expand(words, vars(parser.parse_args([])), parser.parse_args)


def _parser(description: str) -> argparse.ArgumentParser:
    parser = OptionParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )

    parser.add_argument(
        OPTION,
        type=path_name,
        metavar="FILE",
        help="YAML file of options by their names, such as the run.yaml that every run leaves in ckpt_dir; "
        "the command line wins, and takes an option of the file back by --NAME=null, a flag by --FLAG=false",
    )

    group = parser.add_argument_group("model")
    add = group.add_argument
    add(
        "--model",
        help="bert_12_768_12 (base), bert_24_1024_16 (large), any bert_LAYERS_UNITS_HEADS (default: base)",
    )
    add(
        "--config_file",
        type=path_name,
        metavar="FILE",
        help="instead of --model: a bert_config.json of Google's or NVIDIA's, or Hugging Face's config.json",
    )
    add(
        "--gelu",
        choices=GELU_FORMS,
        help="form of the activation: erf, x times the normal distribution, as GluonNLP, NVIDIA and Hugging "
        "Face have it; tanh, the approximation in Google's code, with which Google's parameters were trained "
        "(default: as --config_file says; erf where it says no more than gelu, and with --model)",
    )
    add("--pretrained", action="store_true", help="start from Google's published parameters (a download)")
    add(
        "--dataset_name",
        default="book_corpus_wiki_en_uncased",
        choices=sorted(PUBLISHED_VOCABULARIES),
        help="vocabulary to download without --vocab and --sentencepiece (default: %(default)s)",
    )
    add_vocabulary_options(add)
    add(
        "--dtype",
        choices=["float32", "float16", "bfloat16", BFLOAT16X3],
        help="float16 keeps float32 master weights and scales the loss; for GPUs. bfloat16 rounds the "
        "factors of matrix products; for CPUs, faster on those that multiply it (AVX-512 BF16, AMX). "
        "bfloat16x3 splits float32 factors into two bfloat16 parts and multiplies three times, PyTorch's "
        "matmul precision high: 16 bits, float32 has 24 and bfloat16 8; for CPUs with AMX, between "
        "the two in speed: where float32's results are wanted sooner "
        "(default: float16 on GPUs, float32 without)",
    )
    add(
        "--operators",
        choices=["auto", "fused", "mxnet"],
        default="auto",
        help="fused: this project's operators, for CPUs; mxnet: MXNet's own (default: fused where they can "
        "be used and have been built)",
    )
    add(
        "--padding",
        choices=PADDING,
        default=KEEP,
        help="remove: the fused operators compute tokens alone, sequences end to end; for batches with much "
        "padding, above 5%% of their positions, which data.inspect counts (default: keep)",
    )

    group = parser.add_argument_group("data")
    add_data_options(group.add_argument)

    group = parser.add_argument_group("batch")
    add = group.add_argument
    add(
        "--batch_size",
        type=positive_int,
        default=8,
        help="sequences per process and micro-batch; with --use_avg_len tokens. A V100 with 16 GB takes 8192 "
        "tokens of BERT-large in float16 at 128 (default: 8)",
    )
    add(
        "--use_avg_len",
        action="store_true",
        help="batch_size counts tokens, so short sequences come in larger batches",
    )
    add(
        "--accumulate",
        type=accumulation,
        default=1,
        help="micro-batches per step; a step sees batch_size x processes x accumulate (default: 1)",
    )
    add(
        "--batch_size_eval",
        type=positive_int,
        default=8,
        help="sequences per process in evaluation (default: 8)",
    )

    group = parser.add_argument_group(
        "optimization", "left-out --num_steps, --lr and --warmup_ratio come from hparams.py"
    )
    add = group.add_argument
    add(
        "--num_steps",
        type=positive_int,
        help="optimizer steps (default: the LAMB paper's for this batch size)",
    )
    add("--lr", type=positive, help="peak learning rate (default: the LAMB paper's for this batch size)")
    add(
        "--warmup_ratio",
        type=probability,
        help="share of the steps that warm up (default: the LAMB paper's)",
    )
    add("--end_lr", type=not_negative, default=0.0, help="learning rate at the last step (default: 0)")
    add(
        "--schedule",
        type=decay_schedule,
        choices=list(DECAY_POWERS),
        default="polynomial",
        help="after the warmup. polynomial: decay to the last step; wsd: constant, and a cooldown at the "
        "end, so that a run can be made longer later (default: polynomial)",
    )
    add(
        "--cooldown_ratio",
        type=share,
        help=f"wsd: share of the steps that cool down; 0.1 to 0.2 is usual (default: {COOLDOWN_RATIO:g})",
    )
    add(
        "--decay_power",
        type=positive,
        help="polynomial: remaining share of the decay to this power, 1 is linear; wsd: 1 - elapsed share of "
        "the cooldown to this power, 0.5 is 1-sqrt, 1 linear (default: 1; wsd: 0.5)",
    )
    add(
        "--budget_hours",
        type=within(1e-6, 1e6),
        metavar="HOURS",
        help="end after so many hours of training, saving, evaluation and start-up not counted, resumed runs "
        "included; the schedule follows the elapsed share of them. In place of --num_steps",
    )
    add(
        "--dropout",
        type=rate,
        help="of activations and attention, below 1 (default: of --config_file, else 0.1, as BERT)",
    )
    add("--optimizer", choices=["lamb", "bertadam", "adamw"], default="lamb", help="default: lamb")
    add(
        "--optimizer_state",
        choices=["float32", "bfloat16"],
        default="float32",
        help="type of LAMB's and Adam's moments. bfloat16, stochastically rounded by the fused operators, "
        "saves 4 bytes a parameter and a fifth of the update: for where memory is short, or batches so small "
        "that the update is a tenth of the step or more (default: float32)",
    )
    add(
        "--bias_correction",
        action="store_true",
        help="LAMB with Adam's bias correction (the authors' code has none)",
    )
    add("--lower_bound", type=positive, help="LAMB: least weight norm in the trust ratio")
    add("--upper_bound", type=positive, help="LAMB: greatest weight norm in the trust ratio")
    add(
        "--clip_norm",
        type=not_negative,
        default=1.0,
        help="global norm of the averaged gradient; 0: off (default: 1)",
    )
    add(
        "--seed",
        type=seed,
        help="of parameters, data order, masks, dropout (default: the checkpoint's, else 0)",
    )

    group = parser.add_argument_group("start and stages")
    add_start_options(group.add_argument)

    group = parser.add_argument_group("layers over processes (docs/pipelines.md)")
    add_pipeline_options(group.add_argument)

    group = parser.add_argument_group("communication")
    add_communication_options(group.add_argument)

    group = parser.add_argument_group("checkpoints and output")
    add = group.add_argument
    add(
        "--ckpt_dir",
        type=path_name,
        default="./ckpt_dir",
        help="checkpoints, metrics and plots, of one run at a time (default: %(default)s)",
    )
    add(
        "--ckpt_interval",
        type=positive_int,
        default=25000,
        help="steps between checkpoints (default: 25000)",
    )
    add(
        "--keep_checkpoints",
        type=count,
        default=0,
        help="keep only the newest so many; 0 keeps all (default: 0)",
    )
    add(
        "--resume",
        action="store_true",
        help="continue from the newest complete checkpoint in ckpt_dir, if any",
    )
    add_deadline_options(add)
    add("--start_step", type=count, default=0, help="continue from the checkpoint of this step")
    add_report_options(add, log_interval=250)
    add_gluonnlp_options(parser.add_argument)
    allow_pairs(parser)
    return parser


def _check(options: argparse.Namespace) -> None:
    if options.config_file is None:
        options.model = options.model or DEFAULT_MODEL
    elif options.model is not None:
        raise InputError(
            f"--model {options.model} and --config_file {options.config_file} exclude each other: each gives "
            "the model"
        )
    if options.padding == REMOVE and options.operators == "mxnet":
        raise InputError("--padding remove needs the fused operators: leave out --operators mxnet")
    model = model_config(options)
    options.dropout = model.dropout
    if options.pretrained and (options.config_file or options.model not in PUBLISHED_MODELS):
        raise InputError(
            f"--pretrained: no parameters are published for {options.config_file or options.model}; they are "
            f"for --model {' and '.join(PUBLISHED_MODELS)}"
        )
    if options.resume and options.start_step:
        raise InputError(
            "--resume and --start_step exclude each other: the one finds the step, the other names it"
        )
    if options.lower_bound and options.upper_bound and options.lower_bound > options.upper_bound:
        raise InputError(f"--lower_bound {options.lower_bound} is above --upper_bound {options.upper_bound}")
    for flag in ("bias_correction", "lower_bound", "upper_bound"):
        if options.optimizer != "lamb" and getattr(options, flag):
            raise InputError(f"--{flag} is for --optimizer lamb, not for {options.optimizer}")
    if options.optimizer_state != "float32" and (options.operators == "mxnet" or options.dtype == "float16"):
        other = "--operators mxnet" if options.operators == "mxnet" else "--dtype float16"
        raise InputError(
            f"--optimizer_state {options.optimizer_state} needs the fused CPU operators; leave it out, or "
            f"{other}"
        )
    if options.schedule != "wsd" and options.cooldown_ratio is not None:
        raise InputError(f"--cooldown_ratio is for --schedule wsd, not for {options.schedule}")
    if options.schedule == "wsd":
        options.cooldown_ratio = options.cooldown_ratio or COOLDOWN_RATIO
    options.decay_power = options.decay_power or DECAY_POWERS[options.schedule]
    if options.budget_hours and options.num_steps:
        raise InputError("--budget_hours and --num_steps exclude each other: either says when the run ends")
    if options.lr and options.end_lr > options.lr:
        raise InputError(f"--end_lr {options.end_lr} is above --lr {options.lr}")
    if options.num_steps and options.start_step > options.num_steps and not options.stages:
        raise InputError(f"--start_step {options.start_step} is beyond --num_steps {options.num_steps}")
    pipeline_config(options, model.bert.layers)
    options.compression_k = communication_config(options).compression_k  # its default where it was left out
    check_deadline(DeadlineConfig(options.max_hours, options.save_before), os.environ)
    check_data_options(options)
    check_start_options(options)
    options.ckpt_dir = os.path.expanduser(options.ckpt_dir)
