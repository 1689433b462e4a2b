"""One optimizer step: forward, backward, accumulate, average over ranks, agree that all is finite, clip,
update."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import chain
from typing import Any, Callable, Protocol, Sequence

import mxnet as mx
import numpy as np

from bert.arrays import on_device
from bert.model import trained
from comm.base import Communicator
from comm.buckets import make_buckets
from tasks.base import Task
from training.optimizer.optimizer import Optimizer, clip_factor, global_norm, queued_norm
from training.optimizer.scaler import NOT_FINITE, LossScaler


class Accumulation:
    """Sums of a step's gradients over its micro-batches, in the cheapest way that is right.

    One micro-batch a step: its gradients are the step's. Of several the backward pass adds to the gradients'
    arrays where the network heeds grad_req "add" (`adds_in_backward`), which costs MXNet's operators no
    memory and no time. Else the sums are arrays of their own: MXNet does not tell extension operators to add.

    `arrays`: the step's gradients, in the order of the parameters, after the last `after_backward`.
    `exchanged`: the same as they are averaged over ranks. Neighbours up to `together` bytes are views of one
    array, so that nothing is copied for that; MXNet takes a write to one of them for a write to all.
    """

    def __init__(
        self,
        parameters: Sequence[mx.gluon.Parameter],
        device: mx.Context,
        micro_batches: int,
        adds_in_backward: bool,
        together: int = 0,
    ):
        several = micro_batches > 1
        self._added_to = list(parameters) if several and adds_in_backward else []
        for parameter in parameters:
            parameter.grad_req = "add" if self._added_to else "write"
        gradients = [parameter.grad(device) for parameter in parameters]
        self._gradients = gradients[:0]
        if several and not adds_in_backward:
            self._gradients = gradients
            gradients = [mx.nd.zeros_like(each) for each in gradients]
        self.arrays, self.exchanged = _side_by_side(gradients, together)
        if not self._gradients:
            for parameter, before, array in zip(parameters, gradients, self.arrays):
                if array is not before:
                    parameter._grad = [array]  # as Parameter._init_grad does
                    mx.autograd.mark_variables([parameter.data(device)], [array], parameter.grad_req)
        self._empty = True

    def begin(self) -> None:
        """To be called before the first micro-batch of a step."""
        self._empty = True
        for parameter in self._added_to:
            parameter.zero_grad()

    def after_backward(self) -> None:
        """To be called after the backward pass of each micro-batch."""
        for total, gradient in zip(self.arrays, self._gradients):
            if self._empty:
                gradient.copyto(total)
            else:
                total += gradient
        self._empty = False


def _side_by_side(
    arrays: Sequence[mx.nd.NDArray], limit: int
) -> tuple[list[mx.nd.NDArray], list[mx.nd.NDArray]]:
    """Arrays of the same shapes, zeros, of which neighbours up to `limit` bytes are views of one; and these
    ones, those that have none among them."""
    views, whole = list(arrays), []
    sizes = [(each.dtype.__name__, each.size * np.dtype(each.dtype).itemsize) for each in arrays]
    for bucket in reversed(make_buckets(sizes, limit)):
        if len(bucket.indices) == 1:
            whole.append(arrays[bucket.indices[0]])
            continue
        own = [arrays[index] for index in bucket.indices]
        flat = mx.nd.zeros((sum(each.size for each in own),), ctx=own[0].context, dtype=bucket.dtype)
        whole.append(flat)
        start = 0
        for index, each in zip(bucket.indices, own):
            views[index] = flat[start : start + each.size].reshape(each.shape)
            start += each.size
    return views, whole


MOST = 8  # ranks in a line of the metrics
SHARE = 0.1  # of a step: a rank that costs more is named
FACTOR = 3.0  # and more than each other rank by this factor: all ranks are late now and then
STEPS = 20  # so many steps, at least, are judged together


class Waits:
    """The time that the other ranks wait for each rank; the same on every rank but for its own time.

    All ranks leave an agreement at about the same moment. Two times are taken from there: when a rank begins
    its next step, after data and metrics, and when its own gradients are there. All losses wait for the last
    rank to begin, whose denominators they need, and all averages for the last one to be ready. What the
    latest time exceeds the second latest by is time that all others wait for one rank; of a rank that is last
    twice in a step the longer one counts, since who begins late is late with its gradients, too. Durations
    are compared, so that clocks may differ. The times of a step travel with the next step's loss, in an
    exchange that is made anyway.
    """

    def __init__(self, rank: int, size: int):
        self._rank, self._size = rank, size
        self._agreed: float | None = None
        self._own = [0.0, 0.0]  # seconds to the beginning and to the gradients of the last step
        self._next = 0.0
        self._costs = np.zeros(size)  # seconds since the last line of the metrics
        self._judged, self._steps, self._seconds = np.zeros(size), 0, 0.0
        self._named: set[int] = set()

    def agreed(self) -> None:
        """Takes note that all ranks have agreed."""
        self._agreed = time.monotonic()

    def interrupted(self) -> None:
        """Leaves the next step out: what came before it, such as an evaluation, is no part of one."""
        self._agreed = None

    def times(self) -> list[float]:
        """This rank's times of the last step in its places, and 0 in those of others, to be added up; asked
        before they are taken anew."""
        return [own if rank == self._rank else 0.0 for own in self._own for rank in range(self._size)]

    def begun(self) -> None:
        """Takes note that this rank begins a step."""
        self._next = self._since()

    def ready(self) -> None:
        """Takes note that its own gradients are there."""
        self._own = [self._next, self._since()]

    def _since(self) -> float:
        return 0.0 if self._agreed is None else time.monotonic() - self._agreed

    def add(self, times: Sequence[float]) -> None:
        """Takes the times of all ranks of one step, in seconds: (2 * size,), as the sums of `times`."""
        if self._size == 1:
            return
        costs = np.zeros(self._size)
        for of_ranks in np.reshape(times, (2, self._size)):
            second, last = np.argsort(of_ranks, kind="stable")[-2:]
            costs[last] = max(costs[last], of_ranks[last] - of_ranks[second])
        self._costs += costs

    def of_interval(self, steps: int, seconds: float) -> dict[str, float]:
        """Seconds a step that others have waited for a rank since the last call, by rank, of the MOST for
        which they have waited longest. `steps` and `seconds`: of the interval."""
        costs, self._costs = self._costs, np.zeros(self._size)
        self._judged += costs
        self._steps += steps
        self._seconds += seconds
        longest = [int(rank) for rank in np.argsort(-costs, kind="stable")[:MOST] if costs[rank] > 0]
        return {str(rank): round(costs[rank] / steps, 6) for rank in sorted(longest)}

    def slow_rank(self) -> str | None:
        """A sentence on a rank that holds the others up, once for each; None where there is none, or the
        steps since the last answer are too few."""
        if self._steps < STEPS:
            return None
        costs, steps, seconds = self._judged, self._steps, self._seconds
        self._judged, self._steps, self._seconds = np.zeros(self._size), 0, 0.0
        slowest = int(np.argmax(costs))
        others = float(np.delete(costs, slowest).max(initial=0.0))
        cost = float(costs[slowest])
        if cost <= SHARE * seconds or cost <= FACTOR * others or slowest in self._named:
            return None
        self._named.add(slowest)
        return (
            f"rank {slowest} is slow: the others have waited for it {cost / seconds:.0%} of the time, "
            f"{cost / steps:.3g} s a step"
        )


@dataclass(frozen=True)
class StepResult:
    """The outcome of a step. `sums` stays on the device until somebody reads it."""

    skipped: str  # why, as a clause, on every rank alike, and the parameters are as before; "": applied
    keep_going: bool  # False: some rank was asked to stop
    loss: float  # the judged one, over all ranks; NaN where the step has nothing to judge
    grad_norm: float  # of the averaged gradient, before clipping, without the loss scale
    sums: mx.nd.NDArray  # this rank's sums over the step, as named by the task's `sums`

    @property
    def applied(self) -> bool:
        """Whether the parameters were updated."""
        return not self.skipped


class Decision(Protocol):
    """Something that all ranks decide together in every step, by flags beside the step's own."""

    def flags(self) -> Sequence[bool]:
        """This rank's flags; as many on every rank and in every step. Asked when the gradient is there and
        nothing that a checkpoint holds has been changed yet."""

    def take(self, agreed: Sequence[bool]) -> None:
        """Takes those flags that every rank has set; called before anything is changed, too."""


