"""Agreement of the ranks on what they are about to do: options, model, vocabulary, data, code, versions.

Each rank describes itself as a mapping from names to short texts. Ranks that differ would train all the same,
each with its own learning rate or data, or would wait for each other in exchanges that do not match. Compared
is what results depend on, by content: a file may have another path on each host.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any, Mapping, Sequence

from base.errors import InputError
from base.files import sha256_of
from base.options import RANK
from comm.base import Communicator
from training.checkpoint import library_versions
from training.exchange import broadcast_json
from training.run_inputs import Part

ROOT = Path(__file__).resolve().parent.parent
# The project's source files that a run may execute.
CODE = ("*.py", *(f"{package}/**/*.py" for package in ("base", "bert", "comm", "data", "tasks", "training")))
DIGITS = 12  # of a digest in a message
SHOWN = 3  # differences in a message
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
    for path in sorted(path for pattern in CODE for path in ROOT.glob(pattern)):
        found[f"the code of {path.relative_to(ROOT)}"] = digest_of_file(str(path))
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
