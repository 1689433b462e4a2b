"""Sums over the steps of a log interval or an evaluation, and the figures they give over all ranks."""

from __future__ import annotations

import math
import time
from typing import Sequence

import mxnet as mx
import numpy as np

from comm.base import Communicator
from data.pretraining.batches import Batch
from tasks.pretraining.loss import SUMS
from training.report import finite_or_none

COUNTS = ("masked_positions", "sequences", "tokens", "padded_tokens", "waited_s")
KEPT = ("loss_positions", "loss_sequences", "samples", "masked_squares")  # of the batches with kept sums
MOMENTS = ("mlm_exact", "mlm_squares", "mlm_products")  # sums over samples of L, L * L, L * masked positions
FEWEST_SAMPLES = 8  # the spread of fewer says too little
_MLM = SUMS.index("mlm_loss")


class Totals:
    """Losses and hits stay on the device until `over_ranks`; counts come from the batches on the host.

    What is added at once, a step of one rank or a batch of an evaluation, is one sample for the standard
    error; what that needs is summed in float64, since samples differ by little.
    """

    def __init__(self, device: mx.Context):
        self._device = device
        self.reset()

    def reset(self) -> None:
        self._sums = mx.nd.zeros((len(SUMS),), ctx=self._device)
        self._moments = [mx.nd.zeros((len(SUMS),), ctx=self._device, dtype="float64") for _ in MOMENTS]
        self._counts = np.zeros(len(COUNTS))
        self._kept = np.zeros(len(KEPT))

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
            wide = mx.nd.cast(sums, dtype="float64")
            for moment, of_sample in zip(self._moments, (wide, wide * wide, wide * masked)):
                moment += of_sample
            self._kept += (masked, sequences, 1, masked * masked)

    def over_ranks(self, communicator: Communicator) -> dict[str, float]:
        """Totals over all ranks by name; every rank calls it. Waits for the device."""
        own = [
            *self._sums.asnumpy().astype("float64"),
            *self._counts,
            *self._kept,
            *(moment.asnumpy()[_MLM] for moment in self._moments),
        ]
        exchanged = mx.nd.array(own, ctx=mx.cpu(), dtype="float64")
        communicator.average([exchanged])
        totals = exchanged.asnumpy() * communicator.size
        communicator.barrier()  # for comm.watch.watchdog: what follows is no longer part of the exchange
        return dict(zip((*SUMS, *COUNTS, *KEPT, *MOMENTS), totals.tolist()))


def losses_and_accuracies(totals: dict[str, float]) -> dict[str, float | None]:
    """Means over the masked positions and over the sequences, and the MLM loss's standard error; None where
    there were none."""
    positions, sequences = totals["loss_positions"], totals["loss_sequences"]
    return {
        "mlm_loss": _ratio(totals["mlm_loss"], positions),
        "nsp_loss": _ratio(totals["nsp_loss"], sequences),
        "mlm_acc": _ratio(totals["mlm_correct"], positions),
        "nsp_acc": _ratio(totals["nsp_correct"], sequences),
        "mlm_loss_se": mlm_standard_error(totals),
    }


def mlm_standard_error(totals: dict[str, float]) -> float | None:
    """Standard error of the mean MLM loss in nats, from the spread over the samples of all ranks.

    The mean is the ratio of two sums over samples, losses L and masked positions m; its variance is
    n / (n - 1) * sum (L - mean * m)^2 / (sum m)^2 (Cochran, Sampling Techniques, 1977, section 6.3). What the
    parameters change within an interval counts as spread, so it is rather too large than too small. None
    for fewer than FEWEST_SAMPLES.
    """
    samples, positions = totals["samples"], totals["loss_positions"]
    if samples < FEWEST_SAMPLES - 0.5 or not positions:  # a mean over ranks, times their number
        return None
    mean = totals["mlm_exact"] / positions
    squares = totals["mlm_squares"] - 2 * mean * totals["mlm_products"] + mean**2 * totals["masked_squares"]
    variance = max(0.0, squares) * samples / (samples - 1) / positions**2
    return finite_or_none(math.sqrt(variance)) if math.isfinite(squares) else None


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
