"""Settings of a comparison, their launches, and the order in which a repeat makes them."""

from __future__ import annotations

import itertools
import random
from typing import Any, Hashable, Mapping, NamedTuple, Sequence


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


class Turn(NamedTuple):
    """A launch to be made of a setting of any comparison: with a name, and a group of those that are compared
    with each other. `kind`: of the launch, where there are several (comparison.runs.record)."""

    setting: Any
    repeat: int
    kind: str = ""

    @property
    def name(self) -> str:
        return f"{self.setting.name}-{self.repeat + 1}"


def turns_of(settings: Sequence[Any], counts: Mapping[str, int], seed: int) -> list[Turn]:
    """All launches, in an order drawn for every repeat. `counts`: launches of a setting, by their kind; the
    kinds take turns."""
    return [
        Turn(setting, repeat, kind)
        for repeat in range(max(counts.values()))
        for kind, count in counts.items()
        if repeat < count
        for setting in order_of_repeat(settings, repeat, seed)
    ]


def order_of_repeat(settings: Sequence[Any], repeat: int, seed: int) -> list[Any]:
    """All settings once, in an order drawn for this repeat.

    The backends of a group stay next to each other, so that a slow minute of the machine meets all of them;
    groups, and backends within each, change their places from repeat to repeat, so that none always follows
    the same one.
    """
    generator = random.Random(f"{seed}-{repeat}")
    groups: dict[Hashable, list[Any]] = {}
    for setting in settings:
        groups.setdefault(setting.group, []).append(setting)
    chosen = list(groups.values())
    generator.shuffle(chosen)
    return [setting for group in chosen for setting in generator.sample(group, len(group))]
