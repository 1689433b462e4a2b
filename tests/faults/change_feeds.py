"""Runs that are killed and go on with another number of ranks, by the feeds themselves: every sample comes
once an epoch, and a step has the same samples with the same masks as in a run that nothing happened to.

Without MXNet. All ranks of a run are feeds in this process, read ahead in threads as in training; a kill
loses the steps since the last checkpoint, which has the position alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import numpy as np

from data.finetuning.batching import Grouping, OrderedBatches, TrainingOrder
from data.options import BatchingConfig, MaskingConfig
from data.pretraining.batches import PretrainingBatches
from data.pretraining.prefetch import Feed
from data.pretraining.sources import Source, TextSource
from data.sharing import Share
from data.store.tokens import TokenStore
from data.tokenizing.tokenizer import TokenizerSettings
from data.tokenizing.vocab import Vocabulary, load_vocab
from tests.data.token_stores import build_store
from tests.faults.taken import Step, uncounted, unlike_steps

SIZES = (1, 2, 3, 4)
LETTERS = "abcdefghijklmnop"
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS)
Position = Callable[[int], int]
# One micro-batch: its samples, each with its epoch, and a digest of all that the network would get.
Taken = tuple


class Outcome(NamedTuple):
    """A run with kills: the ranks of each of its lives, steps done twice, epochs completed, and what was
    wrong."""

    sizes: tuple[int, ...]
    repeated: int
    epochs: int
    errors: tuple[str, ...]


class Recorded:
    """A source whose batches are (samples with their epoch, digest)."""

    def __init__(self, source: Source):
        self._source = source
        self.max_length, self.max_predictions = source.max_length, source.max_predictions

    def lengths(self, seed: int, epoch: int) -> np.ndarray:
        return self._source.lengths(seed, epoch)

    def collate(self, seed: int, epoch: int, indices: np.ndarray, padded_length: int) -> Any:
        batch = self._source.collate(seed, epoch, indices, padded_length)
        digest = hashlib.sha256(b"".join(array.tobytes() for array in batch)).hexdigest()
        return tuple((epoch, int(index)) for index in indices), digest


def pretraining(work: Path, seed: int, kills: int = 10, damage: Position = int) -> Outcome:
    """A run over text, bucketed by length, whose micro-batches count sequences or tokens.

    Args:
        work: a folder of its own.
        damage: changes the position that a checkpoint has, to show that the check can fail.
    """
    rng = random.Random(seed)
    micro_batches = rng.choice((4, 6, 12))
    in_tokens = bool(rng.getrandbits(1))
    batching = BatchingConfig(64 if in_tokens else 3, in_tokens, rng.choice((1, 3)))
    source = Recorded(_text_source(work, rng))

    def feed(rank: int, size: int) -> PretrainingBatches:
        return PretrainingBatches(source, batching, seed, Share(rank, size, micro_batches))  # type: ignore[arg-type]

    sizes = lives(rng, kills)
    taken, repeated = _live(sizes, feed, rng, damage)
    steps, expected = _numbered(taken), _numbered(_undisturbed(feed, len(taken)))
    last = max(epoch for step in steps.values() for batch in step.samples for epoch, _ in batch)
    epochs = {epoch: len(source.lengths(seed, epoch)) for epoch in range(last + 1)}
    errors = (*unlike_steps(steps, expected), *uncounted(steps, epochs))
    return Outcome(sizes, repeated, last, errors)


def finetuning(seed: int, kills: int = 10, damage: Position = int) -> Outcome:
    """The same of labelled examples, whose steps do not differ with the number of ranks, though their
    micro-batches do. The last life goes on to the end of an epoch."""
    rng = random.Random(seed)
    accumulate = rng.choice((1, 2, 3))
    lengths = np.array([rng.randint(4, 60) for _ in range(rng.randint(150, 250))])
    size = rng.choice((12, 16, 24))

    def order(rank: int, world_size: int) -> TrainingOrder:
        most = Share(rank, world_size, 4 * accumulate).most
        return TrainingOrder(lengths, size, seed, rank, world_size, Grouping(most, max_length=64))

    def feed(rank: int, world_size: int) -> OrderedBatches[Any]:
        return OrderedBatches(order(rank, world_size), lambda each, padded: (tuple(each.tolist()), ""))

    sizes = lives(rng, kills)
    end_of_epoch = lambda steps: order(0, 1).num_steps(-(-steps * size // len(lengths)))  # noqa: E731
    taken, repeated = _live(sizes, feed, rng, damage, end_of_epoch)
    found, expected = (
        [sorted(example for examples, _ in step for example in examples) for step in steps]
        for steps in (taken, _undisturbed(feed, len(taken)))
    )
    errors = [
        f"step {number} has other examples"
        for number, (step, wanted) in enumerate(zip(found, expected))
        if step != wanted
    ]
    counts = Counter(example for step in found for example in step)
    epochs = (len(taken) * size) // len(lengths)
    # The last step is filled up from the next epoch.
    filled = len(taken) * size - epochs * len(lengths)
    more = sorted(counts[index] - epochs for index in range(len(lengths)))
    if more != [0] * (len(lengths) - filled) + [1] * filled:
        errors.append(f"in {epochs} epochs examples come {epochs + more[0]} to {epochs + more[-1]} times")
    return Outcome(sizes, repeated, epochs, tuple(errors))


def lives(rng: random.Random, kills: int, first: Sequence[int] = SIZES) -> tuple[int, ...]:
    """Numbers of ranks, each another than the one before; the first is one of `first`."""
    sizes = [rng.choice(first)]
    while len(sizes) <= kills:
        sizes.append(rng.choice([size for size in SIZES if size != sizes[-1]]))
    return tuple(sizes)


def _live(
    sizes: Sequence[int],
    feed: Callable[[int, int], Any],
    rng: random.Random,
    damage: Position,
    whole: Callable[[int], int] = int,
) -> tuple[list[list[Taken]], int]:
    """The steps that count in the end, each as its micro-batches by their numbers; and how many others were
    lost in kills. `whole`: the number of steps to end with, at least so many."""
    steps: list[list[Taken]] = []
    position = lost = 0
    for life, size in enumerate(sizes):
        interval, last = rng.randint(1, 4), life == len(sizes) - 1
        with contextlib.ExitStack() as stack:
            ranks = []
            for rank in range(size):
                batches = feed(rank, size)
                ahead = Feed(batches.tasks, batches.micro_batches, rng.randint(0, 2), depth=6)
                ahead.seek(damage(position) if life else position)
                stack.callback(ahead.close)
                ranks.append(ahead)
            since: list[list[Taken]] = []
            count = rng.randint(3, 12)
            if last:
                count = whole(len(steps) + count) - len(steps)
            for number in range(1, count + 1):
                found = [[next(ahead) for _ in range(ahead.micro_batches)] for ahead in ranks]
                # Micro-batches of all ranks in their order in the step: rank 0's first, rank 1's first, ...
                turns = range(max(map(len, found)))
                since.append([each[turn] for turn in turns for each in found if turn < len(each)])
                places = {ahead.position for ahead in ranks}
                assert len(places) == 1, f"the ranks are at {places}"
                if number % interval == 0 or last:  # saved
                    (position,) = places
                    steps += since
                    since = []
            lost += len(since)
    return steps, lost


def _undisturbed(feed: Callable[[int, int], Any], count: int) -> list[list[Taken]]:
    """The first steps of one rank that nothing happens to."""
    batches = feed(0, 1)
    made: Iterator[Any] = (make() for _, make in batches.tasks())
    return [[next(made) for _ in range(batches.micro_batches)] for _ in range(count)]


def _numbered(taken: Sequence[list[Taken]]) -> dict[int, Step]:
    """Steps by number, from 0, with what an undisturbed run must have alike."""
    return {
        number: Step(0, tuple(samples for samples, _ in step), tuple(digest for _, digest in step), ())
        for number, step in enumerate(taken)
    }


def _text_source(work: Path, rng: random.Random) -> TextSource:
    """A token store of random letters, of about 60 samples an epoch."""
    (work / "vocab.txt").write_text("\n".join(WORDS), "utf-8")
    documents = [
        "\n".join(" ".join(rng.choices(LETTERS, k=rng.randint(1, 12))) for _ in range(rng.randint(3, 8)))
        for _ in range(40)
    ]
    (work / "text.txt").write_text("\n\n".join(documents) + "\n", "utf-8")
    vocabulary: Vocabulary = load_vocab(str(work / "vocab.txt"))
    build_store([str(work / "text.txt")], TokenizerSettings(vocabulary), str(work / "store"))
    return TextSource(TokenStore.open(str(work / "store")), vocabulary, MaskingConfig(32, 0.2, 0.15, 5))
