"""A run: everything it has, opened in its order, and the state that a checkpoint holds of it."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass, field, replace
from typing import Any, Mapping, Sequence

import numpy as np

from base.errors import InputError
from base.launchers import HVD
from bert.configuration import REMOVE
from bert.model import each_once, network_parameters, trained
from comm.base import Communicator
from data.sharing import Share
from tasks.base import Task
from training.agreement import agree
from training.config import ModelConfig, RunConfig
from training.device import choose_computing
from training.estimate import split_of, stages_of
from training.evaluation import evaluate
from training.exchange import broadcast_json
from training.feed import EvaluationFeed, Feed
from training.metrics import Stopwatch, finite_or_none
from training.model import Model, model_of_stage, whole_model
from training.optimizer.moments import MomentType, check_moments
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import DynamicScaler, LossScaler, SkipCounter, StaticScaler
from training.optimizer.update_rule import Rule
from training.pipeline.evaluation import evaluate_stages
from training.pipeline.parameters import restore_stages
from training.pipeline.placement import Place
from training.pipeline.ranks import Ranks, Readers
from training.pipeline.saving import check_tied, gather
from training.pipeline.split import make_split
from training.plan import RunPlan
from training.report import Reporter, RunReporter, Span
from training.run_file import write_run_file
from training.run_inputs import Part, RunInputs
from training.saving import Saver
from training.start.restoring import live_arrays, restore_states
from training.start.start import (
    Start,
    changed_options,
    data_seed,
    position_to_continue,
    processes_to_count,
)
from training.start.vocabulary import write_vocabulary
from training.start_options import OPTIMIZER, SCHEDULE


@dataclass(frozen=True)
class Crew:
    """The ranks of a run; `ranks`: in their places, where its layers lie on several."""

    communicator: Communicator
    ranks: Ranks | None = None

    @property
    def processes(self) -> int:
        """Those that share the data, for which --batch_size and --accumulate count."""
        return self.communicator.size if self.ranks is None else self.ranks.place.data_size


@dataclass
class Run:
    """Everything that a run has. `feed` is None where nothing is trained."""

    config: RunConfig
    inputs: RunInputs
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
    saver: Saver
    clock: Stopwatch = field(default_factory=Stopwatch)
    wall: Stopwatch = field(default_factory=Stopwatch)
    saved_vocabulary: Mapping[str, Any] | None = None
    ranks: Ranks | None = None

    @property
    def place(self) -> Place:
        """The place of this rank; without pipelines every rank is one of one stage."""
        communicator = self.communicator
        return self.ranks.place if self.ranks else Place(communicator.rank, communicator.size, 0, 1)

    @property
    def parameters(self) -> int:
        """Numbers that the whole model has."""
        found = each_once(self.model.network.bert._collect_params_with_prefix()) if self.ranks else None
        return sum(int(np.prod(each.shape)) for each in (found or trained(self.model.network)).values())

    @property
    def stage_entry(self) -> dict[str, int]:
        """`stage` for a line of the metrics; nothing for a run without stages."""
        return {} if self.start.stage is None else {"stage": self.start.stage}

    @property
    def ckpt_interval(self) -> int:
        """Steps between checkpoints: as given, else the plan's."""
        return self.config.checkpoint.ckpt_interval or self.plan.ckpt_interval or self.plan.schedule.num_steps

    def evaluate(self, step: int) -> None:
        """Evaluates and reports, if there is something to evaluate on; every rank calls it."""
        if self.eval_feed is not None:
            batches, collector = self.eval_feed(), self.eval_feed.collector()
            network, device = self.model.network, self.model.device
            if self.ranks:
                metrics = evaluate_stages(self.task, network, batches, self.ranks, device)
            else:
                metrics = evaluate(self.task, network, batches, self.communicator, device, collector)
            self.reporter.evaluation({"step": step, **self.stage_entry, **metrics})

    def state(self, ended: bool = False) -> dict[str, Any]:
        """The facts of a checkpoint's manifest, besides its own entries: all that is no array.

        `ended`: whether the run, or its stage, has taken its last step.
        """
        vocabulary = self.inputs.vocabulary
        assert self.feed is not None, "only what trains is saved"
        return {
            **self.config.model.bert.facts(),
            "vocab_size": self.inputs.vocab_size,
            "vocab_sha256": vocabulary.sha256 if vocabulary else None,
            "vocabulary": self.saved_vocabulary,
            "stage": self.start.stage,
            "begun": self.start.begun,
            "num_steps": self.plan.num_steps,
            "ended": ended,
            "world_size": self.communicator.size,
            "processes": self.config.batch.processes,
            "options": dict(self.config.options),
            "scaler": self.scaler.state(),
            "skips": self.skips.state(),
            "seed": self.seed,
            "blocks": self.feed.position,
            "ckpt_interval": self.ckpt_interval,
            "training_s": self.clock.total,
            "wall_s": finite_or_none(self.wall.total),
        }

    def save(self, step: int, ended: bool = False, prunes: bool = True) -> None:
        """Begins to save the checkpoint of `step`; every rank calls it, rank 0 writes (training/saving.py).

        `ended`: as for `state`; `prunes`: whether older ones than --keep_checkpoints are deleted.
        """
        parameters: Mapping[str, Any] = live_arrays(network_parameters(self.model.network))
        states = self.optimizer.state_views()
        if self.ranks:
            check_tied(self.model.network, self.ranks)
            parameters, states, messages = gather(self.model.network, self.optimizer, self.ranks)
            self.saver.lend(messages)
        if self.communicator.rank == 0:
            self.saver.begin(step, parameters, states, self.state(ended), prunes)

    def prune(self, step: int) -> None:
        """Deletes checkpoints up to `step` but for the newest --keep_checkpoints; rank 0 does it."""
        if self.communicator.rank == 0:
            self.saver.prune(step, self.start.begun)

    def restore(self) -> None:
        """Gives every rank what it takes over of the checkpoint that the run starts from: optimizer states,
        loss scale, count of skipped steps. The parameters were restored when the model was made.

        Raises:
            InputError: states of another model or dtype.
        """
        start = self.start
        if self.ranks:
            restore_stages(start, self.model.network, self.optimizer, self.ranks)
        else:
            restore_states(start, self.optimizer, self.communicator)
        if start.keeps(OPTIMIZER):
            self.scaler.restore(start.facts["scaler"])
        if start.facts and start.step:  # the same run, perhaps another stage of it
            self.skips.restore(start.facts["skips"])

    def introduce(self, warnings: Sequence[str]) -> None:
        """Reports warnings, and the run's model, devices and options."""
        config, model = self.config, self.model
        for message in warnings:
            self.reporter.warn(message)
        size = self.communicator.size
        without = " without padding" if config.model.padding == REMOVE else ""
        self.reporter.note(
            f"{config.model.bert.description}, {self.parameters / 1e6:,.1f} M parameters, vocabulary "
            f"{self.inputs.vocab_size:,}, {model.dtype} on {model.operators} operators{without}, {size} "
            f"process{'es' if size > 1 else ''} on {model.device.device_type}, OMP_NUM_THREADS "
            f"{os.environ.get('OMP_NUM_THREADS')}, seed {self.seed}"
        )
        if config.model.source is not None:
            self.reporter.note(_of_config_file(config.model))
        for name, value in sorted(config.options.items()):
            self.reporter.debug(f"--{name} {value}")
        if self.ranks:
            self.reporter.note(stages_of(Part(config, self.inputs), HVD))
        if self.feed is None:
            return
        self.reporter.note(self.plan.summary)
        batch, start, taking = config.batch, self.start, self.place.data_size
        if taking != batch.processes:
            share = Share(0, taking, batch.micro_batches)
            self.reporter.note(
                f"a step keeps the {batch.micro_batches} micro-batches of {batch.processes} "
                f"process{'es' if batch.processes > 1 else ''}: each of {taking} takes {share.each}"
            )
        if start.source:
            self.reporter.note(f"parameters of {start.source}")
        if start.begins_stage_2 and start.step:
            self.reporter.note(f"stage 2 begins after step {start.step}")
        elif start.step:
            hours = self.config.optimization.budget_hours
            spent = f" and {self.clock.at_start / 3600:.3g} of {hours:g} hours" if hours else ""
            self.reporter.note(f"continuing after step {start.step}{spent}")
        elif config.checkpoint.resume:
            self.reporter.note(
                f"no complete checkpoint in {config.checkpoint.ckpt_dir}: starting from the beginning"
            )


