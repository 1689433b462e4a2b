"""A default for BytePS's launcher.

Unless BYTEPS_NUMA_ON=0 is set, bpslaunch ties ranks to cores. Its rule halves the cores of each NUMA node,
and for one rank of a worker a second time. Where nothing is left for a rank (one rank on fewer than 4 cores,
more ranks than half of the cores) it ends in an IndexError, while scheduler and servers wait for a worker
that never comes. BytePS's own files stay as they are: a line in .venv, which Python reads when it starts,
sets the variable for bpslaunch unless it is set.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

NAME = "bpslaunch_without_binding.pth"
# One line: the site module executes lines that begin with `import`, in every process of the environment. Only
# bpslaunch is affected, and it passes the variable on; one that is set stays.
LINE = (
    "import os, sys; "
    "os.path.basename((getattr(sys, 'argv', None) or [''])[0]) == 'bpslaunch' and "
    "os.environ.setdefault('BYTEPS_NUMA_ON', '0')\n"
)


def leave_ranks_unbound(venv: Path) -> Path:
    """Makes BYTEPS_NUMA_ON=0 the default of bpslaunch in `venv`, an environment of this Python; returns the
    file that does it."""
    version = ".".join(map(str, sys.version_info[:2]))
    target = venv / "lib" / f"python{version}" / "site-packages" / NAME
    temporary = target.with_suffix(".tmp")
    with open(temporary, "w", encoding="ascii") as file:
        file.write(LINE)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, target)
    return target
