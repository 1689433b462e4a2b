"""One rank of runs with pipelines, which take optimizer steps on known batches.

    pipelines_worker.py OUTPUT_DIRECTORY CASES

CASES is JSON: a list of `Case`s, as objects. Rank r writes OUTPUT_DIRECTORY/CASE-r.npz, with a report of its
steps as JSON and its parameters at the end. A case of one stage is the reference: rank 0 takes all
micro-batches by itself, with training.step.TrainStep, and the others have nothing to do; or, where it is
`shared`, each rank those of a replica.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

import mxnet as mx
import numpy as np

from bert.configuration import BertConfig, named_config
from bert.model import build_model, initialize, live_arrays, network_parameters, trained
from bert.operators import choose_operators
from bert.part import allocate, build_part
from comm.horovod import HorovodCommunicator
from comm.local import LocalCommunicator
from data.pretraining.sources import Batch
from tasks.pretraining.task import Pretraining
from tests.training.tiny import VOCAB_SIZE, random_batch
from training.checkpoint import Kept, load_step, save
from training.config import ModelConfig
from training.optimizer.optimizer import Optimizer
from training.optimizer.scaler import DynamicScaler
from training.pipeline.options import PipelineConfig
from training.pipeline.placement import coordinates_of, replica_groups
from training.pipeline.ranks import Ranks, place_ranks
from training.pipeline.split import make_split
from training.pipeline.state import check_tied, gather
from training.pipeline.step import PipelineStep
from training.report import Reporter
from training.saving import Saver
from training.start.restoring import restore_parameters, restore_states
from training.start.start import Start
from training.step import StepSettings, TrainStep, dropout_seed

TASK = Pretraining()
SEED, STDEV, CLIP_NORM, LR = 3, 0.2, 0.1, 0.005
ROWS, LENGTH, PREDICTIONS = 3, 12, 4
STALE, SWAPPED, UNTIED, LOOSE = DAMAGES = ("stale", "swapped", "untied", "loose")


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        name: of its output.
        counts: layers of each stage; of the whole model for the reference.
        replicas: pipelines; the reference takes the micro-batches of so many.
        accumulate: micro-batches of a replica in a step.
        overflow: number of the step of which one micro-batch has a gradient that is not finite; 0 for none.
        shared: whether the replicas of a case of one stage are as many data-parallel ranks.
        nudged: whether the run begins with one weight that is changed in its last bit.
        start: name of the checkpoint that it goes on from. saves: whether it leaves one under its own name.
        tight: whether the checkpoint is written without a copy of the state, for want of memory.
        tied: whether the word embedding is the decoder's weight.
        damage: of DAMAGES: an activation that belongs to another micro-batch, the second and the third of
            four stages in each other's place, the gradient of the word embedding not exchanged, its value
            not the same on both stages.
    """

    name: str
    counts: tuple[int, ...]
    replicas: int = 1
    accumulate: int = 4
    schedule: str = "1f1b"
    placement: str = "intra_first"
    operators: str = "fused"
    dtype: str = "float32"
    dropout: float = 0.1
    steps: int = 4
    overflow: int = 0
    shared: bool = False
    nudged: bool = False
    start: str = ""
    saves: bool = False
    tight: bool = False
    tied: bool = True
    damage: str = ""

    @property
    def stages(self) -> int:
        return len(self.counts)

    @property
    def model(self) -> BertConfig:
        return replace(named_config(f"bert_{sum(self.counts)}_32_4"), tied=self.tied)


def batch(case: Case, step: int, number: int) -> Batch:
    """Micro-batch `number` of a step, over all replicas. They differ in their shapes."""
    rows, length = ROWS + number % 2, LENGTH - 4 * (step % 2)
    made = random_batch(np.random.default_rng([step, number]), rows, length, PREDICTIONS, 1)
    if step == case.overflow and number == min(1, case.replicas * case.accumulate - 1):
        weights = made.masked_weights.copy()
        weights[0, 0] = np.inf
        made = made._replace(masked_weights=weights)
    return made


