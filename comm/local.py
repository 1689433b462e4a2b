"""A run of one process: nothing to exchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

from comm.base import (
    AVERAGE_DTYPES,
    BROADCAST_DTYPES,
    Pending,
    Unwatched,
    check_arrays,
    check_groups,
    check_message,
    check_root,
)

if TYPE_CHECKING:
    from mxnet.nd import NDArray


class LocalCommunicator(Unwatched):
    """`comm.base.Communicator` for one process. It rejects the same arguments as the others do, so that a
    program which runs alone also runs on several ranks."""

    name = "local"
    rank, size = local_rank, local_size = 0, 1

    def broadcast(self, arrays: Sequence[NDArray], root: int = 0) -> None:
        check_root(root, self.size)
        check_arrays(arrays, BROADCAST_DTYPES)

    def average(self, arrays: Sequence[NDArray]) -> None:
        check_arrays(arrays, AVERAGE_DTYPES)

    def scaled_average(self, arrays: Sequence[NDArray]) -> float:
        self.average(arrays)
        return 1.0

    def all_agree(self, flags: Sequence[bool]) -> list[bool]:
        return [bool(flag) for flag in flags]

    def barrier(self) -> None:
        pass

    def groups(self, groups: Sequence[Sequence[int]]) -> LocalCommunicator:
        check_groups(groups, self.size)
        return LocalCommunicator()

    def send(self, array: NDArray, to: int, tag: int) -> Pending:
        check_message(to, tag, self.rank, self.size)
        raise AssertionError("one rank has no other")

    def receive(self, array: NDArray, source: int, tag: int) -> Pending:
        check_message(source, tag, self.rank, self.size)
        raise AssertionError("one rank has no other")

    def forget(self) -> None:
        pass

    def close(self) -> None:
        pass
