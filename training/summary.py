"""The closing lines of a run."""

from __future__ import annotations

import argparse
import os
from typing import Any, NamedTuple, Sequence

from training.report import Reporter, plot_losses, read_metrics

TRAINING, HELD_OUT = "training text", "held-out text"


class Floors(NamedTuple):
    """The least MLM loss in nats that a model which sees the masked places alone can have on a text
    (data.store.entropy); None where the text is not known."""

    training: float | None = None
    held_out: float | None = None


class Found(NamedTuple):
    """A loss, its standard error (None: too few samples), and the text it is of with that text's floor."""

    loss: float
    error: float | None
    text: str
    floor: float


def summarize(options: argparse.Namespace, reporter: Reporter, step: int, floors: Floors) -> None:
    """Draws the plot and says how far the run has come; rank 0 calls it."""
    metrics = read_metrics(options.ckpt_dir)
    training = [each for each in metrics if each.get("mlm_loss") is not None]
    # Of this step only: an earlier run may have had --data_eval, and this one not.
    evaluations = [each for each in metrics if each.get("eval_mlm_loss") is not None and each["step"] == step]
    drawn = {TRAINING: floors.training, HELD_OUT: floors.held_out}
    plot = plot_losses(options.ckpt_dir, {text: floor for text, floor in drawn.items() if floor is not None})
    reporter.note("")
    if training:
        reporter.note(_progress(training))
    if evaluations:
        last = evaluations[-1]
        reporter.note(
            f"held-out text: MLM loss {last['eval_mlm_loss']:.3f}, accuracy {last['eval_mlm_acc']:.1%};"
            f" NSP accuracy {last['eval_nsp_acc']:.1%}"
        )
    if evaluations and floors.held_out is not None:
        last = evaluations[-1]
        found = Found(last["eval_mlm_loss"], last.get("eval_mlm_loss_se"), HELD_OUT, floors.held_out)
        _judge(reporter, "The held-out MLM loss", found)
    elif training and floors.training is not None:
        last = training[-1]
        found = Found(last["mlm_loss"], last.get("mlm_loss_se"), TRAINING, floors.training)
        _judge(reporter, "The MLM loss of the last log interval", found)
    reporter.note(f"checkpoint {os.path.join(options.ckpt_dir, f'{step:07d}.params')}")
    reporter.note(f"plot       {plot}")


def _progress(training: Sequence[dict[str, Any]]) -> str:
    first, last = training[0], training[-1]
    if len(training) == 1:
        return f"MLM loss {last['mlm_loss']:.3f} at step {last['step']}; NSP loss {last['nsp_loss']:.3f}"
    return (
        f"MLM loss {first['mlm_loss']:.3f} at step {first['step']} -> {last['mlm_loss']:.3f} at step"
        f" {last['step']}; NSP loss {first['nsp_loss']:.3f} -> {last['nsp_loss']:.3f}"
    )


def _judge(reporter: Reporter, name: str, found: Found) -> None:
    """Says whether the loss, called `name`, is so low that the model must use context."""
    below = found.floor - found.loss
    if found.error is None:
        margin, shown = "too few samples for a margin of error", False
    else:
        margin, shown = f"two standard errors: {2 * found.error:.3f}", below > 2 * found.error
    reporter.note(
        f"A model that sees only the masked places has an MLM loss of at least {found.floor:.3f} nats on the"
        f" {found.text}."
    )
    reporter.note(
        f"{name}, {found.loss:.3f}, is {abs(below):.3f} {'below' if below > 0 else 'above'} this ({margin}): "
        + ("the model uses context." if shown else "use of context is not shown.")
    )
