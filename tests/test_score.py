"""score.py: the same scores as float64 NumPy and as a loop over transformers; its output; one line for an
error."""

from __future__ import annotations

import json
import math
import os
import random
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import convert
import score
from base.errors import InputError
from bench.workers import find_torch_python
from data.minimal_pairs import accuracies
from data.tokenizing.vocab import SPECIAL_TOKENS
from tests.bert.reference import HuggingFace, logits, sequence, softmax
from tests.bert.weights.building import SMALL, arrays, write
from tests.processes import ROOT, run_command

WORDS = [*SPECIAL_TOKENS, ".", "the", "cat", "dog", "sees", "see", "un", "##happy", "##ly", "##s", "who"]
SPOKEN = ["the", "cat", "dog", "dogs", "sees", "see", "unhappy", "unhappyly", "who", "WHO", "xyz"]
TERMS = {"agree_1": "s-selection", "agree_2": "argument_structure", "island_1": "island_effects"}
PAIRS_EACH = 20
AGREE = "pairs/agree_1.jsonl"


def sentence(rng: random.Random) -> list[str]:
    return [rng.choice(SPOKEN) for _ in range(rng.randrange(1, 12))]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a BERT, as GluonNLP's and Hugging Face's, its vocabulary, and pairs as files of BLiMP's:
    some of one length, some not, and some the same to the model."""
    folder = tmp_path_factory.mktemp("score")
    vocabulary = "".join(f"{word}\n" for word in WORDS)
    write(folder / "ours" / "model.params", arrays(vocab_size=len(WORDS), stdev=0.15))
    (folder / "ours" / "vocab.txt").write_text(vocabulary)
    options = ["--to", "huggingface", "--model", SMALL.name]
    assert convert.main([str(folder / "ours"), str(folder / "huggingface"), *options]) == 0
    encoder = {name: each for name, each in arrays(vocab_size=len(WORDS)).items() if "decoder" not in name}
    write(folder / "encoder" / "model.params", encoder)
    (folder / "encoder" / "vocab.txt").write_text(vocabulary)
    (folder / "pairs").mkdir()
    rng = random.Random(1)
    for uid, term in TERMS.items():
        rows = []
        for number in range(PAIRS_EACH):
            good = sentence(rng)
            bad = rng.sample(good, len(good)) if number % 2 else sentence(rng)
            if number % 13 == 0:
                bad = [word.upper() for word in good]  # which the tokenizer lowers
            rows.append({"sentence_good": " ".join(good) + ".", "sentence_bad": " ".join(bad) + "."})
            rows[-1].update({"field": "syntax", "linguistics_term": term, "UID": uid, "pairID": str(number)})
        content = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "pairs" / f"{uid}.jsonl").write_text(content)
    return folder


def scored(*arguments: str) -> tuple[score.Judged, np.ndarray, np.ndarray]:
    """The pairs, and the scores of their acceptable and unacceptable sentences."""
    config = score.parse([*arguments, "--model", SMALL.name])
    weights, vocabulary, judged = score.prepare(config)
    found = score.scores(config, weights, vocabulary, judged)
    return judged, found[judged.good], found[judged.bad]


def pieces(word: str) -> list[str]:
    known = {"dogs": ["dog", "##s"], "unhappy": ["un", "##happy"], "unhappyly": ["un", "##happy", "##ly"]}
    return known.get(word.lower(), [word.lower() if word.lower() in WORDS else "[UNK]"])


def expected(of: HuggingFace, text: str, metric: str, form: str) -> float:
    """In float64 NumPy, one token after the other."""
    assert text.endswith(".")
    words = [pieces(word) for word in text[:-1].split()] + [["."]]
    ids = [WORDS.index(each) for each in ["[CLS]", *(piece for word in words for piece in word), "[SEP]"]]
    ends = [end for word, end in zip(words, np.cumsum([1, *map(len, words)])[1:]) for _ in word]
    total = 0.0
    for place, end in enumerate(ends, 1):
        last = end if metric == "word_l2r" else place + 1
        seen = [WORDS.index("[MASK]") if place <= at < last else one for at, one in enumerate(ids)]
        masked = np.array([seen])
        x = sequence(of, SMALL.heads, form, masked, np.zeros_like(masked), np.array([len(ids)]))
        total += math.log(softmax(logits(of, form, x, np.array([[place]]))[1])[0, 0, ids[place]])
    return total


@pytest.mark.parametrize("metric, form", [("word_l2r", "erf"), ("original", "tanh")])
def test_scores_are_the_references(place, metric, form):
    of, wanted = HuggingFace(load_file(str(place / "huggingface" / "model.safetensors"))), {}
    for operators in ("mxnet", "fused"):
        options = ["--operators", operators, "--metric", metric, "--gelu", form, "--batch_tokens", "100"]
        judged, good, bad = scored(str(place / "ours"), str(place / "pairs"), *options)
        assert len(judged.pairs) == 3 * PAIRS_EACH
        texts = {text for pair in judged.pairs for text in (pair.good, pair.bad)}
        wanted = wanted or {text: expected(of, text, metric, form) for text in texts}
        for pair, one, other in zip(judged.pairs, good, bad):
            assert (one, other) == pytest.approx((wanted[pair.good], wanted[pair.bad]), abs=5e-5)


def test_every_judgement_is_that_of_a_loop_over_transformers(place, tmp_path):
    python = find_torch_python(None, os.environ)
    if python is None:
        pytest.skip("no environment with PyTorch and transformers (bench.workers says how to make one)")
    for metric in ("original", "word_l2r"):
        judged, good, bad = scored(str(place / "huggingface"), str(place / "pairs"), "--metric", metric)
        if metric == "original":
            texts = [text for pair in judged.pairs for text in (pair.good, pair.bad)]
            (tmp_path / "sentences").write_text("".join(f"{text}\n" for text in texts))
            worker = str(ROOT / "tests" / "pseudo_likelihood_worker.py")
            command = [python, worker, str(place / "huggingface"), "sentences", "out.npz"]
            run_command(command, cwd=tmp_path, env={"HF_HUB_OFFLINE": "1"}).check()
            theirs = np.load(tmp_path / "out.npz")
        one, other = theirs[metric][::2], theirs[metric][1::2]
        np.testing.assert_allclose(good, one, atol=5e-5)
        np.testing.assert_allclose(bad, other, atol=5e-5)
        assert (np.sign(good - bad) == np.sign(one - other)).all()
        assert 6 <= (good == bad).sum() < 20 and 10 < (good > bad).sum() < 50


def test_bfloat16_is_near(place):
    words = [str(place / "ours"), str(place / "pairs")]
    _, good, bad = scored(*words)
    _, *rounded = scored(*words, "--dtype", "bfloat16")
    difference = np.abs(np.array(rounded) - [good, bad])
    assert 1e-4 < difference.max() < 0.3


def test_the_command(place, tmp_path):
    """The figures for people, as JSON and as a picture, all of the same judgements."""
    command = [sys.executable, str(ROOT / "score.py"), str(place / "ours"), str(place / "pairs")]
    command += ["--model", SMALL.name, "--json", "scores.json", "--plot", "scores.png"]
    done = run_command(command, cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"}).check()
    found = json.loads((tmp_path / "scores.json").read_text())
    judged, good, bad = scored(str(place / "ours"), str(place / "pairs"))
    own = accuracies(judged.pairs, good, bad)
    assert found["mean_of_groups"]["accuracy"] == own.mean_of_groups.accuracy
    assert set(found["groups"]) == {"argument_structure", "island_effects"}
    groups = ["argument_structure", "argument_structure", "island_effects"]
    assert {name: each["group"] for name, each in found["paradigms"].items()} == dict(zip(TERMS, groups))
    for each in own.paradigms:
        assert found["paradigms"][each.name]["accuracy"] == each.accuracy
        cells = rf"{each.name} +20 +{each.ties} +{100 * each.accuracy:.1f} +{100 * each.error:.1f}\n"
        assert re.search(cells, done.stdout)
    assert found["ties"] == own.mean_of_groups.ties >= 3 * 2
    assert found["pairs"] == 60 and found["unknown_tokens"] > 0 and found["metric"] == "word_l2r"
    mean = rf"{100 * own.mean_of_groups.accuracy:.2f} \xb1 {100 * own.mean_of_groups.error:.2f} %"
    assert done.stdout.endswith(f"\nmean of 2 groups: {mean}\n")
    assert f"mean of 3 paradigms: {100 * own.mean_of_paradigms.accuracy:.2f} \\xb1" in done.stdout
    assert (tmp_path / "scores.png").read_bytes().startswith(b"\x89PNG")
    assert "warning" not in done.stderr.lower()


@pytest.mark.parametrize(
    "content, said",
    [
        (b"", "is empty"),
        (b"sentence_good\tsentence_bad\nthe\tcat\nthe\t\xc2\xad\n", "line 3: no token is left of a sentence"),
        (b"sentence_good\tsentence_bad\nthe\tcat\ncat\t" + b"the " * 39 + b"\n", "line 3: 41 tokens"),
    ],
)
def test_pairs_that_cannot_be_judged(place, tmp_path, content, said):
    (tmp_path / "pairs.tsv").write_bytes(content)
    assert said in rejected(str(place / "ours"), str(tmp_path / "pairs.tsv"), "--model", SMALL.name)


@pytest.mark.parametrize(
    "given, said",
    [
        (["encoder", "pairs"], "WEIGHTS: scores need the masked-LM head, which encoder/model.params lacks"),
        (["nowhere", "pairs"], "WEIGHTS nowhere does not exist"),
        (["ours", "nowhere"], "PAIRS: no file matches 'nowhere'"),
        (["ours"], "the following arguments are required: PAIRS"),
        (["ours", "pairs", "--json", "nowhere/s.json"], "--json nowhere/s.json: no file can be there"),
        (["ours", "pairs", "--plot", "pairs"], "--plot pairs: no file can be there"),
        (["ours", "pairs", "--json", AGREE], f"--json {AGREE} would replace one of PAIRS"),
        (["ours", "pairs", "--plot", "s.pdf"], "--plot s.pdf: the picture is a PNG"),
        (["ours", "pairs", "--vocab", "v", "--sentencepiece", "s"], "exclude each other"),
    ],
)
def test_errors(place, monkeypatch, given, said):
    monkeypatch.chdir(place)
    assert said in rejected(*given)


def rejected(*arguments: str) -> str:
    with pytest.raises(InputError) as caught:
        score.prepare(score.parse(arguments))
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_figures_are_shown_where_no_file_can_be_written(place):
    words = ["ours", AGREE, "--model", SMALL.name, "--json", "/proc/s.json"]
    failed = run_command([sys.executable, str(ROOT / "score.py"), *words], cwd=place)
    assert failed.returncode == 1 and "/proc/s.json" in failed.stderr, failed.describe()
    assert "mean of 1 groups: " in failed.stdout
