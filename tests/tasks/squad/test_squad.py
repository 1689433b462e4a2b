"""Start and end losses and gradients against float64 NumPy; what is padding or not known does not count.
Logits of two ranks to answers, files and scores; a threshold tuned on other articles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import finetune_squad
from base.errors import InputError, TrainingError
from data.questions.score import score_v2
from data.questions.windows import QuestionBatch
from tasks.squad.examples import AnswerCollector, EvaluationWindows
from tasks.squad.task import QuestionAnswering
from tests.finetuned import squad, write_data
from tests.tasks.heads import (
    CONFIG,
    SETTINGS,
    WITHOUT_EFFECT,
    Parameters,
    check_task,
    network_of,
    run,
    texts,
    values_of,
)
from tests.tasks.pretraining.test_loss import dense, encoded, log_softmax
from training.finetuning.several import prepare

TASK = QuestionAnswering()
# What shifts the logits of all places alike changes no softmax over places.
SHIFTS = (*WITHOUT_EFFECT, "span_classifier.bias", "cells.1.ffn.layer_norm.beta")


def batch_of(starts: list[int], ends: list[int]) -> QuestionBatch:
    ids, segments, valid = texts(len(starts), 14)
    return QuestionBatch(
        ids, segments, valid, np.array(starts, np.int32), np.array(ends, np.int32), np.arange(len(starts))
    )


BATCH = batch_of([2, 0, 3, -1], [4, 0, 3, -1])  # an answer, none, one token, not known


def reference(
    parameters: Parameters, batch: QuestionBatch, factor: float, over_padding: bool = False
) -> tuple[float, list, np.ndarray]:
    """Loss, sums and logits (B, 2, L) of SpanLoss, in float64."""
    logits = dense(encoded(CONFIG, dict(parameters), batch), dict(parameters), "span_classifier")
    length = batch.input_ids.shape[1]
    inside = (np.arange(length) < batch.valid_lengths[:, None])[..., None]
    logits = logits if over_padding else np.where(inside, logits, -1e9)
    total, right = 0.0, 0
    for row, places in enumerate(zip(batch.starts, batch.ends)):
        if places[0] < 0:
            continue
        log_p = [log_softmax(logits[row, :, which])[place] for which, place in enumerate(places)]
        total -= (log_p[0] + log_p[1]) / 2
        right += all(logits[row, :, which].argmax() == place for which, place in enumerate(places))
    return total * factor, [total, right], logits.transpose(0, 2, 1)


@pytest.fixture(scope="module", params=SETTINGS)
def network(request):
    return network_of(TASK, request.param)


def test_loss_sums_logits_and_gradients_are_the_references(network):
    check_task(TASK, network, BATCH, lambda parameters: reference(parameters, BATCH, 1 / 3), SHIFTS)
    assert not values_of(network, "grad")["encoder.position_weight"][14:].any()


@pytest.mark.parametrize("operators", ["mxnet", "fused"])
def test_over_padding_it_is_the_loss_of_run_squad(operators):
    task = QuestionAnswering(over_padding=True)
    network = network_of(task, operators)
    check_task(task, network, BATCH, lambda parameters: reference(parameters, BATCH, 1 / 3, True), SHIFTS)
    over, inside = (reference(values_of(network), BATCH, 1 / 3, each)[0] for each in (True, False))
    assert over > 1.01 * inside


def test_right_windows_are_counted(network):
    logits = reference(values_of(network), BATCH, 1)[2]
    starts, ends = (logits[:, which].argmax(-1).tolist() for which in (0, 1))
    sums = run(TASK, network, batch_of(starts, [*ends[:3], (ends[3] + 1) % 5]), 1)[1]
    assert sums[1] == 3, "both have to be right"


def test_bfloat16_is_near_float32():
    own, half = (run(TASK, network_of(TASK, "fused", dtype), BATCH, 1) for dtype in ("float32", "bfloat16"))
    assert half[0] == pytest.approx(own[0], rel=0.02) and half[0] != own[0]


def test_figures():
    assert TASK.count([BATCH, BATCH]) == (6.0,), "windows with a known answer"
    found = TASK.figures({"span_loss": 3.0, "span_correct": 1.0, "windows": 4.0})
    assert found == {"span_loss": 0.75, "span_acc": 0.25}
    nothing = TASK.figures({"span_loss": 0.0, "span_correct": 0.0, "windows": 0.0})
    assert nothing == {"span_loss": None, "span_acc": None}
    line = TASK.line({"eval_span_loss": None, "eval_f1": 88.5, "eval_exact_match": 80}, "eval_")
    assert line == "exact_match 80.00  f1 88.50"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)
    return folder


def evaluation(data: Path, output: Path, **changes: Any) -> EvaluationWindows:
    output.mkdir(exist_ok=True)
    part, *_ = prepare(finetune_squad.SCRIPT, squad(data, output, **changes))
    return part.inputs.evaluation


def collected(evaluated: EvaluationWindows, ranks: int) -> tuple[AnswerCollector, list[np.ndarray]]:
    """A collector, and the sums of random logits, the same for any number of ranks: each takes every so many
    windows."""
    lengths = evaluated.lengths
    width = int(lengths.max())
    logits = np.random.default_rng(5).normal(0, 3, (len(lengths), 2, width)).astype(np.float32)
    collectors = [evaluated.collector() for _ in range(ranks)]
    order = np.random.default_rng(6).permutation(len(lengths))
    for rank, collector in enumerate(collectors):
        for examples in np.array_split(order[rank::ranks], 5):
            batch = evaluated.collate(examples, width)
            assert sorted(batch.examples) == sorted(examples) and (batch.starts == -1).all()
            np.testing.assert_array_equal(batch.valid_lengths, lengths[batch.examples])
            collector.add(batch, [logits[batch.examples]])
    return collectors[0], [sum(each) for each in zip(*(collector.arrays() for collector in collectors))]


def test_two_ranks_give_what_one_gives(data, tmp_path):
    both = (collected(evaluation(data, tmp_path / str(ranks)), ranks) for ranks in (1, 2))
    found = [collector.scores(arrays) for collector, arrays in both]
    assert found[0] == found[1] and found[0]["null_score_diff_threshold"] == 0.0
    for name in ("predictions.json", "nbest_predictions.json", "null_odds.json"):
        one, two = ((tmp_path / ranks / name).read_bytes() for ranks in ("1", "2"))
        assert one == two


def test_the_threshold_is_the_best_one_of_the_held_out_articles(data, tmp_path):
    """Compared with the scores of every threshold that makes a difference there."""
    evaluated = evaluation(data, tmp_path / "tuned", tune_threshold=0.5)
    held_out = evaluated.tuning.questions
    assert not set(held_out.ids) & set(evaluated.asked.questions.ids)
    collector, arrays = collected(evaluated, 2)
    threshold = collector.scores(arrays)["null_score_diff_threshold"]
    answers = collector._answers(evaluated.tuning, arrays[3:])
    candidates = [*answers.null_odds.tolist(), -1e9, 1e9]
    f1 = [score_v2(held_out, answers.predictions(each))["f1"] for each in candidates]
    assert score_v2(held_out, answers.predictions(threshold))["f1"] == pytest.approx(max(f1))
    assert min(f1) < max(f1)
    # What is reported follows from it.
    odds = json.loads((tmp_path / "tuned" / "null_odds.json").read_text())
    predictions = json.loads((tmp_path / "tuned" / "predictions.json").read_text())
    assert all((predictions[each] == "") == (odds[each] > threshold) for each in odds)


def test_held_out_articles_are_not_trained_on(data, tmp_path):
    part, *_ = prepare(finetune_squad.SCRIPT, squad(data, tmp_path, tune_threshold=0.5))
    whole, *_ = prepare(finetune_squad.SCRIPT, squad(data, tmp_path))
    held_out = len(part.inputs.evaluation.tuning.windows)
    assert len(part.inputs.training.lengths) + held_out == len(whole.inputs.training.lengths)
    with pytest.raises(InputError, match="--tune_threshold needs --version_2"):
        prepare(finetune_squad.SCRIPT, squad(data, tmp_path, tune_threshold=0.5, version_2=None))


def test_a_loss_over_padding_is_over_the_whole_length(data, tmp_path):
    """Of every batch, as in Google's code; --padding remove has no such rows."""
    for padding, longest in ("tokens", {40, 48}), ("padded", {48}):
        part, *_ = prepare(finetune_squad.SCRIPT, squad(data, tmp_path, loss_over=padding))
        order = part.inputs._order(part.config, part.inputs.training, (3, 0, 1))
        rows = [each for step in range(order.num_steps(1)) for each in order.micro_batches(step)]
        batches = [part.inputs.training.collate(*each) for each in rows]
        assert {each.input_ids.shape[1] for each in batches} == longest
        assert any((each.valid_lengths < 40).any() for each in batches)
    with pytest.raises(InputError, match="--padding remove"):
        prepare(finetune_squad.SCRIPT, squad(data, tmp_path, loss_over="padded", padding="remove"))


def test_diverged_logits_are_no_answers(data, tmp_path):
    evaluated = evaluation(data, tmp_path / "nan")
    batch = evaluated.collate(np.arange(2), int(evaluated.lengths.max()))
    logits = np.full((2, 2, batch.input_ids.shape[1]), np.nan, np.float32)
    with pytest.raises(TrainingError, match="diverged"):
        evaluated.collector().add(batch, [logits])
