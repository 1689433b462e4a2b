"""The ranks of a run, as one of them sees them: its coordinates, its neighbours and its group."""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace
from typing import Any, Sequence

from base.errors import InputError
from bert.configuration import BertConfig
from bert.part import ModelPart
from comm.base import Communicator, DelegatingCommunicator
from training.exchange import broadcast_json
from training.optimizer.states import parameter_of
from training.pipeline.options import PipelineConfig
from training.pipeline.placement import (
    Coordinates,
    coordinates_of,
    hosts_of_ranks,
    placement_warnings,
    replica_groups,
)
from training.pipeline.split import Split

# Tags of messages. Those of the micro-batches are used again: with one tag messages keep their order.
_MICRO_BATCHES = 15_000
TIED, PARAMETERS, STATE = range(2 * _MICRO_BATCHES, 2 * _MICRO_BATCHES + 3)


@dataclass(frozen=True)
class Ranks:
    """All ranks and their coordinates. Without pipelines each is a replica, and all are the group.

    Attributes:
        config: of the pipelines.
        coordinates: of this rank.
        replicas: global ranks of each replica, in the order of its stages.
        world: the exchange between all ranks.
        group: that between the ranks of this stage, in the order of the replicas.
        warnings: about slow links.
        parts: what each stage holds, once the split is known.
    """

    config: PipelineConfig
    coordinates: Coordinates
    replicas: tuple[tuple[int, ...], ...]
    world: Communicator
    group: Communicator
    warnings: tuple[str, ...] = ()
    parts: tuple[ModelPart, ...] = ()

    def divided(self, bert: BertConfig, split: Split) -> Ranks:
        """The same, with the parts that a split gives to the stages."""
        return replace(self, parts=tuple(ModelPart(bert, begin, end) for begin, end in split.ranges))

    @property
    def pipelined(self) -> bool:
        """Whether the layers lie on several ranks."""
        return self.coordinates.stages > 1

    @property
    def readers(self) -> Communicator:
        """The exchange as those see it who read data."""
        return Readers(self) if self.pipelined else self.world

    @property
    def part(self) -> ModelPart:
        """The part that this rank holds."""
        return self.parts[self.coordinates.stage]

    @property
    def facts(self) -> dict[str, Any]:
        """This rank's coordinates and part, for a trace; nothing without pipelines."""
        if not self.pipelined:
            return {}
        here, part = self.coordinates, self.part
        return {
            "stage": here.stage,
            "stages": here.stages,
            "replica": here.data_rank,
            "schedule": self.config.schedule,
            "stage_layers": [part.begin, part.end],
        }

    @property
    def previous(self) -> int:
        """The rank of the stage before; not for the first."""
        return self._own[self.coordinates.stage - 1]

    @property
    def next(self) -> int:
        """The rank of the stage behind; not for the last."""
        return self._own[self.coordinates.stage + 1]

    @property
    def tied(self) -> int | None:
        """The rank at the other end of the pipeline, which has the word embedding too; None between them, and
        where the decoder's weight is another."""
        if not self.part.config.tied:
            return None
        if self.coordinates.first:
            return self._own[-1]
        return self._own[0] if self.coordinates.last else None

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for its stage, as the one of the first replica."""
        return self.coordinates.data_rank == 0

    def leaders_with(self, name: str) -> list[int]:
        """The ranks of the first replica that hold a parameter, or a state of one, by its structural name."""
        parameter = parameter_of(name)
        return [rank for rank, part in zip(self.replicas[0], self.parts) if part.holds(parameter)]

    @property
    def _own(self) -> tuple[int, ...]:
        return self.replicas[self.coordinates.data_rank]


class Readers(DelegatingCommunicator):
    """The communicator as those see it who read data: the ranks of one pipeline read the same, as one rank of
    so many as there are replicas. Waiting is for all ranks."""

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks.world)
        self.rank, self.size = ranks.coordinates.data_rank, ranks.coordinates.data_size


def place_ranks(config: PipelineConfig, communicator: Communicator) -> Ranks:
    """Gives every rank its coordinates; every rank calls it, once in a launch.

    Raises:
        InputError: a number of ranks that are not whole replicas, or ranks that are not numbered one host
            after the other; a communicator without groups.
    """
    rank, size = communicator.rank, communicator.size
    if config.stages == 1:
        alone = tuple((each,) for each in range(size))
        return Ranks(config, Coordinates(rank, size, 0, 1), alone, communicator, communicator)
    own = [platform.node(), communicator.local_rank]
    found = [broadcast_json(own, communicator, each) for each in range(size)]
    hosts = hosts_of_ranks([(str(name), int(local)) for name, local in found])
    slots = [host.slots for host in hosts]
    replicas = replica_groups(slots, config.stages, config.placement)
    here = coordinates_of(rank, slots, config.stages, config.placement)
    group = communicator.groups(list(zip(*replicas)))
    warnings = placement_warnings(hosts, config.stages, config.placement)
    return Ranks(config, here, replicas, communicator, group, tuple(warnings))


def check_same(configs: Sequence[PipelineConfig]) -> None:
    """Raises InputError where the stages of the recipe have other pipelines."""
    if len({(config.stages, config.placement) for config in configs}) > 1:
        raise InputError(
            "--pipeline_stages and --placement are the same for both stages of a run; run them one after the "
            "other, the second with --stages 2 --resume"
        )


def activation_tag(number: int) -> int:
    """The tag of a micro-batch's activations."""
    return 2 * (number % _MICRO_BATCHES)


def gradient_tag(number: int) -> int:
    """The tag of their gradients."""
    return 2 * (number % _MICRO_BATCHES) + 1
