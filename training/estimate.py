"""The memory of a run, estimated from its settings and compared with what is there, before MXNet is imported
and before anything is allocated: --estimate prints it.

docs/training.md compares it with measured runs. It is of training; an evaluation needs less with the same
batch size.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Mapping, Sequence

from base import machine
from base.errors import InputError
from base.launchers import BYTEPS, LOCAL, SIZE_VARIABLES, launched_rank, local_size, number_in
from base.memory import Available, available_memory
from bert.configuration import OPERATORS_LIBRARY
from bert.memory import (
    FLOAT32,
    FUSED,
    MOMENT_BYTES,
    MXNET,
    Batch,
    activation_bytes,
    gradient_bytes_in_flight,
    packed_bytes,
    parameter_count,
)
from lamb_paper import default_max_predictions
from training.run_inputs import Part
from training.saving import copied_bytes

PROCESS = 262 << 20  # bytes of a process that has imported everything and trains nothing (measured)
FUSION = 64 << 20  # bytes of Horovod's buffer, at most
FAR = 1.5  # times what is there: a run that needs more does not start
_MIB = 1 << 20


@dataclass(frozen=True)
class Estimate:
    """Memory of a run's largest stage.

    Attributes:
        parts: bytes of a process by their use.
        copied: bytes of the state's copy, which rank 0 takes while it saves if they are there
            (training/saving.py).
        processes: on this host.
        available: memory of the host; None where the numbers lie on GPUs, whose memory is not looked at.
        what: the model and the batch.
    """

    parts: Mapping[str, int]
    copied: int
    processes: int
    available: Available | None
    what: str

    @property
    def of_process(self) -> int:
        """Bytes of a process."""
        return sum(self.parts.values())

    @property
    def of_host(self) -> int:
        """Bytes of all processes on this host, without the copy."""
        return self.processes * self.of_process

    @property
    def fits(self) -> bool:
        """Whether the host has as much."""
        return self.available is None or self.of_host <= self.available.bytes

    def lines(self) -> list[str]:
        """The estimate for people."""
        rows = [*self.parts.items(), ("a process", self.of_process)]
        if self.processes > 1 and self.available is not None:
            rows.append((f"{self.processes} processes on this host", self.of_host))
        if self.copied:
            rows.append(("copy of the state while rank 0 saves", self.copied))
        if self.available is not None:
            rows.append((f"memory {self.available.source}", self.available.bytes))
        width = max(len(name) for name, _ in rows)
        figures = [f"{name:<{width}}  {size / _MIB:>14,.0f} MiB" for name, size in rows]
        return [f"estimated memory of {self.what}", *figures, self._verdict()]

    def _verdict(self) -> str:
        if self.available is None:
            return (
                "compare it with a GPU's memory; the estimate was checked against measurements on CPUs only"
            )
        share = (self.of_host + self.copied) / max(1, self.available.bytes)
        if self.fits and share > 1:
            return "it fits, but for the copy: training will wait while a checkpoint is written"
        return f"it {'fits' if self.fits else 'does not fit'}: {100 * share:,.0f}% of what is there"


def check_memory(
    parts: Sequence[Part], backend: str, show: bool, environ: Mapping[str, str] = os.environ
) -> int | None:
    """Compares what a run needs with what is there; with `show` prints it, on rank 0.

    Args:
        parts: the run's stages, or the run.
        backend: of base.launchers.

    Returns:
        None: go on. With `show` the exit code: 0, or 2 where it does not fit.

    Raises:
        InputError: it needs `FAR` times what is there.
    """
    found = max((estimate(part, backend, environ) for part in parts), key=lambda each: each.of_process)
    if show:
        if launched_rank(environ) == 0:
            print("\n".join(found.lines()), flush=True)
        return 0 if found.fits else 2
    available = found.available
    if available is not None and found.of_host > FAR * available.bytes:
        greatest = max(found.parts, key=lambda name: found.parts[name])
        several = f"{found.processes} processes need" if found.processes > 1 else "it needs"
        raise InputError(
            f"{found.what}: {several} about {_gib(found.of_host)} of memory, and {_gib(available.bytes)} are "
            f"{available.source}; most of it is for {greatest}. Lower --batch_size (--accumulate makes up "
            "for it), --max_seq_length or the model, or start fewer processes on a host; --estimate shows all"
        )
    return None


def estimate(part: Part, backend: str, environ: Mapping[str, str] = os.environ) -> Estimate:
    """The estimate of one stage."""
    config, inputs = part
    model, batch = config.model, config.batch
    on_gpu = machine.gpus() is not None
    dtype = model.dtype or ("float16" if on_gpu else "float32")
    fused = not on_gpu and model.operators != MXNET and os.path.exists(OPERATORS_LIBRARY)
    length = inputs.max_seq_length
    pretraining = inputs.about.data is None and inputs.about.main_score is None
    predictions = 0
    if pretraining:
        predictions = min(length, batch.max_predictions_per_seq or default_max_predictions(length))
    size = batch.batch_size if inputs.trains else batch.batch_size_eval
    rows = max(1, size // length) if batch.use_avg_len and inputs.trains else size
    item = 2 if dtype == "float16" else FLOAT32
    count = parameter_count(model.bert, inputs.vocab_size, pretraining)
    parts = {"the process itself": PROCESS, "parameters": count * item}
    if fused:
        parts["parameters as the operators take them"] = packed_bytes(model.bert, dtype)
    micro = Batch(rows, length, predictions)
    moments = config.optimization.optimizer_state
    layers = model.bert if inputs.trains else replace(model.bert, layers=1)
    if inputs.trains:
        sums = count * item if fused and batch.accumulate > 1 else 0
        in_flight = gradient_bytes_in_flight(model.bert, inputs.vocab_size) if pretraining else 0
        parts["gradients"] = count * item + sums + in_flight * item // FLOAT32
        masters = FLOAT32 * count if item < FLOAT32 else 0
        parts["optimizer states"] = MOMENT_BYTES[moments] * 2 * count + masters
    operators = FUSED if fused else MXNET
    parts["activations"] = activation_bytes(layers, inputs.vocab_size, micro, operators, item)
    here = local_size(environ)
    if inputs.trains and backend != LOCAL and _world_size(environ, here) > 1:
        exchanged = count * item
        parts["exchange"] = exchanged if backend == BYTEPS else 2 * min(FUSION, exchanged)
    tokens = f"{rows:,} x {length} tokens a process"
    shape = f"{model.bert.description}, {tokens} in {dtype}, {operators} operators"
    copied = copied_bytes(count, dtype, moments) if inputs.trains else 0
    return Estimate(parts, copied, here, None if on_gpu else available_memory(), shape)


def _world_size(environ: Mapping[str, str], here: int) -> int:
    sizes = [number_in(environ, name, 1) for name in SIZE_VARIABLES]
    workers = number_in(environ, "DMLC_NUM_WORKER", 1) * number_in(environ, "BYTEPS_LOCAL_SIZE", 1)
    return max(here, workers, *sizes)


def _gib(size: int) -> str:
    gib = size / 2**30
    return f"{gib:,.1f} GiB" if math.isfinite(gib) and gib < 1e9 else f"{gib:.1e} GiB"
