"""Parameters and optimizer states between rank 0, which reads and writes them, and the stages that hold them.

A run begins: rank 0 reads one array at a time and gives it to the stages that hold it; it needs memory for no
more than its own stage's and one. A checkpoint: it writes what a run without stages does, and the other
stages send it what they hold. It posts the receives into the memory of its copy, the leaders of the other
stages send from where their arrays lie; both go on with the next step meanwhile, whose update waits for the
messages (`Saver.sound`).
"""

from __future__ import annotations

import hashlib
from typing import Any, Callable, Iterator, Mapping, Sequence

import numpy as np

from base.errors import TrainingError
from bert.model import each_once, live_arrays, network_parameters
from bert.weights.names import EMBEDDING
from comm.base import Communicator, Pending
from training.exchange import broadcast_json
from training.optimizer.optimizer import Optimizer
from training.optimizer.states import T
from training.pipeline.ranks import PARAMETERS, STATE, Ranks


def give_out(
    wanted: Mapping[str, tuple[tuple[int, ...], Any]],
    source: Iterator[tuple[str, np.ndarray]],
    take: Callable[[str, np.ndarray], None],
    ranks: Ranks,
) -> None:
    """Brings arrays from rank 0 to the ranks of the first replica that hold them. Every rank calls it.

    `wanted`: shapes and dtypes by name; of a state the parameter's name and one word more. `source`: rank
    0's, in any order. `take`: called for those of this rank.
    """
    world = ranks.world
    if not ranks.leads:
        return
    order = {name: index for index, name in enumerate(wanted)}
    mine = [name for name in wanted if world.rank in ranks.leaders_with(name)]
    if world.rank:
        for _ in mine:
            index = np.zeros(1, np.int64)
            world.receive(index, 0, PARAMETERS).wait()
            name = list(order)[int(index[0])]
            room = np.empty(*wanted[name])
            world.receive(room, 0, PARAMETERS).wait()
            take(name, room)
        return
    given = 0
    for name, array in source:
        array = np.ascontiguousarray(array)
        for rank in ranks.leaders_with(name):
            if rank == 0:
                take(name, array)
                continue
            world.send(np.array([order[name]], np.int64), rank, PARAMETERS).wait()
            world.send(array, rank, PARAMETERS).wait()
        given += 1
    assert given == len(order), "all that the stages wait for"


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
    states = {
        name + end: array for name, array in once.items() for end in optimizer.moments_of(name, array.shape)
    }
    if world.rank == 0:
        found: dict[str, Any] = {}
        for name, parameter in {**whole, **states}.items():
            holder = ranks.leaders_with(name)[0]
            dtype = parameter.dtype if name in whole else np.float32
            found[name] = own[name] if holder == 0 else Elsewhere(parameter.shape, dtype, holder, world)
        parameters = {name: found[name] for name in whole}
        return parameters, {T: np.array(optimizer.t, np.int64), **{name: found[name] for name in states}}, ()
    mine = [name for name in (*whole, *states) if ranks.leaders_with(name)[0] == world.rank]
    return {}, {}, [world.send(own[name], 0, STATE) for name in mine]


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
