"""The settings of a run, made once from its options. Standard library only."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields, replace
from typing import Any, Mapping, TypeVar

from base.errors import InputError
from bert.config_file import read_config_file
from bert.configuration import DROPOUT, INITIAL_STDEV, KEEP, BertConfig, named_config
from data.options import DataConfig, data_config
from training.deadline import DeadlineConfig
from training.pairs import StageOptions
from training.pipeline.options import PipelineConfig, pipeline_config
from training.start_options import StartConfig

DEFAULT_MODEL = "bert_12_768_12"

T = TypeVar("T")


@dataclass(frozen=True)
class ModelConfig:
    """The network.

    Attributes:
        bert: of --model or --config_file, GELU in the form to be used.
        vocab_size: rows of the word embedding, of --config_file; None: as many as the vocabulary has tokens.
        initial_stdev: of random weights.
        source: the name of --config_file; None for --model.
        unknown_keys: of that file.
        dtype: None: float16 on GPUs, float32 without.
    """

    bert: BertConfig
    vocab_size: int | None
    initial_stdev: float
    source: str | None
    unknown_keys: tuple[str, ...]
    dtype: str | None
    operators: str
    dropout: float
    pretrained: bool
    dataset_name: str
    padding: str = KEEP


@dataclass(frozen=True)
class BatchConfig:
    """Sequences of a step: `batch_size` of a process and micro-batch, in tokens with `use_avg_len`.

    `processes`: those that `accumulate` counts for. It is not an option: the run's start says it
    (training.start.start.processes_to_count).
    """

    batch_size: int
    use_avg_len: bool
    accumulate: int
    batch_size_eval: int
    max_predictions_per_seq: int | None
    processes: int = 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step, over all processes."""
        return self.accumulate * self.processes


@dataclass(frozen=True)
class OptimizationConfig:
    """Steps, learning rate and update; None stands for the LAMB paper's value."""

    num_steps: int | None
    lr: float | None
    warmup_ratio: float | None
    end_lr: float
    schedule: str
    cooldown_ratio: float | None
    decay_power: float
    budget_hours: float | None
    optimizer: str
    bias_correction: bool
    lower_bound: float | None
    upper_bound: float | None
    clip_norm: float
    seed: int | None
    epsilon: float = 1e-6
    optimizer_state: str = "float32"  # type of the moments


@dataclass(frozen=True)
class CheckpointConfig:
    """Place and interval of checkpoints, and the one that a run begins with."""

    ckpt_dir: str
    ckpt_interval: int | None  # None: the plan's
    keep_checkpoints: int
    resume: bool
    start_step: int


@dataclass(frozen=True)
class ReportConfig:
    """Output beside the checkpoints."""

    log_interval: int
    progress: str
    verbose: bool
    profile: str | None
    peak_tflops: float | None
    compression: str  # for the bytes that a trace states


@dataclass(frozen=True)
class RunConfig:
    """All of a run, or of one of its stages.

    `options`: every option by name, as a checkpoint records them; `given`: those of all stages, with pairs.
    """

    model: ModelConfig
    data: DataConfig
    batch: BatchConfig
    optimization: OptimizationConfig
    checkpoint: CheckpointConfig
    start: StartConfig
    report: ReportConfig
    options: Mapping[str, Any]
    given: Mapping[str, Any]
    deadline: DeadlineConfig = DeadlineConfig()
    pipeline: PipelineConfig = PipelineConfig()

    @property
    def trains(self) -> bool:
        """Whether there is something to train on, and not to evaluate alone."""
        return bool(self.data.data or self.data.dummy_data_len)


def run_config(options: argparse.Namespace) -> RunConfig:
    """The settings that the options of training.options stand for.

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
        data_config(options),
        _part(BatchConfig, options),
        _part(OptimizationConfig, options),
        _part(CheckpointConfig, options),
        _part(StartConfig, argparse.Namespace(**vars(options), stage=given.stage)),
        _part(ReportConfig, options),
        vars(options),
        vars(given.given),
        _part(DeadlineConfig, options),
        pipeline_config(options, model.bert.layers),
    )


def model_config(options: argparse.Namespace) -> ModelConfig:
    """The network that --model or --config_file, --gelu and --dropout stand for.

    Raises:
        InputError: as `parse_model` and `read_config_file`; --gelu against the file; dropout rates of the
            file that differ, without --dropout.
    """
    config = ModelConfig(
        bert=named_config(options.model or DEFAULT_MODEL),
        vocab_size=None,
        initial_stdev=INITIAL_STDEV,
        source=options.config_file,
        unknown_keys=(),
        dtype=options.dtype,
        operators=options.operators,
        dropout=DROPOUT if options.dropout is None else options.dropout,
        pretrained=options.pretrained,
        dataset_name=options.dataset_name,
        padding=options.padding,
    )
    if options.config_file is not None:
        return _of_file(config, options.gelu, dropout_given=options.dropout is not None)
    return replace(config, bert=replace(config.bert, activation=options.gelu)) if options.gelu else config


def _of_file(config: ModelConfig, gelu: str | None, dropout_given: bool) -> ModelConfig:
    """`config` with all that its --config_file says."""
    path = str(config.source)
    file = read_config_file(path, "--config_file")
    if file.config.token_types < 2:
        raise InputError(
            f"--config_file {path}: type_vocab_size is {file.config.token_types}, and sentence pairs need 2"
        )
    if not dropout_given:
        rates = [DROPOUT if rate is None else rate for rate in (file.dropout, file.attention_dropout)]
        if rates[0] != rates[1]:
            raise InputError(
                f"--config_file {path}: hidden_dropout_prob {rates[0]:g} and attention_probs_dropout_prob "
                f"{rates[1]:g} differ, and this code has one rate; --dropout gives it"
            )
        config = replace(config, dropout=rates[0])
    return replace(
        config,
        bert=file.with_gelu(gelu, path) if gelu else file.config,
        vocab_size=file.vocab_size,
        initial_stdev=INITIAL_STDEV if file.initial_stdev is None else file.initial_stdev,
        unknown_keys=file.unknown_keys,
    )


def _part(kind: type[T], options: argparse.Namespace) -> T:
    """The options that `kind` has fields for; a field with a default need not be an option."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: getattr(options, name) for name in names if hasattr(options, name)})
