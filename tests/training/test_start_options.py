"""Options of the stages and of a run's start: pairs, plans, and one clear line for what does not fit."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamb_paper
from base.command_line import Pair
from base.errors import InputError
from bert.weights.params_file import write_params
from tests.training.small_runs import SIZES
from tests.training.staged import MODEL, parts_of, read_params, run, words
from tests.training.test_inputs import arrays
from tests.training.test_options import parse
from training import checkpoint
from training.inputs import check_inputs
from training.options import parse_options, run_config, stage_config, stage_options
from training.plan import make_plan


def values(name: str, *arguments: str) -> list[Any]:
    return [getattr(given.options, name) for given in stage_options(parse(*arguments))]


class TestPairs:
    def test_each_stage_has_its_own_and_a_single_value_is_for_both(self):
        both = ("--stages", "both")
        assert values("num_steps", *both, "--num_steps", "7038,1561") == [7038, 1561]
        assert values("num_steps", "--stages", "2", "--num_steps", "7038, 1561") == [1561]
        assert values("lr", *both, "--lr", "0.004") == [0.004, 0.004]
        assert values("dropout", *both, "--dropout", "0.1,0") == [0.1, 0.0]
        assert values("lr", *both) == [None, None]
        assert [given.stage for given in stage_options(parse(*both))] == [1, 2]
        assert parse(*both, "--batch_size", "64,8").batch_size == Pair(64, 8)
        assert str(Pair(64, 8)) == "64,8", "as the command line has it"

    def test_data_of_stage_2(self):
        both = ("--stages", "both", "--data_eval", "e.npz", "--data_2", "long.npz")
        assert values("data", *both) == ["x.txt", "long.npz"]
        assert values("data_eval", *both) == ["e.npz", "e.npz"]

    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            (["--lr", "0.1,0.2"], "--lr 0.1,0.2: two values are for two stages"),
            (["--data_2", "y.npz"], "--data_2 is for stage 2"),
            (["--stages", "both", "--lr", "1,2,3"], "3 values"),
            (["--stages", "both", "--lr", "0.1,fast"], "'fast' is not a number"),
            (["--stages", "both", "--optimizer", "lamb,adamw"], "--optimizer"),
            (["--stages", "both", "--lr", "0.1,0.2", "--end_lr", "0.15"], "stage 1: --end_lr 0.15 is above"),
            (["--stages", "3"], "--stages"),
            (["--stages", "both", "--max_seq_length", "128,1024"], "stage 2: --max_seq_length 1024"),
            (["--init_partial"], "--init_partial needs --init_from"),
            (["--init_from", "a", "--start_step", "3"], "--init_from FOLDER:3"),
            (["--init_from", "a", "--pretrained"], "--pretrained"),
            (["--reset", "optimizer"], "--reset optimizer: nothing is restored"),
            (["--resume", "--reset", "data"], "--reset data: --resume goes on"),
            (["--start_step", "3", "--reset", "schedule"], "--init_from ./ckpt_dir:3 and another --ckpt_dir"),
            (["--init_from", "a", "--reset", "moments"], "'moments' is not of optimizer, schedule, data"),
            (["--keep_optimizer_state"], "--stages 2 or both"),
            (["--stages", "2", "--init_from", "a", "--keep_optimizer_state"], "--reset schedule,data"),
        ],
    )
    def test_what_does_not_fit_is_one_line(self, arguments, named):
        with pytest.raises(InputError, match=re.escape(named)):
            parse(*arguments)

    def test_stages_need_something_to_train_on(self):
        with pytest.raises(InputError, match="--stages is about training"):
            parse_options(["--data_eval", "x.npz", "--stages", "both"], "description")

    def test_other_commands_have_no_stages(self):
        with pytest.raises(InputError, match="--stages both: this command runs without stages"):
            run_config(parse("--stages", "both"))

    def test_a_reset_has_one_spelling(self):
        assert parse("--init_from", "a", "--reset", "data, optimizer").reset == "optimizer,data"

    def test_without_stages_nothing_is_different(self):
        options = parse("--num_steps", "20")
        (given,) = stage_options(options)
        assert given.stage is None and given.options is options


class TestPlans:
    def plans(self, *arguments: str, world_size: int = 1024) -> list[Any]:
        configs = [stage_config(given) for given in stage_options(parse("--stages", "both", *arguments))]
        return [
            make_plan(each.batch, each.optimization, world_size, length, each.start.stage)
            for each, length in zip(configs, (128, 512))
        ]

    def test_left_out_values_are_the_papers_for_each_stages_batch(self):
        plans = self.plans("--batch_size", "64,8", "--accumulate", "1,4")
        for plan, stage, batch in zip(plans, (1, 2), (65536, 32768)):
            steps = lamb_paper.PAPER.steps[stage - 1] * 512 / batch
            assert (plan.num_steps, plan.lr) == (-(-steps // 1), lamb_paper.scaled_lr(batch))
            assert plan.summary.startswith(f"stage {stage}: {batch} sequences")

    def test_the_stage_decides_and_not_the_length(self):
        config = stage_config(stage_options(parse("--stages", "2", "--batch_size", "64"))[0])
        of_stage_2 = make_plan(config.batch, config.optimization, 8, 128, 2)
        by_length = make_plan(config.batch, config.optimization, 8, 128)
        assert (of_stage_2.num_steps, by_length.num_steps) == (100_000, 900_000)


class TestDirectories:
    """The content of a directory against the stages that are asked for; all before mxnet is imported."""

    def save(self, directory: Path, step: int, **facts: Any) -> None:
        made_with = {"model": MODEL, "vocab_size": 1024, "vocab_sha256": None, "num_steps": 4, **facts}
        made_with["ended"] = step - facts.get("begun", 0) == 4
        ones = {"word_embed.0.weight": np.ones((1024, 16), np.float32)}
        checkpoint.save(str(directory), step, ones, {"t": np.array(step)}, made_with)

    @pytest.mark.parametrize(
        ("there", "changes", "named"),
        [
            ((), {"stages": "2"}, "no complete checkpoint of stage 1"),
            ((3, 1, 0), {"stages": "2"}, r"stage 1, which has not ended \(3 of 4"),
            ((6, 2, 4), {"stages": "2"}, "continue them with --resume"),
            ((6, 2, 4), {"stages": "1", "resume": True}, "is of stage 2 already"),
            ((4, 1, 0), {"stages": "both"}, "continue them with --resume"),
            ((3, 1, 0), {"stages": None, "resume": True}, "is of stage 1; go on with"),
            ((4, None, 0), {"resume": True}, "run without stages; start .*--init_from"),
            ((4,), {"resume": True}, "of a run without stages"),  # an older manifest
            ((4, 1, 0), {"stages": "2", "resume": True, "init_from": "x"}, "x: .*leave --init_from out"),
        ],
    )
    def test_what_is_there_does_not_fit(self, there, changes, named, corpus, tmp_path):
        if there:
            self.save(tmp_path, **dict(zip(("step", "stage", "begun"), there)))
        before = sorted(tmp_path.iterdir())
        one = {"max_seq_length": 16, "batch_size": 4, "num_steps": 4, "lr": 0.1, "warmup_ratio": 0}
        changes = {**one, **changes}
        with pytest.raises(InputError, match=named):
            parts_of(tmp_path, corpus, **changes)
        assert sorted(tmp_path.iterdir()) == before

    def test_descending_and_equal_lengths(self, corpus, tmp_path):
        with pytest.raises(InputError, match="stage 1 has sequences of 32 tokens and stage 2 of 16"):
            parts_of(tmp_path, corpus, max_seq_length="32,16")
        (part, _) = parts_of(tmp_path, corpus, max_seq_length=32)
        assert "both stages have sequences of 32 tokens" in part.inputs.messages[0]
        (part, _) = parts_of(tmp_path, corpus, max_seq_length="32,32")
        assert part.inputs.messages == ()
        (part, second) = parts_of(tmp_path, corpus, max_seq_length=None)
        assert part.inputs.messages == ()
        assert (part.inputs.max_seq_length, second.inputs.max_seq_length) == (128, 512)

    def test_files_with_masks_are_of_one_stage(self, corpus, tmp_path):
        path = tmp_path / "short.npz"
        np.savez(path, **arrays(1, 8, 1))
        changes = {"raw": None, "data": path, "data_eval": None, "max_seq_length": None}
        with pytest.raises(InputError, match="--data names files with masks, .*--data_2"):
            parts_of(tmp_path / "run", corpus, **changes)
        (_, second) = parts_of(tmp_path / "run", corpus, data_2=path, **changes)
        assert list(second.inputs.train.paths) == [str(path)]


class TestParameters:
    """--init_from against the run's model and vocabulary, before mxnet is imported."""

    @pytest.fixture(scope="class")
    def trained(self, corpus, tmp_path_factory) -> Path:
        directory = tmp_path_factory.mktemp("trained")
        assert run(directory, corpus, stages="1", num_steps=1, data_eval=None) == 0
        return directory

    def check(self, given: Any, corpus: Any, directory: Path, **changes: Any) -> Any:
        options = {"stages": None, "max_seq_length": 16, "batch_size": 4, "num_steps": 4, "lr": 0.1}
        options.update(warmup_ratio=0, init_from=given, **changes)
        return check_inputs(run_config(parse_options(words(directory, corpus, **options), "description")))

    @pytest.mark.parametrize(
        ("model", "sides"),
        [
            ("bert_2_16_2", "has layers 1, this run layers 2"),
            ("bert_1_32_2", "has units 16, hidden 64, this run units 32, hidden 128"),
            ("bert_1_16_4", "has heads 2, this run heads 4"),
        ],
    )
    def test_another_model_names_both_sides(self, model, sides, trained, corpus, tmp_path):
        with pytest.raises(InputError, match=f"--init_from {trained}/0000001.params {sides}.*--init_partial"):
            self.check(trained, corpus, tmp_path, model=model)

    def test_another_network_of_the_same_sizes(self, trained, corpus, tmp_path):
        another = {"hidden_act": "relu", "layer_norm_eps": 1e-3, "tie_word_embeddings": False}
        (tmp_path / "c.json").write_text(json.dumps({**SIZES, **another}))
        changes = {"model": None, "config_file": tmp_path / "c.json"}
        network = "ReLU, layer-norm epsilon 0.001, a decoder of its own"
        with pytest.raises(InputError, match=f"a network of GELU by erf, this run a network of {network}"):
            self.check(trained, corpus, tmp_path / "run", **changes)
        inputs = self.check(trained, corpus, tmp_path / "run", init_partial=True, **changes)
        assert "decoder.3.weight (not there)" in inputs.start.initial.messages[0]
        assert inputs.start.initial.messages[1].endswith(f"this run {network}: it computes something else")

    def test_another_vocabulary_of_one_size(self, trained, corpus, tmp_path):
        tokens = Path(corpus.vocab).read_text().splitlines()
        tokens[700], tokens[701] = tokens[701], tokens[700]
        (tmp_path / "vocab.txt").write_text("\n".join(tokens))
        said = f"its token 700 is {tokens[701]!r}, this run's is {tokens[700]!r}"
        with pytest.raises(InputError, match=said):
            self.check(trained, corpus, tmp_path / "run", vocab=tmp_path / "vocab.txt")
        (tmp_path / "vocab.txt").write_text("\n".join(tokens[:-1]))
        with pytest.raises(InputError, match="has vocabulary size 1024, this run vocabulary size 1023"):
            self.check(trained, corpus, tmp_path / "run", vocab=tmp_path / "vocab.txt")
        changes = {"vocab": tmp_path / "vocab.txt", "init_partial": True}
        inputs = self.check(trained, corpus, tmp_path / "run", **changes)
        assert not {"word_embed.0.weight", "decoder.3.bias"} & set(inputs.start.initial.tensors)
        assert "pooler.weight" in inputs.start.initial.tensors

    def test_states_that_are_not_there(self, trained, corpus, tmp_path):
        bare = tmp_path / "bare.params"
        shutil.copy(trained / "0000001.params", bare)
        with pytest.raises(InputError, match="has parameters only and no optimizer to take over"):
            self.check(bare, corpus, tmp_path / "run", reset="schedule,data")

    def test_parts_that_are_missing(self, trained, corpus, tmp_path):
        arrays = read_params(trained, 1)
        bare = {name: array for name, array in arrays.items() if not name.startswith(("decoder", "pooler"))}
        path = write_all(tmp_path / "encoder.params", bare)
        with pytest.raises(InputError, match="lacks the pooler, the masked-LM head; .*--init_partial"):
            self.check(path, corpus, tmp_path / "run")
        (message, *_) = self.check(path, corpus, tmp_path / "run", init_partial=True).start.initial.messages
        assert "pooler.weight (not there)" in message and "decoder.3.bias (not there)" in message

    def test_numbers_that_are_not_finite(self, trained, corpus, tmp_path):
        arrays = read_params(trained, 1)
        arrays["pooler.bias"] = np.full_like(arrays["pooler.bias"], np.nan)
        path = write_all(tmp_path / "bad.params", arrays)
        with pytest.raises(InputError, match="16 of the 16 numbers of pooler.bias are not finite"):
            self.check(path, corpus, tmp_path / "run")

    def test_nothing_there(self, corpus, tmp_path):
        for given in ("nowhere.params", f"{tmp_path}:7"):
            with pytest.raises(InputError, match="--init_from"):
                self.check(given, corpus, tmp_path / "run")

    def test_no_other_vocabulary_is_written_over(self, corpus, tmp_path):
        tmp_path.joinpath("vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nother\n")
        with pytest.raises(InputError, match="is another vocabulary than this run's"):
            self.check(None, corpus, tmp_path)


def write_all(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    with path.open("wb") as file:
        write_params(file, arrays)
    return path
