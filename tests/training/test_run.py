"""The start of a run from a checkpoint or a bare file, its place in the data, and what is said of changes;
whole runs whose model comes from --config_file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mxnet as mx
import numpy as np
import pytest

from base.errors import InputError
from bert.configuration import named_config, recorded_config
from bert.model import build_model, initialize, trainable
from bert.weights import params_file
from bert.weights.names import DECODER
from comm.local import LocalCommunicator
from data.pretraining.batches import EPOCH_SHIFT
from data.tokenizing.vocab import load_vocab
from tests.training.small_runs import SIZES
from tests.training.staged import arrays_of, manifest_of, run
from tests.training.tiny import MODEL, VOCAB_SIZE, block_arrays, make_step, same_bits, tiny_network, weights
from training.checkpoint import save
from training.config import ModelConfig
from training.exchange import broadcast_json
from training.inputs import DATA_OPTIONS
from training.optimizer.scaler import LossScaler, SkipCounter
from training.options import parse_options, run_config
from training.pipeline.options import PipelineConfig
from training.pipeline.ranks import place_ranks
from training.start.initial import Wanted, find_weights
from training.start.restoring import restore_parameters, restore_states
from training.start.start import Start, changed_options, decide, position_to_continue, processes_to_count

LOCAL = LocalCommunicator()
RANKS = place_ranks(PipelineConfig(), LOCAL)


def options_of(directory: Path, *arguments: str) -> Any:
    argv = ["--model", MODEL, "--data", "x.npz", "--ckpt_dir", str(directory), *arguments]
    return parse_options(argv, "description")


def bare(directory: Path, more: float = 0.0) -> Any:
    """A network, and its parameters as GluonNLP's own script leaves them; `more`: added to one of them."""
    network = tiny_network(1)
    parameter = trainable(network.bert)["decoder.0.weight"]
    parameter.set_data(parameter.data() + more)
    network.bert.save_parameters(str(directory / "0000002.params"))
    return network


def start_of(options: Any, pretrained: bool = False) -> Start:
    """The decision on how the run of these options begins."""
    config = run_config(options)
    config = replace(config, model=replace(config.model, pretrained=pretrained))
    return decide(config, Wanted(config.model.bert, VOCAB_SIZE, None), lambda: None)


def begin(start: Start, network: Any) -> None:
    """Gives a network the parameters of the start."""
    restore_parameters(start, network, RANKS, ModelConfig(named_config(MODEL)), 0)


def test_published_parameters_begin_a_run_and_never_replace_a_checkpoints(tmp_path):
    options = options_of(tmp_path, "--resume")
    start = start_of(options, pretrained=True)
    assert (start.step, start.published) == (0, "book_corpus_wiki_en_uncased")
    facts = {"model": MODEL, "vocab_size": VOCAB_SIZE, "options": {}, "scaler": LossScaler().state()}
    facts.update(skips=SkipCounter().state(), blocks=0)
    save(str(tmp_path), 2, block_arrays(tiny_network().bert), {"t": np.array(0)}, facts)
    start = start_of(options, pretrained=True)
    assert (start.step, start.published) == (2, None)


