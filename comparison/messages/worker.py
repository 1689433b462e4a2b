"""One rank of `python compare.py --comm_only`.

    python comparison/messages/worker.py horovod|byteps PLAN DIRECTORY

PLAN is a JSON file, see `comparison.messages.plan.worker_plan`; comparison/messages/rank.py is what
happens.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Run as a script, Python would find modules of comparison/ in place of its own `statistics`.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from comparison.messages.rank import main

    sys.exit(main(sys.argv[1:]))
