"""A training run, from the options to the last checkpoint. It reads in the order of a run."""

from __future__ import annotations

import argparse
import os
import signal
import time
from dataclasses import replace
from types import FrameType
from typing import Any, Callable, Sequence

import mxnet as mx
import numpy as np

from base.errors import InputError
from bert.model import build_model, initialize, trainable
from bert.network import choose_operators, make_network
from bert.weights.published import download_vocabulary, load_published
from comm.base import Communicator
from data.pretraining.batches import Batch
from data.tokenizing.vocab import Vocabulary
from training.evaluation import evaluate
from training.feed import Feed, evaluation_feed, training_feed
from training.inputs import Inputs
from training.metrics import Stopwatch, Totals, losses_and_accuracies
from training.optimizer.accumulation import make_accumulation
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import DynamicScaler, SkipCounter, StaticScaler
from training.plan import RunPlan, make_plan
from training.profiling.profiler import TraceOfSteps
from training.report import Reporter, RunReporter, SilentReporter, finite_or_none
from training.state import (
    changed_options,
    find_checkpoint,
    position_to_continue,
    restore_parameters,
    restore_states,
    save_checkpoint,
)
from training.step import TrainStep
from training.summary import Floors, summarize


def pretrain(options: argparse.Namespace, inputs: Inputs, communicator: Communicator) -> int:
    """Trains, evaluates and saves; every rank calls it.

    Returns:
        The exit code of the process: 0, 143 after SIGTERM or SIGUSR1, 130 after Ctrl-C.

    Raises:
        InputError: bad input that could not be found before mxnet was imported.
        TrainingError: gradients that stay non-finite, a disk that is full.
    """
    device = mx.gpu(communicator.local_rank) if mx.context.num_gpus() else mx.cpu()
    dtype = _dtype(options, device)
    operators = choose_operators(options.operators, dtype, device)
    plan = make_plan(options, communicator.size, inputs.max_seq_length)
    os.makedirs(options.ckpt_dir, exist_ok=True)
    if inputs.vocabulary is None and inputs.reads_text:
        inputs = replace(inputs, vocabulary=_downloaded_vocabulary(options, communicator))

    found = find_checkpoint(options, communicator)
    seed = found.facts.get("seed", 0) if options.seed is None else options.seed
    if found.step > plan.num_steps and (options.data or options.dummy_data_len):
        raise InputError(f"--num_steps {plan.num_steps}: the checkpoint is already at step {found.step}")
    reporter: Reporter = SilentReporter()
    if communicator.rank == 0:
        reporter = RunReporter(
            options.ckpt_dir, found.step, plan.num_steps, options.progress, options.verbose
        )
    feed = None
    try:
        feed = training_feed(options, inputs, plan, seed, communicator, reporter)
        eval_feed = evaluation_feed(options, inputs, plan, communicator)

        bert = build_model(options.model, inputs.vocab_size, options.dropout)
        initialize(bert, device, "float16" if dtype == "float16" else "float32", seed)
        if options.pretrained and not found.step and communicator.rank == 0:  # the others get rank 0's
            load_published(bert, options.model, options.dataset_name, device)
        restore_parameters(found, bert, communicator, device)
        parameters = trainable(bert)
        optimizer = Optimizer(
            options.optimizer,
            list(parameters),
            [parameter.data(device) for parameter in parameters.values()],
            bias_correction=options.bias_correction,
            lower_bound=options.lower_bound,
            upper_bound=options.upper_bound,
            native=operators == "fused",
        )
        scaler = DynamicScaler() if dtype == "float16" else StaticScaler()
        skips = SkipCounter()
        restore_states(found, optimizer, scaler, skips, communicator)
        network = make_network(bert, options.model, dtype, options.dropout, operators)

        position, messages = position_to_continue(found, options, communicator.size)
        for message in [*found.messages, *changed_options(found, options), *messages, *plan.warnings]:
            reporter.warn(message)
        count = sum(int(np.prod(parameter.shape)) for parameter in parameters.values())
        reporter.note(
            f"{options.model}, {count / 1e6:,.1f} M parameters, vocabulary {inputs.vocab_size:,}, {dtype} on"
            f" {operators} operators,"
            f" {communicator.size} process{'es' if communicator.size > 1 else ''} on"
            f" {device.device_type}, OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS')}, seed {seed}"
        )

        for name, value in sorted(vars(options).items()):
            reporter.debug(f"--{name} {value}")

        def evaluate_at(step: int) -> None:
            if eval_feed is not None:
                metrics = evaluate(network, eval_feed(), communicator, device)
                reporter.evaluation({"step": step, **metrics})

        def save(step: int) -> None:
            if communicator.rank == 0:
                size, place = communicator.size, feed.position
                saved = save_checkpoint(
                    options, inputs, step, place, seed, bert, optimizer, scaler, skips, size
                )
                reporter.note(f"saved {saved.params_path}")

        if feed is None:
            evaluate_at(found.step)
            return 0
        reporter.note(plan.summary)
        if found.step:
            reporter.note(f"continuing after step {found.step}")
        elif options.resume:
            reporter.note(f"no complete checkpoint in {options.ckpt_dir}: starting from the beginning")
        feed.seek(position)
        take_step = TrainStep(
            network,
            make_accumulation(
                list(parameters.values()), device, options.accumulate, network.adds_in_backward
            ),
            optimizer,
            scaler,
            communicator,
            device,
            options.clip_norm,
            lambda step: dropout_seed(seed, step, communicator.rank),
        )
        facts: dict[str, Any] = {"model": options.model, "vocab_size": inputs.vocab_size, "dtype": dtype}
        facts["exchanged_bytes"] = exchanged_bytes(take_step.gradients, options.compression)
        trace = TraceOfSteps(options.profile, communicator.rank, facts)
        stop = StopRequest()
        last_step, keep_going = run_steps(
            options, plan, found.step, feed, take_step, scaler, skips, communicator, device, reporter, trace,
            stop, save, evaluate_at,
        )  # fmt: skip
        communicator.barrier()  # no rank ends while rank 0 still writes
        if not keep_going:
            reporter.warn(f"stopped by a signal after step {last_step}; --resume continues")
            return stop.exit_code or 143
        if communicator.rank == 0:
            floors = Floors(feed.context_free_loss, eval_feed.context_free_loss if eval_feed else None)
            summarize(options, reporter, last_step, floors)
        return 0
    finally:
        if feed is not None:
            feed.close()
        reporter.close()


