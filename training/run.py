"""A run: everything it has, opened in its order, the state that a checkpoint holds of it, and its run.yaml:
every option with its value, for --options_file to repeat it."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
from dataclasses import dataclass, replace
from typing import Any, Mapping, Sequence

import numpy as np

from base import notify
from base.errors import InputError
from base.files import is_temporary
from base.launchers import HVD
from base.tables import terminal
from bert.configuration import REMOVE
from bert.model import each_once, live_arrays, network_parameters, trained
from comm.base import Communicator
from data.pretraining.prefetch import Feed
from data.sharing import Share
from tasks.base import Task
from training.agreement import agree, check_replicas
from training.checkpoint import Kept, library_versions
from training.config import ModelConfig, RunConfig
from training.estimate import estimate, shape_of
from training.exchange import broadcast_json
from training.guard import SKIP, Guard
from training.metrics import Stopwatch, evaluate, finite_or_none, forward
from training.model import Model, choose_computing, make_optimizer, open_model
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import DynamicScaler, LossScaler, SkipCounter
from training.optimizer.shards import ShardedOptimizer
from training.optimizer.states import check_moments
from training.options_file import OPTION, RUN_FILE, write_options
from training.pipeline.ranks import Ranks
from training.pipeline.split import make_split
from training.pipeline.state import check_tied, gather
from training.pipeline.step import forward_stages
from training.plan import RunPlan
from training.profiling.profiler import TracePlan
from training.report import Reporter, RunReporter, Span
from training.run_inputs import EvaluationFeed, Part, RunInputs
from training.saving import Saver
from training.start.options import OPTIMIZER, SCHEDULE
from training.start.restoring import restore_parameters, restore_states
from training.start.start import Start, data_seed
from training.start.vocabulary import write_vocabulary


@dataclass
class Run:
    """Everything that a run has. `feed` is None where nothing is trained."""

    config: RunConfig
    inputs: RunInputs
    task: Task
    ranks: Ranks
    plan: RunPlan
    start: Start
    seed: int
    reporter: Reporter
    feed: Feed[Any] | None
    eval_feed: EvaluationFeed | None
    model: Model
    optimizer: Optimizer
    scaler: LossScaler
    skips: SkipCounter
    guard: Guard
    saver: Saver
    clock: Stopwatch
    wall: Stopwatch
    saved_vocabulary: Mapping[str, Any] | None

    @property
    def communicator(self) -> Communicator:
        """The exchange between all ranks."""
        return self.ranks.world

    @property
    def parameters(self) -> int:
        """Numbers that the whole model has."""
        found = (
            each_once(self.model.network.bert._collect_params_with_prefix()) if self.ranks.pipelined else None
        )
        return sum(int(np.prod(each.shape)) for each in (found or trained(self.model.network)).values())

    @property
    def stage_entry(self) -> dict[str, int]:
        """`stage` for a line of the metrics; nothing for a run without stages."""
        return {} if self.start.stage is None else {"stage": self.start.stage}

    @property
    def ckpt_interval(self) -> int:
        """Steps between checkpoints: as given, else the plan's."""
        return self.config.checkpoint.ckpt_interval or self.plan.ckpt_interval or self.plan.schedule.num_steps

    @property
    def eval_interval(self) -> int:
        """Steps between evaluations: as given, else those between checkpoints."""
        return self.config.checkpoint.eval_interval or self.ckpt_interval

    def evaluate(self, step: int) -> dict[str, Any]:
        """Evaluates and reports, if there is something to evaluate on; every rank calls it.

        Returns:
            the line of the metrics, with a task's scores on rank 0 alone; empty without an evaluation.
        """
        metrics: dict[str, Any] = {}
        if self.eval_feed is not None:
            batches, network, device = self.eval_feed(), self.model.network, self.model.device
            if self.ranks.pipelined:
                passes = forward_stages(self.task, network, batches, self.ranks, device)
            else:
                passes = forward(self.task, network, batches, device)
            collector = self.eval_feed.collector() if self.eval_feed.collector else None
            controlled = self.eval_feed.controls is not None
            metrics = evaluate(self.task, passes, self.communicator, device, collector, controlled)
            metrics = {"step": step, **self.stage_entry, **metrics}
            self.reporter.evaluation(metrics)
        return metrics

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
            "classes": self.inputs.about.classes,
            "stage": self.start.stage,
            "begun": self.start.begun,
            "num_steps": self.plan.num_steps,
            "ended": ended,
            "world_size": self.communicator.size,
            "processes": self.config.batch.processes,
            "options": dict(self.config.options),
            "scaler": self.scaler.state(),
            "skips": self.skips.state(),
            "guard": self.guard.state(),
            "seed": self.seed,
            "blocks": self.feed.position,
            "ckpt_interval": self.ckpt_interval,
            "eval_interval": self.eval_interval,
            "training_s": self.clock.total,
            "wall_s": finite_or_none(self.wall.total),
        }

    def save(self, step: int, ended: bool = False, prunes: bool = True) -> None:
        """Begins to save the checkpoint of `step`; every rank calls it, rank 0 writes (training/saving.py).

        `ended`: as for `state`; `prunes`: whether older ones than --keep_checkpoints are deleted.

        Raises:
            TrainingError: a rank's parameters or states are not the others'; nothing is saved.
        """
        check_replicas(step, self.model.network, self.optimizer, self.ranks)
        parameters: Mapping[str, Any] = live_arrays(network_parameters(self.model.network))
        states = self.optimizer.state_views()
        if isinstance(self.optimizer, ShardedOptimizer):
            self.saver.finish()
            states = self.optimizer.gathered(self.saver.room)
        if self.ranks.pipelined:
            check_tied(self.model.network, self.ranks)
            parameters, states, messages = gather(self.model.network, self.optimizer, self.ranks)
            self.saver.lend(messages)
        if self.communicator.rank == 0:
            self.saver.begin(step, parameters, states, self.state(ended), prunes)

    def introduce(self, warnings: Sequence[str]) -> None:
        """Reports these and further warnings, and the run's model, devices and options."""
        config, model, start = self.config, self.model, self.start
        trains = self.feed is not None  # an evaluation has no use for the plan
        for message in (*warnings, *(self.plan.warnings if trains else ())):
            self.reporter.warn(message)
        planned, now = start.facts.get("num_steps"), self.plan.num_steps
        if trains and start.stage and start.stage == start.facts.get("stage") and planned != now:
            said = f"stage {start.stage} was planned for {planned} steps, and now has {now}"
            self.reporter.warn(said)
        for message in self.ranks.warnings:
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
        if self.ranks.pipelined:
            stages = estimate(Part(config, self.inputs), HVD).stages
            assert stages is not None, "a pipeline"
            self.reporter.note(terminal(stages))
        if self.feed is None:
            return
        self.reporter.note(self.plan.summary)
        batch, taking = config.batch, self.ranks.coordinates.data_size
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
            notify.tell(notify.RESTART, f"continuing after step {start.step}{spent}")
        elif config.checkpoint.resume:
            self.reporter.note(
                f"no complete checkpoint in {config.checkpoint.ckpt_dir}: starting from the beginning"
            )


