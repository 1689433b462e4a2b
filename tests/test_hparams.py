"""hparams.py and the launch commands, against the tables as the LAMB paper prints them (arXiv:1904.00962)."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hparams
import hparams_check
import hparams_command
from hosts.hostfile import HostsError, read_host_lines, read_hostfile
from tests.processes import python_3_8, run_command

ROOT = Path(__file__).resolve().parent.parent
BPSLAUNCH = str(Path(sys.executable).with_name("bpslaunch"))

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


def run(line: str, *more: object, capsys) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `hparams.py line more...`, run in this process."""
    try:
        code = hparams_command.main(shlex.split(line) + [str(one) for one in more])
    except SystemExit as stop:  # argparse's own errors
        code = stop.code
    out = capsys.readouterr()
    return code, out.out, out.err


# ---------------------------------------------------------------------------------------- the paper's table


@pytest.mark.parametrize(("batch_size", "steps", "lr", "ratio"), PAPER_ROWS)
def test_every_row_of_the_paper(batch_size, steps, lr, ratio):
    first, second = hparams.plan_for_target(1, 8192, batch_size).stages
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
    assert hparams.warmup_steps(14063, 0.2) == 2813
    assert hparams.warmup_steps(900_000, 1 / 320) == 2813  # 2812.5
    assert hparams.warmup_steps(6250, 0.05) == 313  # 312.5
    assert hparams.warmup_steps(10, 0.0) == 0
    assert hparams.warmup_steps(10, 1.0) == 10


@pytest.mark.parametrize(
    ("num_gpus", "accumulate", "batch_size", "num_steps", "lr", "ratio"),
    [
        (256, 2, 32768, 14063, 0.005, 1 / 5),
        (32, 1, 2048, 225_000, 0.00125, 1 / 80),
        (8, 1, 512, 900_000, 0.000625, 1 / 320),
    ],
)
def test_the_three_p3dn_experiments(num_gpus, accumulate, batch_size, num_steps, lr, ratio):
    stage = hparams.plan(num_gpus, 8192, accumulate).stages[0]
    assert (stage.sequences_per_step, stage.num_steps) == (batch_size, num_steps)
    assert (stage.lr, stage.warmup_ratio) == (pytest.approx(lr, rel=1e-12), pytest.approx(ratio, rel=1e-12))


def test_mixed_batch_is_the_published_run():
    first, second = hparams.mixed_batch_plan(256, 8192).stages
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
        assert hparams.default_max_predictions(length) == expected


# ------------------------------------------------------------------------------------------------ the rules


@given(clusters)
def test_both_stages_see_the_baseline_within_one_step(cluster):
    for stage, sequences in zip(hparams.plan(*cluster).stages, (512 * 900_000, 512 * 100_000)):
        exact = Fraction(math.prod(cluster), stage.max_seq_length)
        assert sequences <= stage.num_steps * exact < sequences + exact
        assert stage.tokens_seen == stage.num_steps * math.prod(cluster)


@given(st.integers(1, 2048), st.integers(1, 128), st.integers(1, 256))
def test_target_batch_size_inverts_the_plan(num_gpus, sequences, accumulate):
    tokens = 512 * sequences  # whole sequences in both stages
    planned = hparams.plan(num_gpus, tokens, accumulate)
    targets = [stage.sequences_per_step for stage in planned.stages]
    assert hparams.plan_for_target(num_gpus, tokens, *targets) == planned


@given(clusters, st.integers(1, 100))
def test_a_larger_batch_never_takes_more_steps_nor_a_smaller_lr(cluster, more):
    num_gpus, tokens, accumulate = cluster
    small = hparams.stage_for_run(num_gpus, tokens, accumulate, 128)
    large = hparams.stage_for_run(num_gpus, tokens, accumulate + more, 128)
    assert large.num_steps <= small.num_steps
    assert large.lr > small.lr
    assert large.warmup_ratio >= small.warmup_ratio
    assert 0 <= large.warmup_steps <= large.num_steps


@given(clusters)
def test_options_on_one_line_read_back_exactly(cluster):
    stage = hparams.plan(*cluster).stages[1]
    words = [word for word in shlex.split(stage.options()) if word != "--use_avg_len"]
    values = dict(zip(words[::2], words[1::2]))
    assert float(values["--lr"]) == stage.lr
    assert float(values["--warmup_ratio"]) == stage.warmup_ratio
    assert int(values["--num_steps"]) == stage.num_steps
    assert int(values["--batch_size"]) * int(values["--accumulate"]) == cluster[1] * cluster[2]
    assert (values["--max_seq_length"], values["--max_predictions_per_seq"]) == ("512", "80")


def test_the_length_chooses_the_stage():
    assert [hparams.stage_for_run(8, 8192, 1, n).stage for n in (64, 128, 129, 512)] == [1, 1, 2, 2]
    assert hparams.stage_for_run(8, 8192, 1, 512) == hparams.plan(8, 8192, 1).stages[1]


def test_stage_2_accumulates_for_its_own_batch():
    assert [s.accumulate for s in hparams.plan_for_target(32, 8192, 32768).stages] == [16, 64]
    assert [s.accumulate for s in hparams.plan_for_target(32, 8192, 65536, 32768).stages] == [32, 64]


