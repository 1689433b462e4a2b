#!/usr/bin/env python3
"""Compare Horovod with BytePS, side by side, through the real training scripts.

    python compare.py                              on embedded English text, about 30 minutes on two cores
    python compare.py --backends hvd_mpi byteps --workers 2 --dtypes float32 --batch_sizes 1024
    python compare.py --raw --data 'corpus/*.txt' --vocab vocab.txt --model bert_12_768_12 \\
        --max_seq_length 128 --use_avg_len --batch_sizes 2048 4096 --hostfile hosts/4x_p3dn -- --dropout 0
    python compare.py --comm_only                  communication alone: start-up, 4 KB to 512 MB
    python compare.py --project                    throughput on 1 to 1024 GPUs, predicted
    python compare.py --emulate                    real exchanges between hosts emulated on this machine
    python compare.py --merge runs/old runs/new    reports of earlier comparisons, laid over each other

Every combination of backend, number of workers, dtype and batch size is launched --repeats times, in turns.
The results are compared before the times (losses, gradient norms, learning rates, tokens, final parameters):
a backend that computes something else is reported as wrong and gets no figures.
The report goes to --output as report.md, report.html, report.json and plots. Ctrl-C leaves a partial report,
and the same command continues; with --dry_run it only says what it would launch, and how long that takes.
"""

from __future__ import annotations

from base.errors import explain_missing

if __name__ == "__main__":
    explain_missing()  # a library that is not installed

import sys

from comparison.main import main
from training.entry import exit_code

if __name__ == "__main__":
    sys.exit(exit_code(lambda: main(sys.argv[1:], description=__doc__)))
