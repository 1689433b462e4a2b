"""Tables of the options for model, batch, optimization, checkpoints and report (base.options), and all
settings of a run. Standard library only."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from typing import Any, Mapping

from base.command_line import (
    count,
    not_empty,
    not_negative,
    path_name,
    positive,
    positive_int,
    probability,
    rate,
    seed,
    share,
    whole,
    within,
)
from base.errors import InputError
from base.options import LAUNCH, RANK, Table, flag, option, taken
from bert.config_file import read_config_file
from bert.configuration import (
    BFLOAT16X3,
    DROPOUT,
    GELU_FORMS,
    INITIAL_STDEV,
    KEEP,
    LEAST_EPSILON,
    PADDING,
    REMOVE,
    BertConfig,
    Dropout,
    named_config,
)
from data.options import DataConfig
from training.deadline import DeadlineConfig
from training.guard import SKIP, SPIKES
from training.optimizer.schedule import COOLDOWN_RATIO, DECAY_POWERS
from training.pipeline.options import PipelineConfig, decay_schedule
from training.start.options import StartConfig

DEFAULT_MODEL = "bert_12_768_12"
PUBLISHED_VOCABULARIES = {  # --dataset_name: number of tokens, of the vocabularies that GluonNLP downloads
    "book_corpus_wiki_en_uncased": 30522,
    "book_corpus_wiki_en_cased": 28996,
    "wiki_multilingual_uncased": 105879,
    "wiki_multilingual_cased": 119547,
    "wiki_cn_cased": 21128,
}
# Of --accumulate. More passes than sequences in twice the LAMB paper's largest step are a slip of the pen,
# and a step that takes days can neither be logged nor stopped.
accumulation = whole(1, 65_536, "a sequence each in the LAMB paper's largest step")
decay = within(0, 0.999999)  # closer to 1 float32 has few numbers, and a mean would hardly move


@dataclass(frozen=True)
class ModelConfig:
    """The network: options as given, and what they come to.

    Attributes:
        bert: of --model or --config_file, GELU in the form to be used.
        source: the name of --config_file; None for --model.
        dtype: None: float16 on GPUs, float32 without.
        vocab_size: rows of the word embedding, of --config_file; None: as many as the vocabulary has tokens.
        initial_stdev: of random weights.
        unknown_keys: of --config_file.
    """

    bert: BertConfig
    name: str | None = option(
        "bert_12_768_12 (base), bert_24_1024_16 (large), any bert_LAYERS_UNITS_HEADS (default: base)",
        name="model",
    )
    source: str | None = option(
        "instead of --model: a bert_config.json of Google's or NVIDIA's, or Hugging Face's config.json",
        path_name,
        "FILE",
        name="config_file",
    )
    gelu: str | None = option(
        "form of the activation: erf, x times the normal distribution, as GluonNLP, NVIDIA and Hugging Face "
        "have it; tanh, the approximation in Google's code, with which Google's parameters were trained "
        "(default: as --config_file says; erf where it says no more than gelu, and with --model)",
        choices=GELU_FORMS,
    )
    pretrained: bool = flag("start from Google's published parameters (a download)")
    dataset_name: str = option(
        "vocabulary to download without --vocab and --sentencepiece",
        default="book_corpus_wiki_en_uncased",
        choices=sorted(PUBLISHED_VOCABULARIES),
    )
    dtype: str | None = option(
        "float16 keeps float32 master weights and scales the loss; for GPUs. bfloat16 rounds the factors of "
        "matrix products; for CPUs, faster on those that multiply it (AVX-512 BF16, AMX). bfloat16x3 splits "
        "float32 factors into two bfloat16 parts and multiplies three times, PyTorch's matmul precision "
        "high: 16 bits, float32 has 24 and bfloat16 8; for CPUs with AMX, between the two in speed: where "
        "float32's results are wanted sooner (default: float16 on GPUs, float32 without)",
        choices=["float32", "float16", "bfloat16", BFLOAT16X3],
    )
    operators: str = option(
        "fused: this project's operators, for CPUs; mxnet: MXNet's own (default: fused where they can be "
        "used and have been built)",
        default="auto",
        choices=["auto", "fused", "mxnet"],
    )
    padding: str = option(
        "remove: the fused operators compute tokens alone, sequences end to end; for batches with much "
        "padding, above 5%% of their positions, which data.inspect counts",
        default=KEEP,
        choices=PADDING,
    )
    recompute: bool = flag(
        "keep the results of layers only, and compute what their backward pass needs again there: the same "
        "bits from less memory, for up to 30%% more time; for long sequences and large batches that do not "
        "fit otherwise"
    )
    dropout: float = option(
        "of activations, below 1 (default: of --config_file, else 0.1, as BERT)",
        rate,
        default=DROPOUT,
        staged=True,
        unset=True,
    )
    attention_dropout: float | None = option(
        "of the attention's probabilities, below 1; with another rate than --dropout the fused "
        "operators are some percent slower (default: as --dropout; of --config_file, where that is left out)",
        rate,
        staged=True,
    )
    vocab_size: int | None = None
    initial_stdev: float = INITIAL_STDEV
    unknown_keys: tuple[str, ...] = ()

    @property
    def of_fused_operators(self) -> list[str]:
        """Options given that MXNet's own operators do not have."""
        removes = ["--padding remove"] if self.padding == REMOVE else []
        return [*removes, "--recompute"] if self.recompute else removes

    @property
    def rates(self) -> Dropout:
        """Both rates of dropout."""
        attention = self.attention_dropout
        return Dropout(self.dropout, self.dropout if attention is None else attention)


