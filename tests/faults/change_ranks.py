"""Figure 2: every sample once an epoch, whatever the number of ranks after each kill. Real runs that are
killed and resumed, and many more by the feeds of all ranks in one process (tests/faults/change_feeds.py)."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any, Iterator

from tests.faults.figure import ONCE, Attempt, Damage, Program, Setting, Tally
from tests.faults.jobs import ONE_THREAD, SECONDS, Job, corpus, named, parsed, starter
from tests.faults.kill_at_boundary import metrics
from tests.faults.taken import patch, steps_in, uncounted, unlike_metrics, unlike_steps
from tests.faults.test_kill_pause_cut import wait_for_checkpoint
from tests.processes import Run, start_ranks

KINDS = ("pretraining", "finetuning")
KILLS = 10
RANKS = (1, 2, 3, 4)
MICRO_BATCHES = (4, 6)  # of a step: 3 ranks, or 4, cannot divide them evenly
STEPS = 60
ROUNDING = 1e-5  # relative, of losses and norms of gradients; measured: 2e-7
POSITIONS = {
    "a position in the data is one too far": 1,
    "a position in the data is one too early": -1,
}
PATCHES = {
    **{
        name: f"""
import training.run
place = training.run.position_to_continue
def moved(start, *rest, **named):
    position, messages = place(start, *rest, **named)
    return position + ({by} if start.step else 0), messages
training.run.position_to_continue = moved
"""
        for name, by in POSITIONS.items()
    },
    "each rank has dropout masks of its own": """
import os, training.loop
seed_of = training.loop.dropout_seed
training.loop.dropout_seed = lambda seed, step, number: seed_of(seed, step, number + os.getpid())
""",
    "a rank divides its losses by what it has itself": """
import training.step
from comm.local import LocalCommunicator
factors = training.step.TrainStep._factors
training.step.TrainStep._factors = lambda self, batches, sharing: factors(self, batches, LocalCommunicator())
""",
}


def options(setting: Setting) -> dict[str, Any]:
    """Options of a run of one stage and some epochs, with text held out, in place of both stages."""
    texts = corpus(setting) / "corpus"
    return {
        **{"stages": None, "data": texts / "train-6.txt", "data_eval": texts / "eval.txt"},
        **{"max_seq_length": 64, "batch_size": 8, "num_steps": STEPS, "lr": 0.01, "warmup_ratio": 0.1},
        **{"ckpt_interval": 4, "keep_checkpoints": 2, "num_buckets": 3},
    }


def cases(setting: Setting) -> Iterator[str]:
    """Endless: runs with other kills and numbers of ranks each."""
    draw = random.Random(setting.seed)
    while True:
        for micro_batches in MICRO_BATCHES:
            yield named(kills=KILLS, micro_batches=micro_batches, seed=draw.randrange(10**6))


@contextlib.contextmanager
def opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: a run that is killed and resumed with another number of ranks, again and again; for the
    first time when it has a checkpoint, before which it would begin anew with those ranks."""

    def attempt(case: str) -> Tally:
        parts = {name: int(value) for name, value in parsed(case).items()}
        expected = undisturbed(setting, parts["micro_batches"])
        directory = setting.work / "run"
        shutil.rmtree(directory, ignore_errors=True)
        (directory / "taken").mkdir(parents=True)
        draw = random.Random(parts["seed"])
        sizes = lives(draw, parts["kills"], parts["micro_batches"])
        accumulate = parts["micro_batches"] // sizes[0]
        job = Job(setting, accumulate, patch(directory / "taken") + PATCHES.get(setting.damage, ""))
        for left, size in zip(range(parts["kills"], 0, -1), sizes):
            with started(job, size, directory) as run:
                last = last_step(directory)
                most = 2 * (STEPS - 5 - last) // (left + 2)
                wait_for_a_step(run, directory, last + draw.randint(1, max(1, most)))
                wait_for_checkpoint(run, directory)
                time.sleep(draw.uniform(0, 0.05))
                for pid in run.pids():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        with started(job, sizes[-1], directory) as run:
            run.wait().check()
        return Tally.of("; ".join(list(wrong(directory, expected))[:3]))

    yield attempt


def lives(draw: random.Random, kills: int, micro_batches: int) -> list[int]:
    """Numbers of ranks, each another than the one before; the first one divides the micro-batches."""
    sizes = [draw.choice([size for size in RANKS if micro_batches % size == 0])]
    while len(sizes) <= kills:
        sizes.append(draw.choice([size for size in RANKS if size != sizes[-1]]))
    return sizes


