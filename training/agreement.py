"""Agreement of the ranks on what they are about to do: options, model, vocabulary, data, code, versions; and
later on what must be the same on all replicas: parameters and optimizer states.

Each rank describes itself as a mapping from names to short texts. Ranks that differ would train all the same,
each with its own learning rate or data, or would wait for each other in exchanges that do not match. Compared
is what results depend on, by content: a file may have another path on each host.

The ranks update their copies by the same gradients, so the copies have the same bits for ever, unless memory,
a processor or a program errs; then nothing but a comparison shows it, and rank 0's copy is the one that is
saved. Each array is summed as whole numbers of 64 bits, at the speed of memory, and what a rank sends is a
digest of these sums: one that differs in a single bit has another.
"""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from pathlib import Path
from typing import Any, Mapping, Sequence

import mxnet as mx
import numpy as np

from base.errors import InputError, TrainingError
from base.files import sha256_of
from base.options import RANK
from bert.model import each_once, live_arrays, network_parameters
from comm.base import Communicator
from comm.bits import memory_of
from training.checkpoint import library_versions
from training.exchange import broadcast_json, gathered
from training.optimizer.optimizer import Optimizer
from training.optimizer.shards import ShardedOptimizer
from training.pipeline.ranks import Ranks
from training.run_inputs import Part

ROOT = Path(__file__).resolve().parent.parent
# The project's source files that a run may execute.
CODE = ("*.py", *(f"{package}/**/*.py" for package in ("base", "bert", "comm", "data", "tasks", "training")))
DIGITS = 12  # of a digest in a message
SHOWN = 3  # differences, arrays, ranks in a message
ASKED = 16  # ranks that say how they differ; of more, those that differ are named


def describe(parts: Sequence[Part], size: int) -> dict[str, str]:
    """This rank's description of a run and its stages: options, then what they stand for, code and versions.

    What is read is looked at where there are more processes than one.
    """
    found: dict[str, str] = {}
    for config, inputs in parts:
        stage = f" of stage {config.start.stage}" if len(parts) > 1 else ""
        for name, value in config.options.items():
            option = config.table.get(name)
            if option is None or option.scope != RANK:
                # Of files and folders the content is compared, where it is read.
                path = option is not None and option.is_path
                found[f"--{name}{stage}"] = _text(value is not None if path else value)
        model = config.model
        found[f"the model{stage}"] = f"{model.bert.description}, dropout {model.rates}"
        found[f"the deviation of random weights{stage}"] = repr(model.initial_stdev)
        found[f"the number of embedded tokens{stage}"] = str(inputs.vocab_size)
        if size > 1:
            found.update({f"{name}{stage}": text for name, text in inputs.contents(config).items()})
    for source in sorted(source for pattern in CODE for source in ROOT.glob(pattern)):
        found[f"the code of {source.relative_to(ROOT)}"] = digest_of_file(str(source))
    return {**found, **{f"the version of {k}": v for k, v in library_versions().items()}}


def agree(description: Mapping[str, str], communicator: Communicator) -> None:
    """Compares the description of every rank with that of rank 0; every rank calls it.

    Raises:
        InputError: on every rank, with names, values, ranks and hosts, where one differs.
    """
    size, rank = communicator.size, communicator.rank
    if size == 1:
        return
    reference = broadcast_json(dict(description), communicator)
    names = [name for name in {**reference, **description} if reference.get(name) != description.get(name)]
    same = communicator.all_agree([each != rank or not names for each in range(size)])
    different = [each for each, flag in enumerate(same) if not flag]
    if not different:
        return
    mine = {"host": platform.node(), "values": {name: description.get(name) for name in names}}
    reports = {each: broadcast_json(mine, communicator, each) for each in (0, *different[:ASKED])}
    raise InputError(_sentence(reference, reports, different))


def _sentence(reference: Mapping[str, str], reports: Mapping[int, Any], different: Sequence[int]) -> str:
    """One line on what differs: for each name the value of rank 0, and the others' with their ranks."""
    hosts = {rank: report["host"] for rank, report in reports.items()}
    names = list(dict.fromkeys(name for report in reports.values() for name in report["values"]))
    parts = []
    for name in names[:SHOWN]:
        ranks_of: dict[str, list[int]] = {}
        for rank, report in reports.items():
            if name in report["values"]:
                ranks_of.setdefault(report["values"][name] or "not there", []).append(rank)
        others = " and ".join(f"{value} on {_ranks(ranks, hosts)}" for value, ranks in ranks_of.items())
        parts.append(f"{name} is {reference.get(name, 'not there')} on {_ranks([0], hosts)}, {others}")
    if len(names) > SHOWN:
        parts.append(f"and {len(names) - SHOWN} more")
    if len(different) > ASKED:
        parts.append(f"{len(different)} ranks differ from rank 0")
    return f"the ranks do not agree: {'; '.join(parts)}; start all of them with the same"