class TestBareParameters:
    """A .params file as GluonNLP's own script leaves it, without anything beside it."""

    def test_start_step_takes_it_and_begins_the_states_anew(self, tmp_path):
        trained, network = bare(tmp_path), tiny_network(9)
        options = options_of(tmp_path, "--start_step", "2", "--accumulate", "3")
        found = start_of(options)
        assert found.step == 2 and found.facts == {}
        begin(found, network)
        assert same_bits(weights(network), weights(trained))
        _, optimizer = make_step(network)
        restore_states(found, network, optimizer, RANKS)
        assert not any(array.any() for array in optimizer.state().values())
        (message,) = found.messages
        assert "0000002.params" in message and "optimizer" in message
        # As many batches as its steps have taken on all ranks.
        assert position_to_continue(found, vars(options), 4, DATA_OPTIONS) == (2 * 3 * 4, [])

    def test_a_float32_file_starts_a_float16_run(self, tmp_path):
        trained, half = bare(tmp_path), half_precision()
        found = start_of(options_of(tmp_path, "--start_step", "2"))
        begin(found, SimpleNamespace(bert=half))
        for name, parameter in trainable(half).items():
            expected = weights(trained)[name].astype(np.float16)
            assert parameter.data().dtype == np.float16
            np.testing.assert_array_equal(parameter.data().asnumpy(), expected)

    def test_numbers_that_float16_cannot_hold(self, tmp_path):
        bare(tmp_path, more=1e5)
        found = start_of(options_of(tmp_path, "--start_step", "2"))
        with pytest.raises(InputError, match=r"0000002\.params.*not finite in float16.*--dtype float32"):
            begin(found, SimpleNamespace(bert=half_precision()))
        begin(found, tiny_network())

    def test_a_file_of_mxnets_numpy_arrays(self, tmp_path, monkeypatch):
        """MXNet marks them otherwise, and itself reads them only where NumPy's semantics are switched on."""
        trained, network = tiny_network(1), tiny_network(9)
        monkeypatch.setattr(params_file, "ARRAY_MAGIC", params_file.ARRAY_MAGIC_NUMPY)
        with (tmp_path / "0000002.params").open("wb") as file:
            params_file.write_params(file, block_arrays(trained.bert))
        monkeypatch.undo()
        found = start_of(options_of(tmp_path, "--start_step", "2"))
        begin(found, network)
        assert same_bits(weights(network), weights(trained))

    def test_a_file_without_a_head_names_no_option_of_mxnets(self, tmp_path):
        arrays = block_arrays(tiny_network().bert)
        kept = {name: array for name, array in arrays.items() if not name.startswith("classifier.")}
        mx.nd.save(str(tmp_path / "0000002.params"), kept)
        with pytest.raises(InputError, match=r"classifier\.weight.*next-sentence head") as caught:
            start_of(options_of(tmp_path, "--start_step", "2"))
        assert "allow_missing" not in str(caught.value)


def half_precision() -> Any:
    """A BERT in float16; it cannot compute on CPUs, but hold parameters."""
    half = build_model(named_config(MODEL), VOCAB_SIZE)
    initialize(half, mx.cpu(), "float16", 0)
    return half


class TestPosition:
    def found(self, options: Any, epoch: int, batches: int) -> Start:
        facts = {"blocks": (epoch << EPOCH_SHIFT) + batches, "world_size": 4, "options": vars(options)}
        return Start(step=10, facts=facts)

    def test_any_number_of_processes_goes_on_exactly(self, tmp_path):
        options = options_of(tmp_path)
        assert position_to_continue(Start(), vars(options), 2, DATA_OPTIONS) == (0, []), "a new run"
        found, place = self.found(options, 2, 100), (2 << EPOCH_SHIFT) + 100
        for size in (1, 3, 4, 1000):
            assert position_to_continue(found, vars(options), size, DATA_OPTIONS) == (place, [])

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
        saved = options_of(tmp_path)
        now = options_of(tmp_path, "--lr", "0.1", "--log_interval", "1", "--resume")
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
        said = "--accumulate 3: the checkpoint's run had 1; from here on a step has 12 micro-batches, not 4"
        assert changed_options(start, config) == [said]
        same = replace(run_config(saved), batch=replace(run_config(saved).batch, processes=4))
        assert changed_options(start, same) == []


@pytest.mark.parametrize(
    "value", [None, 0, [], {"a": [1, 2.5, None, True]}, "n\u00e4\u00efve \u4e2d\u6587", 2**40, "x" * 70000]
)
def test_what_is_broadcast_comes_back(value):
    found = broadcast_json(value, LOCAL)
    assert found == value and type(found) is type(value)


def changes(start: Start, *arguments: str) -> list[str]:
    options = parse_options(["--data", "x.npz", *arguments], "description")
    return changed_options(start, run_config(options))


def test_another_seed_or_optimizer_is_announced():
    found = Start(step=4, facts={"seed": 3, "options": {"optimizer": "lamb"}})
    assert changes(found) == changes(found, "--seed", "3") == []
    seed, optimizer = changes(found, "--seed", "5", "--optimizer", "adamw")
    assert seed.startswith("--seed 5") and "had 3" in seed
    assert optimizer.startswith("--optimizer adamw") and "had lamb" in optimizer
    assert changes(Start(), "--seed", "5", "--optimizer", "adamw") == []
    (hours,) = changes(found, "--budget_hours", "5")
    assert hours.startswith("--budget_hours 5: the checkpoint does not say")
    assert changes(Start(step=4, facts={"training_s": 9.0, "options": {}}), "--budget_hours", "5") == []


