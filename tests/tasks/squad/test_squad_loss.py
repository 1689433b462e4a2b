"""Start and end losses and gradients against float64 NumPy; what is padding or not known does not count."""

from __future__ import annotations

import numpy as np
import pytest

from data.questions.windows import QuestionBatch
from tasks.squad.task import QuestionAnswering
from tests.tasks.heads import (
    CONFIG,
    SETTINGS,
    WITHOUT_EFFECT,
    Parameters,
    check_task,
    gradients_of,
    network_of,
    run,
    texts,
    values_of,
)
from tests.tasks.test_loss import dense, encoded, log_softmax

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


@pytest.fixture(scope="module", params=SETTINGS, ids="-".join)
def network(request):
    return network_of(TASK, *request.param)


def test_loss_sums_logits_and_gradients_are_the_references(network):
    check_task(TASK, network, BATCH, lambda parameters: reference(parameters, BATCH, 1 / 3), SHIFTS)
    assert not gradients_of(network)["encoder.position_weight"][14:].any()


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


def test_both_operators_have_the_same_parameters():
    names, others = ([*values_of(network_of(TASK, *setting))] for setting in SETTINGS[:2])
    assert names == others and names[-2:] == ["span_classifier.weight", "span_classifier.bias"]
    assert not [name for name in names if name.startswith(("pooler", "classifier", "decoder"))]


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
