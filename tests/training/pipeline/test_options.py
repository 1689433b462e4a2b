"""The options of pipelines, their errors before anything starts, and what a run keeps of them. Schedules,
simulated: no stage waits for ever, gradients come in one order, and 1F1B holds few."""

from __future__ import annotations

import os
import sys

import pytest

from base.errors import InputError
from base.launchers import BYTEPS, HVD
from tests.processes import ROOT, run_command
from tests.training.test_options import refused
from training.options import parse_options, run_config, stage_config, stage_options
from training.pipeline.options import GPIPE, ONE_F_ONE_B, SCHEDULES, PipelineConfig, check_launch
from training.pipeline.schedule import Pass, bubble, micro_batches_kept, passes

TWO = ("--pipeline_stages", "2")
LAYERS_24 = ("--dummy_data_len", "8", "--model", "bert_24_16_2")


def parse(*argv: str):
    return parse_options([*LAYERS_24, *argv], "")


def config_of(*argv: str) -> PipelineConfig:
    (options,) = stage_options(parse(*argv))
    return stage_config(options).pipeline


def test_without_stages_nothing_is_different() -> None:
    assert config_of() == PipelineConfig() == PipelineConfig(1, "intra_first", "1f1b", None)
    assert config_of("--pipeline_stages", "1") == PipelineConfig()
    assert run_config(parse()).pipeline.stages == 1


def test_the_options_become_a_configuration() -> None:
    assert config_of("--pipeline_stages", "4") == PipelineConfig(4, "intra_first", "1f1b", None)
    words = ("--pipeline_stages", "4", "--placement", "inter_first", "--pipeline_schedule", "gpipe")
    found = config_of(*words, "--pipeline_split", "6, 7,7,4")
    assert found == PipelineConfig(4, "inter_first", "gpipe", (6, 7, 7, 4))


@pytest.mark.parametrize(
    "argv, message",
    [
        (("--pipeline_stages", "0"), "--pipeline_stages: '0' is not a whole number from 1"),
        (("--pipeline_stages", "25"), "--pipeline_stages 25: the model has 24 layers"),
        (("--placement", "inter_first"), "--placement is about layers over several processes; give --pipe"),
        (("--pipeline_schedule", "gpipe"), "--pipeline_schedule is about layers over several"),
        (("--pipeline_split", "24"), "--pipeline_split is about layers over several"),
        ((*TWO, "--pipeline_split", "24"), "1 numbers for 2 stages; give each stage's"),
        ((*TWO, "--pipeline_split", "12,13"), "25 layers in all, and the model has 24"),
        ((*TWO, "--pipeline_split", "0,24"), "--pipeline_split: '0' is not a whole number"),
        ((*TWO, "--pipeline_split", "12,"), "--pipeline_split: '' is not a whole number"),
        ((*TWO, "--placement", "both"), "--placement: invalid choice"),
        ((*TWO, "--schedule", "1f1b"), "a schedule of pipelines: give --pipeline_schedule"),
        ((*TWO, "--optimizer_state", "bfloat16"), "bfloat16 with --pipeline_stages: its roundings depend on"),
        ((*TWO, "--shard_states"), "--shard_states with --pipeline_stages: the stages divide"),
        ((*TWO, "--padding", "remove"), "--padding remove with --pipeline_stages: activations travel"),
        (
            (*TWO, "--pretrained", "--model", "bert_12_768_12"),
            "--pretrained with --pipeline_stages: published",
        ),
        ((*TWO, "--dtype", "float16"), "with float16, a GPU's default, has not been"),
        (("--schedule", "cosine"), "--schedule: invalid choice: 'cosine'"),
    ],
)
def test_bad_options_are_one_line(argv: tuple[str, ...], message: str) -> None:
    assert message in refused(*LAYERS_24, *argv)


def test_commands_with_the_whole_model_reject_stages() -> None:
    with pytest.raises(InputError, match="--pipeline_stages 2: this command has the whole model in every"):
        run_config(parse("--pipeline_stages", "2"))


def test_a_launch_is_checked() -> None:
    four = {"OMPI_COMM_WORLD_SIZE": "4"}
    check_launch(1, BYTEPS, False, four)
    check_launch(2, HVD, True, four)
    check_launch(3, HVD, True, {})  # --estimate of one process for any number
    with pytest.raises(InputError, match="4 processes are not a multiple of 3; start 3 or 6"):
        check_launch(3, HVD, True, four)
    with pytest.raises(InputError, match="1 process is not a multiple of 2; start 2$"):
        check_launch(2, HVD, False, {})
    with pytest.raises(InputError, match="BytePS has neither groups .* start run_pretraining_hvd.py"):
        check_launch(2, BYTEPS, True, four)


@pytest.mark.parametrize("script", ["run_pretraining_hvd.py", "run_pretraining_byteps.py"])
def test_a_script_ends_before_anything_starts(script: str) -> None:
    words = "--dummy_data_len 8 --model bert_2_16_2 --pipeline_stages 2"
    environ = dict.fromkeys(name for name in os.environ if name.startswith("OMPI_"))
    found = run_command([sys.executable, script, *words.split()], cwd=ROOT, env=environ)
    assert found.returncode == 2 and found.stderr.count("\n") == 1
    named = "run_pretraining_hvd.py" if "byteps" in script else "start 2"
    assert named in found.stderr


SIZES = [(stages, count) for stages in (1, 2, 3, 4, 8) for count in (1, 2, 3, 4, 7, 16)]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("stages", "count"), SIZES)
def test_every_pass_comes_once_and_none_waits_for_ever(schedule, stages, count):
    left = [list(passes(schedule, stage, stages, count)) for stage in range(stages)]
    for stage in range(stages):
        assert sorted(left[stage]) == [Pass(way, n) for way in (False, True) for n in range(count)]
        assert [each.number for each in left[stage] if not each.forward] == list(range(count))
        assert [each.number for each in left[stage] if each.forward] == list(range(count))
    done: set[tuple[int, Pass]] = set()
    turns = 0
    while any(left):
        ready = []
        for stage in range(stages):
            if left[stage]:
                forward, number = left[stage][0]
                before = stage - 1 if forward else stage + 1
                needed = [(before, Pass(forward, number))] if 0 <= before < stages else []
                if not forward:
                    needed.append((stage, Pass(True, number)))
                if done.issuperset(needed):
                    ready.append(stage)
        assert ready, f"all wait: {[each[:1] for each in left]}"
        done.update((stage, left[stage].pop(0)) for stage in ready)
        turns += 1
    assert turns <= 2 * (count + stages - 1)  # no worse than the bubble of (p - 1) / (m + p - 1)


@pytest.mark.parametrize(("stages", "count"), SIZES)
def test_micro_batches_in_flight(stages, count):
    def most(schedule: str, stage: int) -> int:
        held = greatest = 0
        for each in passes(schedule, stage, stages, count):
            held += 1 if each.forward else -1
            greatest = max(greatest, held)
        return greatest

    for stage in range(stages):
        for schedule, held in ((ONE_F_ONE_B, min(stages - stage, count)), (GPIPE, count)):
            assert most(schedule, stage) == held
            kept = micro_batches_kept(PipelineConfig(stages, schedule=schedule), count, stage)
            assert kept == (held if stages > 1 else 1)


def test_the_bubble() -> None:
    assert bubble(1, 3) == 0 and bubble(2, 1) == 1 / 2 and bubble(2, 8) == 1 / 9 and bubble(4, 1) == 3 / 4
