"""Values that no option can take, memory that no machine has: one line, exit code 2, at once."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from base.errors import InputError
from base.memory import Available
from tests.faults.bad_values import COMMANDS, Case, all_cases, parse, run
from tests.processes import ROOT, run_command
from training import estimate as estimates
from training.estimate import check_memory, estimate
from training.inputs import check_parts
from training.options import parse_options, stage_config, stage_options

DIGITS = "9" * 26


def test_every_option_with_every_bad_value() -> None:
    cases = all_cases()
    assert len(cases) > 2_500 and {case.command for case in cases} == set(COMMANDS)
    cases.append(Case("run_pretraining_hvd.py", "--model", "bert_99999999999999999999_32_2"))
    bad = [(case.line, outcome) for case in cases for outcome in [parse(case)] if not outcome.good]
    assert not bad


def test_a_value_that_is_taken_is_noticed() -> None:
    assert not parse(Case("run_pretraining_hvd.py", "--lr", "0.1")).good
    assert not parse(Case("hparams.py", "--num_gpus", "8")).good


@pytest.mark.parametrize("command", ["data.prepare", "run_pretraining_hvd.py"])
def test_commands_as_processes(command: str) -> None:
    outcome = run(Case(command, "--max_seq_length", DIGITS))
    assert (outcome.code, len(outcome.error.splitlines())) == (2, 1), outcome


# Memory


def parts_of(*words: str):
    options = parse_options(["--dummy_data_len", "128", "--ckpt_dir", "none", *words], "")
    return check_parts(map(stage_config, stage_options(options)))


@pytest.mark.parametrize(
    "words",
    [
        ("--model", "bert_2_1000000_1"),
        ("--model", "bert_10000_8192_8"),
        ("--batch_size", "2147483647"),
        ("--batch_size", "2147483647", "--use_avg_len"),
    ],
    ids=" ".join,
)
def test_a_run_that_needs_far_more_than_there_is_does_not_start(words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        check_memory(parts_of(*words), "hvd", show=False)
    message = str(caught.value)
    assert "GiB of memory" in message and "--batch_size" in message and "--estimate" in message


def test_what_fits_starts_and_a_little_too_much_does_too(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = parts_of("--model", "bert_2_32_2")
    needed = estimate(parts[0], "hvd").of_process
    for there, show, code in ((2.0, True, 0), (0.9, True, 2), (0.9, False, None), (2.0, False, None)):
        available = Available(int(needed * there), "there")
        monkeypatch.setattr(estimates, "available_memory", lambda available=available: available)
        assert check_memory(parts, "hvd", show) == code


def test_all_ranks_of_a_host_share_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "0"}
    found = estimate(parts_of("--model", "bert_2_32_2")[0], "hvd", environ)
    assert found.processes == 4 and found.of_host == 4 * found.of_process and found.parts["exchange"] > 0
    assert check_memory(parts_of("--model", "bert_2_32_2"), "hvd", True, environ) == 0
    assert "4 processes on this host" in capsys.readouterr().out
    environ["OMPI_COMM_WORLD_RANK"] = "1"
    assert check_memory(parts_of("--model", "bert_2_32_2"), "hvd", True, environ) == 0
    assert not capsys.readouterr().out, "one rank speaks"


def test_the_copy_of_rank_0_is_said_and_counts_once() -> None:
    part = parts_of("--model", "bert_2_32_2")[0]
    found = estimate(part, "hvd", {"OMPI_COMM_WORLD_LOCAL_SIZE": "4", "OMPI_COMM_WORLD_SIZE": "4"})
    assert found.copied == 3 * found.parts["parameters"]  # in float32; float16 has masters, too
    assert any(line.startswith("copy of the state while rank 0 saves  ") for line in found.lines())
    for there, fits, said in (
        (found.of_host + found.copied, True, "it fits: 100%"),
        (found.of_host, True, "it fits, but for the copy: training will wait"),
        (found.of_host - 1, False, "it does not fit: "),
    ):
        one = replace(found, available=Available(there, "there"))
        assert one.fits == fits and one.lines()[-1].startswith(said)


def test_the_larger_stage_counts() -> None:
    words = ("--model", "bert_2_32_2", "--stages", "both", "--batch_size", "8,4096", "--num_steps", "1,1")
    first, second = parts_of(*words)
    assert estimate(second, "hvd").of_process > 2 * estimate(first, "hvd").of_process
    with pytest.MonkeyPatch.context() as patch:
        few = Available(estimate(first, "hvd").of_process, "there")
        patch.setattr(estimates, "available_memory", lambda: few)
        with pytest.raises(InputError, match="4,096 x 128 tokens"):
            check_memory([first, second], "hvd", show=False)


def test_the_command_prints_the_estimate_without_mxnet_and_leaves() -> None:
    program = (
        "import runpy, sys\n"
        "sys.argv = sys.argv[1:]\n"
        "try:\n    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "finally:\n    assert 'mxnet' not in sys.modules\n"
    )
    command = [sys.executable, "-c", program, "run_pretraining_hvd.py", "--model", "bert_2_32_2"]
    result = run_command([*command, "--dummy_data_len", "32", "--ckpt_dir", "none", "--estimate"], cwd=ROOT)
    assert result.returncode == 0 and not result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("estimated memory of bert_2_32_2, 8 x 32 tokens a process in float32")
    assert lines[-1].startswith("it fits: ")
    assert not (ROOT / "none").exists()
