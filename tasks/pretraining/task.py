"""Pretraining as a task: masked-LM and next-sentence losses, and their figures."""

from __future__ import annotations

import math
from typing import Mapping, NamedTuple, Sequence

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
        lines = [_progress(training)] if training else []
        if evaluations:
            last = evaluations[-1]
            paired = last["eval_nsp_acc"] is not None
            lines.append(
                f"held-out text: MLM loss {last['eval_mlm_loss']:.3f}, accuracy {last['eval_mlm_acc']:.1%}"
                + (f"; NSP accuracy {last['eval_nsp_acc']:.1%}" if paired else "")
            )
        last = evaluations[-1] if evaluations else {}
        gain = Gain(last.get("eval_context_gain"), last.get("eval_context_gain_se"))
        if last and (floors.held_out is not None or gain.value is not None):
            loss = Loss(last["eval_mlm_loss"], last.get("eval_mlm_loss_se"), HELD_OUT, floors.held_out)
            lines += judgement("The held-out MLM loss", loss, floors.transferred, gain)
        elif training:
            last = training[-1]
            loss = Loss(last["mlm_loss"], last.get("mlm_loss_se"), TRAINING, floors.training)
            lines += judgement("The MLM loss of the last log interval", loss)
        return lines


class Loss(NamedTuple):
    """A loss, its standard error (None: too few samples), and the text it is of with that text's floor (None:
    it is not known)."""

    value: float
    error: float | None
    text: str
    floor: float | None


class Gain(NamedTuple):
    """Difference that its own context makes to a loss, and its standard error; None: not known."""

    value: float | None = None
    error: float | None = None


UNKNOWN_GAIN = Gain()


def judgement(
    name: str, loss: Loss, transferred: float | None = None, gain: Gain = UNKNOWN_GAIN
) -> list[str]:
    """Sentences on whether the loss, called `name`, is due to context: by its gain where that is known, else
    by what a model without context can reach.

    `transferred`: the loss of such a model that knows the training text's frequencies alone.
    """
    lines = []
    if loss.floor is not None:
        below = loss.floor - loss.value
        margin = "too few samples for a margin of error" if loss.error is None else _margin(loss.error)
        knowing = "" if transferred is None else f", of {transferred:.3f} by the training text's frequencies"
        verdict = "" if gain.value is not None else _verdict(below, loss.error)
        lines = [
            f"A model that sees only the masked places has an MLM loss of at least {loss.floor:.3f} nats on"
            f" the {loss.text}{knowing}.",
            f"{name}, {loss.value:.3f}, is {abs(below):.3f} {'below' if below > 0 else 'above'} the least"
            f" ({margin}){verdict}.",
        ]
    if gain.value is not None:
        margin = "too few batches for a margin of error" if gain.error is None else _margin(gain.error)
        lines.append(
            f"With the context of other sequences the same predictions cost {loss.value + gain.value:.3f}:"
            f" context gain {gain.value:.3f} nats ({margin}){_verdict(gain.value, gain.error)}."
        )
    return lines


def _margin(error: float) -> str:
    return f"two standard errors: {2 * error:.3f}"


def _verdict(gain: float, error: float | None) -> str:
    shown = error is not None and gain > max(2 * error, LEAST_GAIN)
    return ": the model uses context" if shown else ": use of context is not shown"


def _progress(training: Sequence[Figures]) -> str:
    first, last = training[0], training[-1]
    paired = last["nsp_loss"] is not None
    if len(training) == 1:
        line = f"MLM loss {last['mlm_loss']:.3f} at step {last['step']}"
        return line + (f"; NSP loss {last['nsp_loss']:.3f}" if paired else "")
    return (
        f"MLM loss {first['mlm_loss']:.3f} at step {first['step']} -> {last['mlm_loss']:.3f} at step"
        f" {last['step']}"
        + (f"; NSP loss {first['nsp_loss']:.3f} -> {last['nsp_loss']:.3f}" if paired else "")
    )
