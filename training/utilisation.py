"""Model FLOPs utilisation (MFU): the operations that a task needs over those that the devices could do.

Defined by Chowdhery et al. (PaLM, arXiv:2204.02311, section 4.1). Operations are counted as bert.flops does,
on batches as they are, padding included; what an implementation computes again or leaves out changes nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, Sequence

import mxnet as mx
import numpy as np

from comm.base import Communicator
from training.exchange import summed

if TYPE_CHECKING:
    from training.config import ReportConfig
    from training.model import Model

ROWS = 2048  # and columns of both matrices


def matrix_peak(dtype: str, products: Sequence[str], device: mx.Context, seconds: float) -> float:
    """Operations a second of the fastest of several products of two square matrices of ROWS rows.

    No random state is touched: a run that measures takes the same steps as one that does not.

    Args:
        dtype: "float32", "float16", or "bfloat16" or "bfloat16x3", which the fused operators alone multiply.
        products: of "mxnet" and "fused": the operators that take part; at least one.
        seconds: about how long to measure; each takes part twice at least, after one call to warm up.
    """
    few = np.random.default_rng(0).standard_normal((16, ROWS), dtype=np.float32)
    matrix = np.tile(few, (ROWS // 16, 1))  # a new matrix would take longer than its product
    stored = "float16" if dtype == "float16" else "float32"  # bfloat16 is how they are multiplied
    left, right = (mx.nd.array(matrix, ctx=device, dtype=stored) for _ in range(2))
    calls: list[Callable[[], Any]] = []
    if "mxnet" in products:
        calls.append(lambda: mx.nd.FullyConnected(left, right, no_bias=True, num_hidden=ROWS))
    if "fused" in products:
        packed = mx.nd.bert_pack(right, num_weights=1, dtype=dtype)
        calls.append(lambda: mx.nd.bert_dense(left, right, packed, num_weights=1, bias=0, dtype=dtype))
    times: list[float] = []
    for call in calls:
        call().wait_to_read()
    end = time.perf_counter() + seconds
    while len(times) < 2 * len(calls) or time.perf_counter() < end:
        for call in calls:
            begun = time.perf_counter()
            call().wait_to_read()
            times.append(time.perf_counter() - begun)
    return 2 * ROWS**3 / min(times)


MEASURED = 0.2  # seconds, at the start
COST, COST_IN_DOUBT = 0.01, 0.1  # of the time, at most, for measuring again; where mfu would be above 100%


class Peak:
    """Operations a second that all processes of a run can do at most.

    `given`, by --peak_tflops, for a process, or measured by all processes at the same time, since those of a
    host share its cores and its memory. Other programs make what is measured too low: of several measurements
    the highest counts. Rank 0's clock decides when it is measured again; never with --profile, whose trace
    would show it. Every rank makes a `Peak`.
    """

    def __init__(self, config: ReportConfig, model: Model, communicator: Communicator):
        given = config.peak_tflops
        self.due = False  # whether all ranks shall measure again
        self._watches = communicator.rank == 0 and given is None and not config.profile
        self._model, self._communicator = model, communicator
        self._in_doubt = False
        size = communicator.size
        if given is not None:
            self.flops = given * 1e12 * size
            self._origin = f"{size} x --peak_tflops {given:g}"
            return
        processes = f"{size} process{'es' if size > 1 else ''}"
        self.flops = 0.0
        self._origin = f"products of {ROWS} x {ROWS} {model.dtype} matrices on {processes}"
        self.measure(MEASURED)

    @property
    def sentence(self) -> str:
        """The peak and its origin, for people."""
        return f"{self.flops / 1e12:.3g} TFLOP/s, {self._origin}"

    def flags(self) -> list[bool]:
        """Whether it need not be measured again yet (training.step.Decision): doing so would take more than
        its part of the time."""
        cost = COST_IN_DOUBT if self._in_doubt else COST
        return [not self._watches or time.monotonic() - self._measured < self._took / cost]

    def take(self, agreed: Sequence[bool]) -> None:
        """Takes the answer of all ranks."""
        self.due = not agreed[0]

    def measure(self, seconds: float = 0.0) -> bool:
        """Measures for `seconds`, in two products at least; every rank calls it. Returns whether the peak is
        higher now."""
        communicator, model = self._communicator, self._model
        communicator.barrier()  # so that all begin together
        begun = time.monotonic()
        mine = matrix_peak(model.dtype, [model.operators], model.device, seconds)
        self._measured = time.monotonic()
        self._took = self._measured - begun
        (found,) = summed([mine], communicator).tolist()
        self.flops, before = max(self.flops, found), self.flops
        return found > before

    def fraction(self, flops: float) -> float:
        """The fraction of the peak that `flops` a second are: at most 1, for what is exceeded is no peak."""
        self._in_doubt = flops > self.flops
        return min(1.0, flops / self.flops)
