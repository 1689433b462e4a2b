"""What a report on messages says in sentences."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

from comparison.statistics import DIFFERENT, FEWEST_REPEATS, NOT_SHOWN, Pair

DEFINITIONS = """\
- A message is one array, or several (`200x64KB`) that are averaged in one call, as gradients are. 1 KB is
  1024 bytes, 1 MB/s is 10^6 bytes a second. Every backend averages through the same code as in training
  (`comm/`), with its settings: Horovod sends arrays one by one on CPUs, BytePS packs those below 1 MB.
- A round: all ranks write new values, known from the seed, the rank, the round and the position, and meet.
  Timed is from there until the rank holds all elements of the mean; a round counts with its slowest rank.
  Ranks do not leave a meeting at the same moment, so times of small messages include that difference.
- Outside of the timed part every rank compares every element of every round with the mean that it must be.
  One that differs makes the backend wrong at that size: it has no figure there and no verdict anywhere.
- "ms" is the median over the launches of a launch's median over its rounds, with the least and the greatest
  launch. Each launch's first call, in which names are made known and memory is set up, is kept apart.
- "MB/s" is bytes by time, "bus MB/s" that times 2(n − 1)/n for n ranks: what each rank of a ring all-reduce
  has to send and to receive at least. Both are defined as by
  [nccl-tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). A BytePS worker sends a
  whole message and receives one, whatever n; its bus bandwidth compares times, it is not what links carried.
- Launches of all backends take turns in an order drawn for every repeat; ratios are taken within a repeat."""


class Place(NamedTuple):
    """Where and with whom the reference is compared: the group of a `comparison.statistics.Pair`."""

    workers: int
    message: str
    backend: str


def place_of(pair: Pair) -> Place:
    assert isinstance(pair.group, Place)
    return pair.group


def rule(confidence: float) -> str:
    """How a verdict is reached."""
    error = f"{1 - confidence:.6g}"
    return (
        "A launch gives one value for a message: the median over its rounds. Two backends are compared by the"
        " logarithm of the ratio of their values within each repeat, with a two-sided paired t-test. One is"
        " called faster only if the p-value, adjusted by Holm's method over all verdicts of this report, is"
        f' at most {error}; otherwise it says "{NOT_SHOWN}", which does not say that there is'
        f" none. With fewer than {FEWEST_REPEATS} repeats in common there is no verdict."
    )


def finding(pairs: Sequence[Pair], backend: str, reference: str, titles: Mapping[str, str]) -> str:
    """Where `backend` is faster than `reference`, where slower, and where neither is shown."""
    parts = []
    for words, faster in (("faster", backend), ("slower", reference)):
        names = [place_of(pair).message for pair in pairs if pair.faster == faster]
        if names:
            parts.append(f"{words} at {_listed(names)}")
    same = [place_of(pair).message for pair in pairs if pair.verdict == NOT_SHOWN]
    if same:
        parts.append(f"{NOT_SHOWN} at {_listed(same)}")
    untested = [pair for pair in pairs if pair.verdict not in (NOT_SHOWN, DIFFERENT)]
    if untested:
        parts.append(f"no verdict at {_listed([place_of(pair).message for pair in untested])}")
    return f"{titles[backend]} against {titles[reference]}: {'; '.join(parts)}."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
