"""A run's directory, locked for this run alone, and the decision on its beginning for every rank."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import replace
from typing import Any, Callable, Iterator, Sequence

from base import failures
from base.claims import PATIENCE, Claim, HeldError
from base.errors import InputError
from comm.base import Communicator, abort
from training.checkpoint import load_step
from training.config import RunConfig
from training.exchange import from_rank_0
from training.left_behind import bring_back
from training.pipeline.ranks import Ranks
from training.report import read_metrics
from training.run_inputs import Part
from training.start.start import Start, continuing, look, with_consequences

LOCK_FILE = "run.lock"
_POLL = 1.0  # seconds
_SHARED = ("step", "begun", "stage", "facts", "source", "published", "lacks_evaluation")


@contextlib.contextmanager
def locked(ckpt_dir: str, communicator: Communicator) -> Iterator[None]:
    """Locks --ckpt_dir, which is created, inside the block; every rank calls it, rank 0 has the lock.

    Where the other run is on another host and may have gone, it waits up to a minute for a sign of life.

    Raises:
        InputError: on every rank, another run has it, which is named; or it cannot be written to.
    """
    claim = Claim(os.path.join(ckpt_dir, LOCK_FILE), lambda other: _lost(ckpt_dir, other))

    def attempt() -> bool:
        try:
            os.makedirs(ckpt_dir, exist_ok=True)
            return claim.attempt()
        except HeldError as error:
            raise InputError(
                f"--ckpt_dir {ckpt_dir} is held by {error}; wait for its end, or name another directory"
            ) from error
        except OSError as error:
            said = f"--ckpt_dir {ckpt_dir}: {LOCK_FILE} cannot be written there"
            raise InputError(f"{said}: {error.strerror or error}") from error

    waited = False
    try:
        while not from_rank_0(attempt, communicator):
            if communicator.rank == 0 and not waited:
                waited = True
                print(
                    f"--ckpt_dir {ckpt_dir} was held by {claim.watched}; waiting {PATIENCE:g} s at most for "
                    "a sign of life",
                    file=sys.stderr,
                    flush=True,
                )
            time.sleep(_POLL)
        yield
    finally:
        if communicator.rank == 0:
            claim.release()


def _lost(ckpt_dir: str, other: str) -> None:
    """Ends this process: two runs in one directory would write over each other."""
    said = f"error: --ckpt_dir {ckpt_dir} is held by {other}, after this process gave no sign of life for "
    said += f"{PATIENCE:g} s"
    print(said, file=sys.stderr, flush=True)
    failures.leave(1, failures.PASSING, said)
    abort(1)


def settle(parts: Sequence[Part], ranks: Ranks) -> tuple[Start, Sequence[Part]]:
    """The start of a run for every rank, and the parts that are still to be trained; all ranks call it, with
    the directory locked. Rank 0 decides again where the directory has changed since the inputs were checked.

    Raises:
        InputError: on every rank, as `decide`.
    """
    config, inputs = parts[0]
    start, evaluation_options = inputs.start, inputs.about.evaluation_options

    def make() -> Start:
        messages: list[str] = []
        found = start
        if config.checkpoint.resume:
            bring_back(config.checkpoint.ckpt_dir, messages.append)
        if start.again is not None and start.seen != look(config.checkpoint.ckpt_dir):
            found = start.again()
        found = replace(found, messages=(*messages, *found.messages))
        found = replace(found, lacks_evaluation=_lacks_evaluation(found, config, evaluation_options))
        if config.start.stages != "both" or found.stage != 2:
            return found
        if found.begins_stage_2 and found.lacks_evaluation:  # the evaluation that ends stage 1
            return replace(found, stage=1, begun=found.facts["begun"], resets=frozenset())
        given = config.optimization.num_steps
        if given in (None, found.begun):
            return found
        said = f"--num_steps {given}: stage 1 has ended with step {found.begun}, and stays so"
        return replace(found, messages=(*found.messages, said))

    decided = _shared(make, ranks.world)
    remaining = [part for part in parts if (part.config.start.stage or 0) >= (decided.stage or 0)]
    return _of_part(decided, remaining[0], ranks), remaining


def after_stage_1(part: Part, end: int, ranks: Ranks) -> Start:
    """The start of stage 2, which is `part`, from the checkpoint of step `end` that this launch has saved.
    Every rank calls it.

    Raises:
        InputError: on every rank, the checkpoint has been damaged since.
    """
    config, place = part.config, part.config.checkpoint.ckpt_dir
    return _of_part(_shared(lambda: continuing(config, load_step(place, end)), ranks.world), part, ranks)


def _of_part(start: Start, part: Part, ranks: Ranks) -> Start:
    options = part.inputs.about.data_options
    return with_consequences(start, part.config, ranks.coordinates.data_size, options)


def _shared(make: Callable[[], Start], communicator: Communicator) -> Start:
    """The start that rank 0 makes; on other ranks without what is rank 0's alone."""
    made: list[Start] = []

    def facts() -> dict[str, Any]:
        made.append(make())
        shared = {name: getattr(made[0], name) for name in _SHARED}
        return {**shared, "resets": sorted(made[0].resets)}

    found = from_rank_0(facts, communicator)
    return made[0] if made else Start(**{**found, "resets": frozenset(found["resets"])})


def _lacks_evaluation(start: Start, config: RunConfig, evaluation_options: Sequence[str]) -> bool:
    """Whether the metrics lack the evaluation that belongs to the checkpoint, since the run was killed."""
    facts = start.facts
    saved = facts.get("options", {})
    evaluates = evaluation_options and all(
        saved.get(name) == config.options[name] for name in evaluation_options
    )
    if not evaluates or not start.step or start.step != facts["step"]:
        return False
    interval = facts.get("eval_interval", facts.get("ckpt_interval", saved.get("ckpt_interval", 0)))
    if not facts.get("ended") and (not interval or start.step % interval):
        return False  # saved because of a signal
    place = (start.step, facts.get("stage"))
    return not any(
        "eval_sequences" in line and (line["step"], line.get("stage")) == place
        for line in read_metrics(config.checkpoint.ckpt_dir)
    )
