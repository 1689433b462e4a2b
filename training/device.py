"""The device, the dtype and the operators of a rank: what is asked for, on what its host has."""

from __future__ import annotations

from typing import NamedTuple

import mxnet as mx

from base.errors import InputError
from bert.operators import LIBRARY, check_fused, choose_operators
from comm.base import Communicator
from training.agreement import digest_of_file
from training.config import ModelConfig


class Computing(NamedTuple):
    """The place and the means of a rank's computing."""

    device: mx.Context
    dtype: str
    operators: str

    def description(self) -> dict[str, str]:
        """The same for `training.agreement.agree`, with the digest of the operators' library: from other
        rounding in their updates, ranks' parameters would drift apart."""
        library = f", library {digest_of_file(LIBRARY)}" if self.operators == "fused" else ""
        return {
            "--dtype, as chosen,": f"{self.dtype} on {self.device.device_type}",
            "--operators, as chosen,": self.operators + library,
        }


def choose_computing(config: ModelConfig, communicator: Communicator) -> Computing:
    """The GPU of this rank's place on its host, where there are GPUs; float16 there, else float32, without
    --dtype.

    Raises:
        InputError: what is asked for cannot be had here.
    """
    device = mx.gpu(communicator.local_rank) if mx.context.num_gpus() else mx.cpu()
    on_gpu = device.device_type == "gpu"
    if config.dtype == "float16" and not on_gpu:
        raise InputError("--dtype float16: MXNet multiplies float16 matrices on GPUs only; use float32 here")
    dtype = config.dtype or ("float16" if on_gpu else "float32")
    operators = choose_operators(config.operators, dtype, device)
    for option in config.of_fused_operators:
        check_fused(option, operators)
    return Computing(device, dtype, operators)
