"""The loop: steps, metrics at multiples of --log_interval, checkpoints at --ckpt_interval, evaluations at
--eval_interval."""

from __future__ import annotations

import os
import time
from typing import Callable

import numpy as np

from base.errors import RUN_AGAIN
from bert.flops import BACKWARD, size_of
from training.deadline import EVALUATION, SAVED_BYTES, Deadline, began, end_of_time
from training.last_good import Checkpoints
from training.metrics import Totals, figures, finite_or_none
from training.optimizer.scaler import NOT_FINITE
from training.pipeline.step import PipelineStep
from training.plan import Budget, Steps
from training.profiling.profiler import TraceOfSteps
from training.report import Ending, summarize
from training.rescue import Rescue
from training.run import Run
from training.run_inputs import floors_of
from training.stalled import Stalled
from training.step import StepResult, StepSettings, TrainStep, dropout_seed
from training.stopping import StopRequest
from training.utilisation import Peak

ENDED_BY_LAUNCHER = "the launcher ends the run, since another part of it has ended"


class Loop:
    """Takes the steps of a run, or of one of its stages, from where it starts to its last one, or until a
    signal or the end of its time."""

    def __init__(self, run: Run, stop: StopRequest):
        assert run.feed is not None, "nothing to train on"
        config, leads = run.config, run.communicator.rank == 0
        self.run, self.feed, self.stop, self.clock = run, run.feed, stop, run.clock
        self.step = run.start.step
        self.totals = Totals(run.task, run.model.device)
        self.steps_in_interval = 0
        self.size = size_of(config.model.bert, run.inputs.vocab_size)
        # Decided in every step: whether saving goes well, the position in the schedule, whether there is time
        # for another step, whether the peak is measured again.
        hours = config.optimization.budget_hours
        self.budget: Budget | Steps
        if hours:
            self.budget = Budget(hours, run.clock, leads)
        else:
            assert run.plan.num_steps is not None, "steps where there are no hours"
            self.budget = Steps(run.start.step - run.start.begun, run.plan.num_steps)
        end = end_of_time(config.deadline, os.environ, began()) if leads else None
        self.deadline = Deadline(end, run.parameters * SAVED_BYTES, lambda: run.saver.seconds)
        self.peak = Peak(config.report, run.model, run.communicator)
        self.decisions = (run.saver, self.budget, self.deadline, self.peak)
        self.checkpoints = Checkpoints(run)
        self.rescue = Rescue(run)
        self.take_step = make_step(run, run.feed.micro_batches, self.rescue.begin)
        self.trace = trace_of(run, self.take_step)
        self.stalled = Stalled(run)
        run.reporter.note(f"mfu is the share of {self.peak.sentence}")

    def to_the_end(self) -> int:
        """Runs the loop; every rank calls it.

        Returns:
            The exit code of the process: 0, 75 when its time is up, 143 after SIGTERM or SIGUSR1, 130 after
            Ctrl-C.
        """
        run = self.run
        signalled = interrupted = False
        # At stage 2's length, or because the run was killed before it.
        if run.start.begins_stage_2 or run.start.lacks_evaluation:
            self.checkpoints.evaluated(self.step, run.evaluate(self.step))
        self.stop.listen(failed=lambda: run.communicator.give_up(ENDED_BY_LAUNCHER))
        self.clock.begin()
        while not (self.budget.spent or interrupted):
            self.step += 1
            lr = run.plan.schedule(self.budget.ticks)
            result = self._take(lr)
            signalled = not result.keep_going
            interrupted = signalled or not self.deadline.in_time
            last = interrupted or self.budget.spent
            if self.step % run.config.report.log_interval == 0 or last:
                self._log(lr, result)
            planned = self.step % run.ckpt_interval == 0 or last
            evaluates = not interrupted and (self.step % run.eval_interval == 0 or last)
            if planned or evaluates or self.checkpoints.late:
                with self.clock:  # not training time
                    if planned or self.checkpoints.late:
                        self.checkpoints.save(self.step, planned, self.budget.spent, interrupted)
                    if evaluates:
                        begun = time.monotonic()
                        self.checkpoints.evaluated(self.step, run.evaluate(self.step))
                        self.deadline.took(EVALUATION, time.monotonic() - begun)
                self.take_step.waits.interrupted()
        # No rank ends while rank 0 still writes, nor with another code: a launcher takes that of the first.
        written = [run.saver.finish(), run.saver.finite]
        *written, no_interrupt = run.communicator.all_agree([*written, self.stop.exit_code != 130])
        run.saver.take(written)
        if signalled:
            where = self.checkpoints.remedy
            run.reporter.warn(f"stopped by a signal after step {self.step}; --resume continues{where}")
            return 143 if no_interrupt else 130
        if interrupted:
            run.reporter.warn(f"time is up after step {self.step}; --resume continues")
            return RUN_AGAIN
        if run.communicator.rank == 0:
            floors = floors_of(self.feed.token_counts, run.eval_feed.token_counts if run.eval_feed else None)
            ending = Ending(self.step, floors, run.start.stage, run.inputs.max_seq_length)
            summarize(run.task, run.config.checkpoint.ckpt_dir, ending, run.reporter)
        return 0

    def _take(self, lr: float) -> StepResult:
        """Takes a step and records its result."""
        run = self.run
        self.deadline.begin(saves=0 in (self.step % run.ckpt_interval, self.step % run.eval_interval))
        self.trace.before_step()
        waited = self.feed.waited
        micro_batches = [next(self.feed) for _ in range(self.feed.micro_batches)]
        waited = self.feed.waited - waited
        keep_going = self.stop.exit_code is None
        result = self.take_step(self.step, micro_batches, lr, keep_going, self.decisions)
        self.trace.after_step(micro_batches)
        if result.skipped != NOT_FINITE:
            run.guard.update(result.loss, result.grad_norm, result.applied)
        self.checkpoints.stepped(self.step, result.skipped)
        self.rescue.complete(self.step, self.budget.spent)
        self.totals.add_wait(waited)
        if run.ranks.coordinates.last:  # where the losses are: what a replica has done counts once
            forward = sum(run.task.flops(each, self.size, run.model.operators) for each in micro_batches)
            self.totals.add(micro_batches, result.sums, result.applied, (1 + BACKWARD) * forward)
        self.steps_in_interval += 1
        run.reporter.advance(self.step)
        run.reporter.debug(
            f"step {self.step}: lr {lr:.6g}, gradient norm {result.grad_norm:.4g},"
            f" loss scale {run.scaler.scale:g}" + (f", skipped: {result.skipped}" if result.skipped else "")
        )
        return result

    def _log(self, lr: float, result: StepResult) -> None:
        """Reports the steps since the last line of the metrics; every rank calls it."""
        run = self.run
        gathered = self.totals.over_ranks(run.communicator)
        seconds = self.clock.lap()
        if self.peak.due:
            with self.clock:  # not training time
                if self.peak.measure():
                    run.reporter.note(f"mfu is the share of {self.peak.sentence}")
        counts, waits = gathered.counts, self.take_step.waits
        line = {
            "step": self.step,
            **run.stage_entry,
            "time": round(time.time(), 3),
            **figures(run.task, gathered),
            "lr": lr,
            "grad_norm": finite_or_none(result.grad_norm),
            "loss_scale": run.scaler.scale,
            "tokens_per_s": counts["tokens"] / seconds,
            "padded_tokens_per_s": counts["padded_tokens"] / seconds,
            "sequences_per_s": counts["sequences"] / seconds,
            "step_s": seconds / self.steps_in_interval,
            "mfu": self.peak.fraction(counts["flops"] / seconds),
            "training_s": round(self.clock.total, 3),
            **self.budget.figures,
            "data_wait": counts["waited_s"] / run.communicator.size / seconds,
            "rank_wait_s": waits.of_interval(self.steps_in_interval, seconds),
            "skipped_steps": run.skips.total,
        }
        run.reporter.training(line)
        warm = self.budget.ticks > run.plan.warmup_steps
        stalled = self.stalled.look(line, warm, counts["sequences"] / self.steps_in_interval)
        for warning in filter(None, (stalled, waits.slow_rank())):
            run.reporter.warn(warning)
        self.totals.reset()
        self.steps_in_interval = 0


