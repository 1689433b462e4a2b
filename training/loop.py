"""The loop: steps, metrics at multiples of --log_interval, checkpoint and evaluation at --ckpt_interval."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple, Sequence

import mxnet as mx
import numpy as np

from base.errors import RUN_AGAIN, NotFiniteError
from bert.flops import BACKWARD, size_of
from training.budget import Budget
from training.deadline import EVALUATION, SAVE, SAVED_BYTES, STEP, Deadline, began, end_of_time
from training.feed import floors_of
from training.last_good import LastGood
from training.metrics import Totals, figures, finite_or_none
from training.pipeline.step import PipelineStep
from training.profiling.profiler import TraceOfSteps
from training.report import Ending, summarize
from training.run import Run
from training.step import StepResult, StepSettings, TrainStep, dropout_seed
from training.stopping import StopRequest
from training.utilisation import Peak


class Agreed(NamedTuple):
    """Answers that hold for every rank, beside those of the step itself. They travel as one list of flags, in
    this order.

    Attributes:
        sound: saving goes well.
        finite: what is saved is finite.
        keeps_peak: the peak need not be measured again.
        in_time: there is time for another step.
        budget: the bits of `Budget`, none without --budget_hours.
    """

    sound: bool
    finite: bool
    keeps_peak: bool
    in_time: bool
    budget: Sequence[bool]


class Loop:
    """Takes the steps of a run, or of one of its stages, from where it starts to its last one, or until a
    signal."""

    def __init__(self, run: Run, stop: StopRequest):
        assert run.feed is not None, "nothing to train on"
        config, communicator, place = run.config, run.communicator, run.place
        self.run = run
        self.feed = run.feed
        self.step = run.start.step
        self.settings = StepSettings(
            run.feed.micro_batches,
            config.optimization.clip_norm,
            lambda step, number: dropout_seed(run.seed, step, place.data_rank + place.data_size * number),
        )
        tools = (run.task, run.model.network, run.optimizer, run.scaler)
        staged = PipelineStep(*tools, run.ranks, self.settings) if run.ranks else None
        self.take_step: TrainStep = staged or TrainStep(*tools, communicator, self.settings)
        facts: dict[str, Any] = {
            **config.model.bert.facts(),
            "vocab_size": run.inputs.vocab_size,
            "dtype": run.model.dtype,
            "exchanged_bytes": exchanged_bytes(self.take_step.gradients, config.report.compression),
        }
        if run.ranks:
            facts.update(run.ranks.facts)
        self.trace = TraceOfSteps(config.report.profile, communicator.rank, facts)
        if staged:
            staged.stage_wait = self.trace.stage_wait
        self.stop = stop
        self.totals = Totals(run.task, run.model.device)
        self.size = size_of(config.model.bert, run.inputs.vocab_size)
        self.peak = Peak(config.report.peak_tflops, run.model, communicator)
        # Rank 0's clock decides when it is measured again. It would be seen in a trace.
        self.measures = communicator.rank == 0 and not config.report.profile
        run.reporter.note(f"mfu is the share of {self.peak.sentence}")
        self.clock = run.clock
        hours = config.optimization.budget_hours
        self.budget = Budget(hours, self.clock, communicator.rank == 0) if hours else None
        end = end_of_time(config.deadline, os.environ, began()) if communicator.rank == 0 else None
        self.deadline = Deadline(end, run.parameters * SAVED_BYTES)
        self.in_time = True
        self.step_begun = 0.0
        self.save_s = 0.0  # that the newest save of which the deadline knows has taken
        self.steps_in_interval = 0
        self.last_good = LastGood(config.checkpoint.ckpt_dir, 0 if run.start.source else self.step)
        self.late = False  # whether a checkpoint waits for a step that is not skipped

    def to_the_end(self) -> int:
        """Runs the loop; every rank calls it.

        Returns:
            The exit code of the process: 0, 75 when its time is up, 143 after SIGTERM or SIGUSR1, 130 after
            Ctrl-C.
        """
        run = self.run
        keep_going = True
        if run.start.begins_stage_2 or run.start.lacks_evaluation:
            run.evaluate(self.step)  # at stage 2's length, or because the run was killed before it
        self.stop.listen()
        self.clock.begin()
        while keep_going and self.in_time and not self._complete():
            self.step += 1
            lr = run.plan.schedule(self.budget.ticks if self.budget else self.step - run.start.begun)
            result, agreed = self._take(lr)
            keep_going = result.keep_going
            self.in_time = agreed.in_time
            if self.budget:
                self.budget.take(agreed.budget)
            at_end = self._complete() or not keep_going or not self.in_time
            if self.step % run.config.report.log_interval == 0 or at_end:
                self._log(lr, result, not agreed.keeps_peak)
            planned = self.step % run.ckpt_interval == 0 or at_end
            if planned or self.late:
                with self.clock:  # not training time
                    self._save(planned, at_end)
                    if planned and keep_going and self.in_time:
                        begun = time.monotonic()
                        run.evaluate(self.step)
                        self.deadline.took(EVALUATION, time.monotonic() - begun)
        # No rank ends while rank 0 still writes.
        run.saver.check(*run.communicator.all_agree([run.saver.finish(), run.saver.finite]))
        if not keep_going:
            where = f", from {self.last_good.newest or 'the beginning'}" if self.late else ""
            run.reporter.warn(f"stopped by a signal after step {self.step}; --resume continues{where}")
            return self.stop.exit_code or 143
        if not self.in_time:
            run.reporter.warn(f"time is up after step {self.step}; --resume continues")
            return RUN_AGAIN
        if run.communicator.rank == 0:
            floors = floors_of(self.feed.token_counts, run.eval_feed.token_counts if run.eval_feed else None)
            ending = Ending(self.step, floors, run.start.stage, run.inputs.max_seq_length)
            summarize(run.task, run.config.checkpoint.ckpt_dir, ending, run.reporter)
        return 0

    def _complete(self) -> bool:
        """Whether the last step has been taken; the same on every rank."""
        if self.budget:
            return self.budget.spent
        assert self.run.plan.num_steps is not None, "steps where there are no hours"
        return self.step - self.run.start.begun >= self.run.plan.num_steps

    def _take(self, lr: float) -> tuple[StepResult, Agreed]:
        run = self.run
        self.step_begun = time.monotonic()
        self.trace.before_step()
        waited = self.feed.waited
        micro_batches = [next(self.feed) for _ in range(self.settings.accumulate)]
        waited = self.feed.waited - waited
        keep_going = self.stop.exit_code is None
        result = self.take_step(self.step, micro_batches, lr, keep_going, self._flags)
        self.trace.after_step(micro_batches)
        sound, finite, keeps_peak, in_time, *budget = result.agreed
        agreed = Agreed(sound, finite, keeps_peak, in_time, budget)
        run.saver.check(agreed.sound, agreed.finite)
        try:
            run.skips.update(result.applied, self.step, self.last_good.sentence)
        except NotFiniteError:
            if self.last_good.unfit is not None and run.communicator.rank == 0:
                run.saver.set_aside(self.last_good.unfit)
            raise
        good = self.last_good.stepped() if result.applied else None
        if good is not None:
            run.prune(good)
        if run.place.last:  # where the losses are: what a replica has done counts once
            forward = sum(run.task.flops(each, self.size, run.model.operators) for each in micro_batches)
            self.totals.add(micro_batches, result.sums, result.applied, waited, (1 + BACKWARD) * forward)
        else:
            self.totals.add_wait(waited)
        self.steps_in_interval += 1
        run.reporter.advance(self.step)
        run.reporter.debug(
            f"step {self.step}: lr {lr:.6g}, gradient norm {result.grad_norm:.4g},"
            f" loss scale {run.scaler.scale:g}" + ("" if result.applied else ", not finite: skipped")
        )
        return result, agreed

    def _flags(self) -> list[bool]:
        """This rank's flags of `Agreed`. What is being saved is copied first: the update may change it."""
        saver = self.run.saver
        sound = saver.sound()
        if saver.seconds != self.save_s:
            self.save_s = saver.seconds
            self.deadline.took(SAVE, self.save_s)
        self.deadline.took(STEP, time.monotonic() - self.step_begun)
        budget = self.budget.flags() if self.budget else []
        allowed = self.deadline.allows(saves=self.step % self.run.ckpt_interval == 0)
        keeps_peak = not (self.measures and self.peak.due)
        return [sound, saver.finite, keeps_peak, allowed, *budget]

    def _log(self, lr: float, result: StepResult, peak_due: bool) -> None:
        run = self.run
        gathered = self.totals.over_ranks(run.communicator)
        seconds = self.clock.lap()
        if peak_due:
            with self.clock:  # not training time
                if self.peak.measure():
                    run.reporter.note(f"mfu is the share of {self.peak.sentence}")
        counts = gathered.counts
        run.reporter.training(
            {
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
                "mfu": self.peak.share(counts["flops"] / seconds),
                "training_s": round(self.clock.total, 3),
                **({"budget_left_s": round(self.budget.left, 3)} if self.budget else {}),
                "data_wait": counts["waited_s"] / run.communicator.size / seconds,
                "skipped_steps": run.skips.total,
            }
        )
        self.totals.reset()
        self.steps_in_interval = 0

    def _save(self, planned: bool, at_end: bool) -> None:
        """Saves, unless this step was skipped: then the checkpoint is late, until one is not.

        A run's last step is saved in any case. So is a step that a signal makes the last one of this process,
        where it was skipped for its loss scale alone, as float16 has it now and then. Neither deletes others.
        """
        run, ended = self.run, self._complete()
        skipped = run.skips.in_a_row > 0
        self.late = skipped and not (ended or (at_end and run.scaler.searching))
        if self.late:
            if planned:
                run.reporter.warn(
                    f"step {self.step} was skipped, since its gradients were not finite: no checkpoint is "
                    f"saved or deleted; {self.last_good.sentence}"
                )
            return
        run.save(self.step, ended, prunes=ended and not skipped)
        self.last_good.saved(self.step)


def exchanged_bytes(gradients: Sequence[mx.nd.NDArray], compression: str) -> int:
    """Bytes of gradients that a rank gives to Horovod or BytePS in a step. BytePS's own compressors make less
    of them afterwards."""
    widest = 2 if compression == "fp16" else 8
    return sum(array.size * min(widest, np.dtype(array.dtype).itemsize) for array in gradients)
