"""The fused CPU operators of native/operators, which once loaded stand beside MXNet's own as F.bert_*."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, Mapping, Sequence

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.ndarray.register import _make_ndarray_function
from mxnet.symbol.register import _make_symbol_function

from base.errors import InputError
from base.machine import CPUINFO, has_amx
from bert.configuration import BFLOAT16X3, OPERATORS_LIBRARY, RELU, REMOVE, BertConfig

LIBRARY = OPERATORS_LIBRARY
PREFIX = "bert_"  # of the operators that blocks call
_MULTIPLIES = "BERT_OPERATORS_BF16"  # the variable that says how bfloat16 is multiplied, for tests


def load_operators(path: str = LIBRARY) -> bool:
    """Makes the operators known to MXNet; False where the library has not been built.

    Raises:
        mxnet.MXNetError: the library is there and cannot be used (the message says why).
    """
    if hasattr(mx.nd, "bert_bias_gelu"):
        return True
    if not os.path.exists(path):
        return False
    # libmxnet.so contains an older oneDNN under the same names as the one our library is linked to, and
    # Horovod makes libmxnet's names global: our library must look into its own dependencies first.
    ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
    check_call(_LIB.MXLoadLib(os.fsencode(os.path.abspath(path)), ctypes.c_uint(0)))
    _register()
    return True


def _register() -> None:
    """Makes a function of each new operator in mx.nd and mx.sym, as `import mxnet` does of MXNet's own.

    `mx.library.load` makes those of all 2,200 operators anew, which takes a third of a second of every start.
    """
    count, names = ctypes.c_uint(), ctypes.POINTER(ctypes.c_char_p)()
    check_call(_LIB.MXListAllOpNames(ctypes.byref(count), ctypes.byref(names)))
    for name in (names[number] for number in range(count.value)):
        if not name.startswith(PREFIX.encode()):
            continue
        handle = ctypes.c_void_p()
        check_call(_LIB.NNGetOpHandle(name, ctypes.byref(handle)))
        for module, make in ((mx.nd, _make_ndarray_function), (mx.sym, _make_symbol_function)):
            function = make(handle, name.decode(), name.decode())
            for place in (module, module.op):
                setattr(place, function.__name__, function)


def choose_operators(wanted: str, dtype: str, device: mx.Context, bert: BertConfig) -> str:
    """ "fused" or "mxnet", for --operators `wanted`; the fused operators are loaded then.

    Raises:
        InputError: what is wanted cannot be had, or bfloat16 without the fused operators, or bfloat16x3
            where it is no faster than float32; or the library of the operators is older than what this BERT
            or dtype needs of it.
    """
    on_cpu = device.device_type == "cpu"
    fused = on_cpu and wanted != "mxnet" and load_operators()
    if wanted == "fused" and not fused:
        reason = "they have not been built (make setup builds them)" if on_cpu else "they are for CPUs"
        raise InputError(f"--operators fused: {reason}")
    if dtype in ("bfloat16", BFLOAT16X3) and not fused:
        reason = "make setup builds them; without --operators mxnet" if on_cpu else "on GPUs use float16"
        raise InputError(f"--dtype {dtype} needs the fused CPU operators: {reason}")
    if dtype == BFLOAT16X3:
        _check_split(os.environ)
    form = RELU if bert.activation == RELU else "tanh"
    if fused and (bert.activation != "erf" or bert.token_types != 2) and not knows_form(form):
        raise InputError(
            f"{LIBRARY} is older than this code and has not {bert.description}; make setup builds it anew "
            "(--operators mxnet does without it)"
        )
    return "fused" if fused else "mxnet"


def _check_split(environ: Mapping[str, str], cpuinfo: Path = CPUINFO) -> None:
    if _MULTIPLIES not in environ and not has_amx(cpuinfo):
        raise InputError(
            f"--dtype {BFLOAT16X3}: this processor has no AMX, and three products of bfloat16 take longer on "
            f"it than one of float32: use --dtype float32 ({_MULTIPLIES}=rounded computes it all the same, "
            "for tests)"
        )
    if not knows_split():
        raise InputError(
            f"--dtype {BFLOAT16X3}: {LIBRARY} is older than this code and cannot; make setup builds it anew"
        )


def check_padding(padding: str, operators: str) -> None:
    """Checks --padding against the operators that were chosen.

    Raises:
        InputError: padding is to be removed, and there are no fused operators, or older ones.
    """
    if padding != REMOVE:
        return
    if operators != "fused":
        raise InputError(
            "--padding remove needs the fused CPU operators (make setup builds them), not --operators mxnet"
        )
    if not hasattr(mx.nd, "bert_unpack"):
        raise InputError(
            f"--padding remove: {LIBRARY} is older than this code and cannot; make setup builds it anew"
        )


def knows_form(form: str = "tanh") -> bool:
    """Whether the loaded library has this form of the activation, besides erf, and any number of token types:
    one built before the forms ignores the attribute, one before ReLU rejects it."""
    one = mx.nd.ones((1, 1))
    try:
        erf, other = (mx.nd.bert_bias_gelu(one, one[0], form=each).asscalar() for each in ("erf", form))
    except mx.MXNetError:
        return False
    return bool(erf != other)


def knows_words() -> bool:
    """Whether the loaded library has bert_words, and with it `deferred` of bert_decode_loss, `looked_up` of
    bert_embed and a bert_unread that passes the gradient of its first input on."""
    return hasattr(mx.nd, "bert_words")


def knows_split() -> bool:
    """Whether the loaded library multiplies bfloat16x3: one built before that rejects it."""
    try:
        mx.nd.bert_pack(mx.nd.ones((1, 1)), num_weights=1, dtype=BFLOAT16X3).wait_to_read()
    except mx.MXNetError:
        return False
    return True


def knows_squares() -> bool:
    """Whether the loaded library's layers count squares: one built before that ignores the attribute."""
    x, one = mx.nd.array([[1, 2]]), mx.nd.ones((1,))
    mode = mx.nd.ones((1,))
    mode.attach_grad()
    packed = mx.nd.bert_pack(x, num_weights=1, dtype="float32")
    with mx.autograd.record():
        y, *_ = mx.nd.bert_feed_forward(
            x, x, one, x.T, x[0], x[0], x[0], mode, packed, packed,
            dtype="float32", form="erf", dropout=0, eps=1, squares=1,
        )  # fmt: skip
    y.backward(x)
    return bool(mode.grad.asscalar() != 0)


