"""A run: everything it has, opened in the order of a run, and the state that a checkpoint holds of it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from typing import Any, Sequence

import mxnet as mx
import numpy as np
from gluonnlp.model.bert import BERTModel

from base.errors import InputError, TrainingError
from bert.model import build_model, initialize, trainable
from bert.operators import choose_operators
from bert.weights.bare_params import check_index
from bert.weights.params_file import read_array, read_index
from bert.weights.published import download_vocabulary, load_published
from comm.base import Communicator
from data.tokenizing.vocab import Vocabulary
from tasks.base import Task
from training.checkpoint import Checkpoint, block_arrays, save
from training.config import ModelConfig, RunConfig
from training.evaluation import evaluate
from training.feed import EvaluationFeed, Feed, evaluation_feed, training_feed
from training.inputs import Inputs
from training.loop import Loop
from training.metrics import Stopwatch
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import DynamicScaler, LossScaler, SkipCounter, StaticScaler
from training.optimizer.update_rule import Rule
from training.plan import RunPlan, make_plan
from training.report import Reporter, RunReporter, SilentReporter
from training.run_file import write_run_file
from training.start import Start, broadcast_json, changed_options, find_start, position_to_continue


def train(config: RunConfig, inputs: Inputs, task: Task, communicator: Communicator) -> int:
    """Trains, evaluates and saves; every rank calls it.

    Returns:
        The exit code of the process: 0, 143 after SIGTERM or SIGUSR1, 130 after Ctrl-C.

    Raises:
        InputError: bad input that could not be identified before mxnet was imported.
        TrainingError: gradients that stay non-finite, a disk that is full.
    """
    with contextlib.ExitStack() as stack:
        run = open_run(config, inputs, task, communicator, stack)
        if run.feed is None:
            run.evaluate(run.start.step)
            return 0
        return Loop(run).to_the_end()


@dataclass
class Model:
    """A network on its device. `network`: the task's heads and losses above `bert`."""

    bert: BERTModel
    network: Any
    device: mx.Context
    dtype: str
    operators: str


@dataclass
class Run:
    """Everything that a run has. `feed` is None where nothing is trained."""

    config: RunConfig
    inputs: Inputs
    task: Task
    communicator: Communicator
    plan: RunPlan
    start: Start
    seed: int
    reporter: Reporter
    feed: Feed | None
    eval_feed: EvaluationFeed | None
    model: Model
    optimizer: Optimizer
    scaler: LossScaler
    skips: SkipCounter
    clock: Stopwatch = field(default_factory=Stopwatch)

    def evaluate(self, step: int) -> None:
        """Evaluates and reports, if there is --data_eval; every rank calls it."""
        if self.eval_feed is not None:
            batches = self.eval_feed()
            metrics = evaluate(self.task, self.model.network, batches, self.communicator, self.model.device)
            self.reporter.evaluation({"step": step, **metrics})

    def state(self) -> dict[str, Any]:
        """The facts of a checkpoint's manifest, besides its own entries: all that is no array."""
        vocabulary = self.inputs.vocabulary
        assert self.feed is not None, "only what trains is saved"
        return {
            **self.config.model.bert.facts(),
            "vocab_size": self.inputs.vocab_size,
            "vocab_sha256": vocabulary.sha256 if vocabulary else None,
            "world_size": self.communicator.size,
            "options": dict(self.config.options),
            "scaler": self.scaler.state(),
            "skips": self.skips.state(),
            "seed": self.seed,
            "blocks": self.feed.position,
            "training_s": self.clock.total,
        }

    def save(self, step: int) -> Checkpoint | None:
        """Writes the checkpoint of `step`; every rank calls it, rank 0 writes.

        Raises:
            TrainingError: a parameter is not finite, or it could not be written; earlier checkpoints are
                intact.
        """
        if self.communicator.rank != 0:
            return None
        arrays = block_arrays(self.model.bert)
        if not all_finite(list(arrays.values())):
            raise TrainingError(
                f"a parameter is no longer finite at step {step}, so it is not saved; lower --lr and "
                "--resume from the checkpoint before"
            )
        place = self.config.checkpoint
        states = self.optimizer.state_views()
        saved = save(place.ckpt_dir, step, arrays, states, self.state(), keep=place.keep_checkpoints)
        self.reporter.note(f"saved {saved.params_path}")
        return saved

    def restore(self) -> None:
        """Gives every rank the optimizer states, the loss scale and the count of skipped steps of the
        checkpoint that the run starts from, if any. The parameters were restored when the model was made.

        Raises:
            InputError: states of another model or dtype.
        """
        if self.start.kind != "resumed":
            return
        if self.start.checkpoint is not None:
            with self.start.checkpoint.open_states() as states:
                self.optimizer.restore(states)
        (self.optimizer.t,) = broadcast_json([self.optimizer.t], self.communicator)
        self.communicator.broadcast(list(self.optimizer.state_arrays().values()))
        self.scaler.restore(self.start.facts["scaler"])
        self.skips.restore(self.start.facts["skips"])

    def introduce(self, warnings: Sequence[str]) -> None:
        """Reports warnings, and the run's model, devices and options."""
        config, model = self.config, self.model
        for message in warnings:
            self.reporter.warn(message)
        count = sum(int(np.prod(parameter.shape)) for parameter in trainable(model.bert).values())
        size = self.communicator.size
        self.reporter.note(
            f"{config.model.bert.description}, {count / 1e6:,.1f} M parameters,"
            f" vocabulary {self.inputs.vocab_size:,}, {model.dtype} on {model.operators} operators,"
            f" {size} process{'es' if size > 1 else ''} on {model.device.device_type},"
            f" OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS')},"
            f" seed {self.seed}"
        )
        if config.model.source is not None:
            self.reporter.note(_of_config_file(config.model))
        for name, value in sorted(config.options.items()):
            self.reporter.debug(f"--{name} {value}")
        if self.feed is None:
            return
        self.reporter.note(self.plan.summary)
        if self.start.step:
            hours = self.config.optimization.budget_hours
            spent = f" and {self.clock.at_start / 3600:.3g} of {hours:g} hours" if hours else ""
            self.reporter.note(f"continuing after step {self.start.step}{spent}")
        elif config.checkpoint.resume:
            self.reporter.note(
                f"no complete checkpoint in {config.checkpoint.ckpt_dir}: starting from the beginning"
            )