def open_run(part: Part, start: Start, task: Task, ranks: Ranks, stack: contextlib.ExitStack) -> Run:
    """Opens everything, in the order of a run; every rank calls it. What must be closed is left to `stack`.

    Raises:
        InputError: as `train_stages`.
    """
    wall = Stopwatch((start.facts.get("wall_s") or math.nan) if start.step else 0.0)
    given = part.config.optimization.seed
    seed = start.facts.get("seed", 0) if given is None else given
    part, plan = _settled(part, start, ranks, seed)
    (config, inputs), leads = part, ranks.world.rank == 0
    reporter = Reporter()
    if leads:
        last = None if plan.num_steps is None else start.begun + plan.num_steps
        span, shown = Span(start.step, last, start.stage, start.begun), config.report
        reporter = RunReporter(config.checkpoint.ckpt_dir, task, span, shown.progress, shown.verbose)
    stack.callback(reporter.close)
    vocabulary = None
    if leads and inputs.trains:  # an evaluation leaves the files of the run that it looks at
        vocabulary = write_vocabulary(config.checkpoint.ckpt_dir, inputs.vocabulary, config.data.tokenizer)
        write_run_file(config, ranks.world, seed, plan)
    feed, eval_feed = _open_data(part, plan, data_seed(seed, start.stage), ranks, reporter, stack)
    if ranks.pipelined:
        counts = broadcast_json(shape_of(part).split.counts, ranks.world)
        ranks = ranks.divided(config.model.bert, make_split(counts))
    model = open_model(part, task, ranks, seed)
    restore_parameters(start, model.network, ranks, config.model, seed)
    optimizer = make_optimizer(config.optimization, model, ranks.world, seed)
    restore_states(start, model.network, optimizer, ranks)
    kept = Kept(config.checkpoint.keep_checkpoints, config.checkpoint.keep_interval or 0)
    saver = Saver(config.checkpoint.ckpt_dir, kept, reporter)
    run = Run(
        config=config,
        inputs=inputs,
        task=task,
        ranks=ranks,
        plan=plan,
        start=start,
        seed=seed,
        reporter=reporter,
        feed=feed,
        eval_feed=eval_feed,
        model=model,
        optimizer=optimizer,
        scaler=DynamicScaler() if model.dtype == "float16" else LossScaler(),
        skips=SkipCounter(),
        guard=Guard(config.optimization.spikes == SKIP),
        saver=stack.enter_context(saver),
        clock=Stopwatch(start.facts.get("training_s", 0.0) if start.keeps(SCHEDULE) else 0.0),
        wall=wall,
        saved_vocabulary=vocabulary,
    )
    # What is taken over of the checkpoint that the run starts from.
    if start.keeps(OPTIMIZER):
        run.scaler.restore(start.facts["scaler"])
    if start.facts and start.step:  # the same run, perhaps another stage of it
        run.skips.restore(start.facts["skips"])
    if start.keeps(SCHEDULE) and not start.begins_stage_2 and start.exact:  # else losses may be others
        run.guard.restore(start.facts.get("guard", Guard().state()))
    run.introduce([*start.messages, *inputs.messages])
    if feed is not None:
        feed.seek(start.position)
    return run


