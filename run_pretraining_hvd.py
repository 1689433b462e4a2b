#!/usr/bin/env python3
"""Pretrain BERT with MXNet and GluonNLP; gradients travel through Horovod.

    mpirun -np 2 python run_pretraining_hvd.py --raw --data 'corpus/*.txt' --vocab vocab.txt \\
        --model bert_12_768_12 --max_seq_length 128 --batch_size 2048 --use_avg_len --ckpt_dir ckpt

Left-out --num_steps, --lr and --warmup_ratio follow the LAMB paper for the number of processes; hparams.py
prints them, and the mpirun command for a cluster. `horovodrun --gloo -np 2 python ...` starts the same run
without MPI.
"""

from __future__ import annotations

from base.errors import explain_missing
from training.stopping import end_at_signals

if __name__ == "__main__":
    explain_missing()  # a library that is not installed
    end_at_signals()  # until all is imported, which takes a second

import sys

from base.launchers import HVD
from comm.backends import open_communicator
from training.entry import exit_code
from training.pretraining import pretrain


def main() -> int:
    return pretrain(__doc__, HVD, open_communicator)


if __name__ == "__main__":
    sys.exit(exit_code(main, leaves=True))