def _ranks(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    numbers = ", ".join(map(str, ranks))
    return f"rank{'s' if len(ranks) > 1 else ''} {numbers} ({', '.join({hosts[rank]: 0 for rank in ranks})})"


def _text(value: Any) -> str:
    if value is None:
        return "left out"
    if isinstance(value, bool):
        return "given" if value else "left out"
    return str(value)


def digest_of_file(path: str) -> str:
    """The SHA-256 of a file, shortened; "not there" for one that cannot be read."""
    try:
        return sha256_of(path)[:DIGITS]
    except OSError:
        return "not there"


BYTES = 4  # of a rank's digest


def check_replicas(step: int, network: Any, optimizer: Optimizer, ranks: Ranks) -> None:
    """Compares parameters and optimizer states of all ranks that hold the same ones, those of a stage of a
    pipeline; every rank calls it.

    Raises:
        TrainingError: on every rank, with ranks, hosts and arrays, where they differ.
    """
    world = ranks.world
    if len(ranks.replicas) == 1:
        return
    arrays = live_arrays(each_once(network_parameters(network)))
    if not isinstance(optimizer, ShardedOptimizer):  # else each state is on one rank
        arrays.update(optimizer.state_arrays())
    sums = {name: _sum(array) for name, array in arrays.items()}
    encoded = ",".join(map(str, sums.values())).encode()
    digests = gathered(int.from_bytes(hashlib.sha256(encoded).digest()[:BYTES], "little"), world)
    for holders in zip(*ranks.replicas):
        usual, odd = majority({rank: digests[rank] for rank in holders})
        if odd:
            said = _difference(sums, usual, odd, world)
            world.before_end(lambda has_first: "")  # nobody saves this where others are seen to leave first
            world.barrier()
            raise TrainingError(
                f"step {step}: {said}, and not saved; memory or a processor "
                "may be faulty: --resume from the checkpoint before, without that host"
            )


def majority(digests: Mapping[int, int]) -> tuple[list[int], list[int]]:
    """The ranks with the digest that more than half of them have, and the others. Where there is none such,
    the digest of the lowest rank counts."""
    most, number = Counter(digests.values()).most_common(1)[0]
    if 2 * number <= len(digests):
        most = digests[min(digests)]
    usual = sorted(rank for rank, digest in digests.items() if digest == most)
    return usual, sorted(set(digests) - set(usual))


def _difference(
    sums: Mapping[str, int], usual: Sequence[int], odd: Sequence[int], world: Communicator
) -> str:
    """A clause on ranks that differ, and in what. Every rank calls it."""
    expected = broadcast_json(sums, world, usual[0])
    own = {
        "host": platform.node(),
        "arrays": [name for name, found in sums.items() if expected.get(name) != found],
    }
    reports = {rank: broadcast_json(own, world, rank) for rank in (usual[0], *odd[:SHOWN])}
    names = list(dict.fromkeys(name for rank in odd[:SHOWN] for name in reports[rank]["arrays"]))
    which = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
    different = ", ".join(f"rank {rank} ({reports[rank]['host']})" for rank in odd[:SHOWN])
    different += f" and {len(odd) - SHOWN} more ranks" if len(odd) > SHOWN else ""
    if len(usual) > len(odd):
        others = f"the other {len(usual)} ranks'"
    else:
        others = f"rank {usual[0]}'s ({reports[usual[0]]['host']}); no majority says whose are right"
    return f"parameters or optimizer states ({which}) of {different} are not {others}"


def _sum(array: mx.nd.NDArray) -> int:
    """The sum of an array's memory in whole numbers, modulo 2^64, once it has been written."""
    on_cpu = array.context.device_type == "cpu"
    data = memory_of(array) if on_cpu else array.asnumpy().reshape(-1).view(np.uint8)
    whole = data.size // 8 * 8
    rest = int.from_bytes(data[whole:].tobytes(), "little")
    return (int(np.add.reduce(data[:whole].view(np.uint64))) + rest) % 2**64
