"""Pretraining as a task: masked-LM and next-sentence losses, and their figures."""

from __future__ import annotations

import math
from typing import Mapping, Sequence

import mxnet as mx
from gluonnlp.model.bert import BERTModel

from bert.arrays import on_device
from bert.configuration import BertConfig, Dropout
from bert.flops import Size, forward_flops
from bert.model import HEADS
from bert.part import ModelPart
from data.pretraining.sources import Batch
from tasks.base import DividedTask, Figures, Floors, Panel, ratio
from tasks.pretraining.loss import SUMS, FusedPretrainingLoss, PretrainingLoss
from tasks.pretraining.stages import FusedStage, PlainStage

LEAST_GAIN = 0.005  # nats; of many sequences any less would be significant, and mean nothing
TRAINING, HELD_OUT = "training text", "held-out text"


class Pretraining(DividedTask):
    """BERT's two objectives (Devlin et al., arXiv:1810.04805, section 3.1)."""

    name = "pretraining"
    heads = HEADS
    sums = SUMS
    denominators = ("masked_positions", "pairs")
    judged = ("mlm_loss", "masked_positions")
    shown = {"mlm_loss": ".3f", "mlm_acc": ".1%", "nsp_loss": ".3f", "nsp_acc": ".1%"}
    short = "mlm"

    def network(
        self, bert: BERTModel, config: BertConfig, dtype: str, dropout: float | Dropout, operators: str
    ) -> PretrainingLoss | FusedPretrainingLoss:
        """The hybridized losses of `bert`, made by build_model(config, ..., dropout), in `dtype`."""
        if operators == "fused":
            network = FusedPretrainingLoss(bert, config, dtype, dropout)
        else:
            network = PretrainingLoss(bert, dtype)
        network.hybridize(static_alloc=True, static_shape=True)
        return network

    def stage(
        self, bert: BERTModel, part: ModelPart, dtype: str, dropout: float | Dropout, operators: str
    ) -> FusedStage | PlainStage:
        """The same for a part of `bert`, made by build_part and allocated."""
        kind = FusedStage if operators == "fused" else PlainStage
        network = kind(bert, part, dtype, dropout)
        network.hybridize(static_alloc=True, static_shape=True)
        return network

    def inputs(self, batch: Batch, device: mx.Context) -> list[mx.nd.NDArray]:
        """The batch's arrays, in the order of PretrainingLoss' first seven inputs."""
        return [on_device(array, device) for array in batch]

    def count(self, batches: Sequence[Batch]) -> tuple[float, float]:
        """Masked positions, and sequences that have a second part."""
        masked = sum(float(batch.masked_weights.sum()) for batch in batches)
        return masked, float(sum((batch.next_sentence_labels >= 0).sum() for batch in batches))

    def flops(self, batch: Batch, size: Size, operators: str) -> int:
        """Of all positions of the batch; in what follows the top layer's attention, the fused operators'
        count is that of the positions that a loss looks at: the masked ones and the first."""
        rows, length = batch.input_ids.shape
        predictions = batch.masked_ids.shape[1]
        top_rows = predictions + 1 if operators == "fused" else None
        return forward_flops(size, rows, length, predictions, top_rows).total

    def figures(self, totals: Mapping[str, float]) -> dict[str, float | None]:
        """Losses in nats and accuracies; None where there was nothing to predict."""
        positions, pairs = totals["masked_positions"], totals["pairs"]
        return {
            "mlm_loss": ratio(totals["mlm_loss"], positions),
            "nsp_loss": ratio(totals["nsp_loss"], pairs),
            "mlm_acc": ratio(totals["mlm_correct"], positions),
            "nsp_acc": ratio(totals["nsp_correct"], pairs),
        }

    def line(self, figures: Figures, prefix: str = "") -> str:
        """Both losses and both accuracies, a dash where there was nothing to predict; the next sentence's
        only where sequences have one; of an evaluation also what context brings."""
        gain, error = figures.get(f"{prefix}context_gain"), figures.get(f"{prefix}context_gain_se")
        shown = "" if gain is None or error is None else f"  context gain {gain:.2f} ± {error:.2f} nats"
        single = figures[f"{prefix}nsp_acc"] is None
        found = {name: (figures[prefix + name], form) for name, form in self.shown.items()}
        line = "  ".join(
            f"{name} {'-' if value is None else format(value, form)}"
            for name, (value, form) in found.items()
            if not (single and name.startswith("nsp_"))
        )
        return line + shown

    def panels(self, floors: Floors) -> list[Panel]:
        """Both losses, with the least that a model without context can have, and with guessing."""
        marks = {
            f"least without context, {text}": floor
            for text, floor in ((TRAINING, floors.training), (HELD_OUT, floors.held_out))
            if floor is not None
        }
        return [
            Panel("mlm_loss", "masked-LM loss", "nats", marks),
            Panel("nsp_loss", "next-sentence loss", "nats", {"guessing": math.log(2)}),
        ]

    def summary(self, metrics: Sequence[Figures], step: int, floors: Floors) -> list[str]:
        """Progress of both losses, and whether the masked-LM loss shows the use of context."""
        training = [each for each in metrics if each.get("mlm_loss") is not None]
        # Of this step only: an earlier run may have had --data_eval, and this one not.
        evaluations = [
            each for each in metrics if each.get("eval_mlm_loss") is not None and each["step"] == step
        ]
        last = evaluations[-1] if evaluations else {}
        lines = [_progress(training)] if training else []
        if last:
            paired = last["eval_nsp_acc"] is not None
            lines.append(
                f"held-out text: MLM loss {last['eval_mlm_loss']:.3f}, accuracy {last['eval_mlm_acc']:.1%}"
                + (f"; NSP accuracy {last['eval_nsp_acc']:.1%}" if paired else "")
            )
        if last and (floors.held_out is not None or last.get("eval_context_gain") is not None):
            lines += _judgement(last, "eval_", floors.held_out, floors.transferred)
        elif training:
            lines += _judgement(training[-1], "", floors.training)
        return lines


