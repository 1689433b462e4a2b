"""Elasticity under hosts/launch.py: a host of a run is lost and left out, the run goes on with fewer ranks or
a spare host, takes the lost one back, and computes what the undisturbed run does.

Hosts are network namespaces of this machine (tests/namespaces.py).
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Iterator, Mapping

from tests.faults.change_ranks import options, undisturbed, wrong
from tests.faults.fail_and_restart import started
from tests.faults.figure import Damage, Parts, Program, Setting, Tally, named
from tests.faults.jobs import (
    LOST_STATES,
    OWN_COUNTS,
    Job,
    json_lines,
    last_step,
    wait_for_checkpoint,
    wait_for_step,
)
from tests.faults.taken import patch, steps_in
from tests.namespaces import ADDRESSES, SPARE_ADDRESS, two_hosts
from tests.processes import until

ALPHA, BETA = ADDRESSES


@dataclass(frozen=True)
class Kind:
    """Hosts of a run that loses its second one. `hosts`: the host file; with BytePS a line is a worker of
    `local` ranks. `ranks`: as they follow each other. `after`: hosts of the start that follows the loss."""

    hosts: Mapping[str, int]
    spare: int
    local: int
    ranks: tuple[int, ...]
    after: tuple[str, ...]

    def hostfile(self, backend: str) -> str:
        """The text of the host file."""
        lines = []
        for name, slots in self.hosts.items():
            own = [slots] if backend == "hvd_mpi" else [self.local] * (slots // self.local)
            lines += [f"{name} slots={each}" for each in own]
        if self.spare:
            lines.append(f"# spare: {SPARE_ADDRESS} slots={self.spare}")
        return "".join(f"{line}\n" for line in lines)


KINDS = {
    "pair": Kind({ALPHA: 1, BETA: 1}, 0, 1, (2, 1, 2), (ALPHA,)),
    "fewer": Kind({ALPHA: 2, BETA: 2}, 0, 2, (4, 2, 4), (ALPHA,)),
    "remainder": Kind({ALPHA: 3, BETA: 1}, 0, 1, (4, 3, 4), (ALPHA,)),
    "spare": Kind({ALPHA: 2, BETA: 2}, 2, 2, (4,), (ALPHA, SPARE_ADDRESS)),
}


def cases(setting: Setting) -> Iterator[str]:
    """Endless: the kinds in turn, with another step at which the host is lost."""
    draw = random.Random(setting.seed)
    while True:
        for kind in KINDS:
            yield named(kind=kind, step=draw.randrange(5, 16), away=draw.randrange(3, 9))


def attempt(setting: Setting, parts: Parts) -> Tally:
    """A host is lost after `step` steps, and answers again `away` steps after those that the others have gone
    on with."""
    kind = KINDS[parts["kind"]]
    expected = undisturbed(setting, micro_batches=kind.ranks[0])
    folder = setting.folder("case")
    directory = folder / "run"
    (directory / "taken").mkdir(parents=True)
    with two_hosts(folder, spare=bool(kind.spare)) as hosts:
        hosts.hostfile.write_text(kind.hostfile(setting.backend), encoding="ascii")
        job = Job(setting, 1, patch(directory / "taken"))
        more = ["--min_hosts", "1", "--rejoin_interval", "0.1"]
        with started(job, directory, hosts, more, comm_timeout=60, **options(setting)) as run:
            wait_for_step(run, directory, int(parts["step"]))
            wait_for_checkpoint(run, directory)
            hosts.lose(1)
            until(lambda: f"{BETA} is left out: it does not answer" in run.stderr(), run)
            wait_for_step(run, directory, last_step(directory) + int(parts["away"]))
            hosts.give_back(1)
            run.wait().check()
    found = [*itertools.islice(wrong(directory, expected), 3), *unlike_kind(directory, kind)]
    return Tally.of("; ".join(found))


def unlike_kind(directory: Path, kind: Kind) -> Iterator[str]:
    """Differences between a run and its kind: numbers of ranks, and the restarts noted."""
    steps, _ = steps_in(directory / "taken")
    ranks = tuple(size for size, _ in itertools.groupby(step.ranks for step in steps.values()))
    if ranks != kind.ranks:
        yield f"ranks were {ranks}, not {kind.ranks}"
    names = ("reason", "host", "hosts", "left_out")
    restarts = [tuple(map(each.get, names)) for each in json_lines(directory / "restarts.jsonl")]
    expected: list[tuple[Any, ...]] = [("failure", BETA, list(kind.after), [BETA])]
    if len(kind.ranks) > 1:
        expected.append(("rejoin", None, list(kind.hosts), []))
    if restarts != expected:
        yield f"restarts.jsonl has {restarts}, not {expected}"


CASE = named(kind="remainder", step=6, away=3)
PROGRAM = Program(
    "hosts",
    "a host is lost; fewer ranks or a spare host go on; it is taken back: samples, masks, losses",
    "the undisturbed run's within rounding",
    weight=1.5,
    seconds=60,
    backends=("hvd_mpi", "byteps"),
    cases=cases,
    attempt=attempt,
    damages={
        "the optimizer's states begin anew": Damage(CASE, "differ", LOST_STATES),
        "a rank divides its losses by what it has itself": Damage(CASE, "differ", OWN_COUNTS),
    },
    note="mpirun and BytePS only, which hosts/launch.py starts; hosts are network namespaces of one machine",
)
