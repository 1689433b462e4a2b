"""Weights of our checkpoints: the newest complete one, or FOLDER:STEP, with what their manifest says."""

from __future__ import annotations

import os
from dataclasses import asdict, replace

import numpy as np
import pytest

from base.errors import InputError
from data.options import TokenizerConfig
from data.tokenizing.vocab import vocabulary_from_tokens
from tests.bert.weights.building import SMALL, WORDS, arrays, write
from training.checkpoint import save
from training.start.vocabulary import write_vocabulary
from training.start.weights import find_weights

CONFIG = replace(SMALL, activation="tanh")
VOCABULARY = vocabulary_from_tokens(WORDS)
FACTS = {"model": CONFIG.name, "bert": asdict(CONFIG), "options": {"cased": True}}
FACTS.update(vocab_sha256=VOCABULARY.sha256, vocabulary={"file": "vocab.txt", "kind": "wordpiece"})


@pytest.fixture
def folder(tmp_path) -> str:
    """Steps 1 and 2; the pooler's bias holds the step."""
    path = tmp_path / "run" / "ckpt"
    for step in (1, 2):
        named = {**arrays(CONFIG), "pooler.bias": np.full(64, step, np.float32)}
        save(str(path), step, named, {"state": np.ones(3)}, FACTS)
    write_vocabulary(str(path), VOCABULARY, TokenizerConfig())
    return str(path)


def step_of(weights) -> int:
    return int(weights.tensors["pooler.bias"].read()[0])


def test_the_newest_complete_one_with_its_configuration_and_vocabulary(folder):
    for given in (folder, os.path.dirname(folder), f"{folder}/0000002.params"):
        weights = find_weights(given, "--init_from")
        assert step_of(weights) == 2 and weights.config == CONFIG and not weights.notes
        assert weights.cased is True and tuple(weights.vocabulary) == VOCABULARY.tokens


def test_a_step(folder):
    assert step_of(find_weights(f"{folder}:1", "--init_from")) == 1
    assert step_of(find_weights(f"{os.path.dirname(folder)}:1", "--init_from")) == 1
    with pytest.raises(InputError, match=r"--init_from \S+ckpt:3: no checkpoint of .*; available: 1, 2"):
        find_weights(f"{folder}:3", "--init_from")


def test_what_is_damaged_is_passed_over_and_named(folder):
    os.remove(f"{folder}/0000002.states.npz")  # only the parameters are needed
    assert step_of(find_weights(folder, "--init_from")) == 2
    with open(f"{folder}/0000002.params", "r+b") as file:
        file.truncate(1000)
    weights = find_weights(folder, "--init_from")
    assert step_of(weights) == 1 and "0000002.params is damaged" in weights.notes[0]
    with pytest.raises(InputError, match=r"--init_from .*ckpt:2: .*0000002.params is damaged"):
        find_weights(f"{folder}:2", "--init_from")
    os.remove(f"{folder}/0000001.params")
    with pytest.raises(InputError, match="holds no complete checkpoint: .*0000002.params is damaged"):
        find_weights(folder, "--init_from")


def test_older_manifests_and_none(folder, tmp_path):
    named = arrays(replace(SMALL, hidden=256, positions=512, token_types=2))
    save(folder, 3, named, {"state": np.ones(3)}, {"model": "bert_2_64_4"})
    weights = find_weights(folder, "--init_from")
    assert weights.config.name == "bert_2_64_4" and weights.cased is None
    write(tmp_path / "bare" / "0000009.params", arrays())
    for given in (tmp_path / "bare", f"{tmp_path}/bare:9", tmp_path / "bare" / "0000009.params"):
        assert find_weights(str(given), "--init_from", CONFIG).config == CONFIG


def test_vocabularies_that_do_not_fit(folder):
    other = vocabulary_from_tokens([*WORDS[:-1], "z"])
    save(folder, 3, arrays(CONFIG), {"state": np.ones(3)}, {**FACTS, "vocab_sha256": other.sha256})
    weights = find_weights(folder, "--init_from")
    assert weights.vocabulary is None and "another vocabulary" in weights.notes[0]
    longer = vocabulary_from_tokens([*WORDS, "z"])
    os.remove(f"{folder}/vocab.txt")
    write_vocabulary(folder, longer, TokenizerConfig())
    save(folder, 2, arrays(CONFIG), {"state": np.ones(3)}, {**FACTS, "vocab_sha256": longer.sha256})
    with pytest.raises(InputError, match="embeddings of 20 tokens, but its vocabulary has 21"):
        find_weights(f"{folder}:2", "--init_from")
