"""Events of a few steps of one rank, read from MXNet's profiler and kept as a Chrome trace.

A Chrome trace (chrome://tracing, https://ui.perfetto.dev) is a JSON object with a list of events. Ours has
the steps, the operators with their kind as category, one row for each queue, communication on rows of its
own, and what Python did: waited for data, copied inputs, waited for the device. An operator's kind of work
follows from its name and, for a few, from its neighbours in time.
"""

from __future__ import annotations

import bisect
import json
import math
from dataclasses import dataclass, field
from typing import Any, Iterable, NamedTuple, Sequence

from base.errors import InputError
from base.files import replacing
from base.json_files import read_json_file
from training.profiling.intervals import Interval

PRODUCTS = "matrix products"
ATTENTION = "attention"
NORMALISATION = "normalisation"  # with dropout and residual
ACTIVATION = "activation"
EMBEDDING = "embedding"
HEADS = "heads and loss"
OPTIMIZER = "optimizer"  # norm, update, packing of weights, sums over micro-batches
COMMUNICATION = "communication"
OTHER = "other operators"
KINDS = (PRODUCTS, ATTENTION, NORMALISATION, ACTIVATION, EMBEDDING, HEADS, OPTIMIZER, COMMUNICATION, OTHER)

# Without `_backward_` and leading underscores, in lower case.
_BY_NAME = {
    PRODUCTS: "bert_dense bert_self_attention bert_feed_forward fullyconnected batch_dot linalg_gemm"
    " linalg_gemm2",
    ATTENTION: "bert_attention contrib_interleaved_matmul_selfatt_qk"
    " contrib_interleaved_matmul_selfatt_valatt interleaved_matmul_selfatt_qk"
    " interleaved_matmul_selfatt_valatt softmax masked_softmax stack concat"
    " contrib_arange_like broadcast_lesser broadcast_axis broadcast_div",
    NORMALISATION: "bert_layer_norm bert_add_norm layernorm contrib_div_sqrt_dim",
    ACTIVATION: "bert_gelu bert_bias_gelu leakyrelu",
    EMBEDDING: "bert_embed embedding broadcast_add",
    # Most of bert_words is a product of the decoder's backward pass.
    HEADS: "bert_gather bert_unpack bert_decode_loss bert_words gather_nd log_softmax pick argmax"
    " broadcast_equal activation tanh sum mul_scalar negative slice_axis",
    OPTIMIZER: "bert_lamb bert_global_norm bert_pack lamb_update_phase1 lamb_update_phase2"
    " mp_lamb_update_phase1 mp_lamb_update_phase2 multi_sum_sq multi_lans_update multi_lamb_update all_finite"
    " multi_all_finite dot sqrt norm clip",
}
_KIND = {name: kind for kind, names in _BY_NAME.items() for name in names.split()}
# The same operator serves several ends; in the update it is the optimizer's.
_ALSO_IN_UPDATES = {"sum", "mul_scalar", "negative", "concat", "add_n", "elemwise_add", "cast", "copyto",
                    "copycpu2cpu", "copygpu2gpu", "zeros", "zeros_like", "setvalueop", "square", "plus",
                    "plus_scalar", "broadcast_mul", "broadcast_add", "elemwise_mul", "amp_cast"}  # fmt: skip
_COMMUNICATION = ("horovod", "byteps", "nccl", "kvstore")
_HOLD = "hold"  # comm/byteps/library.py: arrays that wait for an exchange
# comm/byteps/communicator.py, between the backward pass and the update: into buckets, the mean, out of them.
_PACKING = {"concat", "slice_axis", "div_scalar"}
_GRADIENT = "_backward_"


def is_bulk(name: str) -> bool:
    """Whether the event stands for several operators, which cannot be told apart."""
    return "," in name or name == "ImperativeBulk"


