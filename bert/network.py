"""Which operators compute the losses: the fused ones of native/operators, or MXNet's own."""

from __future__ import annotations

import mxnet as mx
from gluonnlp.model.bert import BERTModel

from base.errors import InputError
from bert.fused import FusedPretrainingLoss
from bert.native_operators import load_operators
from tasks.pretraining.loss import PretrainingLoss
from training.options import parse_model


def choose_operators(wanted: str, dtype: str, device: mx.Context) -> str:
    """ "fused" or "mxnet", for --operators `wanted`; the fused operators are loaded then.

    Raises:
        InputError: what is wanted cannot be had, or bfloat16 without the fused operators.
    """
    on_cpu = device.device_type == "cpu"
    fused = on_cpu and wanted != "mxnet" and load_operators()
    if wanted == "fused" and not fused:
        reason = "they have not been built (make setup builds them)" if on_cpu else "they are for CPUs"
        raise InputError(f"--operators fused: {reason}")
    if dtype == "bfloat16" and not fused:
        reason = "make setup builds them; without --operators mxnet" if on_cpu else "on GPUs use float16"
        raise InputError(f"--dtype bfloat16 needs the fused CPU operators: {reason}")
    return "fused" if fused else "mxnet"


def make_network(
    bert: BERTModel, model: str, dtype: str, dropout: float, operators: str
) -> PretrainingLoss | FusedPretrainingLoss:
    """The hybridized losses of `bert`, which build_model(model, ..., dropout) has made, in `dtype`."""
    if operators == "fused":
        network = FusedPretrainingLoss(bert, dtype, dropout, heads=parse_model(model)[2])
    else:
        network = PretrainingLoss(bert, dtype)
    network.hybridize(static_alloc=True, static_shape=True)
    return network