class Stale(PipelineStep):
    """A stage that takes the activations of the micro-batch of the same shape before."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._before: dict[Any, mx.nd.NDArray] = {}

    def _forward(self, step: int, number: int, batch: Any, inputs: Any, factors: Any) -> Any:
        if inputs is not None:
            fresh = inputs.copy()
            self._before.get(inputs.shape, fresh).copyto(inputs)
            self._before[inputs.shape] = fresh
        return super()._forward(step, number, batch, inputs, factors)


class Untied(PipelineStep):
    """Stages that keep their own part of the word embedding's gradient."""

    def _average(self, gradients: Any) -> float:
        return self._ranks.group.scaled_average(gradients)


KINDS = {STALE: Stale, UNTIED: Untied}


class Runner:
    """The runs of one rank."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.world = HorovodCommunicator(divisible=True)

    def run(self, case: Case) -> None:
        """Takes a case to its end and writes what it came to."""
        if case.stages == 1:
            if self.world.rank == 0 or case.shared:
                self.alone(case)
            self.world.barrier()
            return
        ranks = self.placed(case)
        part, place = ranks.part, ranks.coordinates
        choose_operators(case.operators, case.dtype, mx.cpu())
        bert = build_part(part, VOCAB_SIZE, case.dropout)
        allocate(bert, part, mx.cpu(), "float32")
        network = TASK.stage(bert, part, case.dtype, case.dropout, case.operators)
        begun, optimizer = self.begin(case, network, ranks)
        if case.damage == LOOSE and place.last:
            trained(network)["word_embed.0.weight"].data()[3, 1] += 1e-6
        kind = KINDS.get(case.damage, PipelineStep)
        settings = settings_of(case.accumulate, place.data_rank, place.data_size)
        take = kind(TASK, network, optimizer, DynamicScaler(16.0), ranks, settings)
        own = range(place.data_rank, case.accumulate * place.data_size, place.data_size)
        report = {**self.steps(case, take, own, begun, list(trained(network))), "place": asdict(place)}
        if case.saves:
            report["error"] = self.save(case, network, optimizer, ranks, begun + case.steps)
        self.write(case, report, live_arrays(network_parameters(network)))

    def alone(self, case: Case) -> None:
        """The reference, in this process alone; or, of a shared case, a rank's part of it."""
        config = case.model
        choose_operators(case.operators, case.dtype, mx.cpu())
        bert = build_model(config, VOCAB_SIZE, case.dropout)
        initialize(bert, mx.cpu(), "float32", SEED, STDEV)
        network = TASK.network(bert, config, case.dtype, case.dropout, case.operators)
        local = LocalCommunicator()
        begun, optimizer = self.begin(case, network, place_ranks(PipelineConfig(), local))
        if case.nudged:
            nudge(network)
        count, rank, size = case.replicas * case.accumulate, 0, 1
        if case.shared:
            assert self.world.size == case.replicas
            rank, size = self.world.rank, self.world.size
        sharing, settings = self.world if case.shared else local, settings_of(count // size, rank, size)
        take = TrainStep(TASK, network, optimizer, DynamicScaler(16.0), sharing, settings)
        report = self.steps(case, take, range(rank, count, size), begun, list(trained(network)))
        parameters = live_arrays(network_parameters(network))
        if case.saves:
            save(self.folder(case.name), begun + case.steps, parameters, optimizer.state_views(), {})
        self.write(case, report, parameters)

    def steps(self, case: Case, take: Any, own: Any, begun: int, names: Sequence[str]) -> dict[str, Any]:
        """Takes the steps. `names`: of the parameters, in the order of the gradients, whose bits in the first
        step are reported."""
        seen: dict[str, Any] = {"sums": [], "norm": [], "loss": [], "applied": [], "gradients": {}}
        for step in range(begun + 1, begun + case.steps + 1):
            result = take(step, [batch(case, step, number) for number in own], LR)
            seen["sums"].append([float(each) for each in result.sums.asnumpy()])
            seen["norm"].append(result.grad_norm)
            seen["loss"].append(result.loss)
            seen["applied"].append(result.applied)
            if step == begun + 1:
                bits = [
                    hashlib.sha256((each.asnumpy() / np.float32(take.factor)).tobytes()).hexdigest()
                    for each in take.gradients
                ]
                seen["gradients"] = dict(zip(names, bits))
        return seen

    def placed(self, case: Case) -> Ranks:
        """All ranks and their coordinates, as if there were two hosts where the ranks divide."""
        size = self.world.size
        hosts = [size // 2] * 2 if size % 2 == 0 else [size]
        replicas = replica_groups(hosts, case.stages, case.placement)
        place = coordinates_of(self.world.rank, hosts, case.stages, case.placement)
        assert place.data_size == case.replicas
        config = PipelineConfig(case.stages, case.placement, case.schedule)
        group = self.world.groups(list(zip(*replicas)))
        ranks = Ranks(config, place, replicas, self.world, group)
        ranks = ranks.divided(case.model, make_split(case.counts))
        if case.damage == SWAPPED:
            first, second, third, *others = ranks.parts
            ranks = replace(ranks, parts=(first, third, second, *others))
        return ranks

    def begin(self, case: Case, network: Any, ranks: Ranks) -> tuple[int, Optimizer]:
        """Steps taken before, and a new optimizer; it and the network begin afresh, or with another case's
        checkpoint, which rank 0 alone reads."""
        start = Start()
        if case.start:
            folder = self.folder(case.start)
            (step,) = [int(path.stem) for path in Path(folder).glob("*.params")]
            own = load_step(folder, step) if self.world.rank == 0 else None
            start = Start(step=step, facts={"step": step, "options": {}}, checkpoint=own)
        restore_parameters(start, network, ranks, ModelConfig(case.model, initial_stdev=STDEV), SEED)
        parameters = trained(network)
        arrays = [each.data() for each in parameters.values()]
        optimizer = Optimizer("lamb", list(parameters), arrays, native=case.operators == "fused")
        restore_states(start, network, optimizer, ranks)
        return start.step, optimizer

    def save(self, case: Case, network: Any, optimizer: Optimizer, ranks: Ranks, step: int) -> str:
        """The checkpoint, as a run saves it; the message of an error."""
        available = (lambda: 0.0) if case.tight else (lambda: 1e12)
        saver = Saver(self.folder(case.name), Kept(), Reporter(), available)
        try:
            check_tied(network, ranks)
        except Exception as error:
            return str(error)
        parameters, states, messages = gather(network, optimizer, ranks)
        saver.lend(messages)
        if self.world.rank == 0:
            saver.begin(step, parameters, states, {})
        assert saver.sound()
        for array in live_arrays(network_parameters(network)).values():
            array *= 1  # an update may begin now
        assert saver.finish()
        self.world.barrier()
        return ""

    def folder(self, name: str) -> str:
        return str(self.directory / f"checkpoint-{name}")

    def write(self, case: Case, report: dict[str, Any], parameters: dict[str, Any]) -> None:
        arrays = {name: array.asnumpy() for name, array in parameters.items()}
        path = self.directory / f"{case.name}-{self.world.rank}.npz"
        np.savez(path, report=np.array(json.dumps(report)), **arrays)


def settings_of(accumulate: int, rank: int, ranks: int) -> StepSettings:
    """Of one of `ranks` that share the micro-batches."""
    return StepSettings(
        accumulate, CLIP_NORM, lambda step, number: dropout_seed(SEED, step, rank + ranks * number)
    )


def nudge(network: Any) -> None:
    """Changes one number of the first layer in its last bit."""
    weight = next(each for name, each in trained(network).items() if name.endswith("ffn.ffn_1.weight"))
    array = weight.data().asnumpy()
    array[0, 0] = np.nextafter(array[0, 0], np.float32(np.inf))
    weight.set_data(mx.nd.array(array))


def main() -> None:
    directory, cases = sys.argv[1:]
    runner = Runner(Path(directory))
    for each in json.loads(cases):
        runner.run(Case(**{**each, "counts": tuple(each["counts"])}))
    runner.world.close()


if __name__ == "__main__":
    main()
