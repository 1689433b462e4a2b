"""A budget of hours: ranks whose clocks differ agree, the end is the schedule's end, and a killed run goes on
with what is left."""

from __future__ import annotations

import random
import signal

import pytest

from tests.processes import ROOT, run_ranks, start_ranks, wait_for_file
from tests.training.staged import manifest_of
from training.checkpoint import list_steps
from training.metrics import Stopwatch
from training.optimizer.schedule import Schedule
from training.plan import BITS, TICKS, Budget
from training.report import read_metrics

SCRIPT = ROOT / "run_pretraining_hvd.py"
SECONDS = 3.0
LR, WARMUP = 0.01, 0.25


class Clock(Stopwatch):
    """A stopwatch whose hands the test moves."""

    def __init__(self, at_start: float = 0.0):
        super().__init__(at_start)
        self.now = at_start

    @property
    def total(self) -> float:
        return self.now

    def at_least(self, seconds: float) -> None:
        self.now = max(self.now, seconds)


def run(durations, seconds: float, at_start: float = 0.0) -> tuple[list[list[int]], float]:
    """Takes steps on three ranks, of which the second's clock is fast and the third's stands still, until all
    say that it is the end. Returns each rank's places, and the seconds on rank 0's clock."""
    clocks = [Clock(at_start) for _ in range(3)]
    budgets = [Budget(seconds / 3600, clock, leads=rank == 0) for rank, clock in enumerate(clocks)]
    places: list[list[int]] = [[] for _ in budgets]
    for duration in durations:
        if budgets[0].spent:
            break
        for place, budget in zip(places, budgets):
            place.append(budget.ticks)
        clocks[0].now += duration
        clocks[1].now += 7 * duration
        votes = [budget.flags() for budget in budgets]
        agreed = [all(flags) for flags in zip(*votes)]
        for budget in budgets:
            budget.take(agreed)
    assert all(budget.spent for budget in budgets), "more durations are needed"
    return places, clocks[0].now


@pytest.mark.parametrize("at_start", [0.0, 41.5])
def test_every_rank_takes_rank_0s_share_and_ends_at_the_same_step(at_start):
    rng = random.Random(1)
    durations = [5.0, *(rng.uniform(0.5, 1.5) for _ in range(300))]  # the first step plans memory
    (first, second, third), total = run(durations, 100.0, at_start)
    assert first == second == third
    assert first[-1] == TICKS and first.count(TICKS) == 1, "the last step, and no other, is at the end"
    assert first == sorted(first)
    elapsed = at_start
    for place, duration in zip(first, durations):
        assert abs(place / TICKS * 100 - elapsed) <= 1.5 + 1e-6, "the step's end, foreseen from the shortest"
        elapsed += duration
    assert 100 <= total <= 100 + 2 * 1.5 - 0.5, "less than two steps, foreseen from the shortest"


def test_a_step_longer_than_the_budget_is_followed_by_one_at_the_end():
    (places, *_), _ = run([30.0, 30.0], 10.0)
    assert places == [1, TICKS]


def test_nothing_is_left_of_a_spent_budget():
    assert run([], 10.0, at_start=10.0)[0] == [[], [], []]
    assert Budget(1.0, Clock(3599.0), True).spent is False
    quick = Clock(9.0)
    budget = Budget(10 / 3600, quick, True)
    budget.take([True] * BITS)
    assert not budget.spent
    budget.take(budget.flags())
    assert budget.spent and quick.now == 10.0, "used up, though the step was quicker than foreseen"


def words(corpus, directory, *more: str) -> list[str]:
    return [
        *("--raw", "--data", corpus.train, "--data_eval", corpus.held_out, "--vocab", corpus.vocab),
        *("--model", "bert_1_32_2", "--max_seq_length", "32", "--batch_size", "256", "--use_avg_len"),
        *("--lr", str(LR), "--warmup_ratio", str(WARMUP), "--log_interval", "1", "--ckpt_interval", "5"),
        *("--budget_hours", repr(SECONDS / 3600), "--peak_tflops", "0.1", "--ckpt_dir", directory, *more),
    ]


def assert_rates_follow_the_share(lines):
    """Learning rates follow the share of the budget that is spent."""
    schedule = Schedule(TICKS, LR, round(WARMUP * TICKS))
    for earlier, before, each in zip(lines, lines[1:], lines[2:-1]):
        # A step's place is known in the step before it, which began at `first`: the end foreseen there, from
        # the shortest step so far, no longer than the one before and what was left of the one before that.
        first = before["training_s"] - before["step_s"]
        last = before["training_s"] + before["step_s"] + earlier["step_s"]
        near = [(first - 0.01) / SECONDS, (last + 0.01) / SECONDS]
        lowest, highest = sorted(schedule(max(1, min(TICKS, round(share * TICKS)))) for share in near)
        assert each["lr"] <= LR
        if near[0] > WARMUP or near[1] < WARMUP:
            assert lowest - 1e-9 <= each["lr"] <= highest + 1e-9
        assert each["budget_left_s"] == pytest.approx(max(0.0, SECONDS - each["training_s"]), abs=0.01)
    assert lines[-1]["lr"] == 0 and lines[-1]["budget_left_s"] == 0


def test_a_killed_run_has_what_its_checkpoint_leaves(corpus, tmp_path):
    """Two ranks, killed after the first checkpoint and continued."""
    with start_ranks(SCRIPT, 2, "mpirun", args=words(corpus, tmp_path)) as started:
        wait_for_file(tmp_path / "0000005.json", run=started)
        started.signal(signal.SIGKILL)
    saved = list_steps(str(tmp_path))[-1]
    spent = manifest_of(tmp_path, saved)["training_s"]
    assert 0 < spent < SECONDS
    args = words(corpus, tmp_path, "--resume")
    result = run_ranks(SCRIPT, 2, "mpirun", args=args).check()
    lines = [each for each in read_metrics(str(tmp_path)) if "training_s" in each]
    assert_rates_follow_the_share(lines)
    seconds = [each["training_s"] for each in lines]
    assert seconds == sorted(seconds)
    later = [each for each in lines if each["step"] > saved]
    # One step more than the budget at most; on a busy machine a step can take long.
    slack = 1 + 5 * max(each["step_s"] for each in lines)
    assert spent < later[0]["training_s"] < spent + slack, "it does not begin again, nor count what was lost"
    assert SECONDS - 0.01 <= seconds[-1] <= SECONDS + slack
    said = f"continuing after step {saved} and {spent / 3600:.3g} of {SECONDS / 3600:g} hours"
    assert said in result.stdout and "0.25 of them warmup" in result.stdout and " left" in result.stdout
    # The end is saved and evaluated.
    last = list_steps(str(tmp_path))[-1]
    assert manifest_of(tmp_path, last)["training_s"] >= SECONDS
    assert [each["step"] for each in read_metrics(str(tmp_path)) if "eval_s" in each][-1] == last
    assert f"checkpoint {tmp_path}/{last:07d}.params" in result.stdout