@dataclass(frozen=True)
class StepSettings:
    """Fixed for a run.

    Attributes:
        accumulate: micro-batches of this rank in a step.
        clip_norm: greatest global norm of the averaged gradient; 0 turns clipping off.
        random_seed_of: numbers of a step and of this rank's micro-batch in it, from 0 -> seed of the dropout
            masks, None without dropout. MXNet's generators cannot be saved, so each micro-batch starts from a
            seed of its own; a resumed run then draws the same.
        before_update: called when all ranks have agreed, before anything that a checkpoint holds is changed.
        off: loss over all ranks and gradient norm of a step -> why it shall be skipped; "" where it shall
            not.
    """

    accumulate: int
    clip_norm: float
    random_seed_of: Callable[[int, int], int | None]
    before_update: Callable[[], None] = lambda: None
    off: Callable[[float, float], str] = lambda loss, norm: ""


class TrainStep:
    """The step, with all that it works on passed in.

    Args:
        task: of the network.
        network: hybridized; its parameters to train are those of `optimizer`, which is the order in which
            the next step's forward pass needs them.
    """

    def __init__(
        self,
        task: Task,
        network: Any,
        optimizer: Optimizer,
        scaler: LossScaler,
        communicator: Communicator,
        settings: StepSettings,
    ):
        self._task = task
        self._network = network
        self._optimizer = optimizer
        self._scaler = scaler
        self._communicator = communicator
        self._settings = settings
        self._names, parameters = zip(*trained(network).items())
        (self._device,) = parameters[0].list_ctx()
        # The gradients of one micro-batch of one process are those of the step.
        alone = communicator.size == 1 and settings.accumulate == 1
        self._counts = alone and optimizer.native and hasattr(network, "count_squares")
        self._counts_right = False  # whether a step has shown it
        if self._counts:
            network.count_squares()
        copies: dict = getattr(network, "packed_copies", dict)()
        self._update_packs = bool(copies) and optimizer.pack(copies, network.packed_dtype)
        self._packed = False  # whether the copies are those of the weights
        self.factor = 1.0  # of the last step's `gradients`: see Communicator.scaled_average
        self.waits = Waits(communicator.rank, communicator.size)
        self._has_losses = True  # whether this rank's `sums` are of its batches
        self._accumulation = Accumulation(
            parameters,
            self._device,
            settings.accumulate,
            network.adds_in_backward,
            communicator.together if communicator.size > 1 else 0,
        )

    @property
    def gradients(self) -> list[mx.nd.NDArray]:
        """Of the last step, in the order of the parameters: averages over the ranks, times the loss scale and
        `factor`."""
        return self._accumulation.arrays

    def __call__(
        self,
        step: int,
        batches: Sequence[Any],
        lr: float,
        keep_going: bool = True,
        decisions: Sequence[Decision] = (),
    ) -> StepResult:
        """Takes step number `step` on this rank's micro-batches. Every rank calls it alike, with the same
        decisions in the same order."""
        self.waits.begun()
        sums = self._forward_and_backward(step, batches)
        gradients = self.gradients
        # Of the gradient that the backward pass makes last, before its average takes its place.
        last = gradients[0].reshape((-1,))[:1].copy() if self._communicator.size > 1 else None
        self.factor = self._average(self._accumulation.exchanged)
        exchanged = self._average_loss(batches, sums)
        if last is not None:
            last.wait_to_read()
            self.waits.ready()
        norm = self._norm(gradients)
        total, count, *times = (exchanged.asnumpy() * self._communicator.size).tolist()
        self.waits.add(times)
        loss = total / count if count else math.nan
        scale = self._scaler.scale * self.factor
        finite = math.isfinite(norm)
        off = self._settings.off(loss, norm / scale) if finite else ""
        own = [each.flags() for each in decisions]
        flags = [finite, keep_going, not off, *chain.from_iterable(own)]
        finite, keep_going, usual, *agreed = self._communicator.all_agree(flags)
        self.waits.agreed()
        for decision, given in zip(decisions, own):
            decision.take(agreed[: len(given)])
            del agreed[: len(given)]
        if finite and not usual:
            self._communicator.forget()  # what a compression has kept of such a gradient
        self._settings.before_update()
        if finite and usual:
            rescale = clip_factor(norm, self._settings.clip_norm, scale)
            self._optimizer.step(gradients, lr=lr, rescale=rescale)
        self._scaler.update(finite)
        skipped = "" if usual else off or "it was off on another rank"
        return StepResult(skipped if finite else NOT_FINITE, keep_going, loss, norm / scale, sums)

    def _average(self, exchanged: list[mx.nd.NDArray]) -> float:
        """Queues the averages of the gradients over the ranks that have the same parameters; returns their
        factor."""
        return self._communicator.scaled_average(exchanged)

    def _average_loss(self, batches: Sequence[Any], sums: mx.nd.NDArray) -> mx.nd.NDArray:
        """Queues the averages over the ranks of the judged loss's sum, of its denominator, and of the ranks'
        times: numbers that are on their way while the backward pass works."""
        task = self._task
        loss, count = task.sums.index(task.judged[0]), task.denominators.index(task.judged[1])
        counted = task.count(batches)[count] if self._has_losses else 0.0
        numbers = on_device(np.array([0.0, counted, *self.waits.times()]), mx.cpu())
        numbers[:1] = sums[loss : loss + 1].astype("float64").as_in_context(mx.cpu())
        self._communicator.average([numbers])
        return numbers

    def _norm(self, gradients: list[mx.nd.NDArray]) -> float:
        """The norm of the whole model's gradient as it is, with its factors, the same on all ranks."""
        counted = math.inf
        if self._counts:
            names, squares = self._network.counted_squares()
            rest = [each for name, each in zip(self._names, gradients) if name not in names]
            others = queued_norm(rest, native=True)  # before the wait for the device
            counted = math.hypot(math.sqrt(squares.asscalar()), others.asscalar())
        if not math.isfinite(counted):  # a sum of squares leaves float32 long before its root does
            return global_norm(gradients, self._optimizer.native)
        if not self._counts_right:
            norm = global_norm(gradients, self._optimizer.native)
            if not math.isclose(counted, norm, rel_tol=1e-3):
                raise RuntimeError(f"the backward pass has counted a norm of {counted:g}, which is {norm:g}")
            self._counts_right = True
        return counted  # in the first step, too: a resumed run has the same bits

    def _forward_and_backward(self, step: int, batches: Sequence[Any]) -> mx.nd.NDArray:
        factors = self._factors(batches, self._communicator)
        self._pack_weights()
        self._accumulation.begin()
        total = mx.nd.zeros((len(self._task.sums),), ctx=self._device)
        for number, batch in enumerate(batches):
            self._seed(step, number)
            with mx.autograd.record():
                loss, sums, *_ = self._network(*self._task.inputs(batch, self._device), *factors)
            loss.backward()
            self._accumulation.after_backward()
            total += sums
        return total

    def _seed(self, step: int, number: int) -> None:
        seed = self._settings.random_seed_of(step, number)
        if seed is not None:
            mx.random.seed(seed)  # takes as long as an operator of a small model

    def _pack_weights(self) -> None:
        if not self._packed:
            self._network.pack_weights()
        self._packed = self._update_packs

    def _factors(self, batches: Sequence[Any], sharing: Communicator) -> list[mx.nd.NDArray]:
        """The network's last inputs: the loss scale over each number of the task's `count`, or over 1 where
        that is 0, as a mean over the ranks that share the batches. Where each rank divides by the mean, the
        mean of their gradients is the gradient of the whole step, however its micro-batches are shared.

        The numbers travel while the forward pass works: only the losses wait for them."""
        counts = on_device(np.array(self._task.count(batches), np.float64), mx.cpu())
        sharing.average([counts])
        factors = (self._scaler.scale / (counts + (counts == 0))).astype("float32")
        factors = factors.as_in_context(self._device)
        return [factors[index : index + 1] for index in range(factors.size)]


def dropout_seed(seed: int, step: int, number: int) -> int:
    """The seed of the dropout masks of one micro-batch, by its number in the step over all ranks: different
    for each, the same in a repeated run and for any number of ranks."""
    return int(np.random.SeedSequence([seed, step, number]).generate_state(1)[0]) >> 1