def classify(names: Sequence[str]) -> list[str]:
    """The kind of each operator.

    Args:
        names: of one queue's operators in the order in which they ran.
    """
    kinds = []
    phase = "forward"
    for index, name in enumerate(names):
        plain = _plain(name)
        kind = _KIND.get(plain, OTHER)
        backward = name.startswith(_GRADIENT)
        if name == _HOLD or name.lower().startswith(_COMMUNICATION):  # hands arrays to a library
            kind = COMMUNICATION
        elif is_bulk(name):
            kind = OTHER
        elif kind == OPTIMIZER:
            phase = "update"
        elif backward:
            phase = "backward"
        elif kind in (PRODUCTS, ATTENTION, EMBEDDING, NORMALISATION, ACTIVATION) and plain != "concat":
            phase = "forward"
        if plain in _PACKING and not backward and phase == "backward":
            kind = COMMUNICATION
        elif plain in _ALSO_IN_UPDATES and not backward:
            kind = _by_phase(plain, kind, phase)
        elif plain == "dropout":
            neighbour = names[index + 1 : index + 2] if backward else names[max(index - 1, 0) : index]
            kind = ATTENTION if [_plain(each) for each in neighbour] == ["softmax"] else NORMALISATION
        kinds.append(kind)
    return kinds


def _by_phase(plain: str, kind: str, phase: str) -> str:
    """Sums and copies: of the residual in the forward pass, of gradients after it."""
    if phase == "update":
        return OPTIMIZER
    if plain == "add_n":  # where gradients of a residual meet
        return NORMALISATION
    if plain in ("elemwise_add", "plus", "copyto", "copycpu2cpu", "copygpu2gpu"):
        return NORMALISATION if phase == "forward" and plain == "elemwise_add" else OPTIMIZER
    if plain == "broadcast_add":  # positions to tokens
        return EMBEDDING if phase == "forward" else OTHER
    if plain == "elemwise_mul":  # by the weights of the masked positions
        return HEADS
    return kind


def _plain(name: str) -> str:
    if name.startswith(_GRADIENT):
        name = name[len(_GRADIENT) :]
    return name.strip("_").lower()


STEP, END = "step ", "end of steps"  # marks in MXNet's trace: "step 10", ... and one after the last step
DATA_WAIT, COPYING, WAITING = "data wait", "copying inputs", "waiting for the device"
STAGE_WAIT = "waiting for a stage"  # for a message of the stage before or behind
PYTHON = (DATA_WAIT, COPYING, WAITING, STAGE_WAIT)
BEGINS, ENDS = f"{STAGE_WAIT}: begins", f"{STAGE_WAIT}: ends"  # marks in MXNet's trace
MOST_BYTES = 1 << 30  # of a trace
_FORMAT = "training.profile 1"
_HELP = "write one with --profile of a training script, or with python -m training.profile"
_COPIES = ("MXNDArraySyncCopyFromCPU",)
_WAITS = ("MXNDArraySyncCopyToCPU", "MXNDArrayWaitToRead", "MXNDArrayWaitToWrite", "MXNDArrayWaitAll")


class Operator(NamedTuple):
    """One run of an operator; times in microseconds since the first step began."""

    name: str
    kind: str  # of training.profiling.trace.KINDS
    start: float
    end: float
    queue: int  # operators of one queue follow each other

    @property
    def backward(self) -> bool:
        """Whether it, or most of what is bulked in it, belongs to the backward pass."""
        parts = self.name.split(",")
        return 2 * sum(part.startswith(_GRADIENT) for part in parts) > len(parts)


class Step(NamedTuple):
    """A step as Python sees it; the device may work on it a little longer."""

    name: str
    start: float
    end: float


@dataclass
class Trace:
    """Some consecutive steps of one rank. The first begins, at time 0, and the last ends with an idle device.

    `facts`: rank, and what is known of the run (model, vocab_size, dtype, batches of each step).
    `clock`: microseconds of the rank's clock at time 0.
    `python`: name of PYTHON -> intervals.
    """

    facts: dict[str, Any]
    clock: float
    steps: list[Step]
    operators: list[Operator]
    python: dict[str, list[Interval]] = field(default_factory=dict)

    @property
    def window(self) -> Interval:
        """The time between the beginning of the first step and the end of the last."""
        return self.steps[0].start, self.steps[-1].end


