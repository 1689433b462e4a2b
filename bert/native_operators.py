"""Loads the fused CPU operators (native/operators), which then stand beside MXNet's own as F.bert_*."""

from __future__ import annotations

import ctypes
import os
import sys

import mxnet as mx

LIBRARY = os.path.join(sys.prefix, "lib", "libbert_operators.so")


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
    mx.library.load(path, verbose=False)
    return True
