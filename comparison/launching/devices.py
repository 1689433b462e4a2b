"""What the training scripts will run on here, asked without importing MXNet into this process."""

from __future__ import annotations

import shutil
import subprocess
import sys

_QUESTION = "import mxnet; print('GPUs', mxnet.context.num_gpus())"
PATIENCE = 120.0  # seconds


def count_gpus() -> int:
    """GPUs that MXNet can use in this environment. Only where the driver is installed is MXNet asked."""
    if shutil.which("nvidia-smi") is None:
        return 0
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _QUESTION], capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return 0
    words = answer.stdout.split()
    return int(words[-1]) if answer.returncode == 0 and words[-2:-1] == ["GPUs"] else 0