def knows_packing_updates() -> bool:
    """Whether the loaded library's update writes packed copies: one built before that rejects them."""
    one, copy = mx.nd.ones((1, 1)), mx.nd.zeros((1,), dtype="uint8")
    flags = {"decayed": "0", "adapted": "0", "bias_correction": 0, "packed": "0", "packed_dtype": "float32"}
    return _updates([one, one, mx.nd.zeros((1, 1)), mx.nd.zeros((1, 1)), copy], flags)


def knows_bfloat16_moments() -> bool:
    """Whether the loaded library's update takes moments in bfloat16: one built before that rejects their
    type."""
    one, moment = mx.nd.ones((1,)), mx.nd.zeros((1, 2), dtype="uint8")
    flags = {"decayed": "0", "adapted": "0", "bias_correction": 0, "state": "bfloat16", "seed": 0}
    return _updates([one, one, moment, moment.copy()], flags)


def _updates(arrays: Sequence[mx.nd.NDArray], flags: Mapping[str, Any]) -> bool:
    """Whether the loaded library's update takes these."""
    numbers = {
        "t": 1,
        "lr": 0,
        "rescale": 1,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-6,
        "weight_decay": 0,
    }
    try:
        mx.nd.bert_lamb(*arrays, num_tensors=1, **flags, **numbers).wait_to_read()
    except mx.MXNetError:
        return False
    return True
