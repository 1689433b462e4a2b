"""One of the two ranks that check Horovod: ``check_horovod.py mpi|gloo [nccl]``."""

from __future__ import annotations

import sys

import horovod.mxnet as hvd
import mxnet as mx


def main() -> None:
    """Sums a vector over the ranks and compares; exits non-zero with a reason when anything is wrong."""
    controller = sys.argv[1]
    hvd.init()
    built = {"mpi": hvd.mpi_built(), "gloo": hvd.gloo_built()}
    if "nccl" in sys.argv[2:]:
        built["nccl"] = hvd.nccl_built()
    lacking = [name for name, present in built.items() if not present]
    if lacking:
        sys.exit(f"Horovod was built without {', '.join(lacking)}")
    if not {"mpi": hvd.mpi_enabled, "gloo": hvd.gloo_enabled}[controller]():
        sys.exit(f"Horovod does not run over {controller}")
    if hvd.size() != 2:
        sys.exit(f"{hvd.size()} ranks instead of 2")
    # Before the sum: the first rank that leaves has Horovod end MPI on both, and a rank that still waited for
    # its message would crash.
    if controller == "mpi":
        _exchange_messages()
    vector = mx.nd.arange(1000) * (hvd.rank() + 1)
    total = hvd.allreduce(vector, op=hvd.Sum, name="check")
    if not (total == mx.nd.arange(1000) * 3).asnumpy().all():
        sys.exit("the sum over two ranks is wrong")
    hvd.shutdown()


def _exchange_messages() -> None:
    """Sends a vector to the other rank and receives its own, as pipelines do, over the MPI that Horovod has
    begun."""
    import mpi4py

    mpi4py.rc.initialize = mpi4py.rc.finalize = False
    from mpi4py import MPI

    if MPI.Query_thread() != MPI.THREAD_MULTIPLE:
        sys.exit("Horovod has begun MPI for one thread; pipelines need it for several")
    other, received = 1 - hvd.rank(), bytearray(1 << 20)
    request = MPI.COMM_WORLD.Irecv(received, other)
    MPI.COMM_WORLD.Send(bytes([hvd.rank()]) * len(received), other)
    request.Wait()
    if received != bytes([other]) * len(received):
        sys.exit("mpi4py brought another vector than the one sent")


if __name__ == "__main__":
    main()
