"""A run given back from its checkpoint, bit for bit; what is damaged is passed over, what changed is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from base.errors import InputError
from bert.configuration import named_config
from bert.model import build_model, initialize, network_parameters, trainable
from bert.weights import params_file
from comm.local import LocalCommunicator
from data.pretraining.batches import EPOCH_SHIFT
from tasks.pretraining.loss import PretrainingLoss
from tests.training.tiny import (
    MODEL,
    TASK,
    VOCAB_SIZE,
    block_arrays,
    make_step,
    random_batch,
    same_bits,
    tiny_network,
    weights,
)
from training.checkpoint import Kept
from training.exchange import broadcast_json
from training.guard import Guard
from training.inputs import DATA_OPTIONS, DataFiles, Inputs
from training.model import Model
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import DynamicScaler, SkipCounter
from training.options import parse_options, run_config
from training.pipeline.options import PipelineConfig
from training.pipeline.ranks import place_ranks
from training.report import Reporter
from training.run import Run as TrainingRun
from training.saving import Saver
from training.start.decision import decide
from training.start.initial import Wanted
from training.start.restoring import restore_parameters
from training.start.start import (
    Start,
    changed_options,
    position_to_continue,
    processes_to_count,
)
from training.step import TrainStep


class Pair(LocalCommunicator):
    """Rank 0 of two that hold the same."""

    size = 2

    def all_agree(self, flags: Any) -> list[bool]:
        return flags[: len(flags) // 2] * 2  # each half is what one of them says of itself


LOCAL, PAIR = LocalCommunicator(), Pair()
INPUTS = Inputs(None, VOCAB_SIZE, 16, train=DataFiles("instances", ("x.npz",)))
BATCH = random_batch(np.random.default_rng(3), 4, 12, 4, least_masked=1)


def options_of(directory: Path, *arguments: str) -> Any:
    argv = ["--model", MODEL, "--data", "x.npz", "--ckpt_dir", str(directory), *arguments]
    return parse_options(argv, "description")


def start_of(options: Any, trains: bool = True, pretrained: bool = False) -> Start:
    """The decision on how the run of these options begins."""
    config = run_config(options)
    config = replace(config, model=replace(config.model, pretrained=pretrained))
    return decide(config, Wanted(config.model.bert, VOCAB_SIZE, None, trains), lambda: None)


class Run:
    """A network, its optimizer, loss scale and count of skipped steps, made anew and not yet trained."""

    def __init__(self, seed: int = 0, model: str = MODEL):
        self.network: PretrainingLoss = tiny_network(seed, dropout=0.1, model=model)
        self.scaler = DynamicScaler(initial=1024.0)
        self.skips = SkipCounter()
        self.renew_optimizer()

    def renew_optimizer(self) -> None:
        """The optimizer is made after the parameters are there, as in the loop."""
        self.step: TrainStep
        self.optimizer: Optimizer
        self.step, self.optimizer = make_step(self.network, scaler=self.scaler)

    def train(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            assert self.step(number, [BATCH], lr=0.01).applied

    def in_training(self, options: Any, start: Start, position: int = 0) -> TrainingRun:
        """The run of two ranks that all this belongs to, as far as saving and restoring go."""
        model = Model(self.network.bert, self.network, mx.cpu(), "float32", "mxnet")
        return TrainingRun(
            config=run_config(options), inputs=INPUTS, task=TASK, ranks=place_ranks(PipelineConfig(), PAIR),
            plan=SimpleNamespace(num_steps=9, ckpt_interval=None), start=start,
            seed=5, reporter=Reporter(), feed=SimpleNamespace(position=position), eval_feed=None,
            model=model, optimizer=self.optimizer, scaler=self.scaler, skips=self.skips,
            guard=Guard(), saver=Saver(options.ckpt_dir, Kept(), Reporter()),
        )  # fmt: skip

    def save(self, options: Any, step: int, position: int = 7) -> None:
        run = self.in_training(options, Start(), position)
        run.save(step)
        run.saver.take([run.saver.finish(), run.saver.finite])

    def restore(self, options: Any) -> Start:
        start = start_of(options)
        restore_parameters(start, network_parameters(self.network), LOCAL, mx.cpu())
        self.renew_optimizer()
        self.in_training(options, start).restore()
        return start

    def everything(self) -> dict[str, np.ndarray]:
        return {**weights(self.network), **self.optimizer.state()}


class TestRoundTrip:
    def test_parameters_and_states_come_back_bit_for_bit(self, tmp_path):
        first, options = Run(seed=0), options_of(tmp_path, "--resume")
        first.train(1, 3)
        first.scaler.update(False)
        first.skips.update(False, step=4)
        first.save(options, 4)
        saved = first.everything()

        second = Run(seed=9)
        assert not same_bits(second.everything(), saved)
        found = second.restore(options)

        assert found.step == 4 and found.messages == ()
        assert same_bits(second.everything(), saved)
        assert second.optimizer.t == 3
        assert second.scaler.state() == first.scaler.state() and second.scaler.scale == 512.0
        assert second.skips.state() == {"in_a_row": 0, "total": 1}
        assert second.network.bert.decoder[3].weight is second.network.bert.word_embed[0].weight

        # And the steps that follow are those of the first run, dropout included.
        for run in (first, second):
            run.train(5, 6)
        assert same_bits(second.everything(), first.everything())

    def test_the_facts_of_the_run(self, tmp_path):
        run, options = Run(), options_of(tmp_path, "--resume", "--lr", "0.5")
        run.save(options, 4, position=(3 << EPOCH_SHIFT) + 11)
        facts = start_of(options).facts
        assert (facts["model"], facts["vocab_size"], facts["seed"], facts["world_size"]) == (
            MODEL,
            VOCAB_SIZE,
            5,
            2,
        )
        assert facts["blocks"] == (3 << EPOCH_SHIFT) + 11
        assert facts["options"]["lr"] == 0.5 and facts["step"] == 4


class TestFinding:
    def test_start_step_takes_that_step_and_not_the_newest(self, tmp_path):
        run, options = Run(), options_of(tmp_path, "--start_step", "1")
        run.train(1, 1)
        run.save(options, 1)
        saved = run.everything()
        run.train(2, 2)
        run.save(options, 2)
        other = Run(seed=9)
        assert other.restore(options).step == 1 and same_bits(other.everything(), saved)

    def test_nothing_to_resume(self, tmp_path):
        found = start_of(options_of(tmp_path, "--resume"))
        assert found.step == 0 and found.checkpoint is None and found.facts == {}
        assert found.messages == ()


def test_published_parameters_begin_a_run_and_never_replace_a_checkpoints(tmp_path):
    options = options_of(tmp_path, "--resume")
    start = start_of(options, pretrained=True)
    assert (start.step, start.published) == (0, "book_corpus_wiki_en_uncased")
    Run().save(options_of(tmp_path), 2)
    start = start_of(options, pretrained=True)
    assert (start.step, start.published) == (2, None)


class TestBareParameters:
    """A .params file as GluonNLP's own script leaves it, without anything beside it."""

    def test_start_step_takes_it_and_begins_the_states_anew(self, tmp_path):
        trained = Run(seed=1)
        trained.train(1, 2)
        trained.network.bert.save_parameters(str(tmp_path / "0000002.params"))

        run, options = Run(seed=9), options_of(tmp_path, "--start_step", "2", "--accumulate", "3")
        found = run.restore(options)
        assert found.step == 2 and found.facts == {}
        assert same_bits(weights(run.network), weights(trained.network))
        assert run.optimizer.t == 0 and run.scaler.scale == 1024.0
        assert not any(array.any() for array in run.optimizer.state().values())
        (message,) = found.messages
        assert "0000002.params" in message and "optimizer" in message
        assert position_to_continue(found, vars(options), 4, DATA_OPTIONS) == (2 * 3 * 4, []), (
            "as many batches as its steps have taken on all ranks"
        )

    def test_a_float32_file_starts_a_float16_run(self, tmp_path):
        trained = Run(seed=1)
        trained.network.bert.save_parameters(str(tmp_path / "0000002.params"))
        half = half_precision()
        found = start_of(options_of(tmp_path, "--start_step", "2"))
        restore_parameters(found, half._collect_params_with_prefix(), LOCAL, mx.cpu())
        for name, parameter in trainable(half).items():
            expected = weights(trained.network)[name].astype(np.float16)
            assert parameter.data().dtype == np.float16
            np.testing.assert_array_equal(parameter.data().asnumpy(), expected)

    def test_numbers_that_float16_cannot_hold(self, tmp_path):
        trained = Run(seed=1)
        parameter = trainable(trained.network.bert)["decoder.0.weight"]
        parameter.set_data(parameter.data() + 1e5)
        trained.network.bert.save_parameters(str(tmp_path / "0000002.params"))
        found = start_of(options_of(tmp_path, "--start_step", "2"))
        with pytest.raises(InputError, match=r"0000002\.params.*not finite in float16.*--dtype float32"):
            restore_parameters(found, half_precision()._collect_params_with_prefix(), LOCAL, mx.cpu())
        restore_parameters(found, network_parameters(Run().network), LOCAL, mx.cpu())

    def test_a_file_of_mxnets_numpy_arrays(self, tmp_path, monkeypatch):
        """MXNet marks them otherwise, and itself reads them only where NumPy's semantics are switched on."""
        trained, run = Run(seed=1), Run(seed=9)
        monkeypatch.setattr(params_file, "ARRAY_MAGIC", params_file.ARRAY_MAGIC_NUMPY)
        with (tmp_path / "0000002.params").open("wb") as file:
            params_file.write_params(file, block_arrays(trained.network.bert))
        monkeypatch.undo()
        run.restore(options_of(tmp_path, "--start_step", "2"))
        assert same_bits(weights(run.network), weights(trained.network))

    def test_a_file_without_a_head_names_no_option_of_mxnets(self, tmp_path):
        trained = Run(seed=1)
        arrays = block_arrays(trained.network.bert)
        mx.nd.save(
            str(tmp_path / "0000002.params"),
            {name: array for name, array in arrays.items() if not name.startswith("classifier.")},
        )
        with pytest.raises(InputError, match=r"classifier\.weight.*next-sentence head") as caught:
            Run().restore(options_of(tmp_path, "--start_step", "2"))
        assert "allow_missing" not in str(caught.value)


