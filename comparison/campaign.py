"""A campaign of launches that a second call continues: its directory, its progress, the time that is left.

The comparison of training runs and that of communication alone are such campaigns. In the directory are

plan.json    what is compared: another call must agree with it
lock         held while a campaign runs

beside what each of the two keeps of its launches.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import platform
import random
import statistics
import sys
from importlib import metadata
from pathlib import Path
from typing import IO, Any, Callable, Hashable, Mapping, NamedTuple, Sequence, TypeVar

from base import machine
from base.errors import InputError
from base.files import replacing
from base.json_files import read_json_file, read_json_object
from base.progress import Printed
from base.quantities import duration
from comparison.backends import ROOT, Cluster

PLAN, LOCK = "plan.json", "lock"
LAUNCHES = "launches"  # of training runs, see comparison.runs.launches
REPEATS = "repeats"  # in the plan: the one value that may change, upwards
PACKAGES = ("mxnet", "gluonnlp", "horovod", "byteps", "numpy", "onednn-cpu-gomp")
# Of the environment, what changes how training runs.
_VARIABLES = (
    *("OMP_", "GOMP_", "KMP_", "MXNET_", "DNNL_", "ONEDNN_", "BERT_"),
    *("HOROVOD_", "BYTEPS_", "PS_", "OMPI_MCA_", "NCCL_"),
)
_PLACES = ("_directory", "_tmpdir_base")  # of Open MPI's own files
_REPORTS = ("report.md", "report.json", LAUNCHES)

R = TypeVar("R")
W = TypeVar("W", bound=Hashable)  # a launch to be made


class Store:
    """Directory of a campaign; in the block nobody else can use it.

    Args:
        directory: is made if need be.

    Raises:
        InputError: it cannot be written, another comparison is using it, or it holds something else.
    """

    def __init__(self, directory: str):
        self.directory = Path(directory).resolve()
        self._given = directory
        self._lock: IO[bytes] | None = None

    def __enter__(self) -> Store:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            foreign = [name for name in _REPORTS if (self.directory / name).exists()]
            if foreign and not (self.directory / PLAN).exists():
                raise InputError(
                    f"--output {self._given}: holds a {foreign[0]} that is not of a comparison;"
                    " choose another directory"
                )
            self._lock = open(self.directory / LOCK, "wb")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise InputError(f"--output {self._given}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise InputError(
                f"--output {self._given}: another comparison is using it; wait for it, or choose another"
                " directory"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        assert self._lock is not None
        self._lock.close()

    def agree_on(self, plan: Mapping[str, Any], repeats: int) -> None:
        """Notes what is compared, or checks that it is what was begun here.

        Args:
            plan: name -> JSON value; all that changes results.
            repeats: may be more than in an earlier call.

        Raises:
            InputError: names what differs.
        """
        path = self.directory / PLAN
        plan = json.loads(json.dumps(plan))
        try:
            earlier = read_json_object(str(path)) if os.path.lexists(path) else None
            before = 0 if earlier is None else int(earlier.pop(REPEATS))
        except (InputError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} cannot be read ({error}); choose another --output, or remove the directory"
            ) from error
        if earlier is not None:
            differing = _differences(earlier, plan)
            if repeats < before:
                differing.append(f"--repeats {repeats} instead of {before}")
            if differing:
                raise InputError(
                    f"--output {self._given} holds a comparison with other values: {'; '.join(differing)}."
                    " Choose another --output to start a new one"
                )
        self.save(PLAN, {**plan, REPEATS: repeats})

    def save(self, name: str, values: Mapping[str, Any]) -> None:
        """Writes a JSON file, whole or not at all. `name`: its path in the directory."""
        with replacing(str(self.directory / name)) as file:
            file.write((json.dumps(values, indent=1, allow_nan=False) + "\n").encode("utf-8"))

    def load(self, name: str, read: Callable[[Any], R]) -> R | None:
        """`read` of the values of a JSON file; None where there is no such file.

        Raises:
            InputError: the file is damaged: no JSON, or `read` has raised KeyError, TypeError or ValueError.
        """
        path = self.directory / name
        try:
            return read(read_json_file(str(path))) if os.path.lexists(path) else None
        except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} is damaged ({error}); remove it to have the launch repeated") from error


def what_counts(facts: Mapping[str, Any], axes: Mapping[str, Any], cluster: Cluster | None) -> dict[str, Any]:
    """The part of a plan that is not about training: axes, hosts, this machine, versions, the environment."""
    here = machine.describe(ROOT)
    return {
        **axes,
        **facts,
        "hosts": [list(line) for line in cluster.lines] if cluster else None,
        "machine": {name: here[name] for name in ("cpu", "cores")},
        "versions": versions(),
        "environment": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_VARIABLES) and not name.endswith(_PLACES)
        },
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a run consists of, as far as they are installed."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return installed


def _differences(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """In words, one for each name."""
    words = []
    for name in sorted({*earlier, *now}):
        before, after = earlier.get(name), now.get(name)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            words += [f"{name}: {each}" for each in _differences(before, after)]
        else:
            words.append(f"{name} {_short(after)} instead of {_short(before)}")
    return words


def _short(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(each, (str, int)) for each in value):
        return " ".join(map(str, value))
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def begin_progress(total: int, done: int) -> Printed:
    """Bar on a terminal, lines in a log. `total`: launches in all; `done`: those that earlier calls made."""
    progress = Printed(lines=sys.stdout)
    progress.begin("", total, "launch", done)
    return progress


def left_in_words(seconds: float) -> str:
    """Time that the launches to come will take, in words."""
    return f"about {duration(seconds)} left" if seconds else "none left"


def seconds_left(
    todo: Sequence[W], made: Mapping[W, float], kinds: Sequence[Callable[[W], Hashable]]
) -> float:
    """Estimate for the launches to come: each is taken to last as long as its like did, or else as all.

    Args:
        made: launch -> seconds.
        kinds: launches of which one of these has the same value are alike; the first kind that any made
            launch shares counts.
    """
    total = 0.0
    for launch in todo:
        for kind in (*kinds, _any):
            seconds = [taken for other, taken in made.items() if kind(other) == kind(launch)]
            if seconds:
                total += statistics.median(seconds)
                break
    return total


def _any(launch: Hashable) -> None:
    return None


class Setting(NamedTuple):
    """One cell of the comparison.

    `backend`: a key of BACKENDS in `comparison.backends`. `workers`: ranks, as many as GPUs on GPU
    machines. `batch_size`: --batch_size of the training scripts, in sequences, or in tokens with
    --use_avg_len.
    """

    backend: str
    workers: int
    dtype: str
    batch_size: int

    @property
    def group(self) -> Group:
        return Group(self.workers, self.dtype, self.batch_size)

    @property
    def name(self) -> str:
        """For directories and messages."""
        return f"{self.backend}-{self.workers}x-{self.dtype}-{self.batch_size}"


class Group(NamedTuple):
    """The settings that compute the same thing: they differ in the backend only."""

    workers: int
    dtype: str
    batch_size: int


def all_settings(
    backends: Sequence[str], workers: Sequence[int], dtypes: Sequence[str], batch_sizes: Sequence[int]
) -> list[Setting]:
    """Every combination, the backends of a group one after the other."""
    groups = itertools.product(workers, dtypes, batch_sizes)
    return [Setting(backend, *group) for group in groups for backend in backends]


def order_of_repeat(settings: Sequence[Setting], repeat: int, seed: int) -> list[Setting]:
    """All settings once, in an order drawn for this repeat.

    The backends of a group stay next to each other, so that a slow minute of the machine meets all of them;
    groups, and backends within each, change their places from repeat to repeat, so that none always follows
    the same one.
    """
    generator = random.Random(f"{seed}-{repeat}")
    groups: dict[Group, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(setting.group, []).append(setting)
    chosen = list(groups.values())
    generator.shuffle(chosen)
    return [setting for group in chosen for setting in generator.sample(group, len(group))]
