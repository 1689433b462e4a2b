"""A pretraining command: options and data checked, memory estimated, then the run over its communicator."""

from __future__ import annotations

import os
from typing import Callable

from base import notify
from base.threads import set_threads
from comm.base import Communicator
from comm.options import communication_config
from training.estimate import check_memory
from training.inputs import check_parts
from training.options import parse_options, stage_config, stage_options
from training.pipeline.options import check_launch
from training.profiling.profiler import separate_operators
from training.stopping import asked


def pretrain(description: str, backend: str, open_communicator: Callable[..., Communicator]) -> int:
    """Runs the command line of this process; every rank calls it. Returns the exit code of the process.

    Args:
        description: for --help.
        backend: the name of the exchange between the ranks, for `open_communicator`, which is that of
            comm/backends.py and imports MXNet.

    Raises:
        InputError: bad options or files.
        TrainingError: as `training.train.train_stages`.
    """
    options = parse_options(None, description)
    notify.appoint(options.notify)
    check_launch(options.pipeline_stages, backend, options.estimate, os.environ)
    communication = communication_config(options)
    parts = check_parts(map(stage_config, stage_options(options)))
    code = check_memory(parts, backend, options.estimate)
    if code is not None:
        return code
    set_threads()  # before mxnet is imported below
    if options.profile:
        separate_operators()

    from tasks.pretraining.task import Pretraining
    from training.train import train_stages

    communicator = open_communicator(backend, communication, asked)
    code = train_stages(parts, Pretraining(), communicator)
    communicator.close()
    return code