def half_precision() -> Any:
    """A BERT in float16; it cannot compute on CPUs, but hold parameters."""
    half = build_model(named_config(MODEL), VOCAB_SIZE)
    initialize(half, mx.cpu(), "float16", 0)
    return half


class TestPosition:
    def found(self, options: Any, epoch: int, batches: int, key: str = "blocks") -> Start:
        facts = {key: (epoch << EPOCH_SHIFT) + batches, "world_size": 4, "options": vars(options)}
        return Start(step=10, facts=facts)

    def test_a_new_run_begins_at_the_beginning(self, tmp_path):
        assert position_to_continue(Start(), vars(options_of(tmp_path)), 2, DATA_OPTIONS) == (0, [])

    @pytest.mark.parametrize("size", [1, 2, 3, 4, 1000])
    def test_any_number_of_processes_goes_on_exactly(self, tmp_path, size):
        options = options_of(tmp_path)
        found = self.found(options, 2, 100)
        assert position_to_continue(found, vars(options), size, DATA_OPTIONS) == (
            (2 << EPOCH_SHIFT) + 100,
            [],
        )

    @pytest.mark.parametrize(
        "changed, flag",
        [
            (["--batch_size", "16"], "--batch_size"),
            (["--use_avg_len"], "--use_avg_len"),
            (["--num_buckets", "3"], "--num_buckets"),
            (["--data", "y.npz"], "--data"),
            (["--raw"], "--raw"),
            (["--max_seq_length", "64"], "--max_seq_length"),
            (["--short_seq_prob", "0.5"], "--short_seq_prob"),
            (["--raw", "--split_sentences"], "--raw, --split_sentences"),
        ],
    )
    def test_options_that_the_position_depends_on(self, tmp_path, changed, flag):
        saved, now = options_of(tmp_path), options_of(tmp_path, *changed)
        position, messages = position_to_continue(self.found(saved, 0, 100), vars(now), 2, DATA_OPTIONS)
        assert position == 100
        (message,) = messages
        assert message.startswith(f"{flag} differ")

    def test_options_that_it_does_not_depend_on(self, tmp_path):
        saved, now = (
            options_of(tmp_path),
            options_of(tmp_path, "--lr", "0.1", "--log_interval", "1", "--resume"),
        )
        assert position_to_continue(self.found(saved, 0, 100), vars(now), 2, DATA_OPTIONS) == (100, [])