def from_mxnet(events: Sequence[dict[str, Any]], facts: dict[str, Any]) -> Trace:
    """The events that MXNet's profiler has written, with operators and calls of its C API.

    Raises:
        InputError: the marks of steps are missing.
    """
    marks = sorted(
        (event["ts"], event["name"], event["tid"])
        for event in events
        if event["ph"] == "n" and event["name"].startswith((STEP, END))
    )
    if len(marks) < 2 or marks[-1][1] != END:
        raise InputError(f"the trace has no marks of steps: {_HELP}")
    clock = marks[0][0]
    python_thread = marks[0][2]
    steps = [
        Step(name, start - clock, end - clock)
        for (start, name, _), (end, _, _) in zip(marks, marks[1:])
        if name != END
    ]
    operators: list[Operator] = []
    ran = sorted(_pairs(events, "B", "E", "operator"))
    queues = {thread: number for number, thread in enumerate(dict.fromkeys(each[3] for each in ran))}
    for thread, queue in queues.items():
        own = [each for each in ran if each[3] == thread]
        kinds = classify([name for _, _, name, _ in own])
        operators += [
            Operator(name, kind, start - clock, end - clock, queue)
            for (start, end, name, _), kind in zip(own, kinds)
        ]
    calls = sorted(
        (start - clock, end - clock, name)
        for start, end, name, thread in _pairs(events, "b", "e", "MXNET_C_API")
        if thread == python_thread and not name.startswith("MXProfile")
    )
    stage_waits = [
        sorted(event["ts"] for event in events if event["ph"] == "n" and event["name"] == mark)
        for mark in (BEGINS, ENDS)
    ]
    python = {
        DATA_WAIT: _before_first_call(steps, calls),
        COPYING: [(start, end) for start, end, name in calls if name in _COPIES],
        WAITING: [(start, end) for start, end, name in calls if name in _WAITS],
        STAGE_WAIT: [(start - clock, end - clock) for start, end in zip(*stage_waits)],
    }
    return Trace(facts, clock, steps, sorted(operators, key=lambda each: each.start), python)


def _pairs(
    events: Iterable[dict[str, Any]], first: str, last: str, category: str
) -> list[tuple[float, float, str, int]]:
    """(start, end, name, thread) of what begins with phase `first` and ends with phase `last`."""
    begun: dict[tuple[str, int], list[float]] = {}
    spans = []
    for event in events:
        if event.get("cat") != category or event["ph"] not in (first, last):
            continue
        key = event["name"], event["tid"]
        if event["ph"] == first:
            begun.setdefault(key, []).append(event["ts"])
        elif begun.get(key):
            spans.append((begun[key].pop(0), event["ts"], *key))
    return spans


def _before_first_call(steps: Sequence[Step], calls: Sequence[tuple[float, float, str]]) -> list[Interval]:
    """Python first takes its batches, without MXNet; then it calls MXNet for the first time in the step."""
    begun = [start for start, _, _ in calls]
    first = [bisect.bisect_left(begun, step.start) for step in steps]
    return [
        (step.start, min(step.end, begun[index])) for step, index in zip(steps, first) if index < len(begun)
    ]


