#!/usr/bin/env python
"""Start a run over BytePS on all hosts of a host file: scheduler, servers and workers.

    python hosts/launch_byteps.py --hostfile hosts/4x_p3dn -- python run_pretraining_byteps.py --ckpt_dir ckpt

A line of the host file, `name slots=N`, is a BytePS worker with N ranks, one for each of its GPUs; a host
that is listed twice runs two workers. A single line needs neither scheduler nor servers. Parts on this
machine are started directly, those on other hosts through ssh, which must ask for no password; every host has
this folder, its environment and the data at the same paths. Variables that are sent to other hosts: DMLC_*,
BYTEPS_*, PS_*, MXNET_*, NCCL_*, OMP_NUM_THREADS, PATH, PYTHONPATH, LD_LIBRARY_PATH, and those of --env.

Each line of output begins with its origin: [rank 3], [server 0], [scheduler]. SIGINT (Ctrl-C), SIGTERM and
SIGUSR1 are passed on to the ranks, which save a checkpoint after their step and end; a second Ctrl-C kills at
once. When a part fails, all others are ended, the last line names the first that failed, and its exit code
becomes the run's (128 + the number of a signal). Nothing outlives the launcher, however that ends.

Why not bpslaunch, BytePS's own launcher: it starts the parts of one host only, hands the command to a shell,
which expands what you had quoted, ties ranks to cores by a rule of its own (BYTEPS_NUMA_ON=0 prevents it),
and when a rank dies it leaves the others running.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    if not __package__:  # run as a script, Python looks for modules in hosts/ instead of one folder up
        sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from hosts.byteps_command import main

    sys.exit(main(__doc__))
