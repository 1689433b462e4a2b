"""Worker: one measurement of bench/gpu.py on one device, as JSON on the last line of its output.

    python -m bench.gpu_worker devices {}
    python -m bench.gpu_worker steps '{"device": "gpu", "model": "bert_12_768_12", "dtype": "float16",
        "sizes": {"rows": 32, "length": 128, "steps": 10, "accumulate": 4}}'
    python -m bench.gpu_worker beyond '{"device": "gpu"}'

steps: losses of steps on the same few batches, which are learned by heart, their seconds, and memory. beyond:
what asking for more memory than any device has is answered with.
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import time
from typing import Any, Mapping, NamedTuple

import mxnet as mx
import numpy as np

from base.errors import lack_of_memory
from base.memory import peak_of
from bench.ours import Kind, Network, pretraining_step
from bench.work import VOCABULARY
from bert.configuration import named_config
from data.pretraining.batches import dummy_batch
from lamb_paper import default_max_predictions
from tasks.pretraining.task import Pretraining
from training.optimizer.scaler import DynamicScaler, LossScaler
from training.step import TrainStep

LR = 1e-3
WARM_UPS = 2
DIFFERENT = 4  # steps with batches of their own; then these again
BLOCK = 1 << 30  # elements of float64; an array has less than 2^31
BLOCKS = 64  # 512 GiB: more than any device has
CUDA_RUNTIME = "libcudart.so.11.0"
CAPABILITY = (75, 76)  # its attributes of a device: major and minor compute capability
HOST_LIMIT = 16 << 30  # bytes of addresses, where the device is the CPU


class Sizes(NamedTuple):
    """A step's micro-batches, and how many steps are measured."""

    rows: int
    length: int
    steps: int
    accumulate: int


def batches(sizes: Sizes, step: int) -> list[Any]:
    """The micro-batches of a step: random tokens."""
    rng = np.random.default_rng(step % DIFFERENT)
    masked = default_max_predictions(sizes.length)
    return [dummy_batch(sizes.rows, sizes.length, masked, VOCABULARY, rng) for _ in range(sizes.accumulate)]


def steps(take: TrainStep, scaler: LossScaler, sizes: Sizes, device: mx.Context) -> dict[str, Any]:
    """Losses of the masked words, each the mean over a step's; what the loss scale did; median seconds of a
    step behind WARM_UPS that are not counted, sequences a second, bytes of memory."""
    masked = sizes.rows * sizes.accumulate * default_max_predictions(sizes.length)
    losses, seconds, skipped = [], [], 0
    for step in range(1, WARM_UPS + sizes.steps + 1):
        mine = batches(sizes, step)
        mx.nd.waitall()
        begun = time.perf_counter()
        result = take(step, mine, lr=LR)
        mx.nd.waitall()
        seconds.append(time.perf_counter() - begun)
        losses.append(float(result.sums[0].asscalar()) / masked)
        skipped += not result.applied
    median = float(np.median(seconds[WARM_UPS:]))
    taken = peak_of()  # on a CPU the most that this process has held
    if device.device_type == "gpu":
        free, total = mx.context.gpu_memory_info(device.device_id)
        taken = int(total - free)
    return {
        "losses": losses,
        "skipped": skipped,
        "scale": scaler.scale,
        "step_s": median,
        "sequences_per_s": sizes.rows * sizes.accumulate / median,
        "bytes": taken,
    }


def beyond(device: mx.Context) -> dict[str, Any]:
    """Asks for more memory than there is, which must be an error that says so."""
    if device.device_type == "cpu":
        resource.setrlimit(resource.RLIMIT_AS, (HOST_LIMIT, HOST_LIMIT))
    held = []
    for _ in range(BLOCKS):
        held.append(mx.nd.empty((BLOCK,), ctx=device, dtype="float64"))
        held[-1].wait_to_read()
    return {}


def capabilities(count: int) -> list[list[int]]:
    """Compute capability of each of the `count` GPUs, such as [8, 6], as CUDA's runtime says.

    Raises:
        RuntimeError: it does not say.
    """
    runtime = ctypes.CDLL(CUDA_RUNTIME)  # the one that MXNet has loaded
    value = ctypes.c_int()
    found: list[list[int]] = []
    for device in range(count):
        found.append([])
        for attribute in CAPABILITY:
            code = runtime.cudaDeviceGetAttribute(ctypes.byref(value), attribute, device)
            if code:
                raise RuntimeError(f"cudaDeviceGetAttribute({attribute}, {device}) answers {code}")
            found[-1].append(value.value)
    return found


def answer(what: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Measures; where the device's memory does not suffice, {"out_of_memory": first line of the message}."""
    if what == "devices":
        built = mx.runtime.Features().is_enabled("CUDA")
        count = mx.context.num_gpus()
        return {"gpus": count, "cuda": built, "capabilities": capabilities(count) if count else []}
    device = mx.Context(settings["device"], 0)
    try:
        if what == "beyond":
            return beyond(device)
        sizes, dtype = Sizes(**settings["sizes"]), settings["dtype"]
        scaler = LossScaler() if dtype == "float32" else DynamicScaler()
        network = Network(Pretraining(), named_config(settings["model"]), VOCABULARY, Kind(device, dtype))
        take = pretraining_step(network, sizes.accumulate, scaler)
        return steps(take, scaler, sizes, device)
    except (mx.MXNetError, MemoryError) as error:
        lack = lack_of_memory(error)
        if not lack:
            raise
        return {"out_of_memory": lack}


if __name__ == "__main__":
    print(json.dumps(answer(sys.argv[1], json.loads(sys.argv[2]))))
