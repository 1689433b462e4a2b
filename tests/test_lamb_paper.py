"""The rules of lamb_paper.py, against the tables as the LAMB paper prints them (arXiv:1904.00962)."""

from __future__ import annotations

import math
import shlex
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lamb_paper

# B, steps of both stages, lr, warmup ratio
PAPER_ROWS = [
    (512, 1_000_000, 5 / (2**3.0 * 1e3), 1 / 320),
    (1024, 500_000, 5 / (2**2.5 * 1e3), 1 / 160),
    (2048, 250_000, 5 / (2**2.0 * 1e3), 1 / 80),
    (4096, 125_000, 5 / (2**1.5 * 1e3), 1 / 40),
    (8192, 62_500, 5 / (2**1.0 * 1e3), 1 / 20),
    (16384, 31_250, 5 / (2**0.5 * 1e3), 1 / 10),
    (32768, 15_625, 5 / (2**0.0 * 1e3), 1 / 5),
]

clusters = st.tuples(st.integers(1, 2048), st.integers(512, 65536), st.integers(1, 256))


# ---------------------------------------------------------------------------------------- the paper's table


@pytest.mark.parametrize(("batch_size", "steps", "lr", "ratio"), PAPER_ROWS)
def test_every_row_of_the_paper(batch_size, steps, lr, ratio):
    first, second = lamb_paper.plan_for_target(1, 8192, batch_size).stages
    for stage, share in ((first, Fraction(9, 10)), (second, Fraction(1, 10))):
        assert stage.sequences_per_step == batch_size
        assert stage.lr == pytest.approx(lr, rel=1e-12)
        assert stage.warmup_ratio == pytest.approx(ratio, rel=1e-12)
        assert stage.num_steps == math.ceil(steps * share)
        assert stage.source == f"row {batch_size}"
        assert stage.warnings == ()
    # every row of the paper warms up for 3,125 steps in all: 2,812.5 and 312.5
    assert first.warmup_steps in (2812, 2813)
    assert second.warmup_steps in (312, 313)


def test_warmup_steps_round_a_half_up():
    assert lamb_paper.warmup_steps(14063, 0.2) == 2813
    assert lamb_paper.warmup_steps(900_000, 1 / 320) == 2813  # 2812.5
    assert lamb_paper.warmup_steps(6250, 0.05) == 313  # 312.5
    assert lamb_paper.warmup_steps(10, 0.0) == 0
    assert lamb_paper.warmup_steps(10, 1.0) == 10


def test_mixed_batch_is_the_published_run():
    first, second = lamb_paper.mixed_batch_plan(256, 8192).stages
    assert (first.sequences_per_step, second.sequences_per_step) == (65536, 32768)
    assert (first.num_steps, second.num_steps) == (7038, 1561)
    assert first.num_steps + second.num_steps == 8599  # the paper's total
    assert (first.lr, second.lr) == (0.006, 0.004)
    assert first.warmup_steps == pytest.approx(2000, abs=1)  # NVIDIA's scripts: 2000 and 200
    assert second.warmup_steps == 200
    assert first.tokens_seen == 7038 * 65536 * 128
    assert "1563" in second.warnings[0] and "7032" in first.warnings[0]  # what the formula gives instead


def test_max_predictions():
    for length, expected in ((128, 20), (512, 80), (1, 1), (20, 3), (64, 10), (256, 39), (384, 58)):
        assert lamb_paper.default_max_predictions(length) == expected


# ------------------------------------------------------------------------------------------------ the rules


@given(clusters)
def test_both_stages_see_the_baseline_within_one_step(cluster):
    for stage, sequences in zip(lamb_paper.plan(*cluster).stages, (512 * 900_000, 512 * 100_000)):
        exact = Fraction(math.prod(cluster), stage.max_seq_length)
        assert sequences <= stage.num_steps * exact < sequences + exact
        assert stage.tokens_seen == stage.num_steps * math.prod(cluster)


@given(st.integers(1, 2048), st.integers(1, 128), st.integers(1, 256))
def test_target_batch_size_inverts_the_plan(num_gpus, sequences, accumulate):
    tokens = 512 * sequences  # whole sequences in both stages
    planned = lamb_paper.plan(num_gpus, tokens, accumulate)
    targets = [stage.sequences_per_step for stage in planned.stages]
    assert lamb_paper.plan_for_target(num_gpus, tokens, *targets) == planned


@given(clusters, st.integers(1, 100))
def test_a_larger_batch_never_takes_more_steps_nor_a_smaller_lr(cluster, more):
    num_gpus, tokens, accumulate = cluster
    small = lamb_paper.stage_for_run(num_gpus, tokens, accumulate, 128)
    large = lamb_paper.stage_for_run(num_gpus, tokens, accumulate + more, 128)
    assert large.num_steps <= small.num_steps
    assert large.lr > small.lr
    assert large.warmup_ratio >= small.warmup_ratio
    assert 0 <= large.warmup_steps <= large.num_steps


PUT_TOGETHER = (
    *("num_steps", "lr", "warmup_ratio", "tokens_per_gpu", "accumulate", "max_seq_length"),
    "max_predictions_per_seq",
)


