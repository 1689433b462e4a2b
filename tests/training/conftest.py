from __future__ import annotations

import os

import pytest

from training import report


@pytest.fixture(scope="module", autouse=True)
def undrawn():
    """Leaves out the picture at the end of runs in this process, which takes longer than their steps.
    tests/tasks/test_another_task.py has a run that draws, test_report.py what is drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "plot_losses", lambda directory, panels: os.path.join(directory, "loss.png"))
        yield