def run_steps(
    options: argparse.Namespace,
    plan: RunPlan,
    step: int,
    feed: Feed,
    take_step: TrainStep,
    scaler: StaticScaler | DynamicScaler,
    skips: SkipCounter,
    communicator: Communicator,
    device: mx.Context,
    reporter: Reporter,
    trace: TraceOfSteps,
    stop: StopRequest,
    save: Callable[[int], None],
    evaluate_at: Callable[[int], None],
) -> tuple[int, bool]:
    """The loop: steps, metrics at multiples of --log_interval, checkpoint and evaluation at --ckpt_interval.

    Returns:
        The last step taken, and whether the run came to its end (False: some rank was asked to stop).
    """
    totals, clock = Totals(device), Stopwatch()
    steps_in_interval = 0
    last_saved = os.path.join(options.ckpt_dir, f"{step:07d}.params") if step else None
    keep_going = True
    while step < plan.num_steps and keep_going:
        step += 1
        trace.before_step()
        waited = feed.waited
        micro_batches: list[Batch] = [next(feed) for _ in range(options.accumulate)]
        waited = feed.waited - waited
        lr = plan.schedule(step)
        result = take_step(step, micro_batches, lr, keep_going=stop.exit_code is None)
        trace.after_step(micro_batches)
        keep_going = result.keep_going
        skips.update(result.applied, step, last_saved)
        totals.add(micro_batches, result.sums, result.applied, waited)
        steps_in_interval += 1
        reporter.advance(step)
        reporter.debug(
            f"step {step}: lr {lr:.6g}, gradient norm {result.grad_norm:.4g}, loss scale {scaler.scale:g}"
            + ("" if result.applied else ", not finite: skipped")
        )

        at_end = step == plan.num_steps or not keep_going
        if step % options.log_interval == 0 or at_end:
            gathered = totals.over_ranks(communicator)
            seconds = clock.lap()
            reporter.training(
                {
                    "step": step,
                    "time": round(time.time(), 3),
                    **losses_and_accuracies(gathered),
                    "lr": lr,
                    "grad_norm": finite_or_none(result.grad_norm),
                    "loss_scale": scaler.scale,
                    "tokens_per_s": gathered["tokens"] / seconds,
                    "padded_tokens_per_s": gathered["padded_tokens"] / seconds,
                    "sequences_per_s": gathered["sequences"] / seconds,
                    "step_s": seconds / steps_in_interval,
                    "data_wait": gathered["waited_s"] / communicator.size / seconds,
                    "skipped_steps": skips.total,
                }
            )
            totals.reset()
            steps_in_interval = 0
        if step % options.ckpt_interval == 0 or at_end:
            with clock:  # not training time
                save(step)
                last_saved = os.path.join(options.ckpt_dir, f"{step:07d}.params")
                if keep_going:
                    evaluate_at(step)
    return step, keep_going


class StopRequest:
    """Turns signals into a wish that the loop reads between two steps; a second Ctrl-C interrupts at once.

    SIGUSR1 means what SIGTERM means: mpirun hands it on to the ranks immediately, while a SIGTERM to mpirun
    leaves them little time.
    """

    def __init__(self) -> None:
        self.exit_code: int | None = None
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.exit_code is not None:
            raise KeyboardInterrupt
        self.exit_code = 130 if number == signal.SIGINT else 143


def dropout_seed(seed: int, step: int, rank: int) -> int:
    """The seed of one step's dropout masks on one rank: different for each, the same in a repeated run."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0]) >> 1


def exchanged_bytes(gradients: Sequence[mx.nd.NDArray], compression: str) -> int:
    """Bytes of gradients that a rank hands to Horovod or BytePS in a step. BytePS's own compressors make less
    of them afterwards."""
    widest = 2 if compression == "fp16" else 8
    return sum(array.size * min(widest, np.dtype(array.dtype).itemsize) for array in gradients)


def _dtype(options: argparse.Namespace, device: mx.Context) -> str:
    on_gpu = device.device_type == "gpu"
    if options.dtype == "float16" and not on_gpu:
        raise InputError("--dtype float16: MXNet multiplies float16 matrices on GPUs only; use float32 here")
    return options.dtype or ("float16" if on_gpu else "float32")


def _downloaded_vocabulary(options: argparse.Namespace, communicator: Communicator) -> Vocabulary:
    """One rank of each host downloads, the others then find it on disk."""
    if communicator.local_rank == 0:
        vocabulary = download_vocabulary(options.dataset_name)
    communicator.barrier()
    return vocabulary if communicator.local_rank == 0 else download_vocabulary(options.dataset_name)
