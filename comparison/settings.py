"""Settings of a comparison, and the order in which a repeat launches them."""

from __future__ import annotations

import itertools
import random
from typing import Hashable, NamedTuple, Protocol, Sequence, TypeVar


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


class Grouped(Protocol):
    """A setting of any comparison: those of one group are compared with each other."""

    @property
    def group(self) -> Hashable: ...


S = TypeVar("S", bound=Grouped)


def order_of_repeat(settings: Sequence[S], repeat: int, seed: int) -> list[S]:
    """All settings once, in an order drawn for this repeat.

    The backends of a group stay next to each other, so that a slow minute of the machine meets all of them;
    groups, and backends within each, change their places from repeat to repeat, so that none always follows
    the same one.
    """
    generator = random.Random(f"{seed}-{repeat}")
    groups: dict[Hashable, list[S]] = {}
    for setting in settings:
        groups.setdefault(setting.group, []).append(setting)
    chosen = list(groups.values())
    generator.shuffle(chosen)
    return [setting for group in chosen for setting in generator.sample(group, len(group))]
