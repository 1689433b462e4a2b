"""Runs that are killed at any moment and go on, with the same or another number of ranks: nothing is lost or
repeated, and the order is that of a run that nothing happened to."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from contextlib import ExitStack

import numpy as np
import pytest

from data.options import MaskingConfig
from data.pretraining.batches import EPOCH_SHIFT, PretrainingBatches
from data.pretraining.sources import TextSource
from data.sharing import Share
from tests.data.resume_worker import OPTIONS, digest
from tests.processes import ROOT, start_command, until


@pytest.fixture
def job(store, embedded, tmp_path):
    """A function that starts a worker for some ranks and returns the running command."""
    assert store.directory

    def start(ranks, world_size, workers, blocks, name="all", pause=0.002):
        settings = {
            "store": store.directory,
            "vocab": str(embedded / "vocab.txt"),
            "ranks": ranks,
            "world_size": world_size,
            "workers": workers,
            "blocks": blocks,
            "position": str(tmp_path / f"position-{name}"),
            "log": str(tmp_path / f"log-{name}"),
            "pause": pause,
        }
        words = [sys.executable, "-m", "tests.data.resume_worker", json.dumps(settings)]
        return start_command(words, cwd=ROOT)

    return start


@pytest.fixture
def uninterrupted(store, vocab):
    """Everything one rank consumes: batches, blocks of two epochs, and (epoch, samples, digest) of each."""
    source = TextSource(store, vocab, MaskingConfig(64, 0.3, 0.15, 10))
    batches = PretrainingBatches(source, share=Share.of(0, 1), **OPTIONS)
    needed = sum(batches.blocks_in_epoch(epoch) for epoch in range(2))
    expected, stream, position = [], iter(batches), 0
    while len(expected) < needed + 50:
        epoch, place = position >> EPOCH_SHIFT, position & ((1 << EPOCH_SHIFT) - 1)
        samples, _ = batches.order(epoch).block(place)
        expected.append((epoch, samples.tolist(), digest(next(stream))))
        position = batches.position
    return batches, needed, expected


def read_log(path):
    """The whole lines of a log; a kill can leave a part of one."""
    with open(path, encoding="utf-8") as handle:
        return [json.loads(line) for line in handle if line.endswith("\n")]


def wait_for_lines(path, count):
    until(lambda: os.path.exists(path) and len(read_log(path)) >= count)


def read_position(path):
    return int(path.read_text()) if path.exists() else 0


def as_blocks(lines, batches, until):
    """Blocks by their number from the start, of log lines of positions before `until`."""
    found = {}
    for position, rank, epoch, samples, key in lines:
        if position < until:
            first = sum(batches.blocks_in_epoch(e) for e in range(position >> EPOCH_SHIFT))
            number = first + (position & ((1 << EPOCH_SHIFT) - 1)) + rank
            assert number not in found, "a batch that was saved as consumed came again"
            found[number] = (epoch, samples, key)
    return found


def check(blocks, expected, batches, source_lengths):
    """All blocks from the first on, those of the uninterrupted run, with each sample once an epoch."""
    count = len(blocks)
    assert sorted(blocks) == list(range(count))
    assert [tuple(blocks[number]) for number in range(count)] == expected[:count]
    for epoch in range(2):
        samples = [sample for e, indices, _ in blocks.values() if e == epoch for sample in indices]
        assert sorted(samples) == list(range(len(source_lengths(epoch))))


def test_killed_runs_go_on_with_any_number_of_ranks(job, uninterrupted, store, vocab, tmp_path):
    generator = random.Random(4)
    log, saved = tmp_path / "log-all", tmp_path / "position-all"
    batches, needed, expected = uninterrupted
    blocks, position = {}, 0
    for world_size, workers in [(1, 2), (2, 1), (3, 0), (4, 3)]:
        before = len(read_log(log)) if log.exists() else 0
        with job(list(range(world_size)), world_size, workers, 10**9) as run:
            wait_for_lines(log, before + 1 + generator.randrange(needed // 5))
            os.kill(run.pid, signal.SIGKILL)
            assert run.wait().returncode == -signal.SIGKILL
        position = read_position(saved)
        blocks.update(as_blocks(read_log(log)[before:], batches, position))
    before = len(read_log(log))
    left = needed - len(blocks)
    assert left > 0
    with job([0, 1], 2, 2, left + 4, pause=0.0) as run:
        run.wait().check()
    blocks.update(as_blocks(read_log(log)[before:], batches, 1 << 62))
    source = TextSource(store, vocab, MaskingConfig(64, 0.3, 0.15, 10))
    check(blocks, expected, batches, lambda epoch: source.lengths(OPTIONS["seed"], epoch))


def test_killed_processes_go_on_as_more_processes(job, uninterrupted, store, vocab, tmp_path):
    """A process for each rank: two are killed, and three go on from what the first of them had saved."""
    batches, needed, expected = uninterrupted
    with ExitStack() as stack:
        runs = [stack.enter_context(job([rank], 2, 1, 10**9, name=f"first-{rank}")) for rank in range(2)]
        for rank in range(2):
            wait_for_lines(tmp_path / f"log-first-{rank}", needed // 6)
        for run in runs:
            os.kill(run.pid, signal.SIGKILL)
        assert [run.wait().returncode for run in runs] == [-signal.SIGKILL] * 2
    # Ranks of a run are never more than a step apart; these do not wait for each other.
    position = min(read_position(tmp_path / f"position-first-{rank}") for rank in range(2))
    blocks = {}
    for rank in range(2):
        blocks.update(as_blocks(read_log(tmp_path / f"log-first-{rank}"), batches, position))
    assert len(blocks) > 20

    for rank in range(3):
        (tmp_path / f"position-second-{rank}").write_text(str(position))
    left = needed - len(blocks)
    assert left > 0
    with ExitStack() as stack:
        for run in [
            stack.enter_context(job([rank], 3, 1, left + 3, name=f"second-{rank}", pause=0.0))
            for rank in range(3)
        ]:
            run.wait().check()
    for rank in range(3):
        found = as_blocks(read_log(tmp_path / f"log-second-{rank}"), batches, 1 << 62)
        assert not set(found) & set(blocks)
        blocks.update(found)
    source = TextSource(store, vocab, MaskingConfig(64, 0.3, 0.15, 10))
    check(blocks, expected, batches, lambda epoch: source.lengths(OPTIONS["seed"], epoch))


def test_the_size_of_this_test_makes_sense(store, vocab):
    source = TextSource(store, vocab, MaskingConfig(64, 0.3, 0.15, 10))
    batches = PretrainingBatches(source, share=Share.of(0, 1), **OPTIONS)
    assert 50 < batches.blocks_in_epoch(0) < 550 and np.unique(batches.order(0).shapes()[1]).size == 4
