"""One optimizer step: forward, backward, accumulate, average over ranks, agree that all is finite, clip,
update."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Callable, Sequence

import mxnet as mx

from bert.fused import FusedPretrainingLoss
from comm.base import Communicator
from data.pretraining.batches import Batch
from tasks.pretraining.loss import SUMS, PretrainingLoss
from training.optimizer.accumulation import Accumulation
from training.optimizer.optimizer import Optimizer, clip_factor, global_norm
from training.optimizer.scaler import DynamicScaler, StaticScaler


@dataclass(frozen=True)
class StepResult:
    """What a step left behind. `sums` stays on the device until somebody reads it."""

    applied: bool  # False: the gradient was not finite, on every rank alike, and the parameters are as before
    keep_going: bool  # False: some rank was asked to stop
    grad_norm: float  # of the averaged gradient, before clipping, without the loss scale
    sums: mx.nd.NDArray  # (4,) this rank's sums over the step, as named by tasks.pretraining.loss.SUMS


class TrainStep:
    """The step, with all that it works on passed in.

    Args:
        network: hybridized, on `device`.
        accumulation: of the parameters to train, in the order of the forward pass: it is the order in which
            the next step needs them.
        clip_norm: greatest global norm of the averaged gradient; 0 turns clipping off.
        random_seed_of: step number -> seed of the dropout masks of this rank. MXNet's generators cannot be
            saved, so each step starts from a seed of its own; a resumed run then draws the same.
    """

    def __init__(
        self,
        network: PretrainingLoss | FusedPretrainingLoss,
        accumulation: Accumulation,
        optimizer: Optimizer,
        scaler: StaticScaler | DynamicScaler,
        communicator: Communicator,
        device: mx.Context,
        clip_norm: float,
        random_seed_of: Callable[[int], int],
    ):
        self._network = network
        self._accumulation = accumulation
        self._optimizer = optimizer
        self._scaler = scaler
        self._communicator = communicator
        self._device = device
        self._clip_norm = clip_norm
        self._random_seed_of = random_seed_of

    @property
    def gradients(self) -> list[mx.nd.NDArray]:
        """Of the last step, averaged over the ranks, with the loss scale, in the order of the parameters."""
        return self._accumulation.arrays

    def __call__(self, step: int, batches: Sequence[Batch], lr: float, keep_going: bool = True) -> StepResult:
        """Takes step number `step` on this rank's micro-batches. Every rank calls it alike."""
        mx.random.seed(self._random_seed_of(step))
        sums = self._forward_and_backward(batches)
        gradients = self.gradients
        self._communicator.average(gradients)
        norm = global_norm(gradients, self._optimizer.native)  # the one wait for the device
        finite, keep_going = self._communicator.all_agree([math.isfinite(norm), keep_going])
        scale = self._scaler.scale
        if finite:
            rescale = clip_factor(norm, self._clip_norm, scale)
            self._optimizer.step(gradients, lr=lr, rescale=rescale)
        self._scaler.update(finite)
        return StepResult(finite, keep_going, norm / scale, sums)

    def _forward_and_backward(self, batches: Sequence[Batch]) -> mx.nd.NDArray:
        scale = self._scaler.scale
        factors = (
            scale / max(1.0, sum(float(batch.masked_weights.sum()) for batch in batches)),
            scale / sum(len(batch.input_ids) for batch in batches),
        )
        self._network.pack_weights()
        self._accumulation.begin()
        total = mx.nd.zeros((len(SUMS),), ctx=self._device)
        for batch in batches:
            with mx.autograd.record():
                loss, sums = self._network(
                    *device_inputs(batch, self._device), *_scalars(factors, self._device)
                )
            loss.backward()
            self._accumulation.after_backward()
            total += sums
        return total


def device_inputs(batch: Batch, device: mx.Context) -> list[mx.nd.NDArray]:
    """A batch's arrays on the device, in the order of PretrainingLoss' first seven inputs."""
    return [mx.nd.array(array, ctx=device, dtype=array.dtype) for array in batch]


def _scalars(values: Sequence[float], device: mx.Context) -> list[mx.nd.NDArray]:
    return [mx.nd.array([value], ctx=device, dtype="float32") for value in values]