def test_other_lengths_and_baselines():
    baseline = hparams.Baseline(256, (1000, 10))
    first, second = hparams.plan(1, 4096, 1, (64, 256), baseline).stages
    assert (first.sequences_per_step, first.num_steps) == (64, 4000)
    assert (second.sequences_per_step, second.num_steps) == (16, 160)


def test_a_batch_of_no_whole_number_is_an_average():
    stage = hparams.stage_for_run(3, 1000, 1, 128)
    assert stage.sequences_per_step == 3000 / 128
    assert stage.num_steps == math.ceil(Fraction(512 * 900_000 * 128, 3000))
    assert any("average" in text for text in stage.warnings)


@pytest.mark.parametrize(("gpus", "side"), [(7, "below 512"), (513, "above 32768")])
def test_outside_the_table_is_extrapolated_with_a_warning(gpus, side):
    stage = hparams.stage_for_run(gpus, 8192, 1, 128)
    assert hparams.stage_for_run(8, 8192, 1, 128).warnings == ()
    assert hparams.stage_for_run(512, 8192, 1, 128).warnings == ()
    assert stage.lr == pytest.approx(0.005 * math.sqrt(gpus * 64 / 32768))
    assert side in stage.warnings[0] and stage.source == "extrapolated"


def test_warmup_is_cut_to_the_whole_run():
    stage = hparams.stage_for_run(4096, 8192, 1, 128)
    assert stage.warmup_ratio == 1.0 and stage.warmup_steps == stage.num_steps
    assert any("warmup" in text for text in stage.warnings[1:])


# -------------------------------------------------------------------------------------------- disagreements


def test_the_first_experiment_disagrees_and_the_second_does_not():
    first = hparams.stage_for_run(256, 8192, 2, 128)
    found = hparams_check.disagreements({"num_steps": 25600, "lr": 0.00354, "warmup_ratio": 0.1}, first)
    assert [one.option for one in found] == ["num_steps", "lr", "warmup_ratio"]
    assert [one.paper for one in found] == [14063, 0.005, 0.2]
    assert [one.ratio for one in found] == pytest.approx([25600 / 14063, 0.708, 0.5])
    assert "fits no row" in found[0].sentence
    assert all("the value for 16384" in one.sentence for one in found[1:])

    second = hparams.stage_for_run(32, 8192, 1, 128)
    assert (
        hparams_check.disagreements({"num_steps": 225000, "lr": 0.00125, "warmup_ratio": 0.0125}, second)
        == []
    )


def test_rounding_to_three_digits_is_no_disagreement():
    stage = hparams.stage_for_run(128, 8192, 2, 128)  # 16384: lr 0.0035355..., 28125 steps
    assert hparams_check.disagreements({"lr": 0.00354, "num_steps": 28125}, stage) == []
    assert [one.option for one in hparams_check.disagreements({"lr": 0.0036}, stage)] == ["lr"]
    assert [one.option for one in hparams_check.disagreements({"lr": float("nan")}, stage)] == ["lr"]


def test_absent_and_unrelated_options_are_passed_over():
    stage = hparams.stage_for_run(8, 8192, 1, 128)
    assert hparams_check.disagreements({"lr": None, "model": "bert_24_1024_16", "batch_size": 1}, stage) == []
    assert [one.option for one in hparams_check.disagreements({"max_predictions_per_seq": 80}, stage)] == [
        "max_predictions_per_seq"
    ]