@pytest.mark.parametrize("name, default, given", [("beta1", 0.9, 0.8), ("weight_decay", 0.01, 0.1)])
def test_another_number_of_the_optimizer_is_announced(name, default, given):
    def found(saved: dict, *resets: str) -> list[str]:
        start = Start(step=4, facts={"options": {"lr": 1.0, **saved}}, resets=frozenset(resets))
        return changes(start, f"--{name}", str(given))

    said = [f"--{name} {given}: the checkpoint's run had {default}"]
    assert found({}) == found({name: default}) == said
    assert found({name: given}) == found({}, "optimizer") == []


BASE = {**SIZES, "hidden_size": 32, "intermediate_size": 128}
PLAIN = {
    "stages": None, "model": None, "max_seq_length": 32, "batch_size": 8, "lr": 0.01, "warmup_ratio": 0,
    "data_eval": None,
}  # fmt: skip


@pytest.fixture
def trained(corpus, tmp_path, capsys):
    """Trains with a bert_config.json of BASE but for its `changes`; returns the folder and what was said."""

    def train(name, changes, **options):
        path = tmp_path / "bert_config.json"
        path.write_text(json.dumps({**BASE, **changes}))
        assert run(tmp_path / name, corpus, **{**PLAIN, "config_file": path, **options}) == 0
        return tmp_path / name, capsys.readouterr().out

    return train


def test_a_file_with_a_names_sizes_is_that_model_bit_for_bit(trained, corpus):
    changes = {"vocab_size": len(load_vocab(corpus.vocab)), "ring": 1}
    named, _ = trained("named", changes, num_steps=2, model="bert_1_32_2", config_file=None)
    filed, shown = trained("filed", changes, num_steps=2)
    assert arrays_of(named, 2) == arrays_of(filed, 2)
    said = "GELU by erf, dropout 0.1, random weights of standard deviation 0.02; keys not known here: ring"
    assert said in shown


ANOTHER = {"hidden_act": "relu", "layer_norm_eps": 1e-3, "tie_word_embeddings": False}


@pytest.mark.parametrize(
    "operators, network, shown_as, recorded",
    [
        ("mxnet", {"hidden_act": "gelu_new"}, "GELU by tanh)", ("tanh", 1e-12, True)),
        *(
            (each, ANOTHER, "ReLU, layer-norm epsilon 0.001, a decoder of its own)", ("relu", 1e-3, False))
            for each in ("fused", "mxnet")
        ),
    ],
)
def test_a_model_of_no_name_continues_bit_for_bit(trained, corpus, operators, network, shown_as, recorded):
    """Narrow feed-forward layers, few positions, padded rows, another network, other random weights."""
    rows = len(load_vocab(corpus.vocab)) + 3
    changes = {"intermediate_size": 40, "max_position_embeddings": 33, "type_vocab_size": 3}
    changes.update(vocab_size=rows, initializer_range=0.05, **network)
    own = {"operators": operators, "end_lr": 0.01}  # the rate does not depend on the number of steps
    whole, shown = trained("whole", changes, num_steps=4, **own)
    assert "bert_1_32_2 (feed-forward layers of 40 units, 33 positions, 3 token types, " + shown_as in shown
    trained("part", changes, num_steps=2, **own)
    part, _ = trained("part", changes, num_steps=4, resume=True, **own)
    assert arrays_of(whole, 4) == arrays_of(part, 4)
    manifest = manifest_of(part, 4)
    assert manifest["model"] == "bert_1_32_2" and manifest["vocab_size"] == rows
    assert tuple(manifest["bert"][name] for name in ("activation", "epsilon", "tied")) == recorded
    assert manifest["bert"]["hidden"] == 40
    weights = find_weights(str(part), "INPUT")
    assert weights.config == recorded_config(manifest, "it") and (DECODER in weights.tensors) != recorded[2]
