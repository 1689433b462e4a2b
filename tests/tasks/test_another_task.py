"""A task made as CONTRIBUTING.md says, through a whole run: training/ knows no task by name."""

from __future__ import annotations

import math
from typing import Any, Mapping, Sequence

import mxnet as mx
import pytest

from bert.configuration import BertConfig
from bert.flops import Size, forward_flops
from bert.model import HEADS
from comm.local import LocalCommunicator
from data.pretraining.sources import Batch
from tasks.base import Figures, Floors, Panel, Task
from tasks.networks import PlainBert
from tests.training.staged import parts_of
from training.report import read_metrics
from training.train import train_stages


class OrderLoss(PlainBert):
    """Next-sentence cross entropy alone, on MXNet's operators."""

    def hybrid_forward(self, F: Any, ids: Any, segments: Any, lengths: Any, labels: Any, factor: Any) -> Any:
        scores = self.bert(ids, segments, self.lengths(F, lengths), F.zeros((1, 1)))[-2]
        losses = -F.pick(F.log_softmax(scores, axis=-1), labels, axis=-1)
        hits = F.broadcast_equal(F.argmax(scores, axis=-1), F.cast(labels, dtype="float32"))
        total = F.sum(losses)
        return total * factor, F.BlockGrad(F.concat(total, F.sum(hits), dim=0))


class SentenceOrder(Task):
    """The order of two sentences."""

    name = "sentence order"
    heads = HEADS
    sums = ("order_loss", "order_correct")
    denominators = ("pairs",)
    judged = ("order_loss", "pairs")
    shown = {"order_loss": ".3f"}

    def network(self, bert: Any, config: BertConfig, dtype: str, dropout: float, operators: str) -> OrderLoss:
        network = OrderLoss(bert)
        network.hybridize()
        return network

    def inputs(self, batch: Batch, device: mx.Context) -> list[mx.nd.NDArray]:
        arrays = (batch.input_ids, batch.segment_ids, batch.valid_lengths, batch.next_sentence_labels)
        return [mx.nd.array(array, ctx=device, dtype=array.dtype) for array in arrays]

    def count(self, batches: Sequence[Batch]) -> tuple[float]:
        return (float(sum(len(batch.input_ids) for batch in batches)),)

    def flops(self, batch: Batch, size: Size, operators: str) -> int:
        return forward_flops(size, *batch.input_ids.shape, predictions=0).total

    def figures(self, totals: Mapping[str, float]) -> dict[str, float | None]:
        pairs = totals["pairs"]
        return {"order_loss": totals["order_loss"] / pairs, "order_acc": totals["order_correct"] / pairs}

    def panels(self, floors: Floors) -> list[Panel]:
        return [Panel("order_loss", "sentence order", "nats", {"guessing": math.log(2)})]

    def summary(self, metrics: Sequence[Figures], step: int, floors: Floors) -> list[str]:
        return [f"sentence order: {metrics[-1]['eval_order_acc']:.0%} right after step {step}"]


def test_a_run_of_another_task(corpus, tmp_path, capsys):
    changes = {
        "stages": None, "model": "bert_1_32_2", "operators": "mxnet", "max_seq_length": 32, "batch_size": 8,
        "batch_size_eval": 8, "accumulate": 2, "num_steps": 6, "lr": 0.01, "warmup_ratio": None,
        "log_interval": 3, "ckpt_interval": 6, "progress": "lines",
    }  # fmt: skip
    parts = parts_of(tmp_path, corpus, **changes)
    assert train_stages(parts, SentenceOrder(), LocalCommunicator()) == 0

    lines = read_metrics(str(tmp_path))
    assert [line["step"] for line in lines] == [3, 6, 6]
    assert lines[0]["order_loss"] == pytest.approx(math.log(2), rel=0.2) and "mlm_loss" not in lines[0]
    assert 0 <= lines[2]["eval_order_acc"] <= 1 and lines[2]["eval_order_loss_se"] > 0
    assert all(line["grad_norm"] > 0 for line in lines[:2])
    shown = capsys.readouterr().out
    assert "step 3/6  order_loss 0." in shown and "sentence order: " in shown
    assert (tmp_path / "loss.png").stat().st_size > 5_000 and (tmp_path / "0000006.json").exists()
