"""Parameters and optimizer states between rank 0, which reads and writes them, and the stages that hold them.

A run begins: rank 0 reads one array at a time and gives it to the stages that hold it; it needs memory for no
more than its own stage's and one. A checkpoint: it writes what a run without stages does, and the other
stages send it what they hold. It posts the receives into the memory of its copy, the leaders of the other
stages send from where their arrays lie; both go on with the next step meanwhile, whose update waits for the
messages (`Saver.sound`).
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Any, Callable, Iterator, Mapping, Sequence

import mxnet as mx
import numpy as np
from gluonnlp.model.bert import BERTModel

from base.errors import TrainingError
from bert.model import each_once, network_parameters
from bert.part import initial_arrays
from bert.weights.bare_params import check_index
from bert.weights.names import DECODER, EMBEDDING
from bert.weights.params_file import read_index
from comm.base import Communicator, Pending
from training.exchange import broadcast_json
from training.optimizer.optimizer import STATES, Optimizer, T, check_state, content_of, parameter_of
from training.pipeline.ranks import PARAMETERS, STATE, Ranks
from training.start.restoring import as_dtype, fitted, live_arrays, not_finite
from training.start.start import Start
from training.start_options import OPTIMIZER


def begin_stages(start: Start, network: Any, ranks: Ranks, seed: int, stdev: float) -> None:
    """Gives every stage its parameters: the checkpoint's, those of --init_from, or random ones, those that a
    single process draws. Every rank calls it.

    Raises:
        InputError: on rank 0, for parameters of another model or that are not finite.
    """
    named = network_parameters(network)
    whole = each_once(network.bert._collect_params_with_prefix())
    (device,) = next(iter(named.values())).list_ctx()
    source: Iterator[tuple[str, np.ndarray]] = iter(())
    if ranks.world.rank == 0:
        source = _arrays(start, network.bert, device, seed, stdev)

    def take(name: str, array: np.ndarray) -> None:
        parameter = named[name]
        parameter.set_data(mx.nd.array(array, ctx=device, dtype=array.dtype))

    _give_out(whole, source, take, ranks)
    ranks.group.broadcast(list(live_arrays(each_once(named)).values()))


def restore_stages(start: Start, network: Any, optimizer: Optimizer, ranks: Ranks) -> None:
    """`training.start.restoring.restore_states` over stages. Every rank calls it.

    Raises:
        InputError: on rank 0, for states of another model or dtype.
    """
    if not start.facts:
        return
    keeps = start.keeps(OPTIMIZER)
    if keeps or optimizer.has_masters:
        own = optimizer.state_arrays()
        whole = each_once(network.bert._collect_params_with_prefix())
        suffixes = [*STATES] if optimizer.has_masters else [*STATES[:2]]
        if not keeps:
            suffixes = [*STATES[2:]]
        shapes = {f"{name}{suffix}": each.shape for name, each in whole.items() for suffix in suffixes}
        with contextlib.ExitStack() as stack:
            source: Iterator[tuple[str, np.ndarray]] = iter(())
            t, present = 0, list(shapes)
            if ranks.world.rank == 0 and start.checkpoint is not None:
                states = stack.enter_context(start.checkpoint.open_states())
                if keeps:
                    t = check_state(states, shapes)
                else:  # a float32 run has no masters
                    present = [name for name in shapes if name in states]
                source = ((name, content_of(name, states[name], "float32")) for name in present)
            present, t = broadcast_json([present, t], ranks.world)

            def take(name: str, array: np.ndarray) -> None:
                own[name][:] = array

            _give_out({name: _Shape(shapes[name]) for name in present}, source, take, ranks)
        if keeps:
            optimizer.t = t
            optimizer.set_from_masters()
    ranks.group.broadcast(list(optimizer.state_arrays().values()))


class _Shape:
    dtype = np.float32

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def _give_out(
    wanted: Mapping[str, Any],
    source: Iterator[tuple[str, np.ndarray]],
    take: Callable[[str, np.ndarray], None],
    ranks: Ranks,
) -> None:
    """Brings arrays from rank 0 to the ranks of the first replica that hold them.

    `wanted`: shapes and dtypes by name; of a state the parameter's name and one word more. `source`: rank
    0's, in any order. `take`: called for those of this rank.
    """
    world = ranks.world
    if not ranks.leads:
        return
    order = {name: index for index, name in enumerate(wanted)}
    mine = [name for name in wanted if world.rank in ranks.leaders_with(parameter_of(name))]
    if world.rank:
        for _ in mine:
            index = np.zeros(1, np.int64)
            world.receive(index, 0, PARAMETERS).wait()
            name = list(order)[int(index[0])]
            room = np.empty(wanted[name].shape, np.dtype(wanted[name].dtype))
            world.receive(room, 0, PARAMETERS).wait()
            take(name, room)
        return
    given = 0
    for name, array in source:
        array = np.ascontiguousarray(array)
        for rank in ranks.leaders_with(parameter_of(name)):
            if rank == 0:
                take(name, array)
                continue
            world.send(np.array([order[name]], np.int64), rank, PARAMETERS).wait()
            world.send(array, rank, PARAMETERS).wait()
        given += 1
    assert given == len(order), "all that the stages wait for"


def _arrays(
    start: Start, bert: BERTModel, device: mx.Context, seed: int, stdev: float
) -> Iterator[tuple[str, np.ndarray]]:
    """Every parameter of the whole model, in its dtype."""
    named = bert._collect_params_with_prefix()
    if start.checkpoint is not None and start.initial is None:
        path = start.checkpoint.params_path
        tensors = read_index(path)
        tied = named[DECODER] is named[EMBEDDING]
        check_index(path, tensors, {name: parameter.shape for name, parameter in named.items()}, tied)
        for name, parameter in each_once(named).items():
            stored = name if name in tensors or name != EMBEDDING else DECODER
            array = as_dtype(tensors[stored].read(), parameter.dtype)
            if start.checkpoint.manifest is None:
                _check_finite(path, array)
            yield name, array
        return
    initial = start.initial
    for name, drawn in initial_arrays(bert, device, seed, stdev):
        dtype = named[name].dtype
        if initial is None or name not in initial.tensors:
            yield name, as_dtype(drawn.asnumpy(), dtype)
            continue
        read = as_dtype(initial.tensors[name].read(), dtype)
        array = as_dtype(fitted(read, drawn.shape[0], drawn, initial.drawn_rows(name)), dtype)
        _check_finite(f"--init_from {initial.source}", array)
        yield name, array


def _check_finite(source: str, array: np.ndarray) -> None:
    if not np.isfinite(array).all():
        raise not_finite(source, [array.dtype.name])


class Elsewhere:
    """An array of another rank, which sends it."""

    def __init__(self, shape: tuple[int, ...], dtype: Any, source: int, communicator: Communicator) -> None:
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self._source = source
        self._communicator = communicator
        self.taken = False

    def receive(self, into: np.ndarray) -> Pending:
        """Begins to receive it; once."""
        self.taken = True
        return self._communicator.receive(into, self._source, STATE)

    def asnumpy(self) -> np.ndarray:
        """Waits for it, which is possible once, in the order in which the arrays are sent."""
        array = np.empty(self.shape, self.dtype)
        self.receive(array).wait()
        return array


def gather(
    network: Any, optimizer: Optimizer, ranks: Ranks
) -> tuple[dict[str, Any], dict[str, Any], Sequence[Pending]]:
    """Parameters and optimizer states of all stages for a checkpoint, on rank 0, in the order in which a run
    without stages has them; on the leaders of the other stages, their messages to it. Every rank calls it.

    Returns:
        parameters and states by name (empty but on rank 0), messages that must be waited for before the
        arrays change.
    """
    whole = network.bert._collect_params_with_prefix()
    world = ranks.world
    if not ranks.leads:
        return {}, {}, ()
    own = {**live_arrays(network_parameters(network)), **optimizer.state_arrays()}
    once = each_once(whole)
    suffixes = STATES if optimizer.has_masters else STATES[:2]
    states = {f"{name}{suffix}": once[name] for name in once for suffix in suffixes}
    if world.rank == 0:
        found: dict[str, Any] = {}
        for name, parameter in {**whole, **states}.items():
            holder = next(ranks.leaders_with(parameter_of(name)))
            dtype = parameter.dtype if name in whole else np.float32
            found[name] = own[name] if holder == 0 else Elsewhere(parameter.shape, dtype, holder, world)
        parameters = {name: found[name] for name in whole}
        return parameters, {T: np.array(optimizer.t, np.int64), **{name: found[name] for name in states}}, ()
    sent = []
    for name in [*whole, *states]:
        if next(ranks.leaders_with(parameter_of(name))) == world.rank:
            sent.append(world.send(own[name], 0, STATE))
    return {}, {}, sent


def check_tied(network: Any, ranks: Ranks) -> None:
    """Compares the word embedding of all ranks that have it; every rank calls it.

    Raises:
        TrainingError: on every rank, where one differs from rank 0's.
    """
    digest = ""
    if ranks.tied is not None:
        array = network_parameters(network)[EMBEDDING].data().asnumpy()
        digest = hashlib.sha256(array.tobytes()).hexdigest()
    reference = broadcast_json(digest, ranks.world)
    same = digest in ("", reference)
    agreed = ranks.world.all_agree([same or rank != ranks.world.rank for rank in range(ranks.world.size)])
    different = [str(rank) for rank, flag in enumerate(agreed) if not flag]
    if different:
        raise TrainingError(
            f"the word embedding, which lies on the first and the last stage, differs on rank"
            f"{'s' if len(different) > 1 else ''} {', '.join(different)} from rank 0's, and is not saved; "
            "--resume from the checkpoint before"
        )
