"""The fused CPU operators of native/operators, which once loaded stand beside MXNet's own as F.bert_*."""

from __future__ import annotations

import ctypes
import os

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.ndarray.register import _make_ndarray_function
from mxnet.symbol.register import _make_symbol_function

from base.errors import InputError
from base.machine import CPUINFO, has_amx
from bert.configuration import BFLOAT16X3, OPERATORS_LIBRARY

LIBRARY = OPERATORS_LIBRARY
PREFIX = "bert_"  # of the operators that blocks call
# A library with this one knows all attributes of the others; an older one ignores those it does not know.
NEWEST = "bert_muon"
_MULTIPLIES = "BERT_OPERATORS_BF16"  # the variable that says how bfloat16 is multiplied, for tests


def load_operators() -> bool:
    """Makes the operators known to MXNet; False where the library has not been built.

    Raises:
        InputError: the library is older than this code.
        mxnet.MXNetError: the library is there and cannot be used (the message says why).
    """
    if hasattr(mx.nd, "bert_bias_gelu"):
        return True
    if not os.path.exists(LIBRARY):
        return False
    # libmxnet.so contains an older oneDNN under the same names as the one our library is linked to, and
    # Horovod makes libmxnet's names global: our library must look into its own dependencies first.
    ctypes.CDLL(LIBRARY, mode=os.RTLD_NOW | os.RTLD_LOCAL | os.RTLD_DEEPBIND)
    check_call(_LIB.MXLoadLib(os.fsencode(LIBRARY), ctypes.c_uint(0)))
    _register()
    if not hasattr(mx.nd, NEWEST):
        raise InputError(
            f"{LIBRARY} is older than this code; make setup builds it anew "
            "(--operators mxnet does without it)"
        )
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


def choose_operators(wanted: str, dtype: str, device: mx.Context) -> str:
    """ "fused" or "mxnet", for --operators `wanted`; the fused operators are loaded then.

    Raises:
        InputError: what is wanted cannot be had, or bfloat16 without the fused operators, or bfloat16x3
            where it is no faster than float32; or as `load_operators`.
    """
    on_cpu = device.device_type == "cpu"
    fused = on_cpu and wanted != "mxnet" and load_operators()
    if wanted == "fused" and not fused:
        reason = "they have not been built (make setup builds them)" if on_cpu else "they are for CPUs"
        raise InputError(f"--operators fused: {reason}")
    if dtype in ("bfloat16", BFLOAT16X3) and not fused:
        reason = "make setup builds them; without --operators mxnet" if on_cpu else "on GPUs use float16"
        raise InputError(f"--dtype {dtype} needs the fused CPU operators: {reason}")
    if dtype == BFLOAT16X3 and _MULTIPLIES not in os.environ and not has_amx(CPUINFO):
        raise InputError(
            f"--dtype {BFLOAT16X3}: this processor has no AMX, and three products of bfloat16 take longer on "
            f"it than one of float32: use --dtype float32 ({_MULTIPLIES}=rounded computes it all the same, "
            "for tests)"
        )
    return "fused" if fused else "mxnet"


def check_fused(option: str, operators: str) -> None:
    """Raises InputError, naming the option that needs them, where `operators` are not the fused ones."""
    if operators != "fused":
        raise InputError(
            f"{option} needs the fused CPU operators (make setup builds them), not --operators mxnet"
        )
