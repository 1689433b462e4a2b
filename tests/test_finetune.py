"""finetune_squad.py and finetune_classifier.py from end to end: real processes and both backends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import pytest

import finetune_classifier
import finetune_squad
from base.errors import InputError
from data.questions.score import score_v2
from data.questions.squad_files import SCORE, read_questions
from tests.faults.jobs import metrics
from tests.finetuned import classifier, squad, write_data
from tests.processes import ROOT, run_command, start_ranks, until
from tests.training.staged import read_params
from tests.training.test_feed import Rank
from training.checkpoint import list_steps, read_manifest
from training.finetuning.several import prepare
from training.profiling.trace import read_trace
from training.report import Reporter
from training.results.record import read_result

SQUAD, CLASSIFIER = ROOT / "finetune_squad.py", ROOT / "finetune_classifier.py"
SURE = {"model": "bert_1_64_2", "dropout": 0, "lr": "2e-3"}  # it learns the sentences within seconds


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def launched(script: Path, words: Sequence[str], ranks: int = 1, launcher: str = "none") -> Any:
    # One thread each: threads that wait for each other are slow on a busy machine.
    return start_ranks(script, ranks, launcher, args=words, env={"OMP_NUM_THREADS": "1"})


def finished(script: Path, words: Sequence[str], ranks: int = 1, launcher: str = "none") -> Any:
    return launched(script, words, ranks, launcher).finish()


def of(trained: Path | str) -> dict[str, Any]:
    """Options of a run that takes a fine-tuned model with its head."""
    return {"model": None, "vocab": None, "model_parameters": trained}


def parameters(folder: Path) -> dict[str, np.ndarray]:
    return read_params(folder, list_steps(str(folder))[-1])


def same_files(one: Path, other: Path) -> list[str]:
    """Names of the files of the last checkpoint, and of predictions, that differ by a bit."""
    last = list_steps(str(one))[-1]
    names = [f"{last:07d}.params", f"{last:07d}.states.npz"]
    names += [path.name for path in sorted(one.glob("*predictions.json"))]
    found = [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]
    return found + (["metrics.jsonl"] if metrics(one) != metrics(other) else [])


@pytest.fixture(scope="module")
def answered(data, tmp_path_factory) -> Path:
    """SQuAD 2.0 on one process; an epoch has 18 steps or so."""
    folder = tmp_path_factory.mktemp("squad")
    result = finished(SQUAD, squad(data, folder, epochs=2, dropout=0))
    assert "random" not in result.stderr and "scores: exact_match " in result.stdout
    return folder


def start(data: Path, folder: Path, launcher: str) -> Any:
    """Two ranks without rows of padding; checkpoints are in the middle of an epoch."""
    backend = "byteps" if launcher == "byteps" else "hvd"
    changes: dict[str, Any] = {"epochs": 2, "dropout": 0, "batch_size": 4, "padding": "remove"}
    changes.update(ckpt_interval=5, backend=backend, resume=True)
    return launched(SQUAD, squad(data, folder, **changes), 2, launcher)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    start(data, folder, "mpirun").finish()
    return folder


class TestSquad:
    def test_it_learns_and_is_scored(self, data, answered):
        lines = [each for each in metrics(answered) if "lr" in each]
        assert np.mean([each["span_loss"] for each in lines[-5:]]) < 0.9 * lines[0]["span_loss"]
        evaluations = [each for each in metrics(answered) if "eval_f1" in each]
        steps = len(lines)
        assert [each["step"] for each in evaluations] == [(steps + 1) // 2, steps], "after each epoch"
        assert evaluations[-1]["eval_span_loss"] is None, "what the answer is, is not known there"

    def test_predictions_give_the_scores_of_the_results(self, data, answered):
        questions = read_questions(str(data / "dev.json"), "--dev_file", SCORE)
        predictions = json.loads((answered / "predictions.json").read_text())
        odds = json.loads((answered / "null_odds.json").read_text())
        nbest = json.loads((answered / "nbest_predictions.json").read_text())
        assert set(predictions) == set(odds) == set(nbest) == set(questions.ids)
        result = read_result(str(answered))
        expected = score_v2(questions, predictions, odds)
        assert result.scores["f1"] == expected["f1"] and result.scores["exact_match"] == expected["exact"]
        assert {"HasAns_f1", "NoAns_f1", "best_f1", "best_f1_thresh"} <= set(result.scores)
        assert (result.status, result.task, result.data) == ("finished", "squad", "SQuAD 2.0")
        assert (result.epochs, result.main_score, result.score) == (2, "f1", expected["f1"])
        contexts = "".join(questions.contexts)
        assert all(text in contexts for text in predictions.values())

    def test_the_checkpoint_has_the_head_and_no_other(self, answered):
        found = parameters(answered)
        assert found["span_classifier.weight"].shape == (2, 32)
        assert not [name for name in found if name.startswith(("pooler", "classifier", "decoder"))]
        manifest = read_manifest(str(answered), list_steps(str(answered))[-1])
        assert manifest["ended"] and manifest["vocabulary"]["file"] == "vocab.txt"

    def test_only_predict_is_the_last_evaluation(self, data, answered, tmp_path):
        finished(SQUAD, squad(data, tmp_path, train_file=None, only_predict=True, **of(answered)))
        for name in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
            assert (tmp_path / name).read_bytes() == (answered / name).read_bytes()
        result = read_result(str(tmp_path))
        assert result.scores == read_result(str(answered)).scores and result.steps == 0
        assert list_steps(str(tmp_path)) == []

    def test_two_horovod_processes_are_one(self, whole, answered):
        """Twice as many examples of half the size; windows that one process evaluates are divided. Rows of
        padding are left out, which changes nothing either."""
        found, expected = parameters(whole), parameters(answered)
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=2e-3, err_msg=name)
        ours, theirs = (
            {each["step"]: each["span_loss"] for each in metrics(folder) if "lr" in each}
            for folder in (whole, answered)
        )
        assert ours == pytest.approx(theirs, rel=1e-3)
        found, expected = (
            json.loads((folder / "nbest_predictions.json").read_text()) for folder in (whole, answered)
        )
        assert list(found) == list(expected)
        result = read_result(str(whole))
        assert (result.backend, result.world_size) == ("horovod", 2)

    def test_training_goes_on_from_another_head(self, data, answered, tmp_path):
        """--init_from of a fine-tuned model takes BERT alone; --model_parameters its head too."""
        words = squad(data, tmp_path, model=None, vocab=None, init_from=answered)
        part, *_ = prepare(finetune_squad.SCRIPT, words)
        assert "span_classifier.weight" not in part.inputs.start.initial.tensors
        assert any("random numbers for the head" in each for each in part.inputs.start.initial.messages)
        words = squad(data, tmp_path, **of(answered))
        part, *_ = prepare(finetune_squad.SCRIPT, words)
        head = part.inputs.start.initial.tensors["span_classifier.weight"].read()
        np.testing.assert_array_equal(head, parameters(answered)["span_classifier.weight"])


class TestClassifier:
    @pytest.fixture(scope="class")
    def labelled(self, data, tmp_path_factory) -> Path:
        folder = tmp_path_factory.mktemp("labels")
        changes = {"epochs": 12, "batch_size": 16, "seed": 0, "profile": folder / "trace.json", **SURE}
        changes["labels"] = "1,0"  # not their sorted order
        words = classifier(data, folder, **changes, test_file=data / "dev.tsv")
        with pytest.raises(InputError, match="--test_file.*has the content of"):
            prepare(finetune_classifier.SCRIPT, words)
        finished(CLASSIFIER, classifier(data, folder, **changes))
        return folder

    def test_it_learns_and_is_scored(self, data, labelled):
        result = read_result(str(labelled))
        assert (result.task, result.main_score, result.status) == ("classification", "score", "finished")
        assert result.scores["score"] == result.scores["accuracy"] > 0.8
        assert result.scores["label_acc"] == pytest.approx(result.scores["accuracy"])
        predicted, labels = (
            [line.split("\t")[-1] for line in path.read_text().splitlines()[1:]]
            for path in (labelled / "dev_predictions.tsv", data / "dev.tsv")
        )
        assert result.scores["accuracy"] == np.mean([one == other for one, other in zip(predicted, labels)])
        assert {"pooler.weight", "label_classifier.weight"} <= set(parameters(labelled))
        assert [step.name for step in read_trace(str(labelled / "trace.json")).steps][0] == "step 10"

    def test_fewer_passes_than_have_been_made(self, data, labelled):
        changes = {"epochs": 2, "batch_size": 16, "seed": 0, "resume": True, **SURE}
        with launched(CLASSIFIER, classifier(data, labelled, **changes)) as run:
            result = run.wait()
        assert result.returncode == 2
        assert "error: --num_epochs 2, or 12 steps: the checkpoint is already at step 72" in result.stderr

    def test_classes_keep_their_names(self, data, labelled, tmp_path):
        """In another order than the model's they are an error; without --labels they are the model's, which
        the other tests here see."""
        for words in (classifier(data, tmp_path, **of(labelled)), classifier(data, labelled, resume=True)):
            with pytest.raises(InputError, match=r"model knows 1, 0, this run has 0, 1; give"):
                prepare(finetune_classifier.SCRIPT, [*words, "--labels", "0,1"])

    def test_only_inference_is_the_last_evaluation(self, data, labelled, tmp_path):
        """The examples to predict besides are not scored."""
        some = tmp_path / "some.tsv"
        lines = (data / "dev.tsv").read_text().splitlines()[:11]
        some.write_text("".join(f"{line.split(chr(9))[0]}\n" for line in lines))
        words = classifier(data, tmp_path, only_inference=True, test_file=some, **of(labelled))
        result = finished(CLASSIFIER, words)
        assert "(46 sequences, 36 with a label, " in result.stdout, "the others are predicted alone"
        own, others = (
            (tmp_path / f"{name}.tsv").read_text().splitlines() for name in ("dev_predictions", "test")
        )
        assert own[:11] == others and len(own) == 37
        # The examples to predict share the batches, whose products' shapes choose the order of sums: bits of
        # float32, which AVX2 shows and AVX-512 has not.
        scores, wanted = (read_result(str(folder)).scores for folder in (tmp_path, labelled))
        assert scores.pop("label_loss") == pytest.approx(wanted.pop("label_loss"), rel=1e-6)
        assert scores == wanted

    def test_regression(self, data, tmp_path):
        words = classifier(
            data, tmp_path, regression=True, num_steps=1, padding="remove", log_interval=50, dev_file=None,
            max_seq_length=None, max_len=8, test_file=data / "train.tsv", train_file=data / "dev.tsv",
        )  # fmt: skip
        (warning,) = finished(CLASSIFIER, words).stderr.splitlines()
        assert warning.endswith(" are cut to 8 tokens (--max_seq_length, --max_len)")
        assert {"pearson", "spearman", "mse", "score"} <= set(read_result(str(tmp_path)).scores)
        lines = (tmp_path / "test.tsv").read_text().splitlines()
        assert lines[0] == "index\tprediction" and len(lines) == 1 + 96
        float(lines[1].split("\t")[1])


def test_killed_and_resumed_bit_for_bit(data, whole, tmp_path):
    """Killed as soon as there is a checkpoint, and resumed, over BytePS; the bits are those of Horovod's run.
    With dropout: test_pretraining.py, whose step this is."""
    with start(data, tmp_path, "byteps") as run:
        run.kill_when((tmp_path / "0000005.json").exists)
    assert list_steps(str(tmp_path))[-1] < list_steps(str(whole))[-1]
    result = start(data, tmp_path, "byteps").finish()
    assert "continuing after step" in result.stdout
    assert same_files(whole, tmp_path) == []


def test_the_best_of_each_seed_is_kept(data, tmp_path):
    """By the main score, which rank 0 alone has; an evaluation between two checkpoints is saved if it is."""
    folder = tmp_path / "runs"
    changes = {"keep_best": True, "keep_checkpoints": 1, "eval_interval": 5, "ckpt_interval": 12}
    words = classifier(data, folder, num_steps=36, seed=None, seeds=2, **SURE, **changes)
    finished(CLASSIFIER, words, 2, "mpirun")
    for member in (folder / "seed_0", folder / "seed_1"):
        scores = {each["step"]: each["eval_score"] for each in metrics(member) if "eval_score" in each}
        assert list(scores) == [*range(5, 36, 5), 36] and len({*scores.values()}) > 1
        best = json.loads((member / "best.json").read_text())
        expected = max(scores, key=scores.__getitem__)  # the first of equal ones
        assert best == {"step": expected, "figure": "eval_score", "value": scores[expected]}
        assert list_steps(str(member)) == sorted({expected, 36} | ({24} if expected == 36 else set()))
    words = classifier(data, tmp_path / "again", only_inference=True, **of(f"{member}:best"))
    finished(CLASSIFIER, words)
    assert read_result(str(tmp_path / "again")).score == scores[expected]


def test_a_signal_saves_and_ends_the_run(data, tmp_path):
    with launched(CLASSIFIER, classifier(data, tmp_path, num_steps=100_000)) as run:
        until(lambda: metrics(tmp_path), run)
        os.kill(run.pid, signal.SIGTERM)
        assert run.wait().returncode == 143
    step = list_steps(str(tmp_path))[-1]
    assert not read_manifest(str(tmp_path), step)["ended"]
    assert read_result(str(tmp_path)).status == "unfinished"


OF_GLUE = {"train_file": None, "dev_file": None, "task_name": "RTE", "data_dir": "."}
UNSCORED = {"keep_best": True, "dev_file": None}
BAD_INPUT = {
    squad: {
        "--version_2": ({"version_2": None}, r"unanswerable questions.*give --version_2"),
        "no questions": ({"train_file": None}, r"--train_file is needed"),
        "dev is train": ({"dev_file": "train.json"}, r"train\.json"),
        "no such file": ({"train_file": "none.json"}, r"none\.json"),
        "gpu": ({"gpu": 0}, r"--gpu is not followed here: .*CUDA_VISIBLE_DEVICES"),
        "data set": ({"bert_dataset": "book_corpus_wiki_en_uncased"}, r"--bert_dataset .*--init_from"),
        "windows": ({"max_query_length": 46}, r"--max_query_length"),
        "positions": ({"max_seq_length": 600}, r"--max_seq_length 600"),
        "nothing to begin with": ({"model": None}, r"give --init_from"),
        "two beginnings": ({"init_from": "a", "model_parameters": "b"}, r"exclude each other"),
        "no head": ({"only_predict": True}, r"--only_predict needs --model_parameters"),
        "no scores": ({**UNSCORED, "predict_file": "dev.json"}, r"--keep_best: nothing is scored"),
        "backend": ({"backend": "byteps"}, r"--backend byteps: .*without a launcher"),
    },
    classifier: {
        "no files": ({"train_file": None}, r"give --task_name and --data_dir, or --train_file"),
        "no folder": ({**OF_GLUE, "data_dir": None}, "--task_name needs --data_dir"),
        "both": ({"task_name": "RTE", "data_dir": "."}, r"leave out those of own files"),
        "columns": ({**OF_GLUE, "text_columns": "a,b"}, "leave out those of own files"),
        "dev is train": ({"dev_file": "train.tsv"}, r"has the content of --train_file"),
        "no scores": ({**UNSCORED, "test_file": "test.tsv"}, r"--keep_best: nothing is scored"),
        "calibration": ({"only_calibration": True}, r"--only_calibration is not followed here"),
        "too long": ({"max_len": 600, "max_seq_length": None}, r"--max_seq_length 600"),
    },
}


@pytest.mark.parametrize(
    "words, case", [(words, case) for words, cases in BAD_INPUT.items() for case in cases]
)
def test_bad_input_is_one_line(words, case, data, tmp_path, monkeypatch):
    monkeypatch.chdir(data)
    script = finetune_squad.SCRIPT if words is squad else finetune_classifier.SCRIPT
    changes, message = BAD_INPUT[words][case]
    with pytest.raises(InputError, match=message) as raised:
        prepare(script, words(data, tmp_path / "out", **changes))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_a_head_of_another_task(data, answered, tmp_path):
    words = classifier(data, tmp_path, **of(answered))
    with pytest.raises(InputError, match=r"lacks label_classifier\.weight.*--init_from"):
        prepare(finetune_classifier.SCRIPT, words)


def test_a_run_is_not_written_over(data, answered):
    predicts = {"only_predict": True, **of(answered)}
    for more, remedy in (({}, "--resume"), (predicts, "another directory")):
        with pytest.raises(InputError, match=rf"holds checkpoints up to step \d+; [^-]*{remedy}"):
            prepare(finetune_squad.SCRIPT, squad(data, answered, **more))


OF_RANK = f"""import os, sys
sys.path.insert(0, {str(ROOT)!r})
import finetune_squad
sys.exit(finetune_squad.main([*sys.argv[1:-1], sys.argv[-1] + os.environ["OMPI_COMM_WORLD_RANK"]]))
"""


def test_the_articles_held_out_are_those_of_the_runs_seed(data, tmp_path):
    """Also where only rank 0 sees the checkpoint that says it. Seed 0 holds out the other article."""
    folder, script = tmp_path / "run0", tmp_path / "of_rank.py"
    changes = {"seed": None, "tune_threshold": 0.5, "num_steps": 1, "dropout": 0}

    def held_out(**more: Any) -> set[int]:
        part, *_ = prepare(finetune_squad.SCRIPT, squad(data, tmp_path / "new", **{**changes, **more}))
        assert not any("held out" in each for each in part.inputs.messages)
        return set(part.inputs.evaluation.tuning.questions.article_of)

    finished(SQUAD, squad(data, folder, **{**changes, "seed": 3}))
    own = held_out(seed=3)
    assert own != held_out() and own == held_out(resume=True, output_dir=folder)
    with pytest.raises(InputError, match="--seed 4: .* held out by seed 3"):
        held_out(resume=True, output_dir=folder, seed=4)
    alone = {"only_predict": True, "model": None, "vocab": data / "vocab.txt"}
    assert held_out(**alone, model_parameters=folder) == own
    shutil.copy(folder / "0000001.params", tmp_path / "bare.params")
    alone.update(model_parameters=tmp_path / "bare.params", model="bert_2_32_2")
    assert held_out(**alone, seed=3) == own
    with pytest.raises(InputError, match="give it with --seed"):
        held_out(**alone)
    script.write_text(OF_RANK)
    changes.update(num_steps=2, resume=True, output_dir=None)
    words = [*squad(data, tmp_path, **changes), "--output_dir", str(tmp_path / "run")]
    assert "continuing after step 1" in finished(script, words, 2, "mpirun").stdout


def test_bad_input_ends_before_mxnet_is_imported(data, tmp_path):
    code = "import sys, finetune_squad\ntry:\n finetune_squad.main()\n"
    code += "finally:\n assert 'mxnet' not in sys.modules"
    words = squad(data, tmp_path, train_file="none.json")
    result = run_command([sys.executable, "-c", code, *words], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert result.returncode != 0 and "InputError" in result.stderr and "none.json" in result.stderr


def test_the_order_of_a_step_does_not_depend_on_the_ranks(data, tmp_path):
    """Two ranks with 4 examples each take what one takes with 8; and a run that began with two takes
    it with any number. Before, a resumed run of three took 12 examples a step, from another place."""

    taken = []
    for ranks, processes, size in ((1, 1, 8), (2, 2, 4), (1, 2, 4), (3, 2, 4), (4, 2, 4), (3, 8, 1)):
        steps: list[list[int]] = [[] for _ in range(5)]
        words = squad(data, tmp_path, batch_size=size, num_data_workers=0)
        for rank in range(ranks):
            part, *_ = prepare(finetune_squad.SCRIPT, words)
            config = replace(part.config, batch=replace(part.config.batch, processes=processes))
            plan = part.inputs.plan(config, processes)
            feed = part.inputs.open_training(config, plan, 3, Rank(rank, ranks), Reporter())
            assert feed.micro_batches == max(1, processes // ranks)
            feed.seek(0)
            for step in steps:
                for _ in range(feed.micro_batches):
                    made = next(feed)
                    assert len(made.examples) <= max(2, size)  # 8 of one example cannot be 3 a rank
                    step += made.examples.tolist()
        taken.append([sorted(step) for step in steps])
    assert all(each == taken[0] for each in taken)
    with pytest.raises(InputError, match="8 examples, too few for 9 processes"):
        part.inputs.open_training(config, plan, 3, Rank(0, 9), Reporter())
