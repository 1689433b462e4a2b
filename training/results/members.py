"""Members: runs that differ in their seed or in a few options, one after the other in one launch.

--seeds and --search name them. Each has a folder of its own below the one of the whole, with a results.json,
and members.json there lists all. What has ended is not run again; an interrupted member is resumed by the run
itself. MXNet is not imported before the first member runs.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Callable, Mapping, NamedTuple, Sequence

from base.command_line import shown
from base.errors import InputError, NotFiniteError
from base.files import replacing
from base.json_files import read_json_object
from base.options import option
from training.results.record import FINISHED, NO_MEMORY, NOT_FINITE, has_result, read_result

if TYPE_CHECKING:
    from comm.base import Communicator
    from training.stopping import StopRequest

MEMBERS_FILE = "members.json"
FORMAT = 1
SEED = "seed"
SEARCHED = ("lr", "epochs", "batch_size", "accumulate", "warmup_ratio", "dropout")  # what --search may vary
# To run these again would end the same way; after its folder is removed, a member runs again.
ENDED = (FINISHED, NOT_FINITE, NO_MEMORY)
MOST = 1000  # members: more are a slip of the pen


class Member(NamedTuple):
    """One run: the name of its folder, its seed, and the options of --search that it has, as text."""

    name: str
    seed: int
    setting: Mapping[str, str]

    @property
    def words(self) -> list[str]:
        """Options to be read after those of the command line."""
        pairs = {**self.setting, SEED: str(self.seed)}
        return [word for name, value in pairs.items() for word in (f"--{name}", value)]


@dataclass(frozen=True)
class Plan:
    """All members, in order. `options`: those that all of them have in common, by name, as JSON has them."""

    members: Sequence[Member]
    options: Mapping[str, Any] = field(default_factory=dict)


def seeds_of(text: str) -> int | tuple[int, ...]:
    """Reads --seeds: how many, or which ones."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= 10 for part in parts) or (
        len(parts) == 1 and int(parts[0]) < 1
    ):
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is neither a number of seeds above zero nor seeds with commas between them"
        )
    if len(parts) == 1:
        return int(parts[0])
    seeds = tuple(map(int, parts))
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"{shown(text)} has a seed twice")
    return seeds


def axis_of(text: str) -> tuple[str, tuple[str, ...]]:
    """Reads one NAME=A,B of --search. The values stay text: the option itself reads them."""
    name, equals, values = text.partition("=")
    name = name.lstrip("-")
    if not equals or name not in SEARCHED:
        raise argparse.ArgumentTypeError(
            f"{shown(text)} is not NAME=A,B with one of {', '.join(SEARCHED)} for a name"
        )
    parts = [part.strip() for part in values.split(",")]
    # A value becomes the name of a folder.
    if not all(part and all(mark.isalnum() or mark in ".+-" for mark in part) for part in parts):
        raise argparse.ArgumentTypeError(f"{shown(text)} has a value that is no number")
    if len(set(parts)) < len(parts):
        raise argparse.ArgumentTypeError(f"{shown(text)} has a value twice")
    return name, tuple(parts)


RunMember = Callable[[Member, str, "StopRequest"], int]


@dataclass(frozen=True)
class MembersConfig:
    """Options that make several runs of one."""

    seeds: int | tuple[int, ...] | None = option(
        "run N times, with the seeds --seed, --seed + 1, ..., or once with each of the seeds A,B,..., and "
        "report mean and standard deviation. Rule of thumb: 5; with fewer, no two models are called "
        "different",
        seeds_of,
        "N|A,B,...",
    )
    search: Sequence[tuple[str, tuple[str, ...]]] | None = option(
        "run each combination of these values, and report the best by the score on the dev split; NAME is "
        f"{', '.join(SEARCHED)}. Rule of thumb: lr=2e-5,3e-5,5e-5 epochs=2,3,4; with less than 10,000 "
        "examples also --seeds 5",
        axis_of,
        "NAME=A,B",
        nargs="+",
    )


def members_of(
    seeds: int | Sequence[int] | None, search: Sequence[tuple[str, Sequence[str]]] | None, seed: int | None
) -> list[Member]:
    """The members that --seeds, --search and --seed (0, where left out) name; every combination, and of each
    all seeds before the next; empty without the first two.

    Raises:
        InputError: a name of --search twice, too many members, --seed beside a list of seeds.
    """
    if seeds is None and search is None:
        return []
    axes = list(search or ())
    names = [name for name, _ in axes]
    if len(set(names)) < len(names):
        raise InputError(f"--search has {max(names, key=names.count)} twice; give all of its values in one")
    if seeds is not None and not isinstance(seeds, int) and seed is not None:
        raise InputError(f"--seed {seed} beside --seeds {','.join(map(str, seeds))}; leave one out")
    first = seed or 0
    numbers = range(first, first + seeds) if isinstance(seeds, int) else (seeds or (first,))
    grid = [dict(zip(names, values)) for values in itertools.product(*(values for _, values in axes))]
    if len(grid) * len(numbers) > MOST:
        raise InputError(
            f"--seeds and --search make {len(grid) * len(numbers):,} runs; {MOST:,} are the most"
        )
    members = []
    for setting, number in itertools.product(grid, numbers):
        parts = [f"{name}_{value}" for name, value in setting.items()]  # of the folder's name
        if len(numbers) > 1 or not parts:
            parts.append(f"{SEED}_{number}")
        members.append(Member("-".join(parts), number, setting))
    return members


