"""Sums over the steps of a log interval or an evaluation, and the figures they give over all ranks."""

from __future__ import annotations

import time
from typing import Sequence

import mxnet as mx
import numpy as np

from comm.base import Communicator
from data.pretraining.batches import Batch
from tasks.pretraining.loss import SUMS
from training.report import finite_or_none

COUNTS = ("masked_positions", "sequences", "tokens", "padded_tokens", "waited_s")


class Totals:
    """Losses and hits stay on the device until `over_ranks`; counts come from the batches on the host."""

    def __init__(self, device: mx.Context):
        self._device = device
        self.reset()

    def reset(self) -> None:
        self._sums = mx.nd.zeros((len(SUMS),), ctx=self._device)
        self._counts = np.zeros(len(COUNTS))
        self._loss_positions = 0.0  # of the batches whose sums were kept
        self._loss_sequences = 0.0

    def add(
        self, batches: Sequence[Batch], sums: mx.nd.NDArray, finite: bool = True, waited: float = 0.0
    ) -> None:
        """Adds a step's batches, for which it waited `waited` seconds; where the step was not finite, its
        tokens count but its sums do not."""
        masked = sum(float(batch.masked_weights.sum()) for batch in batches)
        sequences = sum(len(batch.input_ids) for batch in batches)
        tokens = sum(int(batch.valid_lengths.sum()) for batch in batches)
        padded = sum(batch.input_ids.size for batch in batches)
        self._counts += (masked, sequences, tokens, padded, waited)
        if finite:
            self._sums += sums
            self._loss_positions += masked
            self._loss_sequences += sequences

    def over_ranks(self, communicator: Communicator) -> dict[str, float]:
        """Totals over all ranks by name; every rank calls it. Waits for the device."""
        own = [
            *self._sums.asnumpy().astype("float64"),
            *self._counts,
            self._loss_positions,
            self._loss_sequences,
        ]
        exchanged = mx.nd.array(own, ctx=mx.cpu(), dtype="float64")
        communicator.average([exchanged])
        totals = exchanged.asnumpy() * communicator.size
        communicator.barrier()  # for comm.watch.watchdog: what follows is no longer part of the exchange
        return dict(zip((*SUMS, *COUNTS, "loss_positions", "loss_sequences"), totals.tolist()))


def losses_and_accuracies(totals: dict[str, float]) -> dict[str, float | None]:
    """Means over the masked positions and over the sequences; None where there were none."""
    positions, sequences = totals["loss_positions"], totals["loss_sequences"]
    return {
        "mlm_loss": _ratio(totals["mlm_loss"], positions),
        "nsp_loss": _ratio(totals["nsp_loss"], sequences),
        "mlm_acc": _ratio(totals["mlm_correct"], positions),
        "nsp_acc": _ratio(totals["nsp_correct"], sequences),
    }


class Stopwatch:
    """Time spent training: what passes inside `pause` (checkpoints, evaluation) does not count."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._paused = 0.0

    def __enter__(self) -> Stopwatch:
        self._pause_begun = time.monotonic()
        return self

    def __exit__(self, *exception: object) -> None:
        self._paused += time.monotonic() - self._pause_begun

    def lap(self) -> float:
        """Seconds of training since the last lap."""
        now = time.monotonic()
        seconds = now - self._begun - self._paused
        self._begun, self._paused = now, 0.0
        return max(seconds, 1e-9)


def _ratio(sum_: float, count: float) -> float | None:
    return finite_or_none(sum_ / count) if count else None
