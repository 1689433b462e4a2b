"""The command line of both pretraining scripts: its options, in their order, checked against each other, and
the settings that they stand for. It is read before mxnet is imported: standard library only, and YAML where
--options_file is given.

The options themselves are fields of the tables (base.options). Those of GluonNLP v0.8.3's
`run_pretraining_hvd.py` keep their names and meanings, so an existing command line runs unchanged; those of
later versions are taken as ours, or rejected with what there is instead (docs/migration.md lists them). Where
a default had to change, the help text says so.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

from base.command_line import MOST_PROCESSES, Pair, ScriptParser, positive_int, whole
from base.errors import InputError
from base.options import add_options, options_in, taken
from comm.options import CommunicationConfig, communication_config
from data.options import MAX_POSITIONS, DataConfig, check_data_options
from lamb_paper import STAGES
from training.config import (
    DEFAULT_MODEL,
    BatchConfig,
    CheckpointConfig,
    ModelConfig,
    OptimizationConfig,
    ReportConfig,
    RunConfig,
    model_config,
)
from training.deadline import DeadlineConfig, check_deadline
from training.optimizer.schedule import COOLDOWN_RATIO, DECAY_POWERS
from training.options_file import OPTIONS_FILE, expand, parse_words
from training.pipeline.options import PipelineConfig, pipeline_config
from training.start.options import StartConfig, check_start_options

_BACKEND = "run_pretraining_hvd.py exchanges through Horovod, run_pretraining_byteps.py through BytePS"
_CACHE = "tokenized text is always kept, in --cache_dir"
_ORDER = "an epoch goes through the sequences of all files in one random order"
# Of 0.9's and 0.10's run_pretraining.py, and of 0.8.3's, with what to do instead.
NOT_HERE = {
    "total_batch_size": "--batch_size counts a process's sequences in a pass, total / processes / accumulate",
    "total_batch_size_eval": "--batch_size_eval counts a process's sequences in a pass",
    "comm_backend": _BACKEND,
    "kvstore": _BACKEND,
    "gpus": "each process takes one GPU; start one for each with mpirun -np, and see CUDA_VISIBLE_DEVICES",
    "no_compute_acc": "accuracies come with the losses, on the device; leave it out",
    "circle_length": _ORDER,
    "repeat": _ORDER,
    "dataset_cached": _CACHE,
    "num_max_dataset_cached": _CACHE,
}
TAKEN = ("num_dataset_workers", "num_batch_workers", "synthetic_data", "phase2", "phase1_num_steps")


def add_not_here(add: Callable[..., Any], not_here: Mapping[str, str]) -> None:
    """Adds options that are rejected, which --help does not show."""
    for name in not_here:
        add(f"--{name}", nargs="?", const="given", help=argparse.SUPPRESS)


def reject_not_here(options: argparse.Namespace, not_here: Mapping[str, str]) -> None:
    """Removes the options of `add_not_here`. Raises InputError, one line for all that were given."""
    given = [name for name in not_here if options.__dict__.pop(name) is not None]
    if given:
        raise InputError("; ".join(f"--{name} is not followed here: {not_here[name]}" for name in given))


def add_gluonnlp_options(add: Callable[..., Any]) -> None:
    """Adds the options of NOT_HERE and TAKEN, which --help does not show."""
    add_not_here(add, NOT_HERE)
    for name in ("--num_dataset_workers", "--num_batch_workers"):
        add(name, type=whole(0, MOST_PROCESSES // 2), help=argparse.SUPPRESS)
    add("--synthetic_data", action="store_true", help=argparse.SUPPRESS)
    add("--phase2", action="store_true", help=argparse.SUPPRESS)
    add("--phase1_num_steps", type=positive_int, help=argparse.SUPPRESS)


def take_gluonnlp_options(options: argparse.Namespace) -> None:
    """Puts our options in place of those of `add_gluonnlp_options`. Raises InputError for those of NOT_HERE,
    and for a phase 2 that does not follow a phase 1."""
    reject_not_here(options, NOT_HERE)
    *workers, synthetic, phase2, steps = (options.__dict__.pop(name) for name in TAKEN)
    if workers != [None, None]:  # the same workers do both here
        options.num_data_workers = sum(each or 0 for each in workers)
    if synthetic:
        options.dummy_data_len = options.dummy_data_len or options.max_seq_length or MAX_POSITIONS
    if phase2 != (steps is not None):
        raise InputError("--phase2 and --phase1_num_steps need each other; ours is --stages 2")
    if phase2:
        if options.stages:
            raise InputError(f"--phase2 and --stages {options.stages} exclude each other: both say the stage")
        if options.start_step not in (0, steps) and options.start_step < steps:
            raise InputError(
                f"--start_step {options.start_step}: phase 2 begins at --phase1_num_steps {steps}"
            )
        options.stages = "2"
        # GluonNLP's second phase goes on with the moments that --start_step restores.
        options.keep_optimizer_state |= bool(options.start_step and not options.init_from)
        options.start_step = options.start_step if options.start_step > steps else 0


PUBLISHED_MODELS = ("bert_12_768_12", "bert_24_1024_16")  # of --pretrained
_OF_STAGE_2 = {"data": "data_2", "data_eval": "data_eval_2"}  # what stage 2 has instead, where it is given
TABLE = {
    OPTIONS_FILE.name: OPTIONS_FILE,
    **options_in(
        *(ModelConfig, DataConfig, BatchConfig, OptimizationConfig, StartConfig, PipelineConfig),
        *(CommunicationConfig, CheckpointConfig, DeadlineConfig, ReportConfig),
    ),
}
GROUPS = {  # of --help, in its order
    "model": "model config_file gelu pretrained dataset_name vocab sentencepiece dtype operators padding "
    "recompute",
    "data": "data data_eval raw eval_use_npz text_format split_sentences skip_bad_records cache_dir "
    "max_seq_length max_predictions_per_seq short_seq_prob masked_lm_prob whole_word_mask static_masks "
    "single_sentences eval_masked_lm_prob cased sp_nbest sp_alpha num_buckets num_data_workers "
    "dummy_data_len",
    "batch": "batch_size use_avg_len accumulate batch_size_eval",
    "optimization": "num_steps num_epochs lr warmup_ratio end_lr schedule cooldown_ratio decay_power "
    "budget_hours dropout attention_dropout optimizer optimizer_state shard_states bias_correction "
    "lower_bound upper_bound beta1 beta2 epsilon weight_decay clip_norm spikes seed",
    "start and stages": "stages data_2 data_eval_2 keep_optimizer_state init_from init_partial "
    "init_vocab reset",
    "layers over processes (docs/pipelines.md)": "pipeline_stages placement pipeline_schedule pipeline_split",
    "communication": "comm_timeout bucket_mb compression compression_k error_feedback reproducible",
    "checkpoints and output": "ckpt_dir ckpt_interval eval_interval keep_checkpoints keep_interval keep_best "
    "resume max_hours save_before start_step log_interval progress peak_tflops verbose notify estimate "
    "profile",
}
_DESCRIPTIONS = {"optimization": "left-out --num_steps, --lr and --warmup_ratio come from hparams.py"}


class StageOptions(NamedTuple):
    """The options of a stage, without pairs, and those of the whole run as they were `given`. `stage` is None
    for a run without --stages."""

    stage: int | None
    options: argparse.Namespace
    given: argparse.Namespace


def parse_options(argv: Sequence[str] | None, description: str) -> argparse.Namespace:
    """The options of one run, each checked by itself and against the others. `stage_options` gives those of
    a stage.

    Raises:
        InputError: an unknown option, a value out of its range, or options that exclude each other.
    """
    options = parse_words(_parser(description), argv)
    take_gluonnlp_options(options)
    stage_options(options)
    return options


def expand_options(words: Sequence[str]) -> list[str]:
    """The words of a command line with the content of its --options_file in place of that option, for
    commands that pass options on.

    Raises:
        InputError: as `training.options_file.expand`.
    """
    return expand(words, _parser(""))


def _parser(description: str) -> ScriptParser:
    parser = ScriptParser(description=description)
    OPTIONS_FILE.add(parser.add_argument)
    table = {name: each.in_pairs() for name, each in TABLE.items()}
    for title, names in GROUPS.items():
        add_options(parser.add_argument_group(title, _DESCRIPTIONS.get(title)).add_argument, table, names)
    add_gluonnlp_options(parser.add_argument)
    return parser


def stage_options(options: argparse.Namespace) -> list[StageOptions]:
    """The options of each stage that a run has, in order, checked and completed; of a run without --stages
    the options themselves.

    Of a pair each stage has its own value, a single value counts for both; stage 2 reads --data_2 and
    --data_eval_2 where they are given.

    Raises:
        InputError: as `parse_options`; a pair, or data for stage 2, without --stages.
    """
    pairs = {name: value for name, value in vars(options).items() if isinstance(value, Pair)}
    if options.stages is None:
        for name, pair in pairs.items():
            raise InputError(
                f"--{name} {pair}: two values are for two stages; add --stages, or give one value"
            )
        for name in _OF_STAGE_2.values():
            if getattr(options, name):
                raise InputError(
                    f"--{name} is for stage 2; add --stages, or name the data with --{name[:-2]}"
                )
        _check(options)
        return [StageOptions(None, options, options)]
    found = []
    for stage in STAGES[options.stages]:
        values = {**vars(options), **{name: pair[stage - 1] for name, pair in pairs.items()}}
        if stage == 2:
            values.update({name: values[other] for name, other in _OF_STAGE_2.items() if values[other]})
        found.append(StageOptions(stage, argparse.Namespace(**values), options))
    for each in found:
        try:
            _check(each.options)
        except InputError as error:
            raise error if len(found) == 1 else InputError(f"stage {each.stage}: {error}") from error
    return found


def run_config(options: argparse.Namespace) -> RunConfig:
    """The settings that the options of a run without stages and pipelines stand for.

    Raises:
        InputError: options with --stages or --pipeline_stages, for which this command is not made.
    """
    if options.pipeline_stages > 1:
        raise InputError(
            f"--pipeline_stages {options.pipeline_stages}: this command has the whole model in every "
            "process; leave it out"
        )
    if options.stages is not None:
        raise InputError(f"--stages {options.stages}: this command runs without stages; leave it out")
    return stage_config(StageOptions(None, options, options))


def stage_config(given: StageOptions) -> RunConfig:
    """The settings of one stage."""
    options = given.options
    model = model_config(options)
    return RunConfig(
        model,
        taken(DataConfig, options),
        taken(BatchConfig, options),
        taken(OptimizationConfig, options),
        taken(CheckpointConfig, options),
        taken(StartConfig, options, stage=given.stage),
        taken(ReportConfig, options),
        vars(options),
        vars(given.given),
        taken(DeadlineConfig, options),
        pipeline_config(options, model.bert.layers),
        TABLE,
    )


def _check(options: argparse.Namespace) -> None:
    if options.config_file is None:
        options.model = options.model or DEFAULT_MODEL
    elif options.model is not None:
        raise InputError(
            f"--model {options.model} and --config_file {options.config_file} exclude each other: each gives "
            "the model"
        )
    model = model_config(options)
    wrong = next(_exclusions(options, model.of_fused_operators), None)
    if wrong is not None:
        raise InputError(wrong)
    options.dropout, options.attention_dropout = model.rates
    if options.schedule == "wsd":
        options.cooldown_ratio = options.cooldown_ratio or COOLDOWN_RATIO
    options.decay_power = options.decay_power or DECAY_POWERS[options.schedule]
    pipeline_config(options, model.bert.layers)
    options.compression_k = communication_config(options).compression_k  # its default where it was left out
    check_deadline(taken(DeadlineConfig, options), os.environ)
    check_data_options(options)
    check_start_options(options)
    options.ckpt_dir = os.path.expanduser(options.ckpt_dir)


def _exclusions(options: argparse.Namespace, of_fused_operators: Sequence[str]) -> Iterator[str]:
    """A line for each contradiction between options."""
    if of_fused_operators and options.operators == "mxnet":
        yield f"{of_fused_operators[0]} needs the fused operators: leave out --operators mxnet"
    if options.pretrained and (options.config_file or options.model not in PUBLISHED_MODELS):
        yield (
            f"--pretrained: no parameters are published for {options.config_file or options.model}; they are "
            f"for --model {' and '.join(PUBLISHED_MODELS)}"
        )
    if options.resume and options.start_step:
        yield "--resume and --start_step exclude each other: the one finds the step, the other names it"
    if options.lower_bound and options.upper_bound and options.lower_bound > options.upper_bound:
        yield f"--lower_bound {options.lower_bound} is above --upper_bound {options.upper_bound}"
    for flag in ("bias_correction", "lower_bound", "upper_bound"):
        if options.optimizer != "lamb" and getattr(options, flag):
            yield f"--{flag} is for --optimizer lamb, not for {options.optimizer}"
    state = f"--optimizer_state {options.optimizer_state}"
    if options.optimizer_state != "float32" and (options.operators == "mxnet" or options.dtype == "float16"):
        other = "--operators mxnet" if options.operators == "mxnet" else "--dtype float16"
        yield f"{state} needs the fused CPU operators; leave it out, or {other}"
    if options.optimizer_state != "float32" and options.optimizer == "muon":
        yield f"{state} is for LAMB's and Adam's moments, not for --optimizer muon"
    if options.optimizer_state != "float32" and options.shard_states:
        yield (
            f"{state} with --shard_states: its roundings depend on the parameters that a process updates, so "
            "the number of processes would change them; leave one out"
        )
    if options.schedule != "wsd" and options.cooldown_ratio is not None:
        yield f"--cooldown_ratio is for --schedule wsd, not for {options.schedule}"
    ends = [f"--{name}" for name in ("budget_hours", "num_epochs", "num_steps") if getattr(options, name)]
    if len(ends) > 1:
        yield f"{' and '.join(ends)} exclude each other: either says when the run ends"
    if options.num_epochs and (options.dummy_data_len or not options.data):
        yield "--num_epochs: passes are over --data; give it, or the length as --num_steps"
    if options.lr and options.end_lr > options.lr:
        yield f"--end_lr {options.end_lr} is above --lr {options.lr}"
    if options.num_steps and options.start_step > options.num_steps and not options.stages:
        yield f"--start_step {options.start_step} is beyond --num_steps {options.num_steps}"
    if (options.keep_best or options.eval_interval) and not options.data_eval:
        flag = "keep_best" if options.keep_best else "eval_interval"
        yield f"--{flag}: nothing is evaluated; name held-out text with --data_eval"
    if options.keep_interval and options.keep_interval % options.ckpt_interval:
        yield (
            f"--keep_interval {options.keep_interval} is no multiple of --ckpt_interval "
            f"{options.ckpt_interval}: not every such checkpoint would be saved"
        )