class TestProcesses:
    """Those that --accumulate counts for."""

    @pytest.mark.parametrize(
        ("start", "expected"),
        [
            (Start(), 3),
            (Start(step=5, facts={"world_size": 4}), 4),  # a checkpoint of an older version
            (Start(step=5, facts={"world_size": 2, "processes": 4}), 4),
            (Start(step=5, facts={"world_size": 2, "processes": 4}, resets=frozenset(["schedule"])), 3),
            (Start(step=5, facts={"world_size": 2, "processes": 4}, resets=frozenset(["data"])), 4),
            (Start(step=5), 3),  # a bare .params file
        ],
    )
    def test_a_run_keeps_those_that_it_began_with(self, tmp_path, start, expected):
        config = run_config(options_of(tmp_path))
        assert processes_to_count(start, config, 3) == expected

    @pytest.mark.parametrize(("stages", "expected"), [("both", 4), ("2", 3)])
    def test_stage_2_has_those_of_the_launch(self, tmp_path, stages, expected):
        """Of both stages as of stage 1; by itself it is a plan of its own."""
        config = run_config(options_of(tmp_path))
        config = replace(config, start=replace(config.start, stages=stages))
        facts = {"world_size": 2, "processes": 4, "stage": 1}
        start = Start(step=5, begun=5, stage=2, facts=facts, resets=frozenset(["schedule", "optimizer"]))
        assert processes_to_count(start, config, 3) == expected

    def test_another_accumulate_wins_and_is_announced(self, tmp_path):
        saved, now = options_of(tmp_path), options_of(tmp_path, "--accumulate", "3")
        start = Start(step=5, facts={"world_size": 4, "options": vars(saved)})
        config = run_config(now)
        config = replace(config, batch=replace(config.batch, processes=4))
        (message,) = changed_options(start, config)
        assert message == (
            "--accumulate 3: the checkpoint's run had 1; from here on a step has 12 micro-batches, not 4"
        )
        same = replace(run_config(saved), batch=replace(run_config(saved).batch, processes=4))
        assert changed_options(start, same) == []


