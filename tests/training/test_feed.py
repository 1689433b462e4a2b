"""Batches for the loop from tiny files: what is written once, who gets what, and where it goes on."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from comm.local import LocalCommunicator
from data.pretraining.sources import Batch
from tests.training.test_inputs import arrays
from tests.training.tiny import Heard
from training.inputs import check_inputs
from training.options import parse_options, run_config
from training.plan import make_plan

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
PAD, CLS, SEP, MASK = 0, 2, 3, 4


class Rank(LocalCommunicator):
    """The first rank of the first host, or another whose rank 0 has already passed the barrier."""

    def __init__(self, rank: int = 0, size: int = 1):
        self.rank = self.local_rank = rank
        self.size = self.local_size = size


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """A vocabulary of letters; texts of 12 documents with sentences of 1 to 9 of them."""
    monkeypatch.chdir(tmp_path)
    Path("vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    rng = np.random.default_rng(0)
    for name in ("train.txt", "eval.txt"):
        documents = [
            "\n".join(" ".join(rng.choice(list(LETTERS), rng.integers(1, 10))) for _ in range(6))
            for _ in range(12)
        ]
        Path(name).write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    return tmp_path


class Prepared:
    """The arguments of both functions for a command line."""

    def __init__(self, arguments: str = "", world_size: int = 1, text: str = "--raw --max_seq_length 32"):
        argv = ["--vocab", "vocab.txt", "--ckpt_dir", "ckpt", "--num_data_workers", "0"]
        argv += ["--batch_size", "4", *text.split(), *arguments.split()]
        config = run_config(parse_options(argv, "description"))
        self.config = replace(config, batch=replace(config.batch, processes=world_size))
        self.inputs = check_inputs(self.config)
        length = self.inputs.max_seq_length
        self.plan = make_plan(self.config.batch, self.config.optimization, world_size, length)
        self.heard = Heard()
        self.world_size = world_size

    def training(self, rank: int = 0, seed: int = 0) -> Any:
        communicator = Rank(rank, self.world_size)
        return self.inputs.open_training(self.config, self.plan, seed, communicator, self.heard)

    def evaluation(self, rank: int = 0) -> Any:
        return self.inputs.open_evaluation(self.config, Rank(rank, self.world_size))


def take(feed: Any, count: int, position: int = 0) -> list[Batch]:
    feed.seek(position)
    try:
        return [next(feed) for _ in range(count)]
    finally:
        feed.close()


def same(first: Any, second: Any) -> bool:
    return all((a == b).all() for one, other in zip(first, second) for a, b in zip(one, other))


def instances(rows: int) -> dict[str, np.ndarray]:
    """Sequences with masks; the second token tells them apart."""
    content = arrays(rows, 12, 2)
    content["input_ids"][:, 1] = 5 + np.arange(rows)
    return content


def files(place: Path, pattern: str) -> dict[str, tuple[int, int]]:
    """Name: inode and time of the last change; equal only where nothing has been written again."""
    found = {path.name: os.stat(path) for path in place.glob(pattern)}
    return {name: (status.st_ino, status.st_mtime_ns) for name, status in found.items()}


class TestText:
    def test_the_unigram_entropy_is_that_of_the_text(self):
        prepared = Prepared("--data train.txt")
        feed = prepared.training()
        counts = Counter(Path("train.txt").read_text(encoding="utf-8").split())
        total = sum(counts.values())
        expected = -sum(count / total * math.log(count / total) for count in counts.values())
        assert sorted(feed.token_counts[feed.token_counts > 0]) == sorted(counts.values())
        said = f"12 documents, 72 sentences, {total:,} tokens, unigram entropy {expected:.2f} nats"
        assert any(said in line for line in prepared.heard.notes)
        feed.close()

    def test_it_is_tokenized_once(self, place):
        take(Prepared("--data train.txt").training(), 1)
        stores = files(place, "ckpt/tokens/*/*")
        assert stores
        take(Prepared("--data train.txt --resume").training(), 1)
        assert files(place, "ckpt/tokens/*/*") == stores

    def test_only_rank_0_counts_tokens(self):
        prepared = Prepared("--data train.txt", world_size=2)
        counts = [prepared.training(rank).token_counts for rank in range(2)]
        assert counts[0] is not None and counts[1] is None

    def test_the_time_spent_waiting_is_counted(self):
        feed = Prepared("--data train.txt").training()
        assert feed.waited == 0
        take(feed, 3)
        assert feed.waited > 0


class TestDummy:
    def test_one_batch_of_random_tokens_again_and_again(self):
        feed = Prepared("--dummy_data_len 24 --data train.txt").training()
        first, second = take(feed, 2)
        assert first is second and feed.position == 2
        assert first.input_ids.shape == (4, 24) and (first.valid_lengths == 24).all()
        assert first.input_ids.min() >= 0 and first.input_ids.max() < len(WORDS)
        assert first.masked_positions.shape == (4, 4)  # 15% of 24, rounded up
        assert (first.masked_weights == 1).all()
        assert feed.token_counts is None
        assert not Path("ckpt").exists(), "the text is not even tokenized"

    def test_tokens_a_batch(self):
        feed = Prepared("--dummy_data_len 24 --batch_size 100 --use_avg_len").training()
        assert take(feed, 1)[0].input_ids.shape == (4, 24)

    def test_ranks_and_seeds_have_tokens_of_their_own(self):
        prepared = Prepared("--dummy_data_len 24", world_size=2)
        feeds = [prepared.training(rank, seed) for rank in (0, 1) for seed in (0, 1)]
        assert len({take(feed, 1)[0].input_ids.tobytes() for feed in feeds}) == 4
        assert same(take(prepared.training(), 1), take(prepared.training(), 1))

    def test_without_data_there_is_no_feed(self):
        assert Prepared("--data_eval eval.txt").training() is None


def own(begin):
    """The batches of a pass, without their controls."""
    return list(begin())[::2]


class TestEvaluation:
    ARGUMENTS = "--data_eval eval.txt --batch_size_eval 4"

    def test_without_files_there_is_none(self):
        assert Prepared("--data train.txt").evaluation() is None

    def test_masks_do_not_depend_on_those_of_training(self):
        first = own(Prepared(self.ARGUMENTS).evaluation())
        more = " --masked_lm_prob 0.4 --max_predictions_per_seq 3"
        assert same(first, own(Prepared(self.ARGUMENTS + more).evaluation()))

    def test_ranks_divide_it(self):
        whole = own(Prepared(self.ARGUMENTS).evaluation())
        divided = Prepared(self.ARGUMENTS, world_size=3)
        shares = [own(divided.evaluation(rank)) for rank in range(3)]
        order = [shares[index % 3][index // 3] for index in range(len(whole))]
        assert sum(len(share) for share in shares) == len(whole) and same(order, whole)

    def test_files_with_masks_are_taken_as_they_are(self):
        np.savez("eval.npz", **instances(20))
        begin = Prepared("--data_eval eval.npz --eval_use_npz --batch_size_eval 4").evaluation()
        assert begin.token_counts is None
        found = own(begin)
        seen = np.concatenate([batch.input_ids[:, 1] for batch in found])
        assert sorted(seen) == sorted(instances(20)["input_ids"][:, 1])


def test_npz_files_for_training_are_divided_too():
    rows = 16
    np.savez("train.npz", **instances(rows))
    prepared = Prepared("--data train.npz", world_size=2, text="")
    seen: list[list[int]] = []
    for rank in range(2):
        feed = prepared.training(rank)
        assert feed.token_counts is None
        seen.append([int(row) for batch in take(feed, 2) for row in batch.input_ids[:, 1]])
    assert len(seen[0]) == len(seen[1]) == 8
    assert sorted(seen[0] + seen[1]) == list(range(5, 5 + rows)), "every sequence on one rank, once an epoch"