def chrome_events(trace: Trace, offset: float = 0.0) -> list[dict[str, Any]]:
    """The trace as events of a Chrome trace; `offset` is added to all times (microseconds)."""
    rank = trace.facts.get("rank", 0)
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
    ]
    rows: list[str] = []

    def add(row: str, name: str, kind: str, start: float, end: float, **args: Any) -> None:
        if row not in rows:
            rows.append(row)
        event = {"ph": "X", "name": name, "cat": kind, "pid": rank, "tid": rows.index(row)}
        event.update(ts=round(start + offset, 3), dur=round(end - start, 3))
        events.append({**event, "args": args} if args else event)

    for step in trace.steps:
        add("steps", step.name, "step", step.start, step.end)
    ends: list[float] = []  # of the rows of communication: a viewer shows no overlap within a row
    for operator in trace.operators:
        row = f"operators {operator.queue}"
        if operator.kind == COMMUNICATION:
            index = next((i for i, end in enumerate(ends) if end <= operator.start), len(ends))
            ends[index : index + 1] = [operator.end]
            row = f"communication {index}"
        add(row, operator.name, operator.kind, operator.start, operator.end, queue=operator.queue)
    for name in PYTHON:
        for start, end in trace.python.get(name, []):
            add("Python", name, name, start, end)
    names = [
        {"ph": "M", "name": "thread_name", "pid": rank, "tid": number, "args": {"name": row}}
        for number, row in enumerate(rows)
    ]
    return events[:1] + names + events[1:]


def write_trace(path: str, trace: Trace) -> None:
    """Write a trace that `read_trace` reads; whole or not at all."""
    head = {"format": _FORMAT, "clock": trace.clock, "facts": trace.facts}
    write_chrome(path, chrome_events(trace), head)


def write_chrome(path: str, events: Sequence[dict[str, Any]], head: dict[str, Any] | None = None) -> None:
    """Write a Chrome trace, one event a line; `head` becomes its otherData."""
    with replacing(path) as handle:
        handle.write(f'{{"otherData": {json.dumps(head or {})}, "traceEvents": [\n'.encode())
        handle.write(",\n".join(json.dumps(event) for event in events).encode())
        handle.write(b"\n]}\n")


def read_trace(path: str) -> Trace:
    """Read what `write_trace` has written.

    Raises:
        InputError: the file is missing, damaged, or another program's.
    """
    content = read_json_file(path, MOST_BYTES)
    head = content.get("otherData") if isinstance(content, dict) else None
    if not isinstance(head, dict) or head.get("format") != _FORMAT:
        raise InputError(f"{path} is no trace of training steps: {_HELP}")
    try:
        return _from_chrome(content["traceEvents"], head)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(f"{path} is damaged ({type(error).__name__}: {error}): write it anew") from error


def _from_chrome(events: Sequence[dict[str, Any]], head: dict[str, Any]) -> Trace:
    trace = Trace(dict(head["facts"]), float(head["clock"]), [], [], {name: [] for name in PYTHON})
    for event in events:
        if event["ph"] != "X":
            continue
        name, kind, start = str(event["name"]), event["cat"], float(event["ts"])
        end = start + float(event["dur"])
        if kind == "step":
            trace.steps.append(Step(name, start, end))
        elif kind in PYTHON:
            trace.python[kind].append((start, end))
        elif kind in KINDS:
            trace.operators.append(Operator(name, kind, start, end, int(event["args"]["queue"])))
        else:
            raise ValueError(f"unknown category {kind!r}")
    if not trace.steps:
        raise ValueError("no steps")
    facts = trace.facts
    begin, end = facts.get("stage_layers", (0, 0))
    numbers = [begin, end, *(facts.get(name) or 0 for name in ("rank", "vocab_size", "peak_gflops"))]
    numbers += [facts[name] for name in ("stage", "stages", "replica") if "stage" in facts]
    batches = [batch for step in facts.get("batches", []) for batch in step or [()]]
    numbers += [number for rows, length, predictions in batches for number in (rows, length, predictions)]
    numbers += [time for step in trace.steps for time in (step.start, step.end)]
    numbers += [time for each in trace.operators for time in (each.start, each.end)]
    if not {type(each) for each in numbers} <= {int, float} or not all(map(math.isfinite, numbers)):
        raise ValueError("facts or times that no run has")
    if trace.window[0] >= trace.window[1]:
        raise ValueError("steps without time")
    return trace
