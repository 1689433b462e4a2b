"""The communicator of a backend."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable

from base.errors import InputError
from base.launchers import HVD, LOCAL
from comm.base import Communicator
from comm.options import CommunicationConfig


def open_communicator(
    backend: str, config: CommunicationConfig, asked: Callable[[], int | None] = lambda: None
) -> Communicator:
    """The communicator, watched and with compression where several processes are possible. MXNet is imported.
    `asked`: as for `comm.watch.watchdog.watched`.

    Raises:
        InputError: the backend's library cannot be loaded, or does not have the compression.
    """
    if backend == LOCAL:
        if config.compression != "none":
            raise InputError(
                f"--compression {config.compression}: one process exchanges nothing; leave it out"
            )
        from comm.local import LocalCommunicator

        return LocalCommunicator()
    from comm.compression import byteps_settings, horovod_settings, with_compression
    from comm.watch.watchdog import watched

    if backend == HVD:
        from comm.horovod import HorovodCommunicator

        made: Any = partial(HorovodCommunicator, **horovod_settings(config))
    else:
        from comm.byteps.communicator import BytePSCommunicator

        made = partial(BytePSCommunicator, **byteps_settings(config))
    return with_compression(watched(made, config.timeout, asked=asked), config)