def open_run(
    config: RunConfig, inputs: Inputs, task: Task, communicator: Communicator, stack: contextlib.ExitStack
) -> Run:
    """Opens everything, in the order of a run; every rank calls it. What must be closed is left to `stack`.

    Raises:
        InputError: as `train`.
    """
    device = mx.gpu(communicator.local_rank) if mx.context.num_gpus() else mx.cpu()
    dtype = _dtype(config.model, device)
    operators = choose_operators(config.model.operators, dtype, device, config.model.bert)
    plan = make_plan(config.batch, config.optimization, communicator.size, inputs.max_seq_length)
    os.makedirs(config.checkpoint.ckpt_dir, exist_ok=True)
    if inputs.vocabulary is None and inputs.reads_text:
        vocabulary = _downloaded_vocabulary(config.model.dataset_name, communicator)
        inputs = replace(inputs, vocabulary=vocabulary)

    start = find_start(config, communicator)
    given_seed = config.optimization.seed
    seed = start.facts.get("seed", 0) if given_seed is None else given_seed
    trains = bool(config.data.data or config.data.dummy_data_len)
    if plan.num_steps is not None and start.step > plan.num_steps and trains:
        raise InputError(f"--num_steps {plan.num_steps}: the checkpoint is already at step {start.step}")
    reporter: Reporter = SilentReporter()
    if communicator.rank == 0:
        shown = config.report
        reporter = RunReporter(
            config.checkpoint.ckpt_dir, task, start.step, plan.num_steps, shown.progress, shown.verbose
        )
        if trains:  # an evaluation leaves the file of the run that it looks at
            write_run_file(config, communicator, seed, plan)
    stack.callback(reporter.close)
    feed = training_feed(config, inputs, plan, seed, communicator, reporter)
    if feed is not None:
        stack.callback(feed.close)
    eval_feed = evaluation_feed(config, inputs, communicator)

    shape, dropout = config.model.bert, config.model.dropout
    bert = build_model(shape, inputs.vocab_size, dropout)
    initialize(bert, device, "float16" if dtype == "float16" else "float32", seed, config.model.initial_stdev)
    if start.published and communicator.rank == 0:  # the others get rank 0's
        load_published(bert, shape.name, start.published, device)
    restore_parameters(start, bert, communicator, device)
    parameters = trainable(bert)
    settings = config.optimization
    optimizer = Optimizer(
        settings.optimizer,
        list(parameters),
        [parameter.data(device) for parameter in parameters.values()],
        Rule(
            bias_correction=settings.bias_correction,
            lower_bound=settings.lower_bound,
            upper_bound=settings.upper_bound,
        ),
        native=operators == "fused",
    )
    scaler: LossScaler = DynamicScaler() if dtype == "float16" else StaticScaler()
    network = task.network(bert, shape, dtype, dropout, operators)
    model = Model(bert, network, device, dtype, operators)
    run = Run(
        config, inputs, task, communicator, plan, start, seed, reporter, feed, eval_feed, model, optimizer,
        scaler, SkipCounter(), Stopwatch(start.facts.get("training_s", 0.0)),
    )  # fmt: skip
    run.restore()
    position, messages = position_to_continue(start, config.options, communicator.size)
    run.introduce([*start.messages, *changed_options(start, config), *messages, *plan.warnings])
    if feed is not None:
        feed.seek(position)
    return run


