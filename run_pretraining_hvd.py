#!/usr/bin/env python3
"""Pretrain BERT with MXNet and GluonNLP; gradients travel through Horovod.

    mpirun -np 2 python run_pretraining_hvd.py --raw --data 'corpus/*.txt' --vocab vocab.txt \\
        --model bert_12_768_12 --max_seq_length 128 --batch_size 2048 --use_avg_len --ckpt_dir ckpt

Left-out --num_steps, --lr and --warmup_ratio follow the LAMB paper for the number of processes; hparams.py
prints them, and the mpirun command for a cluster. `horovodrun --gloo -np 2 python ...` starts the same run
without MPI.
"""

from __future__ import annotations

from training.stopping import end_at_signals

if __name__ == "__main__":
    end_at_signals()  # until all is imported, which takes a second

import os
import sys
from functools import partial

from base.launchers import HVD
from base.threads import set_threads
from comm.compression import horovod_settings, with_compression
from comm.options import communication_config
from training.config import stage_config
from training.entry import exit_code
from training.estimate import check_memory
from training.inputs import check_parts
from training.options import parse_options, stage_options
from training.pipeline.options import check_launch
from training.profiling.profiler import separate_operators


def main() -> int:
    options = parse_options(None, __doc__)
    check_launch(options.pipeline_stages, HVD, options.estimate, os.environ)
    communication = communication_config(options)
    parts = check_parts(map(stage_config, stage_options(options)))
    code = check_memory(parts, HVD, options.estimate)
    if code is not None:
        return code
    set_threads()  # before mxnet is imported below
    if options.profile:
        separate_operators()

    from comm.horovod import HorovodCommunicator
    from comm.watch.watchdog import watched
    from tasks.pretraining.task import Pretraining
    from training.run import train_stages

    backend = partial(HorovodCommunicator, **horovod_settings(communication))
    communicator = with_compression(watched(backend, communication.timeout), communication)
    code = train_stages(parts, Pretraining(), communicator)
    communicator.close()
    return code


if __name__ == "__main__":
    sys.exit(exit_code(main, leaves=True))
