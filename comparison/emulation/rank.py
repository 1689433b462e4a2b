"""One rank of `python compare.py --emulate`: replays steps.

    python comparison/emulation/rank.py PLAN DIRECTORY

PLAN is a JSON file, see `comparison.emulation.plan.replay_of`.

A step: operators of MXNet's engine that sleep stand for the backward pass, and release each gradient array
when it is to be ready; `average` is queued behind them as in training; all arrays are waited for, and the
update is slept through. Before a step known values are written, and after it every element is compared with
the mean that it must be (comparison.messages.rank); with a compression that changes values only the ranks'
bits are compared.

Every rank writes DIRECTORY/rank-R.jsonl, a line for each step. Those of rank 0 have in addition, for the time
of the step alone, what all processes of the emulation took of the processors, how long the thread that waited
most was ready to run and had none, and the bytes through the busiest link.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import zlib
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Mapping, Sequence

if __name__ == "__main__":  # a script's own folder comes first in its path; the project's root is meant
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from base.threads import set_threads  # noqa: E402
from comparison.messages.rank import KnownValues, Message  # noqa: E402
from training.entry import exit_code  # noqa: E402

if TYPE_CHECKING:
    from mxnet.nd import NDArray

    from comm.base import Communicator


_SLEEP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def sleep_until(at: float, written: Sequence[NDArray]) -> Any:
    """Queues an operator of MXNet's engine that sleeps in place of computing, and has written the arrays at
    `at`, a time of time.perf_counter. Returns what has to live until it has run."""
    import mxnet as mx

    callback = _SLEEP(lambda context, parameter: time.sleep(max(0.0, at - time.perf_counter())))
    handles = (ctypes.c_void_p * len(written))(*(each.handle for each in written))
    device = (ctypes.c_int32 * 2)(written[0].context.device_typeid, 0)  # MXNet's Context
    push = mx.base._LIB.MXEnginePushSyncND
    mx.base.check_call(push(callback, None, None, device, None, 0, handles, len(written), None, 0, b"sleep"))
    return callback


def replay(comm: Communicator, arrays: Sequence[NDArray], plan: Mapping[str, Any], order: NDArray) -> float:
    """Replays a step; its seconds. `order`: written by each operator, so that they follow each other."""
    begin = time.perf_counter()
    ready, queued = plan["ready_s"], []
    for at in sorted(set(ready)):
        own = [array for array, its in zip(arrays, ready) if its == at]
        queued.append(sleep_until(begin + at, [order, *own]))
    queued.append(sleep_until(begin + plan["computed_s"], [order]))
    comm.average(arrays)
    for array in arrays:
        array.wait_to_read()
    left = plan["computed_s"] - (time.perf_counter() - begin)  # the forward pass of a step without gradients
    time.sleep(max(0.0, left) + plan["optimizer_s"])
    seconds = time.perf_counter() - begin
    order.wait_to_read()  # all have run
    return seconds


Counters = Mapping[str, "tuple[float, float]"]


def read_load() -> Counters:
    """The counters now, of all processes and links of the emulation: of each thread, by its path, seconds on
    a processor and seconds of waiting for one; of each port of the bridge bytes received and sent. /proc is
    the emulation's own; its first process stays in the bridge's namespace."""
    counters: dict[str, tuple[float, float]] = {}
    for path in Path("/proc").glob("[0-9]*/task/[0-9]*/schedstat"):
        try:
            run, wait, _ = path.read_text(encoding="ascii").split()
        except OSError:  # it has ended
            continue
        counters[str(path.parent)] = (int(run) * 1e-9, int(wait) * 1e-9)
    for line in Path("/proc/1/net/dev").read_text(encoding="ascii").splitlines():
        name, _, text = line.strip().partition(":")
        if name.startswith("port"):
            fields = text.split()
            counters[name] = (int(fields[0]), int(fields[8]))
    return counters


def load_between(before: Counters, after: Counters) -> dict[str, float]:
    """Counts of the time in between: `cpu_s` of all threads, `waited_s` of the one that waited most, and
    `link_bytes` in one direction of the busiest link."""
    new = {
        name: [now - then for now, then in zip(counts, before.get(name, (0, 0)))]
        for name, counts in after.items()
    }
    threads = [each for name, each in new.items() if not name.startswith("port")]
    return {
        "cpu_s": sum(run for run, _ in threads),
        "waited_s": max(wait for _, wait in threads),
        "link_bytes": max((max(each) for name, each in new.items() if name.startswith("port")), default=0),
    }


def run(plan_path: str, directory: str) -> int:
    """Replays steps until the plan's seconds have passed."""
    with open(plan_path, encoding="utf-8") as file:
        plan: Mapping[str, Any] = json.load(file)
    set_threads()  # before mxnet is imported
    import mxnet as mx

    from comm.backends import open_communicator
    from comm.options import communication_config

    comm = open_communicator(plan["backend"], communication_config(Namespace(**plan["communication"])))
    half = plan["communication"]["compression"] == "fp16"
    values = KnownValues("float16" if half else plan["dtype"], plan["ranks"], plan["seed"])
    message = Message(mx.cpu(), plan["dtype"], plan["elements"], values)
    order = mx.nd.zeros((1,))
    with open(os.path.join(directory, f"rank-{comm.rank}.jsonl"), "w", encoding="utf-8") as output:
        if comm.size != plan["ranks"]:
            raise RuntimeError(f"{comm.size} ranks have joined, {plan['ranks']} were to be started")
        turn, end, go_on = 0, 0.0, True
        while go_on:
            message.fill(comm.rank, turn)
            comm.barrier()
            before = read_load() if comm.rank == 0 else None
            comm.barrier()
            seconds = replay(comm, message.arrays, plan, order)
            comm.barrier()
            load = load_between(before, read_load()) if before else {}
            comm.barrier()
            wrong = message.first_wrong(turn) if plan["exact"] else None
            bits = 0
            for array in message.arrays:
                bits = zlib.crc32(array.asnumpy().tobytes(), bits)
            facts = {"step": turn, "seconds": seconds, "wrong": wrong, "bits": bits, **load}
            print(json.dumps(facts), file=output, flush=True)
            end = end or time.monotonic() + plan["seconds"]
            done = turn >= plan["most_steps"] or (turn >= plan["least_steps"] and time.monotonic() >= end)
            right, go_on = comm.all_agree([wrong is None, not done])
            go_on = right and go_on
            turn += 1
    comm.close()
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(partial(run, *sys.argv[1:])))
