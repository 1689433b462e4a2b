"""The plan against the LAMB paper's table (arXiv:1904.00962), worked out by hand where it has no row."""

from __future__ import annotations

import math

import pytest

from base.errors import InputError
from training.options import parse_options, run_config
from training.plan import TICKS, make_plan


def plan(arguments: str, world_size: int, max_seq_length: int = 128):
    options = parse_options(["--data", "x.txt", *arguments.split()], "description")
    config = run_config(options)
    return make_plan(config.batch, config.optimization, world_size, max_seq_length)


@pytest.mark.parametrize(
    "world_size, tokens, accumulate, length, steps, lr, ratio, warmup",
    [
        # B = 512: the first row; warmup 900,000 / 320 = 2812.5
        (8, 8192, 1, 128, 900_000, 5 / (2**3.0 * 1e3), 1 / 320, 2813),
        # B = 32768: 512 * 900,000 / 32768 = 14062.5
        (256, 8192, 2, 128, 14_063, 0.005, 0.2, 2813),
        # B = 8192 sequences of 512 tokens: stage 2's 100,000 baseline steps
        (256, 8192, 2, 512, 6_250, 5 / (2**1.0 * 1e3), 1 / 20, 313),
        # 64 sequences a step, below the table: extrapolated
        (1, 8192, 1, 128, 7_200_000, 0.005 * math.sqrt(64 / 32768), 64 / 163840, 2813),
    ],
)
def test_what_is_left_out_is_the_papers(world_size, tokens, accumulate, length, steps, lr, ratio, warmup):
    found = plan(f"--batch_size {tokens} --use_avg_len --accumulate {accumulate}", world_size, length)
    assert found.num_steps == steps and found.warmup_steps == warmup
    assert found.lr == pytest.approx(lr)
    assert found.max_predictions_per_seq == {128: 20, 512: 80}[length]
    assert found.schedule(warmup) == pytest.approx(lr) and found.schedule(steps) == 0
    said = f"--num_steps {steps} --lr {found.lr!r} --warmup_ratio {ratio!r}"
    assert said in found.summary, "all is printed at the start"
    assert "\n" not in found.summary
    below = [warning for warning in found.warnings if "did not train" in warning]
    assert len(below) == len(found.warnings) == (1 if world_size == 1 else 0)


def test_given_values_are_kept_with_a_warning_that_names_the_papers():
    """The first row of the experiments that this project starts from: 256 GPUs, steps that fit no row."""
    given = "--num_steps 25600 --lr 0.00354 --warmup_ratio 0.1 --batch_size 8192 --use_avg_len --accumulate 2"
    found = plan(given, 256)
    assert (found.num_steps, found.lr) == (25600, 0.00354)
    assert found.warmup_steps == 2560
    assert found.schedule(2560) == pytest.approx(0.00354)
    assert len(found.warnings) == 3
    papers = {"num_steps": ("25600", "14063"), "lr": ("0.00354", "0.005"), "warmup_ratio": ("0.1", "0.2")}
    for flag, both in papers.items():
        (warning,) = (each for each in found.warnings if each.startswith(f"--{flag} "))
        assert all(each in warning for each in both) and "\n" not in warning
    assert "from the LAMB paper" not in found.summary


@pytest.mark.parametrize(
    "given, lines",
    [("--num_steps 900 --lr 0.014 --warmup_ratio 0.1 --max_predictions_per_seq 39", 0), ("--lr 0.014", 1)],
)
@pytest.mark.parametrize("batch", ["--batch_size 32", "--batch_size 1000 --use_avg_len"])
def test_a_small_run_has_one_line_at_most(given, lines, batch):
    """Steps of 64 sequences, and of 15.6 on average: the paper has no values to compare with."""
    warnings = plan(f"{batch} {given}", 2).warnings
    assert len(warnings) == lines and all("times the paper's" not in each for each in warnings)