@dataclass(frozen=True)
class BatchConfig:
    """Sequences of a step: `batch_size` of a process and micro-batch, in tokens with `use_avg_len`; these and
    `max_predictions_per_seq` are options of data.options.

    `processes`: those that `accumulate` counts for. It is not an option: the run's start says it
    (training.start.start.processes_to_count).
    """

    batch_size: int
    use_avg_len: bool = False
    accumulate: int = option(
        "micro-batches per step; a step sees batch_size x processes x accumulate",
        accumulation,
        default=1,
        staged=True,
    )
    batch_size_eval: int = option("sequences per process in evaluation", positive_int, default=8, staged=True)
    max_predictions_per_seq: int | None = None
    processes: int = 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step, over all processes."""
        return self.accumulate * self.processes


@dataclass(frozen=True)
class OptimizationConfig:
    """Steps, learning rate and update; None stands for the LAMB paper's value."""

    num_steps: int | None = option(
        "optimizer steps (default: the LAMB paper's for this batch size)", positive_int, staged=True
    )
    num_epochs: float | None = option(
        "passes over --data, in place of --num_steps; steps are counted on the first pass and rounded up. "
        "BERT had 40",
        within(1e-6, 1e6),
        "EPOCHS",
        staged=True,
    )
    lr: float | None = option(
        "peak learning rate (default: the LAMB paper's for this batch size)", positive, staged=True
    )
    warmup_ratio: float | None = option(
        "share of the steps that warm up (default: the LAMB paper's)", probability, staged=True
    )
    end_lr: float = option("learning rate at the last step", not_negative, default=0.0, staged=True)
    schedule: str = option(
        "after the warmup. polynomial: decay to the last step; wsd: constant, and a cooldown at the end, so "
        "that a run can be made longer later",
        decay_schedule,
        default="polynomial",
        choices=list(DECAY_POWERS),
    )
    cooldown_ratio: float | None = option(
        f"wsd: share of the steps that cool down; 0.1 to 0.2 is usual (default: {COOLDOWN_RATIO:g})",
        share,
        staged=True,
    )
    decay_power: float = option(
        "polynomial: remaining share of the decay to this power, 1 is linear; wsd: 1 - elapsed share of the "
        "cooldown to this power, 0.5 is 1-sqrt, 1 linear (default: 1; wsd: 0.5)",
        positive,
        default=1.0,
        staged=True,
        unset=True,
    )
    budget_hours: float | None = option(
        "end after so many hours of training, saving, evaluation and start-up not counted, resumed runs "
        "included; the schedule follows the elapsed share of them. In place of --num_steps",
        within(1e-6, 1e6),
        "HOURS",
        staged=True,
    )
    optimizer: str = option(
        "lamb for large steps, adamw for small ones; muon, which is AdamW but for the layers' matrices, "
        "needs fewer of these, and --shard_states divides its work (default: lamb)",
        default="lamb",
        choices=["lamb", "bertadam", "adamw", "muon"],
    )
    optimizer_state: str = option(
        "type of LAMB's and Adam's moments. bfloat16, stochastically rounded by the fused operators, saves "
        "4 bytes a parameter and a fifth of the update: for where memory is short, or batches so small that "
        "the update is a tenth of the step or more",
        default="float32",
        choices=["float32", "bfloat16"],
    )
    shard_states: bool = flag(
        "divide the moments (and float16's masters) over all processes: each updates a share of the "
        "parameters and sends it to the others; the same bits. Saves 8 bytes a parameter (12 in float16) but "
        "for the share, and costs up to another exchange a step: for models that do not fit otherwise",
        scope=LAUNCH,
    )
    bias_correction: bool = flag("LAMB with Adam's bias correction (the authors' code has none)")
    lower_bound: float | None = option("LAMB: least weight norm in the trust ratio", positive)
    upper_bound: float | None = option("LAMB: greatest weight norm in the trust ratio", positive)
    beta1: float = option("decay of the mean of gradients a step; 0.9 is usual", decay, default=0.9)
    beta2: float = option(
        "decay of the mean of their squares, over the last 1 / (1 - beta2) steps or so; 0.98 where the loss "
        "jumps, or a run has only some thousand steps",
        decay,
        default=0.999,
    )
    epsilon: float = option(
        "added to the root of the mean square; 1e-6 to 1e-8 are usual",
        within(LEAST_EPSILON, 1.0),
        default=1e-6,
    )
    weight_decay: float = option(
        "share of a weight that lr takes off in a step, biases and LayerNorm exempt; 0.01 to 0.1 are usual",
        not_negative,
        default=0.01,
    )
    clip_norm: float = option(
        "global norm of the averaged gradient; 0: off", not_negative, default=1.0, staged=True
    )
    spikes: str = option(
        "steps whose loss or gradient norm is far above that of the steps before, twice or ten times their "
        "median and more than they scatter. skip: no update, and the end of the run after 20 in a row; take: "
        "as any other",
        default=SKIP,
        choices=SPIKES,
    )
    seed: int | None = option(
        "of parameters, data order, masks, dropout (default: the checkpoint's, else 0)", seed
    )


