"""Messages that are sent, and the memory that they need."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Iterable, Mapping, NamedTuple, Sequence

from base.command_line import seconds as limited
from base.options import option
from bert.configuration import named_config
from comparison.backends import BYTEPS, BYTEPS_LOCAL, Backend
from comparison.projection.workload import ELEMENT_BYTES, bert_parts

UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30}
BERT_BASE = "bert-base"
# From 4 KB in powers of 4, the largest that BERT's layers have and more; then many small ones at once, as
# gradients come.
DEFAULT_SIZES = (
    *("4KB", "16KB", "64KB", "256KB", "1MB", "4MB", "16MB", "64MB", "256MB", "512MB"),
    "200x64KB",
)
LEAST_ROUNDS, MOST_ROUNDS = 2, 200
SLOWEST = 5e6  # bytes a second: an average that is slower than this counts as hanging
PATIENCE = 60.0  # seconds more, for the start and for busy machines
PROCESS_BYTES = 250e6  # a rank with its libraries
ELEMENTS = 2**31 - 1  # of one array, in MXNet as its wheels are built


@dataclass(frozen=True)
class OfMessages:
    """Options that only --comm_only takes."""

    sizes: Sequence[str] = option(
        "messages: 64KB, 512MB, 200x64KB for 200 arrays at once, bert-base for the gradients of"
        " BERT-base (default: 4KB to 512MB in powers of 4, and 200x64KB)",
        metavar="SIZE", nargs="+", default=DEFAULT_SIZES,
    )  # fmt: skip
    message_dtype: str = option(
        "dtype of the elements (default float32)", choices=list(ELEMENT_BYTES), default="float32"
    )
    message_seconds: float = option(
        "time for the rounds of a message in a launch: many for a small message, at least 2 for a large one"
        " (default 0.5)",
        limited, "S", default=0.5,
    )  # fmt: skip


class Message(NamedTuple):
    """Arrays that are averaged in one call. `array_bytes`: of each of them."""

    name: str
    array_bytes: tuple[int, ...]

    @property
    def tensors(self) -> int:
        return len(self.array_bytes)

    @property
    def nbytes(self) -> int:
        return sum(self.array_bytes)


def parse_message(text: str, dtype: str = "float32") -> Message:
    """ "64KB", "512MB", "200x64KB" for 200 arrays of 64 KB (a KB is 1024 bytes), or "bert-base" for all
    gradients of BERT-base. Raises ValueError."""
    if text == BERT_BASE:
        elements = [size for part in bert_parts(named_config("bert_12_768_12")) for size in part.gradients]
        return Message(text, tuple(size * ELEMENT_BYTES[dtype] for size in elements))
    match = re.fullmatch(r"(?:(\d+)x)?(\d+)(B|KB|MB|GB)", text, re.ASCII)
    if not match:
        raise ValueError(f"{text}: write it like 64KB, 512MB, 200x64KB (units B, KB, MB, GB) or {BERT_BASE}")
    tensors, number, unit = int(match[1] or 1), int(match[2]), match[3]
    nbytes = number * UNITS[unit]
    if not tensors or not nbytes or nbytes % max(ELEMENT_BYTES.values()):
        raise ValueError(f"{text}: a message has at least one array, of a positive multiple of 4 bytes")
    name = f"{tensors}x{number}{unit}" if match[1] else f"{number}{unit}"
    return Message(name, (nbytes,) * tensors)


def parse_messages(texts: Iterable[str], dtype: str) -> list[Message]:
    """Single ones in the order of their size, then those of several arrays. Raises ValueError."""
    messages = [parse_message(text, dtype) for text in texts]
    for place, message in enumerate(messages):
        if message[1:] in [other[1:] for other in messages[:place]]:
            raise ValueError(f"{message.name} is given twice")
        if max(message.array_bytes) // ELEMENT_BYTES[dtype] > ELEMENTS:
            raise ValueError(f"{message.name}: MXNet's arrays have at most {ELEMENTS} elements")
    return sorted(messages, key=lambda message: (message.tensors > 1, message.nbytes))


def bytes_needed(backend: Backend, ranks: int, sent: Sequence[int]) -> float:
    """Memory of a host whose `ranks` ranks send messages of so many bytes one after the other.

    Seen with two ranks: over Horovod a rank holds up to 2.3 times the message of the moment. A BytePS worker
    keeps a copy of every message it has ever sent, and the servers keep their sums. Together with the message
    itself and what is on its way, a worker came to 2.2 and the server to 2.6 times the bytes of a single
    message, and both to 2.3 times the sum of ten that doubled or quadrupled.
    """
    if backend.launcher not in (BYTEPS, BYTEPS_LOCAL):
        return ranks * (PROCESS_BYTES + 2.5 * max(sent))
    workers = ranks * (PROCESS_BYTES + max(sent) + 1.75 * sum(sent))
    # One worker of several local ranks has no servers.
    return workers if backend.launcher == BYTEPS_LOCAL else workers + PROCESS_BYTES + 3 * sum(sent)


def left_out_of(
    backend: Backend, ranks: int, messages: Sequence[Message], available: float
) -> dict[str, str]:
    """The messages that a host of so many bytes cannot hold, by name, with the reason."""
    fitting: list[int] = []
    left_out: dict[str, str] = {}
    for message in sorted(messages, key=lambda message: message.nbytes):
        needed = bytes_needed(backend, ranks, [*fitting, message.nbytes])
        if needed <= available:
            fitting.append(message.nbytes)
        else:
            left_out[message.name] = (
                f"left out: needs about {needed / 2**30:.1f} GiB, {available / 2**30:.1f} GiB are available"
            )
    return left_out


def worker_plan(
    messages: Sequence[Message], dtype: str, ranks: int, seconds: float, seed: int
) -> Mapping[str, object]:
    """The plan that comparison/messages/rank.py reads. `seconds`: of rounds with one message. A wait inside
    the library counts as hanging after `timeout_s`, in seconds."""
    return {
        "dtype": dtype,
        "ranks": ranks,
        "seed": seed,
        "timeout_s": PATIENCE + max(message.nbytes for message in messages) / SLOWEST,
        "seconds": seconds,
        "least_rounds": LEAST_ROUNDS,
        "most_rounds": MOST_ROUNDS,
        "messages": [
            {
                "name": message.name,
                "elements": [nbytes // ELEMENT_BYTES[dtype] for nbytes in message.array_bytes],
            }
            for message in messages
        ],
    }


class Cell(NamedTuple):
    """A backend with so many ranks."""

    backend: str
    workers: int

    @property
    def group(self) -> int:
        return self.workers

    @property
    def name(self) -> str:
        """For files and messages."""
        return f"{self.backend}-{self.workers}x"
