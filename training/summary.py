"""The closing lines of a run."""

from __future__ import annotations

import argparse
import os

from training.report import Reporter, plot_losses, read_metrics


def summarize(
    options: argparse.Namespace, reporter: Reporter, step: int, unigram_entropy: float | None
) -> None:
    """Draws the plot and says how far the run has come; rank 0 calls it."""
    metrics = read_metrics(options.ckpt_dir)
    training = [each for each in metrics if each.get("mlm_loss") is not None]
    evaluations = [each for each in metrics if each.get("eval_mlm_loss") is not None]
    plot = plot_losses(options.ckpt_dir, unigram_entropy)
    reporter.note("")
    if training:
        first, last = training[0], training[-1]
        reporter.note(
            f"MLM loss {first['mlm_loss']:.3f} at step {first['step']} -> {last['mlm_loss']:.3f} at step"
            f" {last['step']}; NSP loss {first['nsp_loss']:.3f} -> {last['nsp_loss']:.3f}"
        )
    if evaluations:
        last = evaluations[-1]
        reporter.note(
            f"held-out text: MLM loss {last['eval_mlm_loss']:.3f}, accuracy {last['eval_mlm_acc']:.1%};"
            f" NSP accuracy {last['eval_nsp_acc']:.1%}"
        )
    final = (evaluations or training)[-1] if (evaluations or training) else None
    if final and unigram_entropy is not None:
        loss = final.get("eval_mlm_loss", final.get("mlm_loss"))
        difference = unigram_entropy - loss
        reporter.note(
            f"The unigram entropy of the text is {unigram_entropy:.3f} nats:"
            f" the loss is {abs(difference):.3f}"
            + (" below it, the model uses context." if difference > 0 else " above it, train longer.")
        )
    reporter.note(f"checkpoint {os.path.join(options.ckpt_dir, f'{step:07d}.params')}")
    reporter.note(f"plot       {plot}")