def open_run(part: Part, start: Start, task: Task, crew: Crew, stack: contextlib.ExitStack) -> Run:
    """Opens everything, in the order of a run; every rank calls it. What must be closed is left to `stack`.

    Raises:
        InputError: as `train_stages`.
    """
    wall = Stopwatch((start.facts.get("wall_s") or math.nan) if start.step else 0.0)
    communicator = crew.communicator
    readers = Readers(crew.ranks) if crew.ranks else communicator
    processes = processes_to_count(start, part.config, crew.processes)
    config = replace(part.config, batch=replace(part.config.batch, processes=processes))
    device, dtype, operators = choose_computing(config.model, communicator)
    check_moments(config.optimization.optimizer_state, operators, device.device_type == "gpu")
    plan = part.inputs.plan(config, processes)
    os.makedirs(config.checkpoint.ckpt_dir, exist_ok=True)
    inputs = part.inputs.completed(config, communicator)

    given_seed = config.optimization.seed
    seed = start.facts.get("seed", 0) if given_seed is None else given_seed
    trains = inputs.trains
    if plan.num_steps is not None and start.step > start.begun + plan.num_steps and trains:
        already = f"the checkpoint is already at step {start.step - start.begun}"
        of_stage = f" of stage {start.stage}" if start.stage else ""
        raise InputError(f"--num_steps {plan.num_steps}: {already}{of_stage}")
    reporter = Reporter()
    saved_vocabulary = None
    if communicator.rank == 0:
        shown = config.report
        last = None if plan.num_steps is None else start.begun + plan.num_steps
        span = Span(start.step, last, start.stage, start.begun)
        reporter = RunReporter(config.checkpoint.ckpt_dir, task, span, shown.progress, shown.verbose)
        if trains:  # an evaluation leaves the files of the run that it looks at
            place, tokenizer = config.checkpoint.ckpt_dir, config.data.tokenizer
            saved_vocabulary = write_vocabulary(place, inputs.vocabulary, tokenizer)
            write_run_file(config, communicator, seed, plan)
    stack.callback(reporter.close)
    feed = inputs.open_training(config, plan, data_seed(seed, start.stage), readers, reporter)
    if feed is not None:
        stack.callback(feed.close)
    eval_feed = inputs.open_evaluation(config, readers)
    opened = {"--data": feed, "--data_eval": eval_feed}
    agree({f"the content of {flag}": each.content for flag, each in opened.items() if each}, communicator)

    ranks = None
    if crew.ranks is None:
        model = whole_model(Part(config, inputs), start, task, communicator, seed)
    else:
        counts = broadcast_json(split_of(part).counts, communicator)
        ranks = crew.ranks.divided(config.model.bert, make_split(counts))
        model = model_of_stage(Part(config, inputs), start, task, ranks, seed)
    parameters = trained(model.network)
    settings = config.optimization
    optimizer = Optimizer(
        settings.optimizer,
        list(parameters),
        [parameter.data(device) for parameter in parameters.values()],
        Rule(
            bias_correction=settings.bias_correction,
            lower_bound=settings.lower_bound,
            upper_bound=settings.upper_bound,
            epsilon=settings.epsilon,
        ),
        native=operators == "fused",
        moments=MomentType(settings.optimizer_state, seed),
    )
    scaler: LossScaler = DynamicScaler() if dtype == "float16" else StaticScaler()
    kept = config.checkpoint.keep_checkpoints
    saver = stack.enter_context(Saver(config.checkpoint.ckpt_dir, kept, reporter))
    clock = Stopwatch(start.facts.get("training_s", 0.0) if start.keeps(SCHEDULE) else 0.0)
    run = Run(
        config, inputs, task, communicator, plan, start, seed, reporter, feed, eval_feed, model, optimizer,
        scaler, SkipCounter(), saver, clock, wall, saved_vocabulary, ranks,
    )  # fmt: skip
    run.restore()
    position, messages = position_to_continue(start, config.options, processes, inputs.data_options)
    warnings = [*start.messages, *inputs.messages, *changed_options(start, config), *messages, *plan.warnings]
    planned = start.facts.get("num_steps")
    if start.stage and start.stage == start.facts.get("stage") and planned != plan.num_steps:
        warnings.append(f"stage {start.stage} was planned for {planned} steps, and now has {plan.num_steps}")
    if ranks:
        warnings += ranks.warnings
    run.introduce(warnings)
    if feed is not None:
        feed.seek(position)
    return run


def _of_config_file(model: ModelConfig) -> str:
    """All that --config_file has settled, in a line."""
    bert = model.bert
    unknown = f"; keys not known here: {', '.join(model.unknown_keys)}" if model.unknown_keys else ""
    return (
        f"--config_file {model.source}: feed-forward layers of {bert.hidden} units, {bert.positions} "
        f"positions, {bert.token_types} token types, {bert.network}, dropout {model.dropout:g}, random "
        f"weights of standard deviation {model.initial_stdev:g}{unknown}"
    )