@dataclass(frozen=True)
class CheckpointConfig:
    """Place and interval of checkpoints, and the one that a run begins with."""

    ckpt_dir: str = option(
        "checkpoints, metrics and plots, of one run at a time", path_name, default="./ckpt_dir", scope=RANK
    )
    ckpt_interval: int | None = option(  # None: the plan's
        "steps between checkpoints", positive_int, default=25000, staged=True
    )
    eval_interval: int | None = option(
        "steps between evaluations; an evaluation takes the time of some steps (default: as --ckpt_interval)",
        positive_int,
        staged=True,
    )
    keep_best: bool = flag(
        "keep the checkpoint of the best evaluation, by MLM loss or, in fine-tuning, main score, beside the "
        "newest ones; FOLDER:best names it. For runs that may get worse, as on small data",
        scope=LAUNCH,
    )
    keep_checkpoints: int = option("keep only the newest so many; 0 keeps all", count, default=0)
    keep_interval: int | None = option(
        "steps between checkpoints that --keep_checkpoints never deletes, a multiple of --ckpt_interval",
        positive_int,
        scope=LAUNCH,
    )
    resume: bool = flag("continue from the newest complete checkpoint in ckpt_dir, if any", scope=LAUNCH)
    start_step: int = option("continue from the checkpoint of this step", count, default=0)


