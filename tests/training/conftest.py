from __future__ import annotations

import os

import pytest

from training import report
from training.finetuning import several


@pytest.fixture(scope="module", autouse=True)
def as_before():
    """Leaves variables and threads as they were: tests run scripts in this process, where others have
    imported MXNet. The picture at the end of a run, which takes longer than its steps, is left
    out: tests/tasks/test_another_task.py has a run that draws, test_report.py what is drawn."""
    environ = dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "plot_losses", lambda directory, panels: os.path.join(directory, "loss.png"))
        patch.setattr(several, "set_threads", lambda: 1)
        yield
    os.environ.clear()
    os.environ.update(environ)