def check_plan(folder: str, plan: Plan, resume: bool) -> None:
    """Compares the members with those that the folder may have; rank 0 calls it, before work begins.

    Raises:
        InputError: there are some without --resume, or with --resume others, or of other options; or
            the folder holds a run without members.
    """
    if has_result(folder):
        raise InputError(
            f"{folder} holds a run without --seeds and --search; name another folder, or remove that"
        )
    if not os.path.exists(os.path.join(folder, MEMBERS_FILE)):
        return
    there = read_plan(folder)
    if not resume:
        raise InputError(
            f"{folder} holds {len(there.members)} runs of --seeds or --search already; --resume goes on with "
            "them, or name another folder"
        )
    names = {*there.options, *plan.options}
    options = json.loads(json.dumps(dict(plan.options)))
    other = sorted(name for name in names if there.options.get(name) != options.get(name))
    if other:
        name = other[0]
        raise InputError(
            f"--{name} {options.get(name)}: the runs in {folder} have {there.options.get(name)}; runs of one "
            "table differ in nothing but --seeds and --search; name another folder"
        )
    if {each.name: each for each in there.members} != {each.name: each for each in plan.members}:
        raise InputError(
            f"--resume: the runs in {folder} are {_names(there)}, and not {_names(plan)}; give the same "
            "--seeds and --search (their number has to be fixed beforehand: whoever adds runs until a "
            "difference shows will find one), or name another folder"
        )


def _names(plan: Plan) -> str:
    names = [each.name for each in plan.members]
    return ", ".join(names if len(names) < 5 else [*names[:3], "...", names[-1]])


def write_plan(folder: str, plan: Plan) -> None:
    """Writes `folder`/members.json whole or not at all; one rank does it."""
    content = {
        "format": FORMAT,
        "options": dict(plan.options),
        "members": [{**each._asdict(), "setting": dict(each.setting)} for each in plan.members],
    }
    with replacing(os.path.join(folder, MEMBERS_FILE)) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")


def has_plan(folder: str) -> bool:
    """Whether the folder is one of members."""
    return os.path.isfile(os.path.join(folder, MEMBERS_FILE))


def read_plan(folder: str) -> Plan:
    """The members of a folder.

    Raises:
        InputError: members.json is missing, damaged or of another version.
    """
    path = os.path.join(folder, MEMBERS_FILE)
    try:
        content = read_json_object(path)
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r}")
        members = [Member(str(e["name"]), int(e["seed"]), dict(e["setting"])) for e in content["members"]]
        names = [each.name for each in members]
        if len(set(names)) < len(names) or any(
            os.path.basename(name) != name or name in ("", ".", "..") or "\0" in name for name in names
        ):
            raise ValueError("names of folders")
        alike = {tuple(each.setting) for each in members}  # one row of a table is one setting
        if len(alike) != 1 or not all(isinstance(text, str) for e in members for text in e.setting.values()):
            raise ValueError("settings")
        return Plan(members, dict(content["options"]))
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}); remove it with its folder, and run again") from error


def run_members(
    plan: Plan, folder: str, run: RunMember, communicator: Communicator, note: Callable[[str], None]
) -> int:
    """Runs the members that have not ended, in order; every rank calls it, with the same plan.

    Rank 0 alone reads and writes. A member whose gradients stay non-finite has ended, and the next one
    follows: all ranks know it at the same step. Where memory runs out nothing is known of the other ranks;
    the launch ends, and a resumed one passes over that member.

    Args:
        folder: of the whole; created where it is missing.
        run: opens, trains, evaluates and closes a member on every rank, in its folder, which exists; it
            leaves a results.json there, goes on with what it finds, and takes the signals as `train_stages`
            does. It returns the exit code: 0, or that of a signal. What it raises ends the whole, but for
            NotFiniteError.
        note: receiver of sentences for people, which does nothing on other ranks than 0.

    Returns:
        0, or the exit code of the member that a signal has stopped.
    """
    from training.exchange import broadcast_json
    from training.stopping import StopRequest

    stop = StopRequest()
    stop.listen()
    ended: dict[str, str] = {}
    if communicator.rank == 0:
        os.makedirs(folder, exist_ok=True)
        write_plan(folder, plan)
        for member in plan.members:
            own = os.path.join(folder, member.name)
            os.makedirs(own, exist_ok=True)
            if has_result(own) and read_result(own).status in ENDED:
                ended[member.name] = read_result(own).status
    ended = broadcast_json(ended, communicator)
    remaining = [member for member in plan.members if member.name not in ended]
    if ended:
        bad = [f"{name}: {status}" for name, status in ended.items() if status != FINISHED]
        which = f" ({'; '.join(bad)})" if bad else ""
        note(f"{len(ended)} of {len(plan.members)} runs have ended before{which}")
    for index, member in enumerate(remaining):
        if index:
            if communicator.all_agree([stop.exit_code is None]) != [True]:
                note(f"stopped by a signal before {member.name}; --resume continues")
                return stop.exit_code or 143
            communicator.forget()
            gc.collect()  # a network is a circle of references
        note(f"run {list(plan.members).index(member) + 1} of {len(plan.members)}: {member.name}")
        try:
            code = run(member, os.path.join(folder, member.name), stop)
        except NotFiniteError as error:
            code = 0
            note(f"warning: {member.name}: {error}")
        if code:
            return code
    return 0