@dataclass(frozen=True)
class ReportConfig:
    """Output beside the checkpoints."""

    log_interval: int = option(
        "steps between lines of metrics (default: %(default)s)",
        positive_int,
        default=250,
        scope=LAUNCH,
        staged=True,
    )
    progress: str = option(
        "auto: a bar on a terminal, lines elsewhere",
        default="auto",
        choices=["auto", "bar", "lines", "none"],
        scope=RANK,
    )
    peak_tflops: float | None = option(
        "10^12 operations a second that a process's device reaches at most, which mfu is the share of; 312 "
        "for an A100 in float16 (default: measured in matrix products, at the start and now and then)",
        positive,
        "TFLOPS",
        scope=LAUNCH,
    )
    verbose: bool = flag("print all options, and a line for every step", scope=RANK)
    estimate: bool = flag(
        "print the memory that the run needs, by its use, beside what is there, and leave; exit code 2 "
        "where it does not fit. Rule of thumb: 16 bytes a parameter, 12 more in rank 0 for its copy while "
        "it saves, and what a batch's activations take"
    )
    notify: str | None = option(
        "a command that rank 0 has a shell run at a failure, when the run goes on, and at its end, with "
        "RUN_EVENT, RUN_MESSAGE and RUN_CODE in its environment; nobody waits for it",
        not_empty,
        "COMMAND",
        scope=RANK,
    )
    profile: str | None = option(
        "write a trace of steps 10 to 14 for python -m training.profile and Chrome's viewers (rank 1 writes "
        "FILE.1, ...)",
        path_name,
        "FILE",
        scope=RANK,
    )
    compression: str = "none"  # of comm.options, for the bytes that a trace states


@dataclass(frozen=True)
class RunConfig:
    """All of a run, or of one of its stages.

    `options`: every option by name, as a checkpoint records them; `given`: those of all stages, with pairs;
    `table`: what each of them is.
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
    table: Table = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Whether there is something to train on, and not to evaluate alone."""
        return bool(self.data.data or self.data.dummy_data_len)


def model_config(options: argparse.Namespace) -> ModelConfig:
    """The network that --model or --config_file, --gelu, --dropout and --attention_dropout stand for.

    Raises:
        InputError: as `parse_model` and `read_config_file`; --gelu against the file.
    """
    config = taken(ModelConfig, options, bert=named_config(options.model or DEFAULT_MODEL))
    if config.source is not None:
        return _of_file(config, dropout_given=options.dropout is not None)
    gelu = config.gelu
    return replace(config, bert=replace(config.bert, activation=gelu)) if gelu else config


def _of_file(config: ModelConfig, dropout_given: bool) -> ModelConfig:
    """`config` with all that its --config_file says."""
    path, gelu = str(config.source), config.gelu
    file = read_config_file(path, "--config_file")
    if file.config.token_types < 2:
        raise InputError(
            f"--config_file {path}: type_vocab_size is {file.config.token_types}, and sentence pairs need 2"
        )
    if not dropout_given:
        hidden, attention = (
            DROPOUT if rate is None else rate for rate in (file.dropout, file.attention_dropout)
        )
        given = config.attention_dropout
        config = replace(config, dropout=hidden, attention_dropout=attention if given is None else given)
    return replace(
        config,
        bert=file.with_gelu(gelu, path) if gelu else file.config,
        vocab_size=file.vocab_size,
        initial_stdev=INITIAL_STDEV if file.initial_stdev is None else file.initial_stdev,
        unknown_keys=file.unknown_keys,
    )