def _settled(part: Part, start: Start, ranks: Ranks, seed: int) -> tuple[Part, RunPlan]:
    """The part for the start's number of processes, with its number of steps and what it has to download, and
    its plan.

    Raises:
        InputError: a plan, a device or data that cannot be had; fewer steps than have been taken.
    """
    processes = start.processes
    config = replace(part.config, batch=replace(part.config.batch, processes=processes))
    computing = choose_computing(config.model, ranks.world)
    on_gpu = computing.device.device_type == "gpu"
    check_moments(config.optimization.optimizer_state, computing.operators, on_gpu)
    part.inputs.plan(config, processes)  # whose errors come before work on the data
    os.makedirs(config.checkpoint.ckpt_dir, exist_ok=True)
    inputs = part.inputs.completed(config, ranks.world)
    steps = inputs.num_steps(config, data_seed(seed, start.stage), ranks.readers)
    config = replace(config, optimization=replace(config.optimization, num_steps=steps))
    plan = inputs.plan(config, processes)
    if plan.num_steps is not None and start.step > start.begun + plan.num_steps and inputs.trains:
        already = f"the checkpoint is already at step {start.step - start.begun}"
        of_stage = f" of stage {start.stage}" if start.stage else ""
        epochs = inputs.about.epochs
        flag = f"--num_epochs {epochs:g}, or" if epochs else "--num_steps"
        raise InputError(f"{flag} {plan.num_steps}{' steps' if epochs else ''}: {already}{of_stage}")
    return Part(config, inputs), plan


def _open_data(
    part: Part, plan: RunPlan, seed: int, ranks: Ranks, reporter: Reporter, stack: contextlib.ExitStack
) -> tuple[Feed | None, EvaluationFeed | None]:
    """Data to train and to evaluate on, the same on every rank. Raises InputError."""
    config, inputs = part
    feed = inputs.open_training(config, plan, seed, ranks.readers, reporter)
    if feed is not None:
        stack.callback(feed.close)
    eval_feed = inputs.open_evaluation(config, ranks.readers)
    opened = {"--data": feed, "--data_eval": eval_feed}
    agree({f"the content of {flag}": each.content for flag, each in opened.items() if each}, ranks.world)
    return feed, eval_feed


def _of_config_file(model: ModelConfig) -> str:
    """All that --config_file has settled, in a line."""
    bert = model.bert
    unknown = f"; keys not known here: {', '.join(model.unknown_keys)}" if model.unknown_keys else ""
    return (
        f"--config_file {model.source}: feed-forward layers of {bert.hidden} units, {bert.positions} "
        f"positions, {bert.token_types} token types, {bert.network}, dropout {model.rates}, random "
        f"weights of standard deviation {model.initial_stdev:g}{unknown}"
    )


def write_run_file(config: RunConfig, communicator: Communicator, seed: int, plan: RunPlan) -> None:
    """Writes it into ckpt_dir, whole or not at all; one rank does it, at each start of training.

    An option that was left out is null where the run works its value out; the comments say what it came to.
    `seed` is the run's, also where it was left out and is a checkpoint's.

    Raises:
        InputError: it cannot be written.
    """
    options = {**config.given, "seed": seed}
    if isinstance(options["profile"], TracePlan):
        options["profile"] = options["profile"].path
    folder = config.checkpoint.ckpt_dir
    for name in os.listdir(folder):  # of a run that was killed in between
        if name.startswith(RUN_FILE) and is_temporary(name):
            os.remove(os.path.join(folder, name))
    versions = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    comments = [
        f"{OPTION} {RUN_FILE} --ckpt_dir ANOTHER repeats the run. Paths count from the folder it starts in.",
        f"command: {shlex.join(sys.argv)}",
        f"processes: {communicator.size}",
        f"versions: {versions}",
        plan.summary,
    ]
    write_options(os.path.join(folder, RUN_FILE), options, comments)