@pytest.mark.parametrize(
    "value", [None, 0, [], {"a": [1, 2.5, None, True]}, "n\u00e4\u00efve \u4e2d\u6587", 2**40, "x" * 70000]
)
def test_what_is_broadcast_comes_back(value):
    found = broadcast_json(value, LOCAL)
    assert found == value and type(found) is type(value)


def test_another_seed_or_optimizer_is_announced():
    found = Start(step=4, facts={"seed": 3, "options": {"optimizer": "lamb"}})

    def changes(*arguments: str, start: Start = found) -> list[str]:
        options = parse_options(["--data", "x.npz", *arguments], "description")
        return changed_options(start, run_config(options))

    assert changes() == []
    assert changes("--seed", "3") == []
    seed, optimizer = changes("--seed", "5", "--optimizer", "adamw")
    assert seed.startswith("--seed 5") and "had 3" in seed
    assert optimizer.startswith("--optimizer adamw") and "had lamb" in optimizer
    assert changes("--seed", "5", "--optimizer", "adamw", start=Start()) == []
    (hours,) = changes("--budget_hours", "5")
    assert hours.startswith("--budget_hours 5: the checkpoint does not say")
    assert changes("--budget_hours", "5", start=Start(step=4, facts={"training_s": 9.0, "options": {}})) == []


@pytest.mark.parametrize("name, default, given", [("beta1", 0.9, 0.8), ("weight_decay", 0.01, 0.1)])
def test_another_number_of_the_optimizer_is_announced(name, default, given):
    def changes(saved: dict, *resets: str) -> list[str]:
        options = parse_options(["--data", "x.npz", f"--{name}", str(given)], "description")
        start = Start(step=4, facts={"options": {"lr": 1.0, **saved}}, resets=frozenset(resets))
        return changed_options(start, run_config(options))

    said = [f"--{name} {given}: the checkpoint's run had {default}"]
    assert changes({}) == changes({name: default}) == said
    assert changes({name: given}) == changes({}, "optimizer") == []
