"""Steps of many sizes for bench/scaling.py, one of which varies: their operations and their arrays."""

from __future__ import annotations

import glob
import os
from dataclasses import asdict, dataclass, replace
from typing import Any, Mapping, NamedTuple, Sequence

from bert.configuration import BertConfig
from bert.flops import BACKWARD, forward_flops, size_of
from bert.memory import FLOAT32, parameter_count
from lamb_paper import default_max_predictions

CACHES = "/sys/devices/system/cpu/cpu*/cache/index*"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Point:
    """One step: a model, a batch without padding, a dtype."""

    layers: int
    units: int
    heads: int
    vocabulary: int
    length: int
    batch: int
    dtype: str

    @property
    def config(self) -> BertConfig:
        """The model, without its vocabulary."""
        return BertConfig(self.layers, self.units, self.heads, 4 * self.units)

    @property
    def masked(self) -> int:
        """Masked positions of a sequence, as the recipe has them."""
        return default_max_predictions(self.length)

    @property
    def parameters(self) -> int:
        """Trained numbers."""
        return parameter_count(self.config, self.vocabulary)

    @property
    def flops(self) -> int:
        """Operations in the products of a step, forward and backward (bert/flops.py)."""
        size = size_of(self.config, self.vocabulary)
        return (1 + BACKWARD) * forward_flops(size, self.batch, self.length, self.masked).total

    @property
    def arrays(self) -> dict[str, int]:
        """Bytes, in float32, of what a step goes through again soon enough to meet it in a cache."""
        tokens, units = self.batch * self.length, self.units
        return {
            "scores of a head": FLOAT32 * self.length**2,
            "activations (tokens x units)": FLOAT32 * tokens * units,
            "feed-forward activations": FLOAT32 * tokens * 4 * units,
            "scores of the vocabulary": FLOAT32 * self.batch * self.masked * self.vocabulary,
            "weights": FLOAT32 * self.parameters,
            "weights, gradients and moments": 4 * FLOAT32 * self.parameters,
        }

    @property
    def words(self) -> list[str]:
        """Command-line words of a worker, for `read`."""
        return [f"{name}={value}" for name, value in asdict(self).items()]

    @classmethod
    def read(cls, words: Sequence[str]) -> Point:
        given = dict(word.split("=") for word in words)
        fields: dict[str, Any] = {name: int(value) for name, value in given.items() if name != "dtype"}
        return cls(**fields, dtype=given["dtype"])


class Axis(NamedTuple):
    """A field of `Point` that is varied, and its values, rising."""

    field: str
    values: tuple[int, ...]

    def points(self, base: Point) -> list[Point]:
        """`base` with each of the values."""
        changes: list[dict[str, Any]] = [{self.field: value} for value in self.values]
        return [replace(base, **each) for each in changes]


AXES = (
    Axis("length", (64, 128, 256, 512)),
    Axis("batch", (1, 2, 4, 8, 16, 32, 64)),
    Axis("layers", (1, 2, 4, 8, 16)),
    Axis("vocabulary", (1024, 4096, 8192, 30522, 119547)),
)
QUICK_AXES = (Axis("length", (64, 128)), Axis("vocabulary", (1024, 30522)))


def cache_bytes(pattern: str = CACHES) -> dict[str, int]:
    """Bytes of this machine's caches for data by level, "L1" first: all of a level together, since all cores
    share a step. Empty where the system does not say."""
    found: dict[tuple[int, str], int] = {}
    for folder in sorted(glob.glob(pattern)):
        level, kind, size, shared = (
            _line(folder, name) for name in ("level", "type", "size", "shared_cpu_list")
        )
        if kind in ("Data", "Unified") and size[-1:] in _UNITS and level.isdigit():
            found[int(level), shared] = int(size[:-1]) * _UNITS[size[-1]]
    levels = sorted({level for level, _ in found})
    return {f"L{level}": sum(size for (own, _), size in found.items() if own == level) for level in levels}


def _line(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def left_caches(smaller: Point, larger: Point, caches: Mapping[str, int]) -> list[str]:
    """The arrays that a cache holds in the smaller step, and not in the larger one: "LEVEL: ARRAY"."""
    before, after = smaller.arrays, larger.arrays
    return [
        f"{level}: {name}"
        for level, size in caches.items()
        for name in before
        if before[name] <= size < after[name]
    ]
