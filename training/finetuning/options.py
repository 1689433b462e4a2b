"""The options that both fine-tuning scripts share, and the settings of a run made of them.

The options are those of the tables (base.options), many with a default and words of their own here. Names are
those of GluonNLP v0.10's scripts/bert, so that a command line for those is understood; what cannot be done
here is an error. Standard library only, and YAML where --options_file is given.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Sequence

from base.command_line import ScriptParser, positive
from base.errors import InputError
from base.launchers import BACKENDS
from base.options import LAUNCH, Table, add_options, flag, option, options_in, taken
from bert.configuration import DROPOUT, INITIAL_STDEV
from comm.options import CommunicationConfig, communication_config
from data.options import DataConfig, TokenizerConfig
from training.config import (
    BatchConfig,
    CheckpointConfig,
    ModelConfig,
    OptimizationConfig,
    ReportConfig,
    RunConfig,
)
from training.deadline import DeadlineConfig, check_deadline
from training.finetuning.beginning import BeginningConfig, Found
from training.finetuning.inputs import TaskFiles
from training.guard import TAKE
from training.options import add_not_here, reject_not_here
from training.options_file import OPTIONS_FILE, parse_words
from training.results.members import MembersConfig
from training.start.options import StartConfig
from training.start.pretrained import PretrainedConfig

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
    **dict.fromkeys(
        ("only_calibration", "num_calib_batches", "quantized_dtype", "calib_mode"),
        "there is no quantisation to integers; --dtype bfloat16 is fast",
    ),
    "early_stop": "--keep_checkpoints 0 keeps every epoch's checkpoint; --only_predict evaluates any of them",
}


@dataclass(frozen=True)
class FinetuningConfig:
    """Options that pretraining does not have."""

    epochs: float = option(
        "passes over the training data; 2 to 4 are usual", positive, default=3, flags=("--num_epochs",)
    )
    backend: str | None = option(
        "default: by the launcher: mpirun and horovodrun hvd, bpslaunch byteps, none local",
        choices=BACKENDS,
        scope=LAUNCH,
        flags=("--comm_backend",),
    )
    only_predict: bool = flag("no training: --model_parameters is evaluated", flags=("--only_inference",))


TABLE = {
    OPTIONS_FILE.name: OPTIONS_FILE,
    **options_in(
        *(ModelConfig, DataConfig, BatchConfig, OptimizationConfig, StartConfig, CommunicationConfig),
        *(CheckpointConfig, DeadlineConfig, ReportConfig),
        *(PretrainedConfig, BeginningConfig, FinetuningConfig, MembersConfig),
    ),
}
GROUPS = {  # of --help, in its order
    "model": "init_from model_parameters vocab init_vocab cased model config_file gelu "
    "sentencepiece uncased dtype operators padding recompute dropout attention_dropout",
    "training": "epochs num_steps batch_size accumulate batch_size_eval optimizer lr beta1 beta2 epsilon "
    "weight_decay warmup_ratio clip_norm shard_states spikes seed seeds search max_seq_length "
    "num_data_workers",
    "communication": "backend comm_timeout bucket_mb compression compression_k error_feedback reproducible",
    "checkpoints and output": "ckpt_dir only_predict ckpt_interval eval_interval keep_checkpoints "
    "keep_best resume max_hours save_before log_interval progress peak_tflops verbose notify estimate "
    "profile",
}
_CHANGES: dict[str, dict[str, Any]] = {
    OPTIONS_FILE.name: {
        "help": "YAML file of options, such as the run.yaml that every run leaves; the command line wins"
    },
    "init_from": {
        "flags": ("--pretrained_bert_parameters",),
        "help": "pretrained weights: a checkpoint folder (its newest; FOLDER:STEP, FOLDER:best), a .params "
        "file, a Hugging Face folder, a TensorFlow checkpoint, NVIDIA's .pt; without, --model and --vocab "
        "begin at random",
    },
    "model": {"flags": ("--bert_model", "--model_name")},
    "sentencepiece": {
        "metavar": "MODEL",
        "help": "the SentencePiece model that the weights were trained with",
    },
    "dtype": {
        "help": "float16 is for GPUs, bfloat16 for CPUs that multiply it, bfloat16x3, nearly float32, for "
        "CPUs with AMX (default: float16 on GPUs, else float32)"
    },
    **dict.fromkeys(("operators", "padding", "recompute", "shard_states"), {"help": "as in pretraining"}),
    "dropout": {"default": DROPOUT, "help": "of activations, the head's included"},
    "attention_dropout": {"help": "of the attention's probabilities (default: as --dropout)"},
    "num_steps": {"flags": ("--training_steps",), "help": "optimizer steps in place of --epochs"},
    "batch_size": {
        "default": 32,
        "help": "examples per process and micro-batch; 16 or 32 in a step are usual",
    },
    "accumulate": {"help": "micro-batches per step"},
    "batch_size_eval": {
        "default": 32,
        "flags": ("--test_batch_size", "--dev_batch_size"),
        "help": "examples per process in evaluation",
    },
    "optimizer": {
        "choices": ["bertadam", "adamw", "lamb"],
        "default": "bertadam",
        "help": "Adam with decoupled decay, without or with bias correction, or LAMB",
    },
    "lr": {"default": 5e-5, "help": "peak; 2e-5 to 5e-5 are usual"},
    "warmup_ratio": {
        "default": 0.1,
        "help": "share of the steps that warm up; the rate then falls linearly to 0",
    },
    "clip_norm": {"help": "norm of the gradient; 0: off"},
    "spikes": {
        "default": TAKE,
        "help": "as in pretraining; losses of few examples jump, and nothing is wrong with that",
    },
    "seed": {"help": "of head, order and dropout (default: the checkpoint's, else 0)"},
    "max_seq_length": {"flags": ("--max_len",), "help": "most tokens of an example"},
    "num_data_workers": {
        "default": 2,
        "help": "batches made ahead in the background; 0 makes them in the step",
    },
    "ckpt_dir": {
        "flags": ("--output_dir",),
        "default": "./output_dir",
        "help": "checkpoints, metrics, plots, predictions, results.json",
    },
    "ckpt_interval": {
        "default": None,
        "help": "steps between checkpoints, each with an evaluation (default: an epoch)",
    },
    "keep_checkpoints": {"default": 1, "help": "keep the newest so many; 0: all"},
    "resume": {"help": "continue from the newest complete checkpoint, if any"},
    "log_interval": {"default": 50},
}


@dataclass(frozen=True)
class Script:
    """A fine-tuning script: the options that it alone has, and the files that they name.

    Attributes:
        description: of --help.
        title, kind: of the group of its options, and their table.
        defaults: of options that both scripts have, by name.
        check: raises InputError where options exclude each other.
        open: the files, for the model to begin with; raises InputError for bad ones.
    """

    description: str | None
    title: str
    kind: type
    defaults: Mapping[str, Any]
    check: Callable[[argparse.Namespace], None]
    open: Callable[[argparse.Namespace, Found], TaskFiles]

    @property
    def table(self) -> Table:
        """All of its options."""
        return {**TABLE, **options_in(self.kind)}

    def parser(self) -> ScriptParser:
        """The parser of the script."""
        parser = ScriptParser(description=self.description)
        defaults = {name: {**_CHANGES[name], "default": value} for name, value in self.defaults.items()}
        changes = {**_CHANGES, **defaults}
        add_options(parser.add_argument, TABLE, OPTIONS_FILE.name, changes)
        own = {self.title: " ".join(options_in(self.kind))}
        for title, names in {**GROUPS, **own}.items():
            add_options(parser.add_argument_group(title).add_argument, self.table, names, changes)
        add_not_here(parser.add_argument, NOT_HERE)
        return parser


def parse(script: Script, argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command line and of its --options_file, checked against each other.

    Raises:
        InputError: an unknown option, a value out of its range, options that exclude each other, or one of
            GluonNLP's that is not followed here.
    """
    options = parse_words(script.parser(), argv)
    reject_not_here(options, NOT_HERE)
    if options.only_predict and not options.model_parameters:
        raise InputError("--only_predict needs --model_parameters, the fine-tuned model to evaluate")
    if options.only_predict and options.resume:
        raise InputError("--only_predict and --resume exclude each other: nothing is trained")
    if options.uncased and options.cased:
        raise InputError("--uncased and --cased exclude each other")
    communication_config(options)
    check_deadline(taken(DeadlineConfig, options), os.environ)
    options.ckpt_dir = os.path.expanduser(options.ckpt_dir)
    script.check(options)
    return options


def finetuning_config(options: argparse.Namespace, found: Found, table: Table) -> RunConfig:
    """The settings of a run that begins with what was found. `table`: the options'."""
    named = {**vars(options), "cased": found.tokenizer.cased}  # as a checkpoint records it
    return RunConfig(
        taken(
            ModelConfig,
            options,
            bert=found.bert,
            source=None,
            vocab_size=found.vocab_size,
            initial_stdev=found.initial_stdev or INITIAL_STDEV,
        ),
        DataConfig(
            tokenizer=TokenizerConfig(
                sentencepiece=found.tokenizer.sentencepiece, cased=found.tokenizer.cased
            ),
            num_data_workers=options.num_data_workers,
        ),
        taken(BatchConfig, options),
        taken(OptimizationConfig, options),
        taken(CheckpointConfig, options, ckpt_interval=options.ckpt_interval),
        StartConfig(init_from=options.model_parameters or options.init_from),
        taken(ReportConfig, options),
        named,
        named,
        deadline=taken(DeadlineConfig, options),
        table=table,
    )
