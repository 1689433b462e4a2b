"""The four calls of byteps.mxnet 0.2.5 that we use, without the faults of its Python side.

`byteps_declare_tensor` checks the return value of a C function that returns nothing (random errors), and
`byteps.mxnet.DistributedTrainer` writes a file `lr.s` into the working directory; neither is used.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

from base.errors import InputError, not_loaded
from comm.base import CommunicationError

if TYPE_CHECKING:
    from mxnet.nd import NDArray

# MXNet's EngineSyncFunc: void (*)(void* run_context, void* parameter).
_EngineFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class _Context(ctypes.Structure):
    """MXNet's Context, by which its engine chooses the worker that runs a function."""

    _fields_ = [("dev_type", ctypes.c_int32), ("dev_id", ctypes.c_int32)]


def check_gpu(cuda: bool, gpus: int, local_rank: int) -> None:
    """BytePS that is built with `cuda` takes the GPU of its local rank, also for arrays in the host's memory,
    and ends the process with a stack trace where that is missing.

    Raises:
        InputError: it is.
    """
    if cuda and local_rank >= gpus:
        raise InputError(
            f"BytePS is built for GPUs here, and there is none for local rank {local_rank} "
            f"(GPUs of this host: {gpus}); start a rank for each GPU, or run make setup CUDA=cpu for CPUs"
        )


class BytePSLibrary:
    """BytePS as loaded into this process. Raises InputError when it is not installed for MXNet."""

    def __init__(self) -> None:
        try:
            self._library = importlib.import_module("byteps.mxnet.ops").MXNET_LIB_CTYPES
        except (ImportError, OSError) as error:
            raise not_loaded("BytePS for MXNet", error) from error
        self._mx: Any = importlib.import_module("mxnet")
        self._library.byteps_mxnet_declare_tensor.restype = None
        self._callbacks: list[Any] = []

    def start(self, local_rank: int) -> None:
        """Joins the run; returns when the scheduler has seen all its workers and servers.

        Raises:
            InputError: BytePS is built for GPUs and this rank has none.
        """
        gpus = self._mx.context.num_gpus()
        check_gpu(self._mx.runtime.Features().is_enabled("CUDA"), gpus, local_rank)
        self._library.byteps_init()

    def stop(self) -> None:
        """Leaves the run; waits for all workers and servers."""
        self._library.byteps_shutdown()

    def declare(self, name: str, compressor: Mapping[str, str]) -> None:
        """Gives a name its number. All ranks declare the same names in the same order.

        compressor: BytePS's settings, such as {"compressor_type": "onebit"}; empty for none.
        """
        keys, values = _strings(compressor.keys()), _strings(compressor.values())
        self._library.byteps_mxnet_declare_tensor(name.encode(), ctypes.c_int(len(compressor)), keys, values)

    def push_pull(self, array: NDArray, name: str, priority: int) -> None:
        """Queues the replacement of `array` by its sum over the ranks. The first call with a name blocks
        until all ranks have made it: it carries the array to the servers once, for its size."""
        code = self._library.byteps_mxnet_push_pull_async(
            array.handle, name.encode(), ctypes.c_int(0), ctypes.c_int(priority), ctypes.c_bool(False)
        )
        if code:
            self._mx.base._LIB.MXGetLastError.restype = ctypes.c_char_p
            reason = self._mx.base._LIB.MXGetLastError().decode(errors="replace")
            raise CommunicationError(f"BytePS rejected {name}: {reason}")

    def hold(self, arrays: Sequence[NDArray]) -> Callable[[], None]:
        """Lets operators that are queued on `arrays` from now on wait for a call of the returned function."""
        released = threading.Event()

        def wait(context: Any, parameter: Any) -> None:
            released.wait()

        callback = _EngineFunction(wait)
        self._callbacks.append(callback)  # the engine calls it at some time: it must not be collected
        context = _Context(arrays[0].context.device_typeid, arrays[0].context.device_id)
        push = self._mx.base._LIB.MXEnginePushSyncND
        for array in arrays:  # one by one: the engine rejects two parts of one array
            handle = ctypes.byref(array.handle)
            code = push(callback, None, None, ctypes.byref(context), None, 0, handle, 1, None, 0, b"hold")
            self._mx.base.check_call(code)
        return released.set


def _strings(texts: Any) -> Any:
    encoded = [text.encode() for text in texts]
    return (ctypes.c_char_p * max(1, len(encoded)))(*encoded)