def _judgement(
    figures: Figures, prefix: str, floor: float | None, transferred: float | None = None
) -> list[str]:
    """Sentences on whether the masked-LM loss is due to context: by the gain that its own context brings
    where that is known, else by `floor`, the least that a model without context can reach on this text.

    `transferred`: the loss of such a model that knows the training text's frequencies alone.
    """
    value, error = figures[f"{prefix}mlm_loss"], figures.get(f"{prefix}mlm_loss_se")
    gain, gain_error = figures.get(f"{prefix}context_gain"), figures.get(f"{prefix}context_gain_se")
    name, text = "The MLM loss of the last log interval", TRAINING
    if prefix:
        name, text = "The held-out MLM loss", HELD_OUT
    lines = []
    if floor is not None:
        below = floor - value
        knowing = "" if transferred is None else f", of {transferred:.3f} by the training text's frequencies"
        lines = [
            f"A model that sees only the masked places has an MLM loss of at least {floor:.3f} nats on"
            f" the {text}{knowing}.",
            f"{name}, {value:.3f}, is {abs(below):.3f} {'below' if below > 0 else 'above'} the least"
            f" ({_margin(error, 'samples')}){_verdict(below, error) if gain is None else ''}.",
        ]
    if gain is not None:
        lines.append(
            f"With the context of other sequences the same predictions cost {value + gain:.3f}: context gain"
            f" {gain:.3f} nats ({_margin(gain_error, 'batches')}){_verdict(gain, gain_error)}."
        )
    return lines


def _margin(error: float | None, what: str) -> str:
    if error is None:
        return f"too few {what} for a margin of error"
    return f"two standard errors: {2 * error:.3f}"


def _verdict(gain: float, error: float | None) -> str:
    shown = error is not None and gain > max(2 * error, LEAST_GAIN)
    return ": the model uses context" if shown else ": use of context is not shown"


def _progress(training: Sequence[Figures]) -> str:
    first, last = training[0], training[-1]
    paired = first["nsp_loss"] is not None and last["nsp_loss"] is not None
    if len(training) == 1:
        line = f"MLM loss {last['mlm_loss']:.3f} at step {last['step']}"
        return line + (f"; NSP loss {last['nsp_loss']:.3f}" if paired else "")
    return (
        f"MLM loss {first['mlm_loss']:.3f} at step {first['step']} -> {last['mlm_loss']:.3f} at step"
        f" {last['step']}"
        + (f"; NSP loss {first['nsp_loss']:.3f} -> {last['nsp_loss']:.3f}" if paired else "")
    )
