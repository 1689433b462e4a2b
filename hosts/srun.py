#!/usr/bin/env python3
"""Remote shell over Slurm, for --ssh of hosts/launch.py inside an allocation: clusters often allow no ssh.

    srun.py HOST TEXT...     runs the text, a command for sh, on a node of this job, with this one's streams

The step shares the node's CPUs, memory and GPUs with others of the job (--overlap). Variables by which sbatch
describes the whole job would ask srun for as many tasks, and are left out. srun reports each code other than
0 on standard error, where it would be taken for the part's last words; so the code is always 0, and
hosts/supervise.py reports the part's own. Standard library only.
"""

from __future__ import annotations

import os
import re
import sys
from typing import NoReturn, Sequence

# Counts and shapes of the job, not of this step.
_OF_THE_JOB = re.compile(
    r"S(LURM|RUN)_(N(TASKS|PROCS|TASKS_PER_\w+)|CPUS_PER_\w+|TASKS_PER_NODE|GPUS_PER_TASK|TRES_PER_TASK|"
    r"MEM_PER_\w+|DISTRIBUTION|NNODES|JOB_NUM_NODES|CPU_BIND\w*|THREADS_PER_CORE|EXCLUSIVE)"
)
OPTIONS = (
    *("--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--cpu-bind=none", "--mpi=none"),
    *("--unbuffered", "--quiet", "--kill-on-bad-exit=0"),
)


def main(argv: Sequence[str]) -> NoReturn:
    """Becomes srun."""
    host, *words = argv
    environ = {name: value for name, value in os.environ.items() if not _OF_THE_JOB.fullmatch(name)}
    command = ["srun", *OPTIONS, f"--nodelist={host}", "sh", "-c", 'sh -c "$0"; exit 0', " ".join(words)]
    os.execvpe(command[0], command, environ)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("srun.py: write srun.py HOST TEXT")
    main(sys.argv[1:])
