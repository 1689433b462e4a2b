"""The settings of a run, made once from its options. Standard library only."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields
from typing import Any, Mapping, TypeVar

from data.options import DataConfig, data_config

T = TypeVar("T")


@dataclass(frozen=True)
class ModelConfig:
    """The network: `model` is bert_LAYERS_UNITS_HEADS; `dtype` None: float16 on GPUs, float32 without."""

    model: str
    dtype: str | None
    operators: str
    dropout: float
    pretrained: bool
    dataset_name: str


@dataclass(frozen=True)
class BatchConfig:
    """Sequences of a step: `batch_size` of a process and micro-batch, in tokens with `use_avg_len`."""

    batch_size: int
    use_avg_len: bool
    accumulate: int
    batch_size_eval: int
    max_predictions_per_seq: int | None


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


@dataclass(frozen=True)
class CheckpointConfig:
    """Place and interval of checkpoints, and the one that a run begins with."""

    ckpt_dir: str
    ckpt_interval: int
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
    """All of a run. `options`: every option by name, as a checkpoint records them."""

    model: ModelConfig
    data: DataConfig
    batch: BatchConfig
    optimization: OptimizationConfig
    checkpoint: CheckpointConfig
    report: ReportConfig
    options: Mapping[str, Any]


def run_config(options: argparse.Namespace) -> RunConfig:
    """The settings that the options of training.options stand for."""
    return RunConfig(
        _part(ModelConfig, options),
        data_config(options),
        _part(BatchConfig, options),
        _part(OptimizationConfig, options),
        _part(CheckpointConfig, options),
        _part(ReportConfig, options),
        vars(options),
    )


def _part(kind: type[T], options: argparse.Namespace) -> T:
    """The options that `kind` has fields for."""
    return kind(**{field.name: getattr(options, field.name) for field in fields(kind)})  # type: ignore[arg-type]
