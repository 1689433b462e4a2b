"""--init_vocab: pretrained weights with another vocabulary; rows of common tokens to the bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import finetune_classifier
from base.errors import InputError
from tests.finetuned import classifier, write_data
from tests.processes import ROOT, run_ranks
from tests.training.staged import arrays_of, copy_step, parts_of, read_params, run, words

# At this rate no weight that is not zero moves.
STILL: dict[str, Any] = {
    "stages": None, "max_seq_length": 16, "batch_size": 4, "num_steps": 1, "lr": 1e-30, "warmup_ratio": 0,
    "data_eval": None,
}  # fmt: skip
OF_TOKENS = ("word_embed.0.weight", "decoder.3.weight", "decoder.3.bias")
NEW = 37  # tokens that the weights do not know


@pytest.fixture(scope="module")
def other(corpus, tmp_path_factory) -> Any:
    """The corpus with another vocabulary: some tokens less, some more, all in another order."""
    folder = tmp_path_factory.mktemp("other")
    tokens = Path(corpus.vocab).read_text().split("\n")[:-1]
    kept = [*tokens[:5], *np.random.default_rng(0).permutation(tokens[5:])[:-50]]
    kept[100:100] = [f"token{number}" for number in range(NEW)]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in kept))
    return SimpleNamespace(vocab=str(folder / "vocab.txt"), train=corpus.train, held_out=corpus.held_out)


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory) -> Path:
    """Weights whose biases are not zero."""
    directory = tmp_path_factory.mktemp("trained")
    assert run(directory, corpus, **{**STILL, "num_steps": 4, "lr": 0.05}) == 0
    return directory


@pytest.fixture(scope="module")
def drawn(other, tmp_path_factory) -> dict[str, np.ndarray]:
    """Random numbers of a run with the other vocabulary."""
    directory = tmp_path_factory.mktemp("drawn")
    assert run(directory, other, **STILL) == 0
    return read_params(directory, 1)


def check_rows(found: dict, before: dict, drawn: dict, old: Any, new: Any) -> None:
    """Compares all parameters with those before, token by token where they have a row for each."""
    places = {token: number for number, token in enumerate(Path(old.vocab).read_text().split("\n")[:-1])}
    tokens = Path(new.vocab).read_text().split("\n")[:-1]
    for name, array in found.items():
        expected = before[name]
        if name in OF_TOKENS:
            rows = [before[name][places[each]] if each in places else None for each in tokens]
            expected = np.stack([drawn[name][i] if row is None else row for i, row in enumerate(rows)])
            assert sum(row is None for row in rows) == NEW
        # What is zero has moved by as much as the rate.
        np.testing.assert_allclose(array, expected, rtol=0, atol=1e-29, err_msg=name)


def test_rows_of_common_tokens_are_kept_to_the_bit(trained, drawn, corpus, other, tmp_path, capsys):
    assert run(tmp_path, other, **STILL, init_from=trained, init_vocab=True) == 0
    total = len(Path(other.vocab).read_text().splitlines())
    said = f"{total - NEW:,} of {total:,} tokens keep the rows that they have in {trained}/0000004.params, 37"
    assert said in "".join(capsys.readouterr())
    check_rows(read_params(tmp_path, 1), read_params(trained, 4), drawn, corpus, other)
    assert (tmp_path / "vocab.txt").read_bytes() == Path(other.vocab).read_bytes()


def test_a_pipeline_begins_with_the_same(trained, drawn, corpus, other, tmp_path):
    given = {"init_partial": True, "init_from": trained, "init_vocab": True}
    changes = {**STILL, **given, "model": "bert_2_16_2"}
    assert run(tmp_path / "one", other, **changes) == 0
    args = words(tmp_path / "two", other, **changes, pipeline_stages=2)
    run_ranks(ROOT / "run_pretraining_hvd.py", 2, args=args).check()
    one, two = (read_params(tmp_path / name, 1) for name in ("one", "two"))
    for name in OF_TOKENS:
        np.testing.assert_allclose(two[name], one[name], rtol=0, atol=1e-29, err_msg=name)
    check_rows({name: two[name] for name in OF_TOKENS}, read_params(trained, 4), drawn, corpus, other)


def test_both_stages_and_a_resumed_run(trained, other, tmp_path):
    given = {"init_from": trained, "init_vocab": True}
    assert run(tmp_path / "whole", other, **given) == 0
    half = copy_step(tmp_path / "whole", 2, tmp_path / "half")
    assert run(half, other, **given, resume=True) == 0
    assert arrays_of(half, 7) == arrays_of(tmp_path / "whole", 7)


@pytest.mark.parametrize(
    "changes, named",
    [
        ({}, "size 1024, this run vocabulary size 1011; name its model and vocabulary, add --init_vocab, "),
        ({"init_from": None, "init_vocab": True}, "--init_vocab needs --init_from"),
        ({"init_vocab": True, "reset": "schedule,data"}, "give --reset optimizer,schedule,data"),
        ({"init_vocab": True, "model": "bert_2_16_2"}, "has layers 1, this run layers 2; name its model"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(changes, named, trained, other, tmp_path):
    with pytest.raises(InputError, match=named):
        parts_of(tmp_path, other, **{**STILL, "init_from": trained, **changes})


def test_weights_without_their_vocabulary(trained, other, tmp_path):
    shutil.copy(trained / "0000004.params", tmp_path / "bare.params")
    with pytest.raises(InputError, match="--init_vocab needs the vocabulary of these weights"):
        parts_of(tmp_path / "run", other, **STILL, init_from=tmp_path / "bare.params", init_vocab=True)


def test_fine_tuning(trained, corpus, tmp_path, capsys):
    """The head and the new rows are random; the common ones are the weights'."""
    write_data(tmp_path)
    given = {"seed": 5, "model": None, "num_steps": 1, "lr": 1e-30, "warmup_ratio": 0, "num_data_workers": 0}

    def tune(name, **changes):
        return finetune_classifier.main(classifier(tmp_path, tmp_path / name, **{**given, **changes}))

    assert tune("run", init_from=trained, init_vocab=True) == 0
    tokens = (tmp_path / "vocab.txt").read_text().splitlines()
    old = {token: number for number, token in enumerate(Path(corpus.vocab).read_text().splitlines())}
    common = [number for number, token in enumerate(tokens) if token in old]
    assert 5 < len(common) < len(tokens)
    said = f"--init_vocab: {len(common)} of {len(tokens)} tokens keep the rows"
    assert said in "".join(capsys.readouterr())
    assert tune("drawn", model="bert_1_16_2") == 0
    found, drawn = (read_params(tmp_path / name, 1)["word_embed.0.weight"] for name in ("run", "drawn"))
    before = read_params(trained, 4)["word_embed.0.weight"]
    expected = drawn.copy()
    expected[common] = before[[old[tokens[number]] for number in common]]
    np.testing.assert_array_equal(found, expected)
    for more, named in (
        ({"init_from": None, "model": "bert_1_16_2"}, "--init_vocab needs --init_from"),
        ({"init_from": trained, "vocab": None}, "--init_vocab: name this run's vocabulary with --vocab"),
    ):
        with pytest.raises(InputError, match=named):
            tune("again", **more, init_vocab=True)