def test_the_mixed_run_is_a_whole():
    """Its values are accepted together; one of them among the formula's is named as what it is."""
    for number, length in ((1, 128), (2, 512)):
        stage = hparams.stage_for_run(256, 8192, (4, 8)[number - 1], length)
        _, steps, lr, ratio = hparams.MIXED[number - 1]
        mixed = {"num_steps": steps, "lr": lr, "warmup_ratio": ratio}
        assert hparams_check.disagreements(mixed, stage) == []
        assert hparams_check.disagreements({"lr": lr}, stage) == []
        (found,) = hparams_check.disagreements({**mixed, "warmup_ratio": stage.warmup_ratio}, stage)
        assert found.option == "lr" and "mixed" in found.sentence
        wrong = hparams_check.disagreements({**mixed, "lr": 0.0055}, stage)
        assert [one.option for one in wrong] == ["lr", "warmup_ratio"]
        # another batch, another baseline, another length: it is not that run
        for other in (
            hparams.stage_for_run(128, 8192, (4, 8)[number - 1], length),
            hparams.stage_for_run(256, 8192, (4, 8)[number - 1], length, hparams.Baseline(256)),
            hparams.stage_for_run(256, 4096, (4, 8)[number - 1], length // 2, stage=number),
        ):
            assert "lr" in [one.option for one in hparams_check.disagreements(mixed, other)]


def test_a_batch_that_was_meant_in_tokens_gets_a_hint():
    hint = hparams_check.batch_size_hint(4096, False, 128)
    assert "4096 sequences of 128, 524288 tokens" in hint and "add --use_avg_len" in hint
    assert hparams_check.batch_size_hint(4096, True, 128) is None
    assert hparams_check.batch_size_hint(512, False, 128) is None  # 65536 tokens: a large GPU takes them
    assert hparams_check.batch_size_hint(256, False, 512) is None  # as tokens it would hold no sequence


# ---------------------------------------------------------------------------------------------- the command


def test_json_has_the_promised_shape(capsys):
    args = "--num_gpus 256 --tokens_per_gpu 8192 --accumulate 2 --json"
    code, out, _ = run(args, capsys=capsys)
    found = json.loads(out)
    assert code == 0
    assert [*found] == ["num_gpus", "tokens_per_gpu", "accumulate", "stages"]
    assert (found["num_gpus"], found["tokens_per_gpu"], found["accumulate"]) == (256, 8192, 2)
    promised = [
        {"stage": 1, "max_seq_length": 128, "sequences_per_step": 32768, "num_steps": 14063, "lr": 0.005,
         "warmup_ratio": 0.2, "warmup_steps": 2813, "max_predictions_per_seq": 20},
        {"stage": 2, "max_seq_length": 512, "sequences_per_step": 8192, "num_steps": 6250, "lr": 0.0025,
         "warmup_ratio": 0.05, "warmup_steps": 313, "max_predictions_per_seq": 80},
    ]  # fmt: skip
    for stage, expected in zip(found["stages"], promised):
        assert [*stage][: len(expected)] == [*expected]
        assert {key: stage[key] for key in expected} == expected
        assert isinstance(stage["sequences_per_step"], int)
        assert "batch_size" not in stage  # an option of the scripts, and in tokens there


def test_table_and_one_stage(capsys):
    args = "--num_gpus 128 --tokens_per_gpu 8192 --accumulate 2 --stage 1"
    code, out, _ = run(args, capsys=capsys)
    assert code == 0
    assert "stage 1" in out and "stage 2" not in out
    cells = {line[:24].strip(): line[24:].split() for line in out.splitlines()}
    assert cells["sequences per step"] == ["16384"]
    assert cells["lr"] == ["0.0035355"]
    assert cells["warmup steps"] == ["2813"]
    assert cells["tokens seen"] == [f"{28125 * 16384 * 128:,}"]
    pasted = next(line for line in out.splitlines() if line.startswith("--num_steps"))
    assert "--lr 0.003535533905932738 " in pasted


def test_inverse(capsys):
    args = "--num_gpus 32 --tokens_per_gpu 8192 --target_batch_size"
    code, out, _ = run(args, 32768, "--json", capsys=capsys)
    assert code == 0
    assert [stage["accumulate"] for stage in json.loads(out)["stages"]] == [16, 64]
    assert json.loads(out)["accumulate"] is None
    code, out, err = run(args, 30000, capsys=capsys)
    assert (code, out) == (2, "")
    assert "28672 with --accumulate 14, 30720 with --accumulate 15" in err
    code, _, err = run(args, 300, capsys=capsys)
    assert code == 2 and "nearest: 2048 with --accumulate 1\n" in err
    code, _, err = run(args, 32768, "--target_batch_size_2", 700, capsys=capsys)
    assert code == 2 and "--target_batch_size_2 700" in err and "stage 2" in err


def test_check_flags_the_first_experiment(capsys):
    run_of = "--check --num_gpus 256 --tokens_per_gpu 8192 --accumulate 2"
    stated = "--num_steps 25600 --lr 0.00354 --warmup_ratio 0.1"
    code, out, _ = run(f"{run_of} {stated}", capsys=capsys)
    assert code == 1
    for text in ("25600", "14063", "1.82 times", "0.708 times", "0.5 times", "0.005"):
        assert text in out


@given(clusters, st.sampled_from([128, 512]))
def test_check_accepts_what_the_plan_prints(cluster, length):
    options = hparams.stage_for_run(*cluster, length).options()
    assert hparams_command.main(["--check", "--num_gpus", str(cluster[0]), *shlex.split(options)]) == 0


@pytest.mark.parametrize("stage", [1, 2])
def test_check_accepts_what_mixed_batch_prints(stage, capsys):
    _, out, _ = run(f"--num_gpus 256 --tokens_per_gpu 8192 --mixed_batch --stage {stage}", capsys=capsys)
    (options,) = [line for line in out.splitlines() if line.startswith("--num_steps")]
    code, out, _ = run(f"--check --num_gpus 256 {options}", capsys=capsys)
    assert code == 0 and "as in the paper's mixed 64K/32K run" in out and "warning" not in out
    code, out, _ = run(f"--check --num_gpus 256 {options.replace('--lr 0.00', '--lr 0.01')}", capsys=capsys)
    assert code == 1 and "--lr 0.01" in out


def test_check_hints_at_a_batch_in_tokens(capsys):
    args = "--check --num_gpus 32 --batch_size 4096 --num_steps 900000"
    code, out, _ = run(args, capsys=capsys)
    assert code == 1 and out.splitlines()[1].startswith("hint: --batch_size 4096 without --use_avg_len is ")
    assert "hint" not in run(args, "--use_avg_len", capsys=capsys)[1]


@pytest.mark.parametrize(
    ("args", "flags"),
    [
        ("--num_gpus 256 --batch_size 8192", ["--tokens_per_gpu 8192", "--target_batch_size 8192"]),
        ("--num_gpus 256 --batch_size 8192 --use_avg_len --accumulate 2", ["--tokens_per_gpu 8192"]),
        ("--num_gpus 8 --batch_size 64 --json", ["--tokens_per_gpu 8192", "--target_batch_size 64"]),
        ("--num_gpus 7 --batch_size 64 --stage 1", ["--tokens_per_gpu 8192"]),
        ("--launch hvd --hostfile hosts/local --batch_size 4096 -- --vocab 'a b'", ["--tokens_per_gpu 4096"]),
    ],
)
def test_batch_size_without_check_points_to_what_was_meant(args, flags, capsys, monkeypatch):
    """Each command of the message is a command that works."""
    monkeypatch.chdir(ROOT)
    code, out, err = run(args, capsys=capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("hparams.py: --batch_size ") and "--check" in err
    commands = re.findall(r"python hparams.py ([^;\n]*)", err)
    for flag in flags:
        assert any(flag in command for command in commands), err
    for command in commands:
        assert run(command, capsys=capsys)[0] == 0, command
        assert command.partition(" -- ")[2] == args.partition(" -- ")[2]


def test_check_counts_sequences_without_use_avg_len(capsys):
    args = "--check --num_gpus 8 --batch_size 64 --max_seq_length 128 --num_steps 900000"
    assert run(args, capsys=capsys)[0] == 0
    assert run(args, "--use_avg_len", capsys=capsys)[0] == 2  # 64 tokens are no sequence


CLUSTER = "--num_gpus 8 --tokens_per_gpu 8192"


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ("--tokens_per_gpu 8192", "--num_gpus"),
        ("--num_gpus 8", "--tokens_per_gpu"),
        ("--num_gpus 0 --tokens_per_gpu 8192", "--num_gpus"),
        ("--num_gpus -8 --tokens_per_gpu 8192", "--num_gpus"),
        ("--num_gpus eight --tokens_per_gpu 8192", "--num_gpus"),
        ("--num_gpus 8 --tokens_per_gpu 0", "--tokens_per_gpu"),
        ("--num_gpus 8 --tokens_per_gpu 511", "--tokens_per_gpu"),
        (f"{CLUSTER} --accumulate 0", "--accumulate"),
        (f"{CLUSTER} --target_batch_size 0", "--target_batch_size"),
        (f"{CLUSTER} --max_seq_length_2 513", "--max_seq_length_2"),
        (f"{CLUSTER} --max_seq_length_1 0", "--max_seq_length_1"),
        (f"{CLUSTER} --baseline_steps_1 0", "--baseline_steps_1"),
        (f"{CLUSTER} --baseline_batch_size 0", "--baseline_batch_size"),
        (f"{CLUSTER} --stage 3", "--stage"),
        (f"{CLUSTER} --accum 2", "--accum"),
        (f"{CLUSTER} --accumulate 2 --target_batch_size 512", "--target_batch_size"),
        (f"{CLUSTER} --mixed_batch --max_seq_length_1 64", "--mixed_batch"),
        (f"{CLUSTER} --target_batch_size_2 512", "--target_batch_size_2"),
        (f"{CLUSTER} --lr 0.1", "--lr"),
        (f"{CLUSTER} --hostfile hosts/local", "--hostfile"),
        (f"{CLUSTER} --launch hvd", "--hostfile"),
        (f"{CLUSTER} --launch nccl --hostfile hosts/1x_p3dn", "--launch"),
        (f"{CLUSTER} --launch byteps", "--hostfile"),
        (f"{CLUSTER} --launch byteps --hostfile hosts/4x_p3dn", "--num_gpus"),
        (f"{CLUSTER} --launch byteps --hostfile hosts/1x_p3dn --sockets 2", "--sockets"),
        (f"{CLUSTER} --launch byteps --hostfile hosts/1x_p3dn -- --lr 1", "--lr"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/none", "hosts/none"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/4x_p3dn", "--num_gpus"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn --sockets 3", "--sockets"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn --sockets 0", "--sockets"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn -- --lr 1", "--lr"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn -- --max_seq_lenght 64", "--max_seq_lenght"),
        (f"{CLUSTER} --launch byteps --hostfile hosts/1x_p3dn -- --vocap=v.txt", "--vocap"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn -- stray", "stray"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn -- --optimizer sgd", "--optimizer"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn -- --log_interval many", "--log_interval"),
        (f"{CLUSTER} --launch hvd --hostfile hosts/1x_p3dn -- --help", "run_pretraining_hvd.py --help"),
        (f"{CLUSTER} -- --data x", "--data"),
        (f"{CLUSTER} --check", "--check"),
        (f"{CLUSTER} --check --stage 1 --lr 1", "--stage"),
        (f"{CLUSTER} --check --batch_size 4 --lr 1", "--batch_size"),
    ],
)
def test_bad_input_is_one_line_that_names_the_flag(args, named, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    code, out, err = run(args, capsys=capsys)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and named in err


# -------------------------------------------------------------------------------------- hosts and launching


@pytest.mark.parametrize(
    ("name", "hosts", "slots"), [("1x_p3dn", 1, 8), ("4x_p3dn", 4, 32), ("32x_p3dn", 32, 256)]
)
def test_host_files_of_the_experiments(name, hosts, slots):
    found = read_hostfile(str(ROOT / "hosts" / name))
    assert (len(found), sum(count for _, count in found)) == (hosts, slots)


def test_host_file_forms(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(
        "# the cluster\n\nnode-1 slots=8  # rack 1\n10.0.0.2   slots = 4 max-slots=8\n"
        "user@node-3.example max_slots=4 slots=2\nnode-1 slots=2\n"
    )
    assert read_hostfile(str(path)) == [("node-1", 10), ("10.0.0.2", 4), ("user@node-3.example", 2)]
    lines = [("node-1", 8), ("10.0.0.2", 4), ("user@node-3.example", 2), ("node-1", 2)]
    assert read_host_lines(str(path)) == lines


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a slots=8\nb\n", 2, "slots"),
        ("a slots=0\n", 1, "slots=0"),
        ("a slots=-1\n", 1, "slots=-1"),
        ("a slots=many\n", 1, "slots=many"),
        ("# c\n\na 8\n", 3, "'8'"),
        ("^a slots=8\n", 1, "'^a'"),
        ("a slots=8 b slots=8\n", 1, "'b'"),
    ],
)
def test_host_file_errors_name_file_and_line(text, line, said, tmp_path):
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(HostsError) as error:
        read_hostfile(str(path))
    assert f"{path}, line {line}:" in str(error.value) and said in str(error.value)


@pytest.mark.parametrize("content", [b"", b"# nobody\n", b"\xff\xfe\x00", None])
def test_host_files_without_hosts(content, tmp_path):
    path = tmp_path / "hosts"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(HostsError, match="--hostfile .*hosts: "):
        read_hostfile(str(path))


def launch(*args, capsys) -> list[list[str]]:
    """The printed commands, each split into words as a shell would."""
    code, out, err = run("--launch hvd", *args, capsys=capsys)
    assert code == 0, err
    return [shlex.split(text.replace("\\\n", ""), comments=True) for text in out.strip().split("\n\n")]


def test_launch_256_gpus(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    args = "--num_gpus 256 --tokens_per_gpu 8192 --accumulate 2 --hostfile hosts/32x_p3dn"
    first, second = launch(*shlex.split(args), capsys=capsys)
    for command, stage in ((first, 1), (second, 2)):
        text = " ".join(command)
        assert command[:5] == ["mpirun", "-np", "256", "--hostfile", "hosts/32x_p3dn"]
        assert "-map-by ppr:4:socket" in text
        assert "-mca pml ob1 -mca btl ^openib" in text
        assert "-mca odls_base_sigkill_timeout 30" in text
        exported = [value for flag, value in zip(command, command[1:]) if flag == "-x"]
        assert "MXNET_SAFE_ACCUMULATION=1" in exported
        assert any(one.startswith("NCCL_SOCKET_IFNAME=") for one in exported)
        assert any(one.startswith("HOROVOD_FUSION_THRESHOLD=") for one in exported)
        script = text[text.index("python run_pretraining_hvd.py") :]
        assert hparams.plan(256, 8192, 2).stages[stage - 1].options() in script
        assert "--model bert_24_1024_16 --dtype float16 --optimizer lamb" in script
        assert "--raw --data" in script and f"--ckpt_dir ckpt_stage{stage}" in script


def test_launch_takes_the_world_size_from_the_host_file(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    (command,) = launch("--tokens_per_gpu", 8192, "--hostfile", "hosts/4x_p3dn", "--stage", 1, capsys=capsys)
    assert command[2] == "32" and "225000" in command
    code, _, err = run(
        "--launch hvd --num_gpus 31 --tokens_per_gpu 8192 --hostfile hosts/4x_p3dn", capsys=capsys
    )
    assert code == 2 and "--num_gpus 31" in err and "32 slots" in err


def test_launch_passes_the_users_options_on(capsys, tmp_path):
    hostfile = tmp_path / "my hosts"
    hostfile.write_text("a slots=8\nb slots=8\n")
    args = ["--tokens_per_gpu", 8192, "--hostfile", hostfile, "--stage", 1, "--interface", "ens5"]
    own = ["--data", "/my corpus/*.txt,$HOME/it's", "--model=bert_12_768_12", "--vocab", "v.txt"]
    (command,) = launch(*args, "--", *own, capsys=capsys)
    assert command[4] == str(hostfile)
    start = command.index("--data")
    assert command[start : start + len(own)] == own
    assert command.count("--data") == 1 and "--raw" in command
    assert "bert_24_1024_16" not in command and "float16" in command
    assert "NCCL_SOCKET_IFNAME=ens5" in command and "btl_tcp_if_include" in command
    for data in (["--data", "a/*.npz"], ["--data=a/*.npz"], ["--dummy_data_len", "128"]):
        (command,) = launch(*args, "--", *data, capsys=capsys)
        assert "--raw" not in command and not any("DATA" in word for word in command)


@pytest.mark.parametrize(
    ("lines", "sockets", "mapping"),
    [
        ("a slots=8\nb slots=8\n", None, "-map-by ppr:4:socket -bind-to socket"),
        ("a slots=16\n", None, "-map-by ppr:8:socket -bind-to socket"),
        ("a slots=2\n", None, "-map-by ppr:2:socket -bind-to socket"),
        ("a slots=8\n", 1, "-map-by ppr:8:socket -bind-to socket"),
        ("a slots=4\nb slots=8\n", None, "-map-by slot -bind-to none"),
        ("a slots=9\n", None, "-map-by slot -bind-to none"),
    ],
)
def test_launch_maps_ranks_to_sockets(lines, sockets, mapping, capsys, tmp_path):
    (tmp_path / "hosts").write_text(lines)
    args = ["--tokens_per_gpu", 8192, "--hostfile", tmp_path / "hosts", "--stage", 1]
    args += ["--sockets", sockets] if sockets else []
    (command,) = launch(*args, capsys=capsys)
    assert mapping in " ".join(command)


def launch_text(directory: Path) -> str:
    """The command for this machine, to be run in a directory with a script of its own."""
    shutil.copy(ROOT / "hosts" / "local", directory / "hostfile")
    args = "--launch hvd --tokens_per_gpu 1024 --stage 1 --hostfile hostfile"
    result = subprocess.run(
        [sys.executable, str(ROOT / "hparams.py"), *shlex.split(args)],
        cwd=directory,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_shell_refuses_the_command_without_data(tmp_path):
    (tmp_path / "mpirun").write_text("#!/bin/sh\ntouch started\n")
    (tmp_path / "mpirun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    text = launch_text(tmp_path)
    result = subprocess.run(["sh", "-c", text], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert result.returncode != 0 and "DATA" in result.stderr
    assert not (tmp_path / "started").exists()
    subprocess.run(["sh", "-c", text], cwd=tmp_path, env={**env, "DATA": "*.txt"}, check=True)
    assert (tmp_path / "started").exists()


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI's mpirun")
def test_mpirun_runs_the_printed_command(tmp_path):
    """The whole command as printed, with a script that writes down what reached it."""
    (tmp_path / "run_pretraining_hvd.py").write_text(
        "import json, os, sys\n"
        "rank = os.environ['OMPI_COMM_WORLD_RANK']\n"
        "json.dump([sys.argv[1:], dict(os.environ)], open('rank' + rank, 'w'))\n"
    )
    (tmp_path / "python").symlink_to(sys.executable)
    env = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "DATA": "/no corpus/*.txt",
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    text = launch_text(tmp_path)
    run_command(["sh", "-c", text], cwd=tmp_path, env=env, timeout=60).check()
    for rank in ("0", "1"):
        argv, environment = json.loads((tmp_path / f"rank{rank}").read_text())
        assert argv[argv.index("--data") + 1] == "/no corpus/*.txt"
        assert argv[argv.index("--num_steps") + 1] == str(math.ceil(512 * 900_000 / 16))
        assert environment["MXNET_SAFE_ACCUMULATION"] == "1"
        assert environment["OMPI_COMM_WORLD_SIZE"] == "2"


def byteps_blocks(*args, capsys) -> list[list[str]]:
    """What --launch byteps prints: for each stage launch_byteps.py's command, then the roles' by hand."""
    code, out, err = run("--launch byteps", *args, capsys=capsys)
    assert code == 0, err
    blocks = out.rstrip("\n").split("\n\n")
    assert len(blocks) % 2 == 0
    return [blocks[i : i + 2] for i in range(0, len(blocks), 2)]


def split(text: str) -> list[str]:
    return shlex.split(text.replace("\\\n", ""), comments=True)


def test_byteps_commands_of_32_gpus(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    args = "--num_gpus 32 --tokens_per_gpu 8192 --hostfile hosts/4x_p3dn"
    for stage, (easy, by_hand) in enumerate(byteps_blocks(*shlex.split(args), capsys=capsys), 1):
        command = split(easy)
        assert command[:4] == ["python", "hosts/launch_byteps.py", "--hostfile", "hosts/4x_p3dn"]
        cut = command.index("--")
        assert "MXNET_SAFE_ACCUMULATION=1" in command[:cut]
        assert command[cut + 1 : cut + 3] == ["python", "run_pretraining_byteps.py"]
        options = hparams.plan(32, 8192).stages[stage - 1].options()
        for text in (easy, by_hand):
            assert options in " ".join(split(text))
            assert "--model bert_24_1024_16 --dtype float16 --optimizer lamb" in text
            assert f"--ckpt_dir ckpt_stage{stage}" in text
        assert "export DMLC_NUM_WORKER=4 " in by_hand and "DMLC_NUM_SERVER=4 " in by_hand
        assert "\nDMLC_ROLE=scheduler bpslaunch\n" in by_hand and "\nDMLC_ROLE=server bpslaunch\n" in by_hand
        assert "NVIDIA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7" in by_hand
        assert "0 on p3dn-01, 1 on p3dn-02, 2 on p3dn-03, 3 on p3dn-04" in by_hand


def test_byteps_commands_name_the_interface(capsys, tmp_path):
    (tmp_path / "hosts").write_text("10.0.0.1 slots=2\n10.0.0.2 slots=2\n10.0.0.1 slots=2\n")
    args = ["--tokens_per_gpu", 8192, "--hostfile", tmp_path / "hosts", "--stage", 1, "--interface", "ens5"]
    ((easy, by_hand),) = byteps_blocks(*args, capsys=capsys)
    assert "--interface ens5" in easy
    assert "DMLC_INTERFACE=ens5" in by_hand and "DMLC_PS_ROOT_URI=10.0.0.1 " in by_hand
    assert "DMLC_NUM_WORKER=3 " in by_hand and "DMLC_NUM_SERVER=2 " in by_hand
    (tmp_path / "hosts").write_text("a slots=2\nb slots=3\n")
    code, _, err = run("--launch byteps", *args, capsys=capsys)
    assert code == 2 and "a has 2 slots and b has 3" in err


def role_commands(by_hand: str) -> dict[str, str]:
    """The blocks of text below the lines of comment, by their first word after "the" or "a"."""
    found, name = {}, ""
    for line in by_hand.splitlines():
        if line.startswith("# "):
            name = re.sub(r"^# (the |a )?", "", line).split()[0].strip(",:")
            found[name] = ""
        else:
            found[name] += line + "\n"
    return found


# Says where the words and variables of a command go instead of starting anything.
RECORDER = """#!{python}
import json, os, sys
json.dump([sys.argv[1:], dict(os.environ)], open(os.environ["DMLC_ROLE"], "w"))
"""


def test_byteps_roles_by_hand_get_their_variables(capsys, tmp_path):
    (tmp_path / "hosts").write_text("p3dn-01 slots=8\np3dn-02 slots=8\n")
    args = ["--tokens_per_gpu", 8192, "--hostfile", tmp_path / "hosts", "--stage", 1]
    ((_, by_hand),) = byteps_blocks(*args, capsys=capsys)
    commands = role_commands(by_hand)
    assert list(commands) == ["stage", "scheduler", "servers", "worker"]
    (tmp_path / "bpslaunch").write_text(RECORDER.format(python=sys.executable))
    (tmp_path / "bpslaunch").chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name, value in (("PS_ROOT_URI", "10.0.0.1"), ("INTERFACE", "ens5"), ("", "/x/*.txt")):
        # The shell refuses what only the user can know until it is given.
        result = run_command(["sh", "-c", commands["stage"]], cwd=tmp_path, env=env)
        variable = f"DMLC_{name}" if name else "DATA"
        assert result.returncode != 0 and f"{variable}:" in result.stderr
        env[variable] = value
    for role, recorded in (("scheduler", "scheduler"), ("servers", "server")):
        run_command(["sh", "-c", commands["stage"] + commands[role]], cwd=tmp_path, env=env).check()
        words, environ = json.loads((tmp_path / recorded).read_text())
        expected = {"NUM_WORKER": "2", "NUM_SERVER": "2", "PS_ROOT_URI": "10.0.0.1", "PS_ROOT_PORT": "9091"}
        assert words == []
        assert {name: environ.get(f"DMLC_{name}") for name in expected} == expected
    text = commands["stage"] + commands["worker"]
    result = run_command(["sh", "-c", text], cwd=tmp_path, env=env)
    assert result.returncode != 0 and "0 on p3dn-01, 1 on p3dn-02" in result.stderr
    run_command(["sh", "-c", text], cwd=tmp_path, env={**env, "DMLC_WORKER_ID": "1"}).check()
    words, environ = json.loads((tmp_path / "worker").read_text())
    assert words[:2] == ["python", "run_pretraining_byteps.py"] and environ["DMLC_WORKER_ID"] == "1"


BYTEPS_SCRIPT = (
    "import json, os, sys\n"
    "rank = os.environ['BYTEPS_LOCAL_RANK']\n"
    "json.dump([sys.argv[1:], dict(os.environ)], open('rank' + rank, 'w'))\n"
)


@pytest.mark.skipif(shutil.which(BPSLAUNCH) is None, reason="needs BytePS")
@pytest.mark.parametrize("way", ["launch_byteps.py", "bpslaunch"])
@pytest.mark.parametrize("own", [[], ["--data", "it's *.txt,$HOME", "--vocab=a b"]], ids=["DATA", "own"])
def test_byteps_commands_run_as_printed(way, own, capsys, tmp_path, monkeypatch):
    """The whole command, with a script that writes down what reached it on each of two local ranks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run_pretraining_byteps.py").write_text(BYTEPS_SCRIPT)
    (tmp_path / "hosts").symlink_to(ROOT / "hosts")
    (tmp_path / "a.txt").write_text("")  # a glob that some shell expands would find it
    args = ["--tokens_per_gpu", 1024, "--stage", 1, "--hostfile", "hosts/local"]
    ((easy, by_hand),) = byteps_blocks(*args, *(["--", *own] if own else []), capsys=capsys)
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if not own:
        result = run_command(
            ["sh", "-c", easy if way == "launch_byteps.py" else by_hand], cwd=tmp_path, env=env
        )
        assert result.returncode != 0 and "DATA" in result.stderr
        assert not (tmp_path / "rank0").exists()
        env["DATA"] = '*.txt,/it\'s a "b"/*'
    text = easy if way == "launch_byteps.py" else by_hand
    run_command(["sh", "-c", text], cwd=tmp_path, env=env, timeout=60).check()
    for rank in ("0", "1"):
        argv, environment = json.loads((tmp_path / f"rank{rank}").read_text())
        expected = own or ["--data", env["DATA"]]
        start = argv.index("--data")
        assert argv[start : start + len(expected)] == expected
        assert argv[argv.index("--num_steps") + 1] == str(math.ceil(512 * 900_000 / 16))
        assert environment["MXNET_SAFE_ACCUMULATION"] == "1"
        assert environment["DMLC_NUM_WORKER"] == "1" and environment["BYTEPS_LOCAL_SIZE"] == "2"


# Each stage is three steps of four sequences: what is printed is run as it is.
SHORT = "--tokens_per_gpu 256 --stage 1 --baseline_batch_size 4 --baseline_steps_1 3 --hostfile hosts/local"
TINY = "--dummy_data_len 128 --model bert_1_32_2 --log_interval 1"


@pytest.fixture
def folder(tmp_path):
    """A working directory like this clone's, whose environment is this one."""
    for name in ("hosts", "run_pretraining_hvd.py", "run_pretraining_byteps.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    return tmp_path


def run_as_pasted(text: str, folder: Path):
    """In a shell with nothing prepared: no environment activated, nothing allowed to root."""
    bin_of_venv = str(Path(sys.prefix) / "bin")
    path = [one for one in os.environ["PATH"].split(os.pathsep) if one.rstrip("/") != bin_of_venv]
    env = {"PATH": os.pathsep.join(path), "VIRTUAL_ENV": None, "PYTHONPATH": None, "OMP_NUM_THREADS": "1"}
    env.update(OMPI_ALLOW_RUN_AS_ROOT=None, OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=None)
    return run_command(["sh", "-c", text], cwd=folder, env=env, timeout=180)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI's mpirun")
@pytest.mark.parametrize("way", ["mpirun", "launch_byteps.py", "bpslaunch"])
def test_commands_for_this_machine_train_where_they_are_pasted(way, folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    launcher = "hvd" if way == "mpirun" else "byteps"
    code, out, err = run(f"{SHORT} --launch {launcher} -- {TINY}", capsys=capsys)
    assert code == 0, err
    text = out.rstrip("\n").split("\n\n")[way == "bpslaunch"]
    result = run_as_pasted(text, folder).check()
    assert "2 processes on " in result.stdout and "step 3/3" in result.stdout
    assert (folder / "ckpt_stage1" / "0000003.params").exists()


def test_nothing_is_assumed_of_other_machines(capsys, tmp_path, monkeypatch):
    """Their user, their GPUs and their environment are not this machine's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    for lines, is_here in (("localhost slots=2\n", True), ("p3dn-01 slots=8\n", False)):
        (tmp_path / "hosts").write_text(lines)
        for launcher in ("hvd", "byteps"):
            args = f"--tokens_per_gpu 8192 --stage 1 --hostfile hosts --launch {launcher}"
            _, text, _ = run(args, capsys=capsys)
            assert (".venv/bin/python run_pretraining" in text) == is_here
            assert ("--dtype float16" in text) != is_here
            root = launcher == "hvd" and is_here and os.geteuid() == 0
            assert ("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun" in text) == root


def test_workers_of_one_host_share_its_cores_by_hand(capsys, tmp_path):
    for lines, shown in (
        ("a slots=2\nb slots=2\n", None),
        ("a slots=2\nb slots=2\na slots=2\nb slots=2\n", "RANKS_ON_HOST=4"),
        ("a slots=2\nb slots=2\na slots=2\n", 'RANKS_ON_HOST="${RANKS_ON_HOST:?4 on a, 2 on b}"'),
    ):
        (tmp_path / "hosts").write_text(lines)
        args = ["--tokens_per_gpu", 8192, "--hostfile", tmp_path / "hosts", "--stage", 1]
        ((_, by_hand),) = byteps_blocks(*args, capsys=capsys)
        assert shown in by_hand if shown else "RANKS_ON_HOST" not in by_hand


# ----------------------------------------------------------------------------- standard library, Python 3.8


@pytest.mark.parametrize("which", ["this", "3.8"])
def test_runs_without_site_packages(which, tmp_path):
    python = sys.executable if which == "this" else python_3_8()
    if python is None:
        pytest.skip("no Python 3.8 on this machine")
    args = ["--tokens_per_gpu", "8192", "--hostfile", str(ROOT / "hosts" / "local"), "--launch"]
    for options in (
        [*args, "hvd"],
        [*args, "byteps"],
        ["--num_gpus", "8", "--tokens_per_gpu", "8192", "--json"],
        ["--help"],
    ):
        result = subprocess.run(
            [python, "-S", "-E", "-W", "error", str(ROOT / "hparams.py"), *options],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert (result.returncode, "Traceback" in result.stderr) == (0, False), result.stderr
        assert result.stdout


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} hparams.py --num_gpus 256 --tokens_per_gpu 8192 --json | true"
    for _ in range(3):  # whether the pipe is gone before the output depends on timing
        result = subprocess.run(command, shell=True, capture_output=True, text=True, cwd=ROOT, timeout=60)
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