def make_step(run: Run, micro_batches: int, before_update: Callable[[], None] = lambda: None) -> TrainStep:
    """The step over the whole network, or over this rank's stage of it; `before_update` as in
    StepSettings."""
    here, drops = run.ranks.coordinates, any(run.config.model.rates)
    settings = StepSettings(
        micro_batches,
        run.config.optimization.clip_norm,
        lambda step, number: (
            dropout_seed(run.seed, step, here.data_rank + here.data_size * number) if drops else None
        ),
        before_update,
        run.guard.off,
    )
    tools = (run.task, run.model.network, run.optimizer, run.scaler)
    if run.ranks.pipelined:
        return PipelineStep(*tools, run.ranks, settings)
    return TrainStep(*tools, run.communicator, settings)


def trace_of(run: Run, step: TrainStep) -> TraceOfSteps:
    """The trace that --profile asks for; without it one that does nothing."""
    report = run.config.report
    widest = 2 if report.compression == "fp16" else 8
    # Given to Horovod or BytePS in a step; BytePS's own compressors make less of them afterwards.
    exchanged = sum(array.size * min(widest, np.dtype(array.dtype).itemsize) for array in step.gradients)
    facts = {
        **run.config.model.bert.facts(),
        "vocab_size": run.inputs.vocab_size,
        "dtype": run.model.dtype,
        "exchanged_bytes": exchanged,
        **run.ranks.facts,
    }
    trace = TraceOfSteps(report.profile, run.communicator.rank, facts)
    if isinstance(step, PipelineStep):
        step.stage_wait = trace.stage_wait
    return trace
