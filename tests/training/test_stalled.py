"""The warning of a loss that does not fall: real runs that learn or do not, and the rule by itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data.store.tokens import entropy
from data.tokenizing.vocab import SPECIAL_TOKENS
from tests.faults.jobs import metrics
from tests.training.staged import run
from training import stalled
from training.stalled import GUIDE, INTERVALS, STEPS, Stalled, reasons

SHORT: dict[str, Any] = {
    "stages": None, "max_seq_length": 16, "batch_size": 16, "num_steps": 280, "warmup_ratio": 0.05,
    "log_interval": 10, "ckpt_interval": 1000, "data_eval": None, "optimizer": "adamw",
    "model": "bert_1_32_2", "cache_dir": None, "num_buckets": 1,
}  # fmt: skip
COUNTS = np.array([5, 3, 2, 0, 1])
LEVEL = entropy(COUNTS)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Any:
    """Documents of eight sentences, each of words of its own: what is masked follows from the context."""
    folder, rng = tmp_path_factory.mktemp("text"), np.random.default_rng(0)
    sentences = [[f"w{5 * number + place}" for place in range(5)] for number in range(8)]
    documents = [[" ".join(sentences[i]) for i in rng.integers(0, 8, 6)] for _ in range(200)]
    (folder / "text.txt").write_text("\n\n".join("\n".join(each) for each in documents) + "\n")
    tokens = [*SPECIAL_TOKENS, *(word for sentence in sentences for word in sentence)]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    return SimpleNamespace(vocab=str(folder / "vocab.txt"), held_out=str(folder / "text.txt"))


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"lr": 0.005, "num_steps": 560}, None),
        ({"lr": 1e-7}, "--lr 1e-07 is too low"),
        ({"lr": 3, "spikes": "take"}, "--lr 3 is too high"),  # else it ends before
    ],
    ids=["learns", "too low", "too high"],
)
def test_real_runs(changes, expected, text, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(stalled, "STEPS", 240)
    assert run(tmp_path, text, **{**SHORT, **changes}) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "loss does not fall" in line]
    losses = [each["mlm_loss"] for each in metrics(tmp_path)]
    if expected is None:
        assert said == [] and losses[-1] < 2 < 3.6 < losses[0]  # the tokens' entropy is 3.69
        return
    assert min(losses) > 3.69
    (line,) = said
    # The warmup takes 14 steps: counted is from the line of step 20 on, and the steps since that of step 10.
    assert "not below 3.68" in line and "at step 250" in line and GUIDE in line
    assert f"{expected} (usual: 2.5e-05, small models a few times that); or 250 steps are" in line


def watch(counts: Any = COUNTS) -> Stalled:
    masking = SimpleNamespace(masked_lm_prob=0.15)
    config = SimpleNamespace(
        optimization=SimpleNamespace(optimizer="lamb"), data=SimpleNamespace(masking=masking)
    )
    return Stalled(
        SimpleNamespace(
            feed=SimpleNamespace(token_counts=counts), task=SimpleNamespace(judged=("mlm_loss",)),
            start=SimpleNamespace(step=0), plan=SimpleNamespace(lr=1e-3), config=config,
        )
    )  # type: ignore[arg-type]  # fmt: skip


def lines_with(losses: list, interval: int, warm_from: int = 0, counts: Any = COUNTS) -> list[int]:
    """Steps at which there is a warning."""
    watching, found = watch(counts), []
    for number, loss in enumerate(losses, 1):
        line = {"step": number * interval, "mlm_loss": loss, "skipped_steps": 0}
        if watching.look(line, number >= warm_from, 64.0):
            found.append(number * interval)
    return found


@pytest.mark.parametrize("high", [LEVEL, LEVEL + 5, None], ids=["at", "above", "skipped"])
def test_it_takes_intervals_and_steps_after_the_warmup_and_comes_once(high):
    assert lines_with([high] * 30, 50) == [50 * INTERVALS]
    assert lines_with([high] * 600, 1) == [STEPS]
    assert lines_with([high] * 30, 50, warm_from=6) == [50 * (INTERVALS + 5)]
    assert lines_with([high] * (INTERVALS - 1), 1000) == []
    assert lines_with([high] * 30, 50, counts=None) == [], "files with masks"


def test_a_loss_below_the_level_begins_the_count_anew():
    low, high = LEVEL - 1e-3, LEVEL + 1
    assert lines_with([*[high] * (INTERVALS - 1), low] * 5, 50) == []
    assert lines_with([low] * 20 + [high] * 22, 50) == [50 * (20 + INTERVALS)], "also where it rises again"


@pytest.mark.parametrize(
    "changes, first",
    [
        ({"skipped": 40}, "40 of 300 steps were skipped, as not finite or far off"),
        ({"lr": 0.1}, "--lr 0.1 is too high"),
        ({"lr": 0.014, "sequences": 32768}, "300 steps are too few"),
        ({"lr": 0.04, "sequences": 32768}, "--lr 0.04 is too high (usual: 0.005"),
        ({"lr": 1e-5}, "--lr 1e-05 is too low (usual: 0.00025"),
        ({"masked": 0.6}, "--masked_lm_prob 0.6"),
        ({"sequences": 4}, "steps of 4 sequences"),
        ({}, "300 steps are too few yet"),
        ({"optimizer": "adamw", "lr": 0.02}, "--lr 0.02 is too high (usual: 5.7e-05"),
    ],
)
def test_what_is_unusual_comes_first(changes, first):
    usual = {"step": 300, "optimizer": "lamb", "lr": 0.012, "sequences": 82, "masked": 0.15, "skipped": 0}
    found = reasons(**{**usual, **changes})
    assert found[0].startswith(first) and found[1] != found[0]
