"""Training from the first stage to the last: a run is opened, taken through the loop and closed."""

from __future__ import annotations

import contextlib
import gc
from dataclasses import replace
from typing import Sequence

from base.errors import RUN_AGAIN
from comm.base import Communicator
from tasks.base import Task
from training.agreement import agree, describe
from training.loop import Loop
from training.model import choose_computing
from training.pipeline.ranks import Ranks, check_same, place_ranks
from training.results.of_run import recording
from training.results.record import FINISHED, UNFINISHED
from training.run import open_run
from training.run_inputs import Part
from training.start.lock import after_stage_1, locked, settle
from training.start.start import Start
from training.stopping import StopRequest


def train_stages(
    parts: Sequence[Part], task: Task, communicator: Communicator, stop: StopRequest | None = None
) -> int:
    """Trains, evaluates and saves a run, or its stages one after the other; every rank calls it.

    Each stage is opened from what is on the disk, and closed before the next: a launch of both stages takes
    the same steps as one that is interrupted anywhere and resumed. `stop`: what listens to signals, where one
    launch has several runs.

    Returns:
        The exit code of the process: 0, 75 (run me again) when its time is up, 143 after SIGTERM or SIGUSR1,
        130 after Ctrl-C.

    Raises:
        InputError: bad input that could not be identified before mxnet was imported.
        TrainingError: gradients that stay non-finite, a disk that is full.
    """
    stop = stop or StopRequest()
    stop.leave()
    if communicator.size > 1:
        computing = choose_computing(parts[0].config.model, communicator)
        agree({**describe(parts, communicator.size), **computing.description()}, communicator)
    check_same([part.config.pipeline for part in parts])
    with locked(parts[0].config.checkpoint.ckpt_dir, communicator):
        return _train_locked(parts, task, place_ranks(parts[0].config.pipeline, communicator), stop)


def _train_locked(parts: Sequence[Part], task: Task, ranks: Ranks, stop: StopRequest) -> int:
    """`train_stages` in a directory that no other run has."""
    start, remaining = settle(parts, ranks)
    for part in remaining[1:]:
        # Errors in its plan, and in data of its own, which is tokenized or converted into the cache, come
        # before the stage in front of it takes days.
        part.inputs.plan(part.config, start.processes)
        part.inputs.completed(part.config, ranks.world).open_ahead(remaining[0].inputs, ranks.world)
    code, end = _train_stage(remaining[0], start, task, ranks, stop)
    for config, inputs in remaining[1:]:
        if code:
            break
        stop.leave()
        ranks.world.forget()
        gc.collect()  # a network is a circle of references
        config = replace(config, report=replace(config.report, profile=None))  # a trace is of the first steps
        part = Part(config, inputs)
        start = after_stage_1(part, end, ranks)
        code, end = _train_stage(part, start, task, ranks, stop)
    return code


def _train_stage(part: Part, start: Start, task: Task, ranks: Ranks, stop: StopRequest) -> tuple[int, int]:
    """Trains one stage, or evaluates where there is nothing to train on. Returns the exit code, and the last
    step.

    With a signal that comes after the last step of stage 1, or no time left, stage 2 is left to --resume.
    """
    with contextlib.ExitStack() as stack:
        run = open_run(part, start, task, ranks, stack)
        if run.feed is None:  # a results.json where that is a result of its own
            alone = run.inputs.about.main_score is not None
            with recording(run) if alone else contextlib.nullcontext(lambda status: None) as finish:
                run.evaluate(start.step)
                finish(FINISHED)
            return 0, start.step
        with recording(run) as finish:
            loop = Loop(run, stop)
            with loop.rescue:
                code = loop.to_the_end()
            more = part.config.start.stages == "both" and start.stage == 1
            if code == 0 and more:
                flags = [stop.exit_code is None, stop.exit_code != 130, loop.deadline.allows(saves=True)]
                keep_going, no_interrupt, in_time = ranks.world.all_agree(flags)
                if not (keep_going and in_time):
                    why = "time is up" if keep_going else "stopped by a signal"
                    run.reporter.warn(
                        f"{why} at the end of stage 1, step {loop.step}; --resume begins stage 2"
                    )
                    code = RUN_AGAIN if keep_going else 143 if no_interrupt else 130
            finish(UNFINISHED if code or more else FINISHED)
        return code, loop.step
