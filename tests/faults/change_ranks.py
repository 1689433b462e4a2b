"""Figure 2: every sample once an epoch, whatever the number of ranks after each kill. Real runs that are
killed and resumed, and many more by the feeds of all ranks in one process (tests/faults/change_feeds.py)."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Iterator

from tests.faults import change_feeds
from tests.faults.figure import ONCE, Damage, Parts, Program, Setting, Tally, endless, named
from tests.faults.jobs import (
    OWN_COUNTS,
    Job,
    corpus,
    last_step,
    metrics,
    moved,
    rescued_steps,
    undamaged,
    wait_for_checkpoint,
    wait_for_step,
)
from tests.faults.taken import patch, steps_in, uncounted, unlike_metrics, unlike_steps

KILLS = 10
MICRO_BATCHES = (4, 6)  # of a step: 3 ranks, or 4, cannot divide them evenly
STEPS = 60
ROUNDING = 1e-5  # relative, of losses and norms of gradients; measured: 2e-7
POSITIONS = {
    "a position in the data is one too far": 1,
    "a position in the data is one too early": -1,
}


def options(setting: Setting) -> dict[str, Any]:
    """Options of a run of one stage and some epochs, with text held out, in place of both stages."""
    texts = corpus(setting) / "corpus"
    return {
        **{"stages": None, "data": texts / "train-6.txt", "data_eval": texts / "eval.txt"},
        **{"max_seq_length": 64, "batch_size": 8, "num_steps": STEPS, "lr": 0.01, "warmup_ratio": 0.1},
        **{"ckpt_interval": 4, "keep_checkpoints": 2, "num_buckets": 3},
    }


def attempt(setting: Setting, parts: Parts) -> Tally:
    """A run that is killed and resumed with another number of ranks, again and again; for the first time when
    it has a checkpoint, before which it would begin anew with those ranks."""
    kills, micro_batches = int(parts["kills"]), int(parts["micro_batches"])
    expected = undisturbed(setting, micro_batches)
    directory = setting.folder("run")
    (directory / "taken").mkdir()
    draw = random.Random(int(parts["seed"]))
    dividing = [size for size in change_feeds.SIZES if micro_batches % size == 0]
    sizes = change_feeds.lives(draw, kills, dividing)
    job = Job(setting, micro_batches // sizes[0], patch(directory / "taken"))
    words = job.words(directory, **options(setting))
    for left, size in zip(range(kills, 0, -1), sizes):
        with job.start(words, size) as run:
            last = last_step(directory)
            most = 2 * (STEPS - 5 - last) // (left + 2)
            wait_for_step(run, directory, last + draw.randint(1, max(1, most)))
            wait_for_checkpoint(run, directory)
            time.sleep(draw.uniform(0, 0.05))
            # The end of the block kills every process.
    job.start(words, sizes[-1]).finish()
    return Tally.of("; ".join(list(wrong(directory, expected))[:3]))


def undisturbed(setting: Setting, micro_batches: int) -> Path:
    """The directory of a run of one process that nothing happens to, made once for all backends.

    Raises:
        AssertionError: it failed.
    """
    directory = setting.shared / f"undisturbed-{micro_batches}"
    if not (directory / "results.json").exists():
        shutil.rmtree(directory, ignore_errors=True)  # of one that failed
        (directory / "taken").mkdir(parents=True)
        alone = replace(undamaged(setting), backend="hvd_gloo", work=setting.folder(directory.name))
        job = Job(alone, micro_batches, patch(directory / "taken"))
        job.start(job.words(directory, **options(setting)), ranks=1).finish()
    return directory


def wrong(directory: Path, expected: Path) -> Iterator[str]:
    """Differences between a finished run and an undisturbed one: samples, masks, losses by more than
    rounding; and samples that did not come once in an epoch."""
    (steps, epochs), (wanted, _) = steps_in(directory / "taken"), steps_in(expected / "taken")
    yield from uncounted(steps, epochs)
    yield from unlike_steps(steps, wanted)
    found, rescued = metrics(directory), rescued_steps(directory)
    there = {(each["step"], "lr" in each) for each in found}
    # A step that was saved because the run failed then may have been killed before its line.
    lines = metrics(expected)
    lines = [each for each in lines if (each["step"], "lr" in each) in there or each["step"] not in rescued]
    yield from unlike_metrics(found, lines, ROUNDING)


CASE = named(kills=1, micro_batches=6, seed=1)
PROGRAM = Program(
    "2",
    "10 kills, each followed by another number of ranks (1 to 4): samples, masks, losses within rounding",
    "each sample once an epoch",
    weight=2,
    seconds=150,
    cases=endless(*({"kills": KILLS, "micro_batches": each} for each in MICRO_BATCHES)),
    attempt=attempt,
    damages={
        **{name: Damage(CASE, "samples|comes twice|finished", moved(by)) for name, by in POSITIONS.items()},
        "each rank has dropout masks of its own": Damage(
            CASE,
            "dropout|differ",
            """
import os, training.loop
seed_of = training.loop.dropout_seed
training.loop.dropout_seed = lambda seed, step, number: seed_of(seed, step, number + os.getpid())
""",
        ),
        "a rank divides its losses by what it has itself": Damage(CASE, "differ", OWN_COUNTS),
    },
)


def attempt_feeds(setting: Setting, parts: Parts) -> Tally:
    """The feeds of a run that is killed ten times and goes on with another number of ranks."""

    def damage(position: int) -> int:
        return max(0, position + POSITIONS.get(setting.damage, 0))

    seed = int(parts["seed"])
    if parts["kind"] == "pretraining":
        outcome = change_feeds.pretraining(setting.folder("run"), seed, KILLS, damage)
    else:
        outcome = change_feeds.finetuning(seed, KILLS, damage)
    return Tally.of("; ".join(outcome.errors[:3]))


FEED_CASE = named(kind="pretraining", seed=3)
FEEDS = Program(
    "feeds",
    "2 by the feeds of all ranks in one process: pretraining, fine-tuning, other data and batches each time",
    "each sample once an epoch",
    weight=0.5,
    seconds=3,
    backends=(ONCE,),
    cases=endless({"kind": "pretraining"}, {"kind": "finetuning"}),
    attempt=attempt_feeds,
    damages={name: Damage(FEED_CASE, "has other|samples come") for name in POSITIONS},
)