def undisturbed(setting: Setting, micro_batches: int) -> Path:
    """The directory of a run of one process that nothing happens to, made once for all backends.

    Raises:
        AssertionError: it failed.
    """
    directory = setting.shared / f"undisturbed-{micro_batches}"
    if not (directory / "results.json").exists():
        shutil.rmtree(directory, ignore_errors=True)  # of one that failed
        (directory / "taken").mkdir(parents=True)
        work = setting.work / directory.name
        work.mkdir(exist_ok=True)
        alone = Job(Setting("hvd_mpi", 0, work, setting.shared, 0), micro_batches, patch(directory / "taken"))
        words = alone.words(directory, **options(setting))
        with start_ranks(alone.script, 1, "none", timeout=SECONDS, env=ONE_THREAD, args=words) as run:
            run.wait().check()
    return directory


def started(job: Job, size: int, directory: Path) -> Run:
    """Starts or resumes a run with a number of ranks."""
    words = job.words(directory, **options(job.setting))
    launcher = starter(job.setting)
    if (launcher, size) == ("gloo", 1):
        launcher = "none"  # horovodrun fails where it keeps the output of a single rank (log of 0)
    return start_ranks(job.script, size, launcher, timeout=SECONDS, env=ONE_THREAD, args=words, grace=15.0)


def last_step(directory: Path) -> int:
    """The last step in the metrics; 0 for none."""
    return max((each["step"] for each in metrics(directory) if "lr" in each), default=0)


def wait_for_a_step(run: Run, directory: Path, step: int) -> None:
    """Waits until a step is in the metrics.

    Raises:
        AssertionError: the run ended before, or it took too long.
    """
    end = time.monotonic() + SECONDS
    while last_step(directory) < step:
        assert run.poll() is None, run.wait().describe()
        assert time.monotonic() < end, f"step {step} never came"
        time.sleep(0.002)


def wrong(directory: Path, expected: Path) -> Iterator[str]:
    """Differences between a finished run and an undisturbed one: samples, masks, losses by more than
    rounding; and samples that did not come once in an epoch."""
    (steps, epochs), (wanted, _) = steps_in(directory / "taken"), steps_in(expected / "taken")
    yield from uncounted(steps, epochs)
    yield from unlike_steps(steps, wanted)
    yield from unlike_metrics(metrics(directory), metrics(expected), ROUNDING)


CASE = named(kills=1, micro_batches=6, seed=1)
SAID = ("samples|comes twice|finished", "samples|comes twice|finished", "dropout|differ", "differ")
PROGRAM = Program(
    "2",
    "10 kills, each followed by another number of ranks (1 to 4): samples, masks, losses within rounding",
    "each sample once an epoch",
    weight=2,
    seconds=150,
    cases=cases,
    opened=opened,
    damages={name: Damage(CASE, said) for name, said in zip(PATCHES, SAID)},
)


def feed_cases(setting: Setting) -> Iterator[str]:
    """Endless: runs of other data, batches and numbers of ranks each."""
    draw = random.Random(setting.seed)
    while True:
        for kind in KINDS:
            yield named(kind=kind, seed=draw.randrange(10**6))


@contextlib.contextmanager
def feeds_opened(setting: Setting) -> Iterator[Attempt]:
    """Tries a case: the feeds of a run that is killed ten times and goes on with another number of ranks."""
    from tests.faults import change_feeds

    def damage(position: int) -> int:
        return max(0, position + POSITIONS.get(setting.damage, 0))

    def attempt(case: str) -> Tally:
        parts = parsed(case)
        folder = setting.work / "run"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        seed = int(parts["seed"])
        if parts["kind"] == "pretraining":
            outcome = change_feeds.pretraining(folder, seed, KILLS, damage)
        else:
            outcome = change_feeds.finetuning(seed, KILLS, damage)
        return Tally.of("; ".join(outcome.errors[:3]))

    yield attempt


FEED_CASE = named(kind="pretraining", seed=3)
FEEDS = Program(
    "feeds",
    "2 by the feeds of all ranks in one process: pretraining, fine-tuning, other data and batches each time",
    "each sample once an epoch",
    weight=0.5,
    seconds=3,
    backends=(ONCE,),
    cases=feed_cases,
    opened=feeds_opened,
    damages={name: Damage(FEED_CASE, "has other|samples come") for name in POSITIONS},
)
