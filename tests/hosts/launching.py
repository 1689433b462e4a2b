"""Words that start hosts/launch.py, up to its options."""

from __future__ import annotations

import sys

from tests.processes import ROOT

LAUNCH = [sys.executable, ROOT / "hosts" / "launch.py"]
HVD, BYTEPS = ([*LAUNCH, "--backend", backend] for backend in ("hvd", "byteps"))