def test_a_batch_that_was_meant_in_tokens_gets_a_hint():
    rest = "--num_steps 450000 --lr 0.000884 --warmup_ratio 0.00625"
    (hint,) = [each for each in plan(f"--batch_size 4096 {rest}", 32).warnings if "use_avg_len" in each]
    assert "4096 sequences of 128, 524288 tokens" in hint
    assert plan(f"--batch_size 4096 --use_avg_len {rest}", 32).warnings == ()


def test_the_papers_mixed_run_needs_no_warning_if_it_is_whole():
    batch = "--batch_size 8192 --use_avg_len --accumulate 8 --lr 0.004"
    assert plan(f"{batch} --num_steps 1561 --warmup_ratio 0.128", 256, 512).warnings == ()
    (warning,) = plan(batch, 256, 512).warnings  # steps and warmup are the formula's here
    assert warning.startswith("--lr 0.004 ") and "mixed" in warning


def test_one_given_value_leaves_the_others_to_the_paper():
    found = plan("--batch_size 64 --lr 0.001 --max_predictions_per_seq 19", 32)
    assert (found.num_steps, found.lr, found.warmup_steps) == (225_000, 0.001, 2813)
    assert found.max_predictions_per_seq == 19
    assert {warning.split()[0] for warning in found.warnings} == {"--lr", "--max_predictions_per_seq"}
    assert "--num_steps 225000" in found.summary and "--lr 0.00125" not in found.summary


def test_no_warmup_is_a_value_too():
    found = plan("--batch_size 64 --num_steps 10 --warmup_ratio 0 --lr 0.1", 32)
    assert found.warmup_steps == 0
    assert found.schedule(1) == pytest.approx(0.09)


@pytest.mark.parametrize("arguments", ["--batch_size 100 --use_avg_len", "--use_avg_len"])
def test_a_batch_that_holds_no_sequence(arguments):
    with pytest.raises(InputError) as caught:
        plan(arguments, 32)
    message = str(caught.value)
    assert message.startswith("--batch_size ") and "128" in message
    assert "tokens_per_gpu" not in message and message.count("--batch_size") == 1


def test_a_last_learning_rate_above_the_papers_peak():
    with pytest.raises(InputError, match=r"^--end_lr 0\.01 .*--lr"):
        plan("--batch_size 64 --end_lr 0.01", 32)


def test_hours_in_place_of_steps():
    found = plan("--budget_hours 24 --lr 0.001 --warmup_ratio 0.25 --batch_size 64", 8)
    assert found.num_steps is None and found.warmup_steps == pytest.approx(TICKS / 4, abs=1)
    assert found.schedule(TICKS) == 0 and found.schedule(found.warmup_steps) == 0.001
    assert "24 hours of training" in found.summary and "0.25 of them warmup" in found.summary
    assert not [each for each in found.warnings if "num_steps" in each]
    wsd = plan("--budget_hours 24 --schedule wsd --warmup_ratio 0.1 --cooldown_ratio 0.25 --lr 1", 8)
    assert wsd.schedule(TICKS * 3 // 4) == 1 > wsd.schedule(TICKS * 3 // 4 + TICKS // 1000) > 0
    left_out = plan("--budget_hours 24 --batch_size 64", 8).summary
    assert "--lr" in left_out and "--num_steps" not in left_out
    with pytest.raises(InputError, match="--budget_hours and --num_steps"):
        plan("--budget_hours 1 --num_steps 5", 8)
    with pytest.raises(InputError, match="--cooldown_ratio 0.6: the warmup leaves 0.5"):
        plan("--schedule wsd --num_steps 100 --warmup_ratio 0.5 --cooldown_ratio 0.6", 8)
    assert (
        plan("--schedule wsd --num_steps 101 --warmup_ratio 0.5 --cooldown_ratio 0.5", 8).schedule(101) == 0
    )
    with pytest.raises(InputError, match="--cooldown_ratio is for --schedule wsd"):
        plan("--cooldown_ratio 0.6", 8)