@given(
    clusters,
    st.integers(1, 64),
    st.sampled_from([(128, 512), (64, 64), (32, 128)]),
    st.sampled_from([(1, 2), (2,)]),
)
def test_options_on_one_line_read_back_exactly(cluster, accumulate, lengths, stages):
    """Of both stages they are pairs where these differ."""
    planned = lamb_paper.plan(*cluster[:2], (cluster[2], accumulate), lamb_paper.Recipe(stages, lengths))
    words = [word for word in shlex.split(planned.options()) if word != "--use_avg_len"]
    values = dict(zip(words[::2], words[1::2]))
    assert values.pop("--stages") == ("both" if len(stages) > 1 else "2")
    names = [f"--{'batch_size' if name == 'tokens_per_gpu' else name}" for name in PUT_TOGETHER]
    assert [*values] == names
    for name, flag in zip(PUT_TOGETHER, names):
        wanted = [getattr(stage, name) for stage in planned.stages]
        read = [type(wanted[0])(text) for text in values[flag].split(",")]
        assert read == (wanted if len(set(wanted)) > 1 else wanted[:1])


def test_the_length_chooses_the_stage():
    assert [lamb_paper.stage_for_run(8, 8192, 1, n).stage for n in (64, 128, 129, 512)] == [1, 1, 2, 2]
    assert lamb_paper.stage_for_run(8, 8192, 1, 512) == lamb_paper.plan(8, 8192, 1).stages[1]


def test_stage_2_accumulates_for_its_own_batch():
    assert [s.accumulate for s in lamb_paper.plan_for_target(32, 8192, 65536, 32768).stages] == [32, 64]
    assert [s.accumulate for s in lamb_paper.plan_for_target(32, (8192, 4096), 32768).stages] == [16, 128]


def test_other_lengths_and_baselines():
    baseline = lamb_paper.Baseline(256, (1000, 10))
    recipe = lamb_paper.Recipe(max_seq_lengths=(64, 256), baseline=baseline)
    first, second = lamb_paper.plan(1, 4096, 1, recipe).stages
    assert (first.sequences_per_step, first.num_steps) == (64, 4000)
    assert (second.sequences_per_step, second.num_steps) == (16, 160)


def test_a_batch_of_no_whole_number_is_an_average():
    stage = lamb_paper.stage_for_run(3, 1000, 1, 128)
    assert stage.sequences_per_step == 3000 / 128
    assert stage.num_steps == math.ceil(Fraction(512 * 900_000 * 128, 3000))
    assert any("average" in text for text in stage.warnings)


@pytest.mark.parametrize(("gpus", "side"), [(7, "below 512"), (513, "above 32768")])
def test_outside_the_table_is_extrapolated_with_a_warning(gpus, side):
    stage = lamb_paper.stage_for_run(gpus, 8192, 1, 128)
    assert lamb_paper.stage_for_run(8, 8192, 1, 128).warnings == ()
    assert lamb_paper.stage_for_run(512, 8192, 1, 128).warnings == ()
    assert stage.lr == pytest.approx(0.005 * math.sqrt(gpus * 64 / 32768))
    assert side in stage.warnings[0] and stage.source == "extrapolated"


def test_warmup_is_cut_to_the_whole_run():
    stage = lamb_paper.stage_for_run(4096, 8192, 1, 128)
    assert stage.warmup_ratio == 1.0 and stage.warmup_steps == stage.num_steps
    assert any("warmup" in text for text in stage.warnings[1:])


# -------------------------------------------------------------------------------------------- disagreements


def test_rounding_to_three_digits_is_no_disagreement():
    stage = lamb_paper.stage_for_run(128, 8192, 2, 128)  # 16384: lr 0.0035355..., 28125 steps
    assert lamb_paper.disagreements({"lr": 0.00354, "num_steps": 28125}, stage) == []
    assert [one.option for one in lamb_paper.disagreements({"lr": 0.0036}, stage)] == ["lr"]
    assert [one.option for one in lamb_paper.disagreements({"lr": float("nan")}, stage)] == ["lr"]


def test_absent_and_unrelated_options_are_passed_over():
    stage = lamb_paper.stage_for_run(8, 8192, 1, 128)
    assert lamb_paper.disagreements({"lr": None, "model": "bert_24_1024_16", "batch_size": 1}, stage) == []
    assert [one.option for one in lamb_paper.disagreements({"max_predictions_per_seq": 80}, stage)] == [
        "max_predictions_per_seq"
    ]


def test_the_mixed_run_is_a_whole():
    """Its values are accepted together; one of them among the formula's is named as what it is."""
    for number, length in ((1, 128), (2, 512)):
        stage = lamb_paper.stage_for_run(256, 8192, (4, 8)[number - 1], length)
        _, steps, lr, ratio = lamb_paper.MIXED[number - 1]
        mixed = {"num_steps": steps, "lr": lr, "warmup_ratio": ratio}
        assert lamb_paper.disagreements(mixed, stage) == []
        assert lamb_paper.disagreements({"lr": lr}, stage) == []
        (only,) = lamb_paper.disagreements({**mixed, "warmup_ratio": stage.warmup_ratio}, stage)
        assert only.option == "lr" and "mixed" in only.sentence
        wrong = lamb_paper.disagreements({**mixed, "lr": 0.0055}, stage)
        assert [one.option for one in wrong] == ["lr", "warmup_ratio"]
        # another batch, another baseline, another length: it is not that run
        for other in (
            lamb_paper.stage_for_run(128, 8192, (4, 8)[number - 1], length),
            lamb_paper.stage_for_run(256, 8192, (4, 8)[number - 1], length, lamb_paper.Baseline(256)),
            lamb_paper.stage_for_run(256, 4096, (4, 8)[number - 1], length // 2, stage=number),
        ):
            assert "lr" in [one.option for one in lamb_paper.disagreements(mixed, other)]


def test_a_batch_that_was_not_meant_in_tokens_gets_no_hint():
    """docs/hparams.md has one."""
    assert lamb_paper.batch_size_hint(512, False, 128) is None  # 65536 tokens: a large GPU takes them
    assert lamb_paper.batch_size_hint(256, False, 512) is None  # as tokens it would hold no sequence