def restore_parameters(start: Start, bert: BERTModel, communicator: Communicator, device: mx.Context) -> None:
    """Gives every rank rank 0's parameters: the checkpoint's, or those it has initialized. To be called
    before the optimizer takes its copies.

    Raises:
        InputError: on rank 0, for parameters of another model, or of a bare .params file that the model's
            dtype cannot hold.
    """
    if start.checkpoint is not None:
        path = start.checkpoint.params_path
        named = bert._collect_params_with_prefix()
        arrays = read_index(path)
        check_index(path, arrays, {name: parameter.shape for name, parameter in named.items()})
        for name, info in arrays.items():
            with np.errstate(over="ignore"):  # what does not fit into float16 is looked for below
                array = read_array(path, info).astype(np.dtype(named[name].dtype), copy=False)
            named[name].set_data(mx.nd.array(array, ctx=device, dtype=array.dtype))
        if start.checkpoint.manifest is None and not all_finite(list(block_arrays(bert).values())):
            dtypes = {np.dtype(parameter.dtype).name for parameter in named.values()}
            raise InputError(
                f"{path}: it has numbers that are not finite in {' or '.join(sorted(dtypes))}; name a file "
                "that was saved before training diverged, or train with --dtype float32"
            )
    communicator.broadcast(list(block_arrays(bert).values()))


def all_finite(arrays: list[mx.nd.NDArray]) -> bool:
    """Whether no array holds an infinity or a NaN. Waits for the device."""
    # MXNet's operator takes 200 arrays at most and overruns its buffer with more.
    parts = [arrays[start : start + 100] for start in range(0, len(arrays), 100)]
    return all(mx.nd.multi_all_finite(*part, num_arrays=len(part)).asscalar() == 1 for part in parts)


def _of_config_file(model: ModelConfig) -> str:
    """All that --config_file has settled, in a line."""
    bert = model.bert
    unknown = f"; keys not known here: {', '.join(model.unknown_keys)}" if model.unknown_keys else ""
    return (
        f"--config_file {model.source}: feed-forward layers of {bert.hidden} units, {bert.positions} "
        f"positions, {bert.token_types} token types, GELU by {bert.gelu}, dropout "
        f"{model.dropout:g}, random weights of standard deviation {model.initial_stdev:g}{unknown}"
    )


def _dtype(config: ModelConfig, device: mx.Context) -> str:
    on_gpu = device.device_type == "gpu"
    if config.dtype == "float16" and not on_gpu:
        raise InputError("--dtype float16: MXNet multiplies float16 matrices on GPUs only; use float32 here")
    return config.dtype or ("float16" if on_gpu else "float32")


def _downloaded_vocabulary(dataset_name: str, communicator: Communicator) -> Vocabulary:
    """One rank of each host downloads, the others then find it on disk."""
    if communicator.local_rank == 0:
        vocabulary = download_vocabulary(dataset_name)
    communicator.barrier()
    return vocabulary if communicator.local_rank == 0 else download_vocabulary(dataset_name)
