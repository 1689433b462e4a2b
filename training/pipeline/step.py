"""An optimizer step over the stages of a pipeline: the micro-batches pass through them and their gradients
back, and what is decided once for the model is decided over all ranks.

Every receive is posted one message ahead: what the neighbour sends while this stage computes arrives
meanwhile. No send is waited for before what must be received first: the waits follow the order of the passes,
which is free of circles, so the stages cannot block each other.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from functools import partial
from typing import Any, Callable, ContextManager, Iterable, Iterator, NamedTuple, Sequence

import mxnet as mx

from bert.model import trained
from bert.weights.names import EMBEDDING
from comm.base import Communicator, Pending
from tasks.base import Task
from training.optimizer.optimizer import Optimizer, global_norm
from training.optimizer.scaler import LossScaler
from training.pipeline.ranks import TIED, Ranks, activation_tag, gradient_tag
from training.pipeline.schedule import passes
from training.step import StepSettings, TrainStep

AHEAD = 2  # messages for which a receive is posted: the one waited for, and the next
_EVALUATED_AHEAD = 2  # messages that a stage may be ahead of the next in an evaluation


class Rooms:
    """Arrays that messages are received into, used again when they have been given back; `with_gradient`:
    each has room for its gradient, which a backward pass leaves there."""

    def __init__(self, device: mx.Context, with_gradient: bool) -> None:
        self._device = device
        self._with_gradient = with_gradient
        self._free: dict[tuple[Any, ...], list[mx.nd.NDArray]] = {}

    def take(self, shape: tuple[int, ...], dtype: str) -> mx.nd.NDArray:
        """An array of this shape and dtype, of any content."""
        free = self._free.setdefault((shape, dtype), [])
        if free:
            return free.pop(0)  # the one that has waited longest: nobody computes with it any more
        array = mx.nd.zeros(shape, ctx=self._device, dtype=dtype)
        if self._with_gradient:
            array.attach_grad()
        return array

    def give_back(self, array: mx.nd.NDArray) -> None:
        """Takes back an array that nobody uses any more."""
        self._free.setdefault((array.shape, array.dtype.__name__), []).append(array)


def incoming(
    communicator: Communicator,
    source: int,
    tag: Callable[[int], int],
    room: Callable[[int], mx.nd.NDArray],
    count: int,
) -> Iterator[mx.nd.NDArray]:
    """The messages of a step from one neighbour, in the order of the micro-batches, each once it is there.
    Receives of the first ones are posted at once.

    Args:
        source: the neighbour's rank.
        tag: of a micro-batch's message. room: an array for it.
        count: micro-batches of the step.
    """

    def post(number: int) -> tuple[mx.nd.NDArray, Pending]:
        array = room(number)
        return array, communicator.receive(array, source, tag(number))

    def arriving() -> Iterator[mx.nd.NDArray]:
        for number in range(AHEAD, AHEAD + count):
            array, pending = posted.popleft()
            pending.wait()
            if number < count:
                posted.append(post(number))
            yield array

    posted = deque(post(number) for number in range(min(AHEAD, count)))
    return arriving()


class Outgoing:
    """Messages to a neighbour that are on their way, and what is to be done when they have left."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._sent: deque[tuple[Pending, Callable[[], None]]] = deque()

    def send(
        self, array: mx.nd.NDArray, to: int, tag: int, then: Callable[[], None] = lambda: None
    ) -> Pending:
        """Sends when the array has been written; `then` is called at some time after it has left."""
        while self._sent and self._sent[0][0].done():
            self._pop()
        pending = self._communicator.send(array, to, tag)
        self._sent.append((pending, then))
        return pending

    def limit(self, most: int) -> None:
        """Waits until no more than `most` messages are on their way."""
        while len(self._sent) > most:
            self._pop()

    def _pop(self) -> None:
        pending, then = self._sent.popleft()
        pending.wait()
        then()


class _Kept(NamedTuple):
    """The rests of a forward pass that the backward pass of its micro-batch needs. `inputs`: the activations
    of the stage before, None on the first stage; `output`: those of this stage, or the loss; `sent`: their
    message."""

    inputs: mx.nd.NDArray | None
    output: mx.nd.NDArray
    sent: Any


