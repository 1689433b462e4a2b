"""An optimizer whose states are divided over the ranks (ZeRO's first stage, arXiv:1910.02054).

Each rank has the states of its share of the parameters, updates these, and gives the others what they have
become: the same numbers as without, since an update looks at nothing but its own parameter. Checkpoints are
the same, too: rank 0 writes what all have, so that a run continues on any number of ranks.
"""

from __future__ import annotations

from typing import Callable, Iterator, Mapping, Sequence

import mxnet as mx
import numpy as np

from base.errors import InputError
from comm.base import Communicator
from training.exchange import broadcast_json
from training.optimizer import muon
from training.optimizer.optimizer import Optimizer, Rule
from training.optimizer.states import FLOAT32, MASTER, T, content_of, to_take


class ShardedOptimizer(Optimizer):
    """`Optimizer` of this rank's share; arguments as for that one, with the parameters of all ranks.

    `step`, `gathered` and `take` are called by every rank, and wait for the others.

    Raises:
        InputError: there are fewer parameters than ranks.
    """

    def __init__(
        self,
        communicator: Communicator,
        kind: str,
        parameters: Mapping[str, mx.nd.NDArray],
        rule: Rule,
        native: bool,
    ):
        if len(parameters) < communicator.size:
            raise InputError(
                f"--shard_states: {communicator.size} processes for {len(parameters)} arrays of parameters, "
                "which are not divided themselves; leave it out"
            )
        self._communicator = communicator
        self._parameters = dict(parameters)
        costs = {
            name: weight.size * (muon.COST if kind == "muon" and muon.takes(name, weight.shape) else 1)
            for name, weight in parameters.items()
        }
        self._shares = shares(costs, communicator.size)
        own = {name: parameters[name] for name in self._shares[communicator.rank]}
        super().__init__(kind, list(own), list(own.values()), rule, native)

    def pack(self, copies: Mapping[tuple[str, ...], mx.nd.NDArray], dtype: str) -> bool:
        """False: copies of what other ranks update would stay as they are."""
        return False

    def step(self, gradients: Sequence[mx.nd.NDArray], lr: float, rescale: float = 1.0) -> None:
        """As for `Optimizer`, with the gradients of all parameters; returns when all are updated."""
        given = dict(zip(self._parameters, gradients))
        super().step([given[name] for name in self._names], lr, rescale)
        for root, share in enumerate(self._shares):
            self._communicator.broadcast([self._parameters[name] for name in share], root)

    def gathered(self, room: Callable[[str, mx.nd.NDArray], np.ndarray]) -> dict[str, np.ndarray]:
        """The `state` of all ranks, as an optimizer that is not divided has it, on rank 0; elsewhere {}.

        `room`: gives the memory for a state like this array, by its name.
        """
        found: dict[str, np.ndarray] = {}
        for owner, name, array in self._states():
            self._communicator.broadcast([array], owner)
            if self._communicator.rank == 0:
                found[name] = room(name, array)
                found[name][:] = array.asnumpy()
        return {T: np.array(self.t, dtype=np.int64), **found} if self._communicator.rank == 0 else {}

    def take(self, state: Mapping[str, np.ndarray] | None, keeps: bool) -> None:
        """Gives every rank its share of rank 0's `state`, which the others have not: as `restore` does if it
        `keeps` all, else only the masters.

        Raises:
            InputError: on rank 0, as `restore`.
        """
        taken: tuple[list[str], int] = ([], self.t)
        if state is not None:
            shapes = {name: array.shape for _, name, array in self._states()}
            taken = to_take(state, shapes, keeps, self.t)
        present, self.t = broadcast_json(taken, self._communicator)
        for _, name, array in self._states():
            if name in present:
                if state is not None:
                    array[:] = content_of(name, state[name], FLOAT32)
                self._communicator.broadcast([array])
        if keeps:
            self.set_from_masters()

    def _states(self) -> Iterator[tuple[int, str, mx.nd.NDArray]]:
        """The rank that has each state, its name, and this rank's live array, or room for that of another,
        one after the other in the order in which an optimizer that is not divided has them."""
        owners = {name: rank for rank, share in enumerate(self._shares) for name in share}
        own = self.state_arrays()
        for name, weight in self._parameters.items():
            for end in (*self.moments_of(name, weight.shape), *[MASTER] * (weight.dtype == np.float16)):
                live = own.get(name + end)
                room = mx.nd.zeros(weight.shape, weight.context) if live is None else live
                yield owners[name], name + end, room


def shares(costs: Mapping[str, int], ranks: int) -> list[list[str]]:
    """Divides parameters of these costs over so many ranks: the largest first, each to the rank that has
    least. Returns each rank's names, in their order."""
    loads: list[int] = [0] * ranks
    found: list[set[str]] = [set() for _ in loads]
    for name in sorted(costs, key=lambda name: -costs[name]):
        rank = loads.index(min(loads))
        loads[rank] += costs[name]
        found[rank].add(name)
    return [[name for name in costs if name in share] for share in found]