class PipelineStep(TrainStep):
    """The step of a rank that holds one stage.

    The gradient of the word embedding, which lies on the first and the last stage, is averaged over the
    replicas on both, then exchanged and added: as each adds the same two arrays, both have the same bits, and
    so have their values ever after. Sums (`StepResult.sums`) are those of the last stage, and zeros on the
    others.
    """

    def __init__(
        self,
        task: Task,
        network: Any,
        optimizer: Optimizer,
        scaler: LossScaler,
        ranks: Ranks,
        settings: StepSettings,
    ):
        super().__init__(task, network, optimizer, scaler, ranks.world, settings)
        self._ranks = ranks
        self._has_losses = ranks.coordinates.last
        self._rooms = Rooms(self._device, with_gradient=True)
        self._gradient_rooms = Rooms(self._device, with_gradient=False)
        names = list(trained(network))
        self._tied = names.index(EMBEDDING) if EMBEDDING in names else None
        self._other_end: mx.nd.NDArray | None = None
        self._outgoing = Outgoing(ranks.world)
        # Around waits, for traces.
        self.stage_wait: Callable[[], ContextManager[None]] = contextlib.nullcontext

    def _forward_and_backward(self, step: int, batches: Sequence[Any]) -> mx.nd.NDArray:
        ranks, here, network = self._ranks, self._ranks.coordinates, self._network
        shapes = [batch.input_ids.shape for batch in batches]
        factors = self._factors(batches, ranks.group) if here.last else []
        self._pack_weights()
        self._accumulation.begin()
        total = mx.nd.zeros((len(self._task.sums),), ctx=self._device)

        def room(rooms: Rooms) -> Any:
            return lambda number: rooms.take(*network.activations(*shapes[number]))

        count = len(batches)
        activations = gradients = None
        if not here.first:
            activations = incoming(ranks.world, ranks.previous, activation_tag, room(self._rooms), count)
        if not here.last:
            gradients = incoming(ranks.world, ranks.next, gradient_tag, room(self._gradient_rooms), count)
        kept: dict[int, _Kept] = {}
        for forward, number in passes(ranks.config.schedule, here.stage, here.stages, count):
            if forward:
                inputs = self._taken(activations)
                output, sums = self._forward(step, number, batches[number], inputs, factors)
                sent = None
                if sums is None:
                    sent = self._outgoing.send(output, ranks.next, activation_tag(number))
                else:
                    total += sums
                kept[number] = _Kept(inputs, output, sent)
            else:
                self._backward(number, kept.pop(number), self._taken(gradients))
        with self.stage_wait():
            self._outgoing.limit(0)
        return total

    def _taken(self, messages: Iterator[mx.nd.NDArray] | None) -> mx.nd.NDArray | None:
        """The next of a neighbour's messages; None at an end of the pipeline."""
        if messages is None:
            return None
        with self.stage_wait():
            return next(messages)

    def _forward(
        self, step: int, number: int, batch: Any, inputs: mx.nd.NDArray | None, factors: list[mx.nd.NDArray]
    ) -> tuple[mx.nd.NDArray, mx.nd.NDArray | None]:
        """The pass of a micro-batch: activations and None, or the loss and the sums."""
        network = self._network
        arrays = self._task.inputs(batch, self._device)[network.takes]
        self._seed(step, number)
        network.skip_dropout(*batch.input_ids.shape)
        with mx.autograd.record():
            # Handles of their own for the factors: see bert.fused._Packed.
            own = [factor.detach() for factor in factors]
            outputs = network(*([] if inputs is None else [inputs]), *arrays, *own)
        if self._ranks.coordinates.last:
            loss, sums, *_ = outputs
            return loss, sums
        return outputs, None

    def _backward(self, number: int, kept: _Kept, gradient: mx.nd.NDArray | None) -> None:
        if gradient is None:
            kept.output.backward()
        else:
            kept.sent.wait()  # it has arrived: its gradient is here
            kept.output.backward(gradient)
        inputs = kept.inputs
        if inputs is not None:
            give_back = partial(self._rooms.give_back, inputs)
            self._outgoing.send(inputs.grad, self._ranks.previous, gradient_tag(number), give_back)
        self._accumulation.after_backward()
        if gradient is not None:
            self._gradient_rooms.give_back(gradient)

    def _average(self, exchanged: list[mx.nd.NDArray]) -> float:
        ranks = self._ranks  # all groups have the same size, and so all stages the same factor
        other = ranks.tied
        if self._tied is None or other is None:
            return ranks.group.scaled_average(exchanged)
        own = self.gradients[self._tied]
        if self._other_end is None:
            self._other_end = mx.nd.zeros_like(own)
        arriving = ranks.world.receive(self._other_end, other, TIED)
        factor = ranks.group.scaled_average(exchanged)
        leaving = ranks.world.send(own, other, TIED)
        arriving.wait()
        leaving.wait()
        own += self._other_end
        return factor

    def _norm(self, gradients: list[mx.nd.NDArray]) -> float:
        """The norm over all stages; the word embedding counts once. Every stage adds the square of its own
        norm: beside that of a single process the result is rounded in another order."""
        here = self._ranks.coordinates
        counted = [each for index, each in enumerate(gradients) if here.first or index != self._tied]
        own = global_norm(counted, self._optimizer.native)  # the one wait for the device
        squares = mx.nd.array([own * own], ctx=mx.cpu(), dtype="float64")
        self._ranks.world.average([squares])
        return math.sqrt(float(squares.asscalar()) * here.stages)


def forward_stages(
    task: Task, network: Any, batches: Iterable[Any], ranks: Ranks, device: mx.Context
) -> Iterator[tuple[Any, Sequence[mx.nd.NDArray]]]:
    """`training.metrics.forward` over the stages; every rank goes through it, with the batches of its
    replica. The last stage alone has outputs, the others nothing."""
    here = ranks.coordinates
    network.pack_weights()
    unscaled = [mx.nd.ones((1,), ctx=device)] * len(task.denominators) if here.last else []
    rooms, outgoing = Rooms(device, with_gradient=False), Outgoing(ranks.world)
    for number, batch in enumerate(batches):
        arrays = task.inputs(batch, device)[network.takes]
        if not here.first:
            inputs = rooms.take(*network.activations(*batch.input_ids.shape))
            ranks.world.receive(inputs, ranks.previous, activation_tag(number)).wait()
            arrays = [inputs, *arrays]
        outputs = network(*arrays, *unscaled)  # outside record: no dropout
        if here.last:
            yield batch, outputs
        else:
            # A copy: the network may use the memory of its outputs again for the next batch.
            outgoing.send(outputs.copy(), ranks.next, activation_tag(number))
            outgoing.limit(_EVALUATED_AHEAD)
        if not here.first:
            rooms.give_back(inputs)
    outgoing.limit(0)
